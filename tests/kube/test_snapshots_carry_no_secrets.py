"""Snapshots: complete or absent, readable or refused with a reason, and never telling."""

import gzip
import os
import stat

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from karpool.cluster.kinds import ALL_KINDS
from karpool.kube.errors import ApiUnreachable, Denied, SnapshotError
from karpool.kube.snapshots.reader import ObjectFile, read_objects
from karpool.kube.snapshots.redaction import REDACTED, redact
from karpool.kube.snapshots.writer import SAVED_KINDS, take_snapshot
from karpool.kube.transport.rest import RetryPolicy
from tests.kube.tiny_server import Fault, TinyServer, answer, status
from tests.kube.virtual import client_of, virtually

CANARY = "canary-51c2"
PODS_OF = "/api/v1/namespaces/default/pods"


def server_version(request):
    return Fault(response=answer(200, {"gitVersion": "v1.34.0"})) if request.path == "/version" else None


def small_cluster():
    server = TinyServer()
    server.fault = server_version
    server.put("/api/v1/nodes/n1", status={"allocatable": {"cpu": "4"}})
    for number in range(3):
        server.put(f"{PODS_OF}/p{number}", spec={"nodeName": "n1"})
    return server


def take(server, path, **settings):
    async def scenario():
        client = client_of(server, name="member-1", retry=RetryPolicy(attempts=1))
        return await take_snapshot(client, path, context="prod", **settings)

    return virtually(scenario())


def test_what_is_written_is_read_back(tmp_path):
    summary = take(small_cluster(), tmp_path / "s.gz")

    file = ObjectFile(tmp_path / "s.gz")
    objects = list(file.objects())

    assert summary.counts["pods"] == 3
    assert (file.header.cluster, file.header.context, file.header.server_version) == (
        "member-1",
        "prod",
        "v1.34.0",
    )
    assert [(o["kind"], o["apiVersion"], o["metadata"]["name"]) for o in objects] == [
        ("Node", "v1", "n1"),
        ("Pod", "v1", "p0"),
        ("Pod", "v1", "p1"),
        ("Pod", "v1", "p2"),
    ]
    assert objects[0]["status"] == {"allocatable": {"cpu": "4"}}
    assert file.footer.objects == 4


def test_the_file_is_private_and_nothing_else_is_left(tmp_path):
    take(small_cluster(), tmp_path / "s.gz")

    assert [each.name for each in tmp_path.iterdir()] == ["s.gz"]
    assert stat.S_IMODE((tmp_path / "s.gz").stat().st_mode) == 0o600


def test_a_failure_leaves_the_old_file_and_no_part(tmp_path):
    (tmp_path / "s.gz").write_text("old")
    server = small_cluster()
    server.fault = lambda request: (
        Fault(lose_request=True) if request.path.endswith("/pods") else server_version(request)
    )

    with pytest.raises(ApiUnreachable):
        take(server, tmp_path / "s.gz", replace_any=True)

    assert [each.read_text() for each in tmp_path.iterdir()] == ["old"]


def test_kinds_that_are_missing_or_forbidden_are_noted(tmp_path):
    server = small_cluster()

    def fault(request):
        if request.path.endswith("/nodepools"):
            return Fault(response=status(404, "NotFound"))
        if request.path.endswith("/persistentvolumes"):
            return Fault(response=status(403, "Forbidden", "cannot list persistentvolumes"))
        if request.path.endswith("/jobs"):
            return Fault(response=status(500, "InternalError", "conversion webhook"))
        return server_version(request)

    server.fault = fault
    take(server, tmp_path / "s.gz")
    file = ObjectFile(tmp_path / "s.gz")
    list(file.objects())

    noted = {each.resource: each.reason for each in file.footer.skipped}
    assert "does not have it" in noted["nodepools.karpenter.sh"]
    assert noted["persistentvolumes"] == "forbidden: cannot list persistentvolumes"
    assert "conversion webhook" in noted["jobs.batch"]
    assert "does not have it" in noted["configmaps/cluster-autoscaler-status"]


def test_a_device_is_not_replaced(tmp_path):
    os.mkfifo(tmp_path / "pipe")

    with pytest.raises(SnapshotError, match="is not a regular file; choose another path with -o"):
        take(small_cluster(), tmp_path / "pipe")

    assert (tmp_path / "pipe").is_fifo()


@pytest.mark.parametrize(
    "content",
    [b"precious", gzip.compress(b"precious"), b"apiVersion: v1\nkind: Pod\nmetadata: {name: a}\n"],
    ids=["text", "packed", "a manifest"],
)
def test_a_file_that_is_no_snapshot_is_replaced_only_when_told_so(tmp_path, content):
    path = tmp_path / "mine"
    path.write_bytes(content)

    with pytest.raises(SnapshotError, match="exists and is not a snapshot"):
        take(small_cluster(), path)
    assert path.read_bytes() == content

    take(small_cluster(), path, replace_any=True)
    take(small_cluster(), path)  # its own may always be replaced
    assert ObjectFile(path).header is not None


def test_a_link_is_followed_to_see_what_would_be_lost_and_replaced_alone(tmp_path):
    (tmp_path / "precious").write_text("precious")
    (tmp_path / "link").symlink_to("precious")
    with pytest.raises(SnapshotError, match="exists and is not a snapshot"):
        take(small_cluster(), tmp_path / "link")
    take(small_cluster(), tmp_path / "link", replace_any=True)
    assert (tmp_path / "precious").read_text() == "precious"
    assert not (tmp_path / "link").is_symlink() and ObjectFile(tmp_path / "link").header is not None


def test_an_empty_file_holds_nothing_to_lose(tmp_path):
    (tmp_path / "s.gz").touch()
    take(small_cluster(), tmp_path / "s.gz")


def test_a_cluster_that_forbids_everything_is_an_error(tmp_path):
    server = small_cluster()
    server.fault = lambda request: server_version(request) or Fault(response=status(403, "Forbidden"))

    with pytest.raises(Denied):
        take(server, tmp_path / "s.gz")

    assert list(tmp_path.iterdir()) == []


def test_a_list_that_expires_half_way_is_not_written_twice(tmp_path):
    server = TinyServer()
    for number in range(1200):
        server.put(f"{PODS_OF}/p{number:04}")

    def fault(request):
        if "continue" in dict(request.query):
            server.put(f"{PODS_OF}/p9999")
            server.compact()
        return server_version(request)

    server.fault = fault
    take(server, tmp_path / "s.gz")

    names = [obj["metadata"]["name"] for obj in read_objects(tmp_path / "s.gz")]
    assert len(names) == len(set(names)) == 1201


def test_a_place_that_cannot_be_written_is_named(tmp_path):
    with pytest.raises(SnapshotError, match="No such file or directory; choose another path with -o"):
        take(small_cluster(), tmp_path / "missing" / "s.gz")


# Secrets


def telling_container():
    return {
        "name": "app",
        "image": "app:1",
        "command": ["run", CANARY],
        "args": [f"--password={CANARY}"],
        "env": [
            {"name": "PLAIN", "value": CANARY},
            {"name": "REF", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}},
        ],
        "livenessProbe": {"httpGet": {"httpHeaders": [{"name": "Authorization", "value": CANARY}]}},
        "lifecycle": {"preStop": {"exec": {"command": [CANARY]}}},
        "resources": {"requests": {"cpu": "1"}},
    }


def telling_template():
    return {
        "metadata": {"labels": {"app": "x"}},
        "spec": {
            "containers": [telling_container()],
            "initContainers": [telling_container()],
            "ephemeralContainers": [telling_container()],
            "volumes": [{"csi": {"driver": "d", "volumeAttributes": {"password": CANARY}}}],
        },
    }


def test_no_secret_reaches_the_file_and_none_is_read(tmp_path):
    server = small_cluster()
    metadata = {
        "annotations": {"kubectl.kubernetes.io/last-applied-configuration": CANARY, "kept": "yes"},
        "managedFields": [{"manager": CANARY}],
    }
    server.put(f"{PODS_OF}/telling", {**telling_template(), "metadata": metadata})
    server.put(
        "/apis/apps/v1/namespaces/default/deployments/d", spec={"replicas": 1, "template": telling_template()}
    )
    server.put("/apis/apps/v1/namespaces/default/statefulsets/s", spec={"template": telling_template()})
    server.put("/apis/batch/v1/namespaces/default/jobs/j", spec={"template": telling_template()})
    server.put("/apis/karpenter.k8s.aws/v1/ec2nodeclasses/c", spec={"userData": CANARY})
    server.put("/api/v1/persistentvolumes/v", spec={"flexVolume": {"options": {"key": CANARY}}})
    server.put(
        "/apis/cluster.karmada.io/v1alpha1/clusters/m", spec={"proxyHeader": {"Authorization": CANARY}}
    )
    server.put("/api/v1/namespaces/default/secrets/s", data={"k": CANARY})
    server.put("/api/v1/namespaces/default/configmaps/c", data={"k": CANARY})

    take(server, tmp_path / "s.gz")

    text = gzip.decompress((tmp_path / "s.gz").read_bytes()).decode()
    assert CANARY not in text
    assert "last-applied" not in text
    assert "managedFields" not in text
    assert not [request.path for request in server.requests if "secrets" in request.path]
    pod = next(o for o in read_objects(tmp_path / "s.gz") if o["metadata"]["name"] == "telling")
    container = pod["spec"]["containers"][0]
    assert container["env"] == [
        {"name": "PLAIN", "value": REDACTED},
        {"name": "REF", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}},
    ]
    assert container["resources"] == {"requests": {"cpu": "1"}}
    assert pod["metadata"]["annotations"] == {"kept": "yes"}


def test_every_kind_that_a_cluster_is_fed_with_is_saved():
    assert {str(kind) for kind in ALL_KINDS} <= {str(each.resource) for each in SAVED_KINDS}
    assert len(set(SAVED_KINDS)) == len(SAVED_KINDS), "an object would be there twice"


def test_works_and_secrets_are_not_among_what_is_saved():
    assert not {"works.work.karmada.io", "secrets"} & {str(each.resource) for each in SAVED_KINDS}


@given(
    st.recursive(
        st.text(max_size=5),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(
                st.sampled_from(["spec", "env", "containers", "template", "x"]), inner, max_size=3
            )
        ),
        max_leaves=10,
    )
)
def test_an_env_value_is_taken_out_wherever_it_stands(around):
    obj = {"a": around, "b": {"env": [{"name": "n", "value": CANARY}, around, CANARY]}}

    assert CANARY not in msgspec.json.encode(redact(obj)).decode()


# Reading


@pytest.fixture(scope="module")
def good(tmp_path_factory):
    path = tmp_path_factory.mktemp("snapshot") / "s.gz"
    take(small_cluster(), path)
    return path.read_bytes()


@settings(max_examples=60)
@given(data=st.data())
def test_a_file_cut_anywhere_is_refused(good, tmp_path_factory, data):
    path = tmp_path_factory.getbasetemp() / "cut.gz"
    path.write_bytes(good[: data.draw(st.integers(0, len(good) - 1))])

    with pytest.raises(SnapshotError, match=r"cut\.gz: "):
        list(read_objects(path))


@settings(max_examples=60)
@given(position=st.integers(10, 10**6), byte=st.integers(1, 255))
def test_a_damaged_file_is_refused_or_unharmed(good, tmp_path_factory, position, byte):
    damaged = bytearray(good)
    damaged[position % len(good)] ^= byte
    path = tmp_path_factory.getbasetemp() / "damaged.gz"
    path.write_bytes(damaged)

    try:
        objects = list(read_objects(path))
    except SnapshotError:
        return
    assert len(objects) == 4


def rewritten(good, tmp_path, change):
    lines = [msgspec.json.decode(line) for line in gzip.decompress(good).splitlines()]
    path = tmp_path / "s.gz"
    path.write_bytes(gzip.compress(b"\n".join(map(msgspec.json.encode, change(lines))) + b"\n"))
    return path


def test_a_newer_format_says_to_upgrade(good, tmp_path):
    path = rewritten(good, tmp_path, lambda lines: [{**lines[0], "version": 2}, *lines[1:]])

    with pytest.raises(SnapshotError, match=r"newer version \(format 2, this one reads 1\); upgrade"):
        list(read_objects(path))


def test_a_missing_object_is_noticed(good, tmp_path):
    path = rewritten(good, tmp_path, lambda lines: [*lines[:2], *lines[3:]])

    with pytest.raises(SnapshotError, match="holds 3 objects but should hold 4"):
        list(read_objects(path))


POD = '{"apiVersion":"v1","kind":"Pod","metadata":{"name":"a"}}'
NODE = '{"apiVersion":"v1","kind":"Node","metadata":{"name":"b"}}'
MANIFESTS = {
    "several YAML documents": f"apiVersion: v1\nkind: Pod\nmetadata: {{name: a}}\n---\n---\n{NODE}\n",
    "a YAML List": f"apiVersion: v1\nkind: List\nitems:\n- {POD}\n- {NODE}\n",
    "a JSON List": f'{{"apiVersion":"v1","kind":"List","items":[{POD},{NODE}]}}',
    "JSON lines": f"{POD}\n{NODE}\n",
}


@pytest.mark.parametrize("form", MANIFESTS)
@pytest.mark.parametrize("packed", [False, True])
def test_manifests_are_read_in_every_form_kubectl_prints(tmp_path, form, packed):
    path = tmp_path / "m"
    data = MANIFESTS[form].encode()
    path.write_bytes(gzip.compress(data) if packed else data)

    assert [(o["kind"], o["metadata"]["name"]) for o in read_objects(path)] == [("Pod", "a"), ("Node", "b")]


def test_items_of_a_typed_list_are_given_their_kind(tmp_path):
    path = tmp_path / "m"
    path.write_text('{"apiVersion":"v1","kind":"PodList","items":[{"metadata":{"name":"a"}}]}')

    assert [(o["kind"], o["apiVersion"], o["metadata"]["name"]) for o in read_objects(path)] == [
        ("Pod", "v1", "a")
    ]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        pytest.param("", "is empty", id="empty"),
        pytest.param("hello", "no document with kind and apiVersion", id="prose"),
        pytest.param("a: [", "line", id="broken YAML"),
        pytest.param("{" * 100_000, "nested", id="deep"),
        pytest.param("kind: Pod", "no document with kind and apiVersion", id="no apiVersion"),
    ],
)
def test_what_is_no_manifest_is_refused_with_a_reason(tmp_path, text, words):
    path = tmp_path / "m"
    path.write_text(text)

    with pytest.raises(SnapshotError, match=words):
        list(read_objects(path))


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(SnapshotError, match=r"nope: No such file or directory; check the path"):
        read_objects(tmp_path / "nope")


def test_a_directory_is_not_a_file(tmp_path):
    with pytest.raises(SnapshotError, match="Is a directory"):
        read_objects(tmp_path)


@given(data=st.binary(max_size=200))
def test_any_bytes_are_objects_or_an_error(tmp_path_factory, data):
    path = tmp_path_factory.getbasetemp() / "any"
    path.write_bytes(data)

    try:
        objects = list(read_objects(path))
    except SnapshotError:
        return
    assert all(isinstance(obj, dict) for obj in objects)


@pytest.mark.parametrize("text", ["?", "? [a]\n: b", "a: {null: 1}"])
def test_a_key_that_json_cannot_have_is_refused(tmp_path, text):
    path = tmp_path / "keys.yaml"
    path.write_text(text)

    with pytest.raises(SnapshotError):
        list(read_objects(path))
