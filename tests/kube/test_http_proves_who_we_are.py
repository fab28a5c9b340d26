"""Against a real HTTPS server: certificates, tokens, plugins, rotation."""

import asyncio
import base64
import datetime
import os
import stat
import sys
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest
import yaml
from aiohttp import web

from karpool.kube.api.client import Client
from karpool.kube.config.exec_plugin import run_plugin
from karpool.kube.config.kubeconfig import ClusterConfig, DataOrFile, KubeUser, load, load_contexts
from karpool.kube.config.kubeconfig_file import ExecEnv, ExecSpec
from karpool.kube.errors import ApiUnreachable, ConfigError, Denied, Rejected, ServerFault
from karpool.kube.transport.http import HttpTransport, _proxy_of_environment
from karpool.kube.transport.rest import NEVER
from karpool.kube.transport_interface import HttpRequest
from karpool.model.kubernetes.api_resources import PODS
from karpool.model.kubernetes.times import rfc3339
from karpool_fleet.clusters.clock import EPOCH
from tests.kube.loopback import AUTHORITY, serving
from tests.kube.pki import Authority
from tests.kube.tiny_server import line


class SettableClock:
    """Time that stands still until moved; waiting is real."""

    def __init__(self):
        self.time = 0.0

    def now(self):
        return EPOCH + self.time

    def monotonic(self):
        return self.time

    async def sleep(self, seconds):
        await asyncio.sleep(seconds)


def config_of(server, user=None, **fields):
    settings = {"ca": DataOrFile(data=AUTHORITY.pem)} if server.url.startswith("https") else {}
    return ClusterConfig(
        "test", server.url, user=user or KubeUser(token="secret-token"), **{**settings, **fields}
    )


def client_of(server, user=None, clock=None, **fields):
    clock = clock or SettableClock()
    return Client(HttpTransport(config_of(server, user, **fields), clock, env={}), clock, retry=NEVER)


def pair_of(name, authority=AUTHORITY):
    pair = authority.issue(name)
    return {"certificate": DataOrFile(data=pair.certificate), "key": DataOrFile(data=pair.key)}


# Tokens


async def test_a_token_is_sent_and_one_connection_serves_many_requests():
    async with serving(AUTHORITY) as server, client_of(server) as client:
        for _ in range(5):
            await client.server_version()

        assert set(server.authorizations) == {"Bearer secret-token"}
        assert len(server.connections) == 1


async def test_a_password_is_sent_as_basic_authentication():
    user = KubeUser(username="me", password="secret")
    async with serving(AUTHORITY) as server, client_of(server, user) as client:
        await client.server_version()

        assert server.authorizations == ["Basic bWU6c2VjcmV0"]


async def test_a_rotated_token_file_is_noticed(tmp_path):
    path = tmp_path / "token"
    path.write_text("first\n")
    async with serving(AUTHORITY) as server, client_of(server, KubeUser(token_file=path)) as client:
        await client.server_version()
        fresh = tmp_path / "fresh"
        fresh.write_text("second\n")
        fresh.replace(path)  # as kubelet does it
        await client.server_version()
        path.unlink()
        await client.server_version()

        assert server.authorizations == ["Bearer first", "Bearer second", "Bearer second"]


def kubeconfig_of(path, server, token):
    """Written as kubelet writes a Secret: in place of the one before."""
    certificate = base64.b64encode(AUTHORITY.pem).decode()
    cluster = {"server": server, "certificate-authority-data": certificate}
    config = {
        "clusters": [{"name": "c", "cluster": cluster}],
        "users": [{"name": "u", "user": {"token": token}}],
        "contexts": [{"name": "north", "context": {"cluster": "c", "user": "u"}}],
        "current-context": "north",
    }
    fresh = path.with_name("fresh")
    fresh.write_text(yaml.safe_dump(config))
    fresh.replace(path)


@pytest.mark.parametrize("read", [load, lambda path: load_contexts(path)[0]], ids=["one", "a fleet"])
async def test_a_token_that_is_renewed_inside_a_kubeconfig_counts_with_the_next_request(tmp_path, read):
    path, clock = tmp_path / "kubeconfig", SettableClock()
    async with serving(AUTHORITY) as server:
        kubeconfig_of(path, server.url, "first")
        async with Client(HttpTransport(read(path), clock, env={}), clock, retry=NEVER) as client:
            await client.server_version()
            kubeconfig_of(path, server.url, "second")
            await client.server_version()
            path.write_text("{")  # half written
            await client.server_version()
            kubeconfig_of(path, "https://elsewhere:6443", "for somebody else")
            await client.server_version()
            path.unlink()
            await client.server_version()
            kubeconfig_of(path, server.url, "third")
            await client.server_version()

            assert server.authorizations == [
                f"Bearer {token}" for token in ("first", "second", "second", "second", "second", "third")
            ]


async def test_a_token_file_with_an_unchanged_time_stamp_is_read_again_after_a_minute(tmp_path):
    path = tmp_path / "token"
    path.write_text("first")
    before = path.stat()
    clock = SettableClock()
    async with serving(AUTHORITY) as server, client_of(server, KubeUser(token_file=path), clock) as client:
        await client.server_version()
        path.write_text("other")
        os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
        clock.time = 59
        await client.server_version()
        clock.time = 61
        await client.server_version()

        assert server.authorizations == ["Bearer first", "Bearer first", "Bearer other"]


@pytest.mark.parametrize("content", ["", "  \n", "line\nbreak", "caf\N{LATIN SMALL LETTER E WITH ACUTE}"])
async def test_a_file_without_a_token_is_named(tmp_path, content):
    path = tmp_path / "token"
    path.write_text(content)
    async with serving(AUTHORITY) as server, client_of(server, KubeUser(token_file=path)) as client:
        with pytest.raises(ConfigError, match=r"token does not contain a token"):
            await client.server_version()


async def test_impersonation_headers_repeat():
    user = KubeUser(token="t", impersonate=(("impersonate-group", "a"), ("impersonate-group", "b")))
    async with serving(AUTHORITY) as server, client_of(server, user) as client:
        await client.server_version()

        assert server.calls[0][2].headers.getall("impersonate-group") == ["a", "b"]


# Certificates


async def test_a_client_certificate_is_shown_and_one_is_required():
    async with serving(AUTHORITY, client_ca=AUTHORITY.pem, require_client=True) as server:
        async with client_of(server, KubeUser(**pair_of("jane"))) as client:
            await client.server_version()
        async with client_of(server) as nobody:
            with pytest.raises(ApiUnreachable):
                await nobody.server_version()

        assert server.names == ["jane"]


async def test_a_client_certificate_of_a_stranger_is_refused():
    async with (
        serving(AUTHORITY, client_ca=AUTHORITY.pem, require_client=True) as server,
        client_of(server, KubeUser(**pair_of("jane", Authority("stranger")))) as client,
    ):
        with pytest.raises(ApiUnreachable):
            await client.server_version()


async def test_replaced_certificate_files_are_used_for_new_connections(tmp_path):
    def write(name):
        pair = AUTHORITY.issue(name)
        (tmp_path / "tls.crt").write_bytes(pair.certificate)
        (tmp_path / "tls.key").write_bytes(pair.key)

    write("old")
    user = KubeUser(
        certificate=DataOrFile(path=tmp_path / "tls.crt"), key=DataOrFile(path=tmp_path / "tls.key")
    )
    async with (
        serving(AUTHORITY, client_ca=AUTHORITY.pem, require_client=True) as server,
        client_of(server, user) as client,
    ):
        await client.server_version()
        write("new")
        await client.server_version()

        assert server.names == ["old", "new"]


YESTERDAY = datetime.datetime(2021, 1, 1, tzinfo=datetime.UTC)


@pytest.mark.parametrize(
    ("pair", "words"),
    [
        pytest.param(
            Authority("other").issue("s", hosts=["127.0.0.1"]), "unable to get local issuer", id="CA"
        ),
        pytest.param(AUTHORITY.issue("s", hosts=["other.example"]), "IP address mismatch", id="wrong name"),
        pytest.param(AUTHORITY.issue("s", hosts=["127.0.0.1"], end=YESTERDAY), "expired", id="expired"),
    ],
)
async def test_a_server_that_cannot_prove_itself_gets_no_token(pair, words):
    async with serving(pair=pair) as server, client_of(server) as client:
        with pytest.raises(ApiUnreachable, match=words) as caught:
            await client.server_version()

        assert "certificate not accepted" in str(caught.value)
        assert not caught.value.sent
        assert server.calls == []


async def test_tls_server_name_stands_in_for_the_address():
    pair = AUTHORITY.issue("s", hosts=["api.internal"])
    async with serving(pair=pair) as server, client_of(server, tls_server_name="api.internal") as client:
        assert await client.server_version() == "v1.34.0"


async def test_verification_can_be_switched_off_by_the_kubeconfig():
    pair = Authority("other").issue("s", hosts=["elsewhere"])
    async with serving(pair=pair) as server, client_of(server, ca=DataOrFile(), insecure=True) as client:
        assert await client.server_version() == "v1.34.0"


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"ca": DataOrFile(data=b"nonsense")}, "certificate authority is not a PEM"),
        (
            {"user": KubeUser(certificate=DataOrFile(data=b"x"), key=DataOrFile(data=b"y"))},
            "not a matching, unencrypted",
        ),
        ({"ca": DataOrFile(path=Path("/nonexistent/ca.crt"))}, "/nonexistent/ca.crt: No such"),
    ],
)
async def test_unusable_certificates_are_a_matter_of_configuration(fields, words):
    async with serving(AUTHORITY) as server:
        config = replace(config_of(server), **fields)
        transport = HttpTransport(config, SettableClock(), env={})
        with pytest.raises(ConfigError, match=words):
            await transport.request(HttpRequest("GET", "/version"))
        await transport.close()


async def test_no_certificate_is_left_on_disk(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    async with serving(AUTHORITY) as server, client_of(server, KubeUser(**pair_of("jane"))) as client:
        await client.server_version()

        assert list(tmp_path.iterdir()) == []


# Exec plugins

PLUGIN = """#!{python}
import json, os, sys
info = json.loads(os.environ["KUBERNETES_EXEC_INFO"])
count = len(open({log!r}).readlines()) if os.path.exists({log!r}) else 0
with open({log!r}, "a") as file:
    file.write(json.dumps({{"info": info, "args": sys.argv[1:], "extra": os.environ.get("EXTRA")}}) + "\\n")
{body}
"""


def plugin_of(tmp_path, body, **fields):
    """An executable that notes how it was called and then does `body`; `count` says how often before."""
    log = tmp_path / "calls"
    script = tmp_path / "plugin"
    script.write_text(PLUGIN.format(python=sys.executable, log=str(log), body=body))
    script.chmod(script.stat().st_mode | stat.S_IXUSR)
    settings = {"api_version": "client.authentication.k8s.io/v1", "interactive_mode": "Never", **fields}
    return KubeUser(plugin=ExecSpec(command="./plugin", **settings), plugin_directory=tmp_path), log


def answer(version="v1", **status):
    body = {
        "apiVersion": f"client.authentication.k8s.io/{version}",
        "kind": "ExecCredential",
        "status": status,
    }
    return f"print(json.dumps({body!r}).replace('COUNT', str(count)))"


def calls(log):
    return [msgspec.json.decode(splitline) for splitline in log.read_bytes().splitlines()]


@pytest.mark.parametrize("version", ["v1", "v1beta1"])
async def test_a_plugin_is_asked_once_and_its_token_used(tmp_path, version):
    user, log = plugin_of(
        tmp_path,
        answer(version, token="token-COUNT"),
        api_version=f"client.authentication.k8s.io/{version}",
        args=["get", "--x"],
        env=[ExecEnv("EXTRA", "value")],
    )
    async with serving(AUTHORITY) as server, client_of(server, user) as client:
        await asyncio.gather(*(client.server_version() for _ in range(10)))

        assert set(server.authorizations) == {"Bearer token-0"}
    (call,) = calls(log)
    assert (call["args"], call["extra"]) == (["get", "--x"], "value")
    assert call["info"]["apiVersion"].endswith(version)
    assert call["info"]["spec"] == {"interactive": False}


async def test_a_plugin_is_told_of_the_cluster_when_it_asks(tmp_path):
    user, log = plugin_of(tmp_path, answer(token="t"), provide_cluster_info=True)
    async with (
        serving(AUTHORITY) as server,
        client_of(server, user, exec_config={"audience": "x"}, tls_server_name="localhost") as client,
    ):
        await client.server_version()

        told = calls(log)[0]["info"]["spec"]["cluster"]
        assert told["server"] == server.url
        assert told["config"] == {"audience": "x"}
        assert told["tls-server-name"] == "localhost"
        assert told["certificate-authority-data"]


async def test_an_expired_answer_is_asked_for_again(tmp_path):
    end = rfc3339(EPOCH + 100)
    user, _ = plugin_of(tmp_path, answer(token="token-COUNT", expirationTimestamp=end))
    clock = SettableClock()
    async with serving(AUTHORITY) as server, client_of(server, user, clock) as client:
        await client.server_version()
        clock.time = 80
        await client.server_version()
        clock.time = 95
        await client.server_version()

        assert server.authorizations == ["Bearer token-0", "Bearer token-0", "Bearer token-1"]


async def test_a_refused_token_is_replaced_once(tmp_path):
    user, _ = plugin_of(tmp_path, answer(token="token-COUNT"))
    async with serving(AUTHORITY) as server, client_of(server, user) as client:
        server.accepts = lambda authorization: authorization == "Bearer token-1"
        await client.server_version()
        server.accepts = lambda authorization: False
        with pytest.raises(Denied):
            await client.server_version()

        expected = ["Bearer token-0", "Bearer token-1", "Bearer token-1", "Bearer token-2"]
        assert server.authorizations == expected


async def test_a_plugin_may_answer_with_a_certificate(tmp_path):
    pair = AUTHORITY.issue("from-plugin")
    body = answer(clientCertificateData=pair.certificate.decode(), clientKeyData=pair.key.decode())
    user, _ = plugin_of(tmp_path, body)
    async with (
        serving(AUTHORITY, client_ca=AUTHORITY.pem, require_client=True) as server,
        client_of(server, user) as client,
    ):
        await client.server_version()

        assert server.names == ["from-plugin"]


@pytest.mark.parametrize(
    ("body", "fields", "words"),
    [
        pytest.param("sys.exit('not logged in')", {}, "exit code 1: not logged in", id="exit code"),
        pytest.param("print('secret-token')", {}, "did not print an ExecCredential", id="not JSON"),
        pytest.param(answer(), {}, "without a token", id="empty"),
        pytest.param(answer("v1beta1", token="secret"), {}, "make them the same", id="other version"),
        pytest.param(answer(clientCertificateData="x"), {}, "only one of", id="half a pair"),
        pytest.param(answer(token="a\nb"), {}, "cannot be put into a header", id="header injection"),
        pytest.param(answer(token="t", expirationTimestamp="soon"), {}, "is not a time", id="bad time"),
        pytest.param("print('x' * 3_000_000)", {}, "printed more than", id="flood"),
        pytest.param("", {"interactive_mode": "Always"}, "needs a terminal", id="interactive"),
        pytest.param("", {"interactive_mode": "Perhaps"}, "must be Never", id="unknown mode"),
        pytest.param("", {"api_version": "client.authentication.k8s.io/v1alpha1"}, "not supported", id="old"),
    ],
)
async def test_a_plugin_that_cannot_help_is_named_without_its_output(tmp_path, body, fields, words):
    user, _ = plugin_of(tmp_path, body, **fields)
    async with serving(AUTHORITY) as server, client_of(server, user) as client:
        with pytest.raises(ConfigError, match=words) as caught:
            await client.server_version()

        assert "exec plugin './plugin'" in str(caught.value)
        assert "secret" not in str(caught.value)


async def test_a_missing_plugin_comes_with_its_hint(tmp_path):
    plugin = ExecSpec(
        command="no-such-plugin",
        api_version="client.authentication.k8s.io/v1",
        install_hint="install it with: get plugin",
    )
    async with serving(AUTHORITY) as server, client_of(server, KubeUser(plugin=plugin)) as client:
        with pytest.raises(ConfigError, match=r"cannot be started: .*; install it with: get plugin"):
            await client.server_version()


async def test_a_hanging_plugin_is_ended(tmp_path):
    user, _ = plugin_of(tmp_path, "import time\ntime.sleep(1000)")
    config = ClusterConfig("test", "https://x", user=user)

    with pytest.raises(ConfigError, match="no answer within"):
        await run_plugin(config, timeout=0.05)


# The wire


async def test_answers_are_asked_for_unpacked_and_cut_connections_are_unreachable():
    async with serving(AUTHORITY) as server, client_of(server) as client:
        await client.server_version()
        assert server.calls[0][2].headers["accept-encoding"] == "identity"
        assert server.calls[0][2].headers["user-agent"].startswith("karpool/")

        async def cut(request):
            request.transport.close()
            return web.Response()

        server.handler = cut
        with pytest.raises(ApiUnreachable) as caught:
            await client.server_version()
        assert caught.value.sent


async def test_nobody_listening_means_nothing_was_sent():
    async with serving() as server:
        url = server.url
    client = Client(HttpTransport(ClusterConfig("test", url), env={}), retry=NEVER)
    with pytest.raises(ApiUnreachable, match="no connection") as caught:
        await client.server_version()
    await client.close()

    assert not caught.value.sent


async def test_redirects_are_not_followed():
    async with serving(AUTHORITY) as server, client_of(server) as client:

        async def redirect(request):
            return web.Response(status=302, headers={"location": "http://127.0.0.1:1/elsewhere"})

        server.handler = redirect
        with pytest.raises(Rejected, match="302"):
            await client.server_version()

        assert len(server.calls) == 1


async def test_a_path_prefix_and_odd_names_reach_the_server():
    async with serving(AUTHORITY) as server:
        config = replace(config_of(server), server=server.url + "/k8s/c-1")
        async with Client(HttpTransport(config, env={}), retry=NEVER) as client:
            await client.get(PODS, "system:a b", namespace="default")

        assert server.calls[0][2].path == "/k8s/c-1/api/v1/namespaces/default/pods/system:a b"


async def test_a_watch_streams_over_http():
    async with serving(AUTHORITY) as server, client_of(server) as client:

        async def stream(request):
            response = web.StreamResponse()
            await response.prepare(request)
            for number in range(3):
                event = line("ADDED", {"metadata": {"name": f"p{number}", "resourceVersion": str(number)}})
                await response.write(event[:20])
                await response.write(event[20:])
            await response.write_eof()
            return response

        server.handler = stream
        names = []
        async for event in client.watch(PODS, "1", into=dict):
            names.append(event.key.name)
            if len(names) == 3:
                break

        assert names == ["p0", "p1", "p2"]


async def test_a_closed_transport_says_so():
    async with serving(AUTHORITY) as server:
        client = client_of(server)
        await client.server_version()
        await client.close()

        with pytest.raises(ApiUnreachable, match="has been closed"):
            await client.server_version()


@pytest.mark.parametrize(
    ("server", "env", "proxy"),
    [
        ("https://api.example", {"HTTPS_PROXY": "http://p:1"}, "http://p:1"),
        ("https://api.example", {"https_proxy": "http://p:1", "NO_PROXY": "example"}, ""),
        ("https://api.example", {"HTTPS_PROXY": "http://p:1", "no_proxy": ".other,*"}, ""),
        ("https://10.1.2.3:6443", {"HTTPS_PROXY": "http://p:1", "NO_PROXY": "10.0.0.0/8"}, ""),
        ("https://10.1.2.3:6443", {"HTTPS_PROXY": "http://p:1", "NO_PROXY": "11.0.0.0/8"}, "http://p:1"),
        ("http://api.example", {"HTTPS_PROXY": "http://p:1"}, ""),
    ],
)
def test_the_environments_proxy_is_honoured(server, env, proxy):
    assert _proxy_of_environment(server, env) == proxy


# Secrets

CANARY = "canary-7f3a"


async def test_no_secret_shows_in_any_error_or_log_line(caplog, capsys):
    caplog.set_level(0)
    said = []
    user = KubeUser(token=CANARY, password=CANARY)
    proxied = f"http://user:{CANARY}@127.0.0.1:1"
    async with serving(AUTHORITY) as server:
        server.accepts = lambda authorization: False
        async with client_of(server, user) as client:
            with pytest.raises(Denied) as caught:
                await client.server_version()
            said += [caught.value, caught.value.message]

            async def echo(request):
                return web.Response(status=500, text=f"<html>{dict(request.headers)}</html>")

            server.accepts, server.handler = (lambda authorization: True), echo
            with pytest.raises(ServerFault) as fault:
                await client.server_version()
            said.append(fault.value)
        async with client_of(server, user, proxy_url=proxied) as client:
            with pytest.raises(ApiUnreachable) as unreachable:
                await client.server_version()
            said += [unreachable.value, config_of(server, user, proxy_url=proxied), user]

    printed = capsys.readouterr()
    everything = " ".join([*map(str, said), *map(repr, said), caplog.text, printed.out, printed.err])
    assert "[redacted]" in everything
    assert CANARY not in everything
