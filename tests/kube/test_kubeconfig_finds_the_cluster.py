import base64
import os

import msgspec
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from karpool.kube.config import kubeconfig
from karpool.kube.errors import ConfigError
from karpool.model import safe_yaml

NOWHERE = {}  # an environment without anything


def config(
    *,
    server="https://host:6443",
    cluster=None,
    user=None,
    context=None,
    current="dev",
    name="dev",
    users=True,
):
    return {
        "current-context": current,
        "contexts": [{"name": name, "context": {"cluster": "c", "user": "u", **(context or {})}}],
        "clusters": [{"name": "c", "cluster": {"server": server, **(cluster or {})}}],
        "users": [{"name": "u", "user": {"token": "secret-token"} if user is None else user}]
        if users
        else [],
    }


def written(directory, document, name="config"):
    path = directory / name
    path.write_text(yaml.safe_dump(document) if not isinstance(document, str) else document)
    return path


def load(directory, document, **options):
    return kubeconfig.load(written(directory, document), env=NOWHERE, **options)


def complaint(directory, document, **options):
    with pytest.raises(ConfigError) as caught:
        load(directory, document, **options)
    assert "secret" not in str(caught.value)
    return str(caught.value)


def test_the_current_context_is_followed_to_server_and_token(tmp_path):
    found = load(tmp_path, config(server="https://host:6443/k8s/", context={"namespace": "team"}))

    assert (found.name, found.server, found.namespace) == ("dev", "https://host:6443/k8s", "team")
    assert found.user.token == "secret-token"


def test_data_comes_before_files_and_files_are_relative_to_the_kubeconfig(tmp_path):
    data = base64.b64encode(b"PEM").decode()
    user = {"client-certificate": "pki/me.crt", "client-key": "/abs/me.key", "tokenFile": "token"}

    found = load(
        tmp_path,
        config(cluster={"certificate-authority": "x", "certificate-authority-data": data}, user=user),
    )

    assert found.ca.data == b"PEM"
    assert found.user.certificate.path == tmp_path / "pki/me.crt"
    assert str(found.user.key.path) == "/abs/me.key"
    assert found.user.token_file == tmp_path / "token"


def test_files_of_the_environment_are_merged_first_one_first(tmp_path):
    one = written(tmp_path, {"current-context": "", **config(current="", server="https://one")}, "one")
    two = config(current="b", server="https://two", user={"token": "other"})
    two["contexts"].append({"name": "b", "context": {"cluster": "c", "user": "u", "namespace": "n"}})
    second = written(tmp_path, two, "two")
    env = {"KUBECONFIG": f"{one}:{tmp_path}/missing:{second}"}

    found = kubeconfig.load(env=env)

    assert (found.name, found.server, found.namespace) == ("b", "https://one", "n")
    assert found.user.token == "secret-token"


def test_home_is_looked_at_when_nothing_else_is_given(tmp_path):
    (tmp_path / ".kube").mkdir()
    written(tmp_path / ".kube", config(server="https://home"))

    assert kubeconfig.load(env=NOWHERE, home=tmp_path).server == "https://home"


def test_a_pod_uses_its_service_account(tmp_path):
    for name, text in {"token": "t", "ca.crt": "PEM", "namespace": "karpool\n"}.items():
        (tmp_path / name).write_text(text)
    env = {"KUBERNETES_SERVICE_HOST": "fd00::1", "KUBERNETES_SERVICE_PORT": "443"}

    found = kubeconfig.load(env=env, home=tmp_path / "none", service_account=tmp_path)

    assert (found.server, found.namespace) == ("https://[fd00::1]:443", "karpool")
    assert found.user.token_file == tmp_path / "token"


def test_a_pod_without_token_says_what_to_set(tmp_path):
    with pytest.raises(ConfigError, match="automountServiceAccountToken"):
        kubeconfig.load(
            env={"KUBERNETES_SERVICE_HOST": "x"}, home=tmp_path / "none", service_account=tmp_path
        )


def test_nothing_found_says_where_it_looked(tmp_path):
    with pytest.raises(ConfigError, match=r"tried .*\.kube/config.*use --kubeconfig or set KUBECONFIG"):
        kubeconfig.load(env=NOWHERE, home=tmp_path)


def test_a_missing_explicit_file_is_named(tmp_path):
    with pytest.raises(ConfigError, match=r"nope does not exist; check --kubeconfig"):
        kubeconfig.load(tmp_path / "nope", env=NOWHERE)


@pytest.mark.parametrize("name", ["/dev/zero", "pipe", "."], ids=["device", "pipe", "folder"])
def test_what_is_no_file_is_said_to_be_none(tmp_path, name):
    os.mkfifo(tmp_path / "pipe")
    path = tmp_path / name
    for read in (kubeconfig.load, kubeconfig.contexts, kubeconfig.load_contexts):
        with pytest.raises(ConfigError, match=r"is a device, pipe or directory, not a file; check --kubec"):
            read(path)


def test_missing_credentials_name_cluster_context_and_way_out(tmp_path):
    document = config(context={"user": ""}, name="prod-eu", current="prod-eu")

    assert complaint(tmp_path, document, cluster="member-3") == (
        'cluster member-3: kubeconfig context "prod-eu" has no credentials; add a user or use --kubeconfig'
    )


@pytest.mark.parametrize(
    ("document", "options", "words"),
    [
        pytest.param({"kind": "Config"}, {}, "holds no contexts; check --kubeconfig", id="nothing"),
        pytest.param(config(current=""), {}, "no current context (there are: dev); use --context", id="none"),
        pytest.param(config(), {"context": "x"}, 'context "x" does not exist (there are: dev)', id="unknown"),
        pytest.param(config(context={"cluster": ""}), {}, "names no cluster", id="no cluster"),
        pytest.param(config(context={"cluster": "z"}), {}, 'cluster "z" does not exist', id="bad cluster"),
        pytest.param(config(users=False), {}, 'user "u" does not exist', id="unknown user"),
        pytest.param(config(user={}), {}, 'user "u" is empty', id="empty user"),
        pytest.param(config(user={"auth-provider": {"name": "gcp"}}), {}, "exec plugin", id="auth-provider"),
        pytest.param(config(user={"client-certificate": "a"}), {}, "client-key is missing", id="no key"),
        pytest.param(config(server=""), {}, "is not an address", id="no server"),
        pytest.param(config(server="ftp://x"), {}, "is not an address", id="scheme"),
        pytest.param(config(server="https://x:port"), {}, "is not an address", id="port"),
        pytest.param(config(server="https://u:secret@x"), {}, "contains a user name", id="userinfo"),
        pytest.param(config(server="http://10.0.0.1"), {}, "unencrypted; use https", id="plaintext"),
        pytest.param(config(server="http://127.0.0.1.example.com"), {}, "unencrypted", id="looks local"),
        pytest.param(config(cluster={"proxy-url": "socks://secret:secret@p"}), {}, "proxy-url", id="proxy"),
        pytest.param(
            config(cluster={"insecure-skip-tls-verify": True, "certificate-authority": "x"}),
            {},
            "remove one",
            id="insecure with CA",
        ),
        pytest.param(
            config(cluster={"certificate-authority-data": "%%%"}), {}, "is not base64", id="not base64"
        ),
        pytest.param(config(user={"token": "secret\r\nX: y"}), {}, "line break", id="header injection"),
        pytest.param("contexts: 7", {}, "Expected `array", id="wrong shape"),
        pytest.param("{", {}, "line", id="not YAML"),
        pytest.param("a: 1\n---\nb: 2", {}, "2 documents", id="several documents"),
        pytest.param(
            "!!python/object:os.system {}", {}, "could not determine a constructor", id="object tag"
        ),
    ],
)
def test_what_is_wrong_is_said(tmp_path, document, options, words):
    assert words in complaint(tmp_path, document, **options)


def test_a_local_proxy_needs_no_credentials(tmp_path):
    found = load(tmp_path, config(server="http://127.0.0.1:8001", context={"user": ""}))

    assert found.user.anonymous


@pytest.mark.parametrize("host", ["127.0.0.1", "127.9.9.9", "[::1]", "localhost"])
def test_credentials_may_go_unencrypted_to_this_machine(tmp_path, host):
    assert load(tmp_path, config(server=f"http://{host}:8001")).user.token == "secret-token"


def test_nulls_mean_absent(tmp_path):
    found = load(tmp_path, config(user={"token": "t", "exec": None, "as": None}, cluster={"proxy-url": None}))

    assert found.user.token == "t"


def test_impersonation_is_not_ignored(tmp_path):
    user = {"token": "t", "as": "jane", "as-groups": ["a", "b"], "as-user-extra": {"Scope": ["x"]}}

    assert load(tmp_path, config(user=user)).user.impersonate == (
        ("impersonate-user", "jane"),
        ("impersonate-group", "a"),
        ("impersonate-group", "b"),
        ("impersonate-extra-scope", "x"),
    )


def test_representations_hide_secrets(tmp_path):
    user = {
        "token": "secret",
        "password": "secret",
        "username": "me",
        "client-key-data": "c2VjcmV0",
        "client-certificate-data": "eA==",
    }
    found = load(tmp_path, config(user=user, cluster={"proxy-url": "http://u:secret@p"}))

    assert "secret" not in repr(found)


def test_an_oversized_file_is_refused(tmp_path):
    path = tmp_path / "config"
    with path.open("wb") as file:
        file.truncate(9 * 1024 * 1024)

    with pytest.raises(ConfigError, match="larger than"):
        kubeconfig.load(path, env=NOWHERE)


# YAML


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("2026-01-01T00:00:00Z", "2026-01-01T00:00:00Z"),
        ("2026-01-01", "2026-01-01"),
        ("12:30:45", "12:30:45"),
        ("0644", 420),
        ("0o17", 15),
        ("0x1F", 31),
        ("-17", -17),
        ("1e3", 1000.0),
        ("1.5", 1.5),
        ("yes", True),
        ("500m", "500m"),
        ("1Gi", "1Gi"),
        ("=", "="),
        ("~", None),
    ],
)
def test_scalars_are_read_as_kubernetes_reads_them(text, value):
    (document,) = safe_yaml.load_documents(f"a: {text}".encode())

    assert document["a"] == value
    assert type(document["a"]) is type(value)


@pytest.mark.parametrize(
    "text",
    [
        pytest.param(
            "a0: &a0 [x,x,x,x,x,x,x,x,x,x]\n"
            + "".join(f"a{i}: &a{i} [{','.join([f'*a{i - 1}'] * 10)}]\n" for i in range(1, 12)),
            id="billion laughs",
        ),
        pytest.param("a: &a [*a]", id="recursive alias"),
        pytest.param("[" * 50_000, id="deep"),
        pytest.param("a: " + "9" * 100_000, id="huge integer"),
        pytest.param("? {a: 1}\n: 2", id="mapping as key"),
        pytest.param("\x00", id="control character"),
        pytest.param("a: !!binary eA==", id="binary"),
        pytest.param("a: !!timestamp 2026-01-01", id="date"),
        pytest.param("!!set {a}", id="set"),
    ],
)
def test_hostile_yaml_is_refused(text):
    with pytest.raises(safe_yaml.UnusableYaml):
        list(safe_yaml.load_documents(text.encode()))


@given(st.binary(max_size=200))
def test_any_bytes_are_yaml_or_unusable(data):
    try:
        documents = list(safe_yaml.load_documents(data))
    except safe_yaml.UnusableYaml:
        return
    assert None not in documents


# YAML forbids control characters that JSON allows; Kubernetes has no use for them.
VISIBLE = st.text(st.characters(categories=["L", "N", "P", "S", "Zs"]), max_size=10)


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | VISIBLE,
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(VISIBLE, inner, max_size=3),
        max_leaves=10,
    ).filter(lambda value: value is not None)
)
def test_json_is_yaml(value):
    (document,) = safe_yaml.load_documents(msgspec.json.encode(value))

    assert document == value
