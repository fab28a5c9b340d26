"""A support bundle holds what helps, names what it could not get, and carries no secret."""

import gzip
import json
import os
import stat
import sys
import tarfile
from pathlib import Path
from typing import Any

import pytest

from karpool.cli.exit_codes import CommandFailed
from karpool.cli.main import run
from karpool.cli.save import support_bundle
from karpool.cli.save.support_bundle import SupportBundle, collect, write
from karpool.consolidation.execution.record import MOVE, RECORD
from karpool.kube.api.client import Client
from karpool.kube.clock import RealClock
from karpool.kube.snapshots.reader import read_objects
from karpool.kube.transport_interface import HttpRequest, HttpResponse
from karpool.model.kubernetes.api_resources import CONFIGMAPS, LEASES, NAMESPACES, PODS
from karpool_fleet.apiserver.serve.inprocess import InProcessTransport
from karpool_fleet.apiserver.serve.server import Answer, ApiServer, Handler
from tests.deploy.manifests import objects
from tests.deploy.roles import Guard, expand

CANARY = "canary-7f3a"
NAMESPACE = "karpool-system"
Object = dict[str, Any]


def pod(name: str, **labels: str) -> Object:
    container = {"name": "main", "image": "karpool:1", "env": [{"name": "TOKEN", "value": CANARY}]}
    meta = {
        "name": name,
        "namespace": NAMESPACE,
        "labels": {"app.kubernetes.io/part-of": "karpool", **labels},
    }
    return {"metadata": meta, "spec": {"containers": [container]}}


class Cluster:
    """An embedded API server that has log lines, of one pod at least."""

    def __init__(self) -> None:
        self.server = ApiServer(RealClock())
        self.server.around = self._with_logs
        self.asked: list[HttpRequest] = []
        self.client = Client(InProcessTransport(self.server), RealClock(), qps=None)

    async def _with_logs(self, request: HttpRequest, handle: Handler) -> Answer:
        if not request.path.endswith("/log"):
            return await handle(request)
        self.asked.append(request)
        if "gone" in request.path:
            status = {"kind": "Status", "code": 404, "reason": "NotFound", "message": "no such container"}
            return HttpResponse(404, {"content-type": "application/json"}, json.dumps(status).encode())
        lines = (
            b'{"msg": "move begun"}\n'
            if dict(request.query)["previous"] == "false"
            else b'{"msg": "crash"}\n'
        )
        return HttpResponse(200, {"content-type": "text/plain"}, lines)

    async def fill(self) -> None:
        for name in (NAMESPACE, "karpool-smart-pods"):
            await self.client.create(NAMESPACES, {"metadata": {"name": name}})
        for each in (
            pod("consolidator"),
            pod("gone"),
            pod("stranger", **{"app.kubernetes.io/part-of": "other"}),
        ):
            await self.client.create(PODS, each)
        status = {
            "containerStatuses": [
                {"name": "main", "restartCount": 1, "ready": True, "image": "", "imageID": ""}
            ]
        }
        await self.client.patch(
            PODS, "consolidator", {"status": status}, namespace=NAMESPACE, subresource="status"
        )
        labels = {RECORD: MOVE}
        for name, given in (("karpool-move-1", labels), ("somebody-elses", {})):
            meta = {"name": name, "namespace": NAMESPACE, "labels": given}
            await self.client.create(CONFIGMAPS, {"metadata": meta, "data": {"record": name}})
        lease = {"metadata": {"name": "karpool-consolidator", "namespace": NAMESPACE}, "spec": {}}
        await self.client.create(LEASES, lease)


@pytest.fixture
async def cluster() -> Any:
    found = Cluster()
    await found.fill()
    yield found
    await found.server.close()


def loaded(bundle: SupportBundle, name: str) -> Any:
    return json.loads(bundle.files[name])


async def test_it_holds_snapshot_records_and_decision_logs(cluster: Cluster, tmp_path: Path) -> None:
    bundle = await collect(cluster.client, NAMESPACE, context="prod")

    assert [each["metadata"]["name"] for each in loaded(bundle, "moves.json")] == ["karpool-move-1"]
    assert [each["metadata"]["name"] for each in loaded(bundle, "leases.json")] == ["karpool-consolidator"]
    assert bundle.files["logs/consolidator.jsonl"] == b'{"msg": "move begun"}\n'
    assert bundle.files["logs/consolidator.previous.jsonl"] == b'{"msg": "crash"}\n'
    assert not any("stranger" in name for name in bundle.files)
    path = tmp_path / "s.gz"
    path.write_bytes(bundle.files["snapshot.karpool.gz"])
    counts = loaded(bundle, "about.json")["objects"]
    assert counts["pods"] == 3 and len(list(read_objects(path))) == sum(counts.values())


async def test_what_cannot_be_had_is_named(cluster: Cluster) -> None:
    bundle = await collect(cluster.client, NAMESPACE)

    missing = loaded(bundle, "about.json")["missing"]
    assert missing == bundle.missing
    assert "no such container" in missing["logs/gone.jsonl"]
    assert "scale-ups" in missing and "scale-ups.json" not in bundle.files  # this cluster does not know them


async def test_no_secret_is_in_it(cluster: Cluster) -> None:
    bundle = await collect(cluster.client, NAMESPACE)

    for name, content in bundle.files.items():
        plain = gzip.decompress(content) if name.endswith(".gz") else content
        assert CANARY.encode() not in plain, name


async def test_logs_are_bounded_and_may_be_left_out(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert not any(
        name.startswith("logs/") for name in (await collect(cluster.client, NAMESPACE, logs=False)).files
    )
    assert cluster.asked == []
    monkeypatch.setattr(support_bundle, "LOG_BYTES", 5)
    monkeypatch.setattr(support_bundle, "PODS_MAX", 1)
    bundle = await collect(cluster.client, NAMESPACE)
    assert bundle.files["logs/consolidator.jsonl"] == b'{"msg'
    assert "logs of some pods" in bundle.missing and len({request.path for request in cluster.asked}) == 1


async def test_the_role_of_readers_is_enough(cluster: Cluster) -> None:
    granted = {
        grant
        for each in objects("reader")
        for rule in each["rules"]
        for grant in expand(rule, each["metadata"].get("namespace", ""))
    }
    guard = Guard(granted)
    client = Client(guard.around(InProcessTransport(cluster.server)), RealClock(), qps=None)
    await collect(client, NAMESPACE)
    assert {asked.resource for asked in guard.refused} <= {"leases"}  # of the other namespace
    assert all(asked.namespace == "karpool-smart-pods" for asked in guard.refused)


def test_the_file_is_private_and_complete_or_not_there(tmp_path: Path) -> None:
    path = tmp_path / "problem.tar.gz"
    write(SupportBundle({"about.json": b"{}\n", "logs/a.jsonl": b"x"}), path)

    assert [each.name for each in tmp_path.iterdir()] == [path.name]
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    with tarfile.open(path) as archive:
        assert archive.getnames() == ["karpool-support/about.json", "karpool-support/logs/a.jsonl"]
    with pytest.raises(CommandFailed, match="choose another path with -o"):
        write(SupportBundle(), tmp_path / "no" / "such" / "folder")


def test_a_file_that_is_no_bundle_is_replaced_only_when_told_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def collected(*_: object) -> SupportBundle:
        return SupportBundle({"about.json": b"{}"})

    monkeypatch.setattr(sys.modules[SupportBundle.__module__], "_collect", collected)
    path = tmp_path / "mine"
    path.write_text("precious")

    assert run(["support-bundle", "-o", str(path)], "karpool") == 1
    assert "exists and is not a bundle" in capsys.readouterr().err
    assert path.read_text() == "precious"
    assert run(["support-bundle", "-o", str(path), "--force"], "karpool") == 0
    assert run(["support-bundle", "-o", str(path)], "karpool") == 0


@pytest.mark.parametrize("force", [[], ["--force"]], ids=["", "force"])
@pytest.mark.parametrize("kind", ["pipe", "folder", "link to a pipe"])
def test_what_is_no_file_is_neither_read_nor_replaced(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], kind: str, force: list[str]
) -> None:
    """A pipe would be waited for without end, and a device replaced by a file."""
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link to a pipe").symlink_to("pipe")
    path = tmp_path / kind
    before = path.lstat()
    assert run(["support-bundle", "-o", str(path), *force], "karpool") in (1, 2)
    assert "regular file" in (said := capsys.readouterr().err) or "is a directory" in said
    with pytest.raises(CommandFailed, match="is not a regular file; choose another path with -o"):
        write(SupportBundle(), path)
    assert path.lstat() == before and len(list(tmp_path.iterdir())) == 3
