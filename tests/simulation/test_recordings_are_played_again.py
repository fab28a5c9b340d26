"""`karpool record` and `karpool simulate --replay, --from-snapshot`: a real cluster's day, played again.

A day is played on an embedded cluster that a recorder follows, as it would follow a real one; then the
file is played, and must come to the same.
"""

import asyncio
import gzip
import json
import random
from pathlib import Path

import msgspec
import pytest

from karpool.cli.main import run
from karpool.kube.errors import SnapshotError
from karpool.kube.snapshots import recording as recordings
from karpool.kube.snapshots.recording import Recorder, Recording, RecordingHeader, header_line, packed
from karpool.kube.watch.informer_set import InformerSet
from karpool.model.kubernetes import api_resources as api
from karpool.model.kubernetes.times import rfc3339
from karpool_fleet.clusters.clock import LoopClock, run_manual
from karpool_fleet.clusters.fleet import EmbeddedFleet
from karpool_fleet.simulation.arrivals import arrivals
from karpool_fleet.simulation.engine import People, simulate
from karpool_fleet.simulation.replay import read_recording, read_snapshot
from karpool_fleet.simulation.scenario_file import parse_scenario
from tests.simulation.small import POOL

pytestmark = pytest.mark.long

SETTLE = 600.0  # so that recording begins with nodes and pods
DAY = (
    """\
kind: Scenario
seed: 11
duration: 50m
clusters:
  - name: east
    nodes: [{type: m7i.xlarge, count: 1}]
    objects:
"""
    + "".join(f"      {line}\n" for line in POOL.splitlines())
    + """\
      - apiVersion: apps/v1
        kind: StatefulSet
        metadata: {name: db, namespace: default}
        spec:
          replicas: 2
          serviceName: db
          selector: {matchLabels: {app: db}}
          template:
            metadata: {labels: {app: db}}
            spec:
              containers:
                - name: main
                  image: db
                  command: [sh, -c, hidden-command]
                  env: [{name: PASSWORD, value: hidden-value}]
                  resources: {requests: {cpu: "1", memory: 1Gi}}
      - apiVersion: apps/v1
        kind: DaemonSet
        metadata: {name: agent, namespace: kube-system}
        spec:
          selector: {matchLabels: {app: agent}}
          template:
            metadata: {labels: {app: agent}}
            spec:
              tolerations: [{operator: Exists}]
              containers: [{name: main, image: agent, resources: {requests: {cpu: 100m}}}]
workloads:
  - {name: web, every: 4m, replicas: [1, 5], requests: {cpu: 700m, memory: 1Gi}, lifetime: "uniform(9m, 20m)"}
  - {name: task, kind: Pod, every: 6m, requests: {cpu: "1"}, lifetime: 5m}
  - {name: batch, kind: Job, every: 9m, replicas: 2, requests: {cpu: "1"}, lifetime: 4m}
"""
)


async def _recorded() -> bytes:
    scenario = parse_scenario(DAY.encode())[0].scenario
    clock = LoopClock()
    async with EmbeddedFleet(scenario.fleet, clock) as fleet:
        people = People(fleet)
        playing = asyncio.ensure_future(people.play(arrivals(scenario), (), "east"))
        await clock.sleep(SETTLE)
        began: list[float] = []
        recorder = Recorder(lambda: round(clock.monotonic() - began[0], 3) if began else 0.0)
        informers = InformerSet(people.client("east"), recorder.watches())
        following = asyncio.ensure_future(informers.run())
        while informers.not_ready() is not None:
            await clock.sleep(0.01)
        header = RecordingHeader(
            format=recordings.FORMAT, version=1, started_at=rfc3339(clock.now()), cluster="east"
        )
        data = packed([header_line(header)]) + recorder.written()
        began.append(clock.monotonic())
        for _ in range(80):
            await clock.sleep(30.0)
            data += recorder.written()
        for task in (playing, following):
            task.cancel()
        await asyncio.gather(playing, following, return_exceptions=True)
        return data


@pytest.fixture(scope="module")
def day(tmp_path_factory):
    path = tmp_path_factory.mktemp("recorded") / "day.gz"
    path.write_bytes(run_manual(_recorded()))
    return path


def lines_of(path: Path) -> list[dict]:
    return [json.loads(line) for line in gzip.decompress(path.read_bytes()).splitlines()]


async def listed(client, resource):
    return [obj async for page in client.pages(resource) for obj in page.items]


def played(replay, **changes):
    """Without anybody who consolidates, unless the caller says so."""
    named = replay.named()[0]
    scenario = msgspec.structs.replace(named.scenario, **changes)
    return simulate(msgspec.structs.replace(named, scenario=scenario), replayed=replay.changes)


def test_a_day_comes_to_the_same_when_it_is_played_again(day):
    replay = read_recording(day)
    result = played(replay, controllers={})
    was, now = replay.recorded.figures, result.figures
    assert was["cost"] > 0
    assert now["cost"] == pytest.approx(was["cost"], rel=0.05)
    assert now["nodesMean"] == pytest.approx(was["nodesMean"], rel=0.05)
    assert now["arrivalsRefused"] == 0
    assert now["lost"] == 0
    assert result.notes == ()
    changes = lines_of(day)[1:]
    made = {
        change["put"]["metadata"]["name"]
        for change in changes
        if change["t"] > 0 and "put" in change and change["put"]["kind"] == "Pod"
    }
    before = {
        change["put"]["metadata"]["name"]
        for change in changes
        if change["t"] == 0 and "put" in change and change["put"]["kind"] == "Pod"
    }
    daemons = {name for name in made if name.startswith("agent-")}
    assert now["pods"] == pytest.approx(len(made - before - daemons), abs=2)


def test_policies_differ_and_the_same_file_gives_the_same_bytes(day):
    replay = read_recording(day)
    results = [simulate(named, replayed=replay.changes) for named in replay.named()]
    again = [simulate(named, replayed=replay.changes) for named in read_recording(day).named()]
    assert [result.log_sha256 for result in results] == [result.log_sha256 for result in again]
    empty, balanced, eager = results
    assert empty.figures["evictions"] == 0
    assert eager.figures["evictions"] > 0
    assert len({result.log_sha256 for result in results}) == 3
    assert balanced.figures["lost"] == eager.figures["lost"] == 0


def test_everything_stays_where_it_was_until_somebody_acts(day):
    first = [change["put"] for change in lines_of(day)[1:] if change["t"] == 0 and "put" in change]
    nodes = {obj["metadata"]["name"] for obj in first if obj["kind"] == "Node"}
    placed = {obj["metadata"]["name"]: obj["spec"]["nodeName"] for obj in first if obj["kind"] == "Pod"}
    replay = read_snapshot(day)
    scenario = msgspec.structs.replace(replay.named()[0].scenario, controllers={})

    async def seen():
        async with EmbeddedFleet(scenario.fleet, LoopClock()) as fleet:
            client = fleet.api_servers["recorded"].client("people")
            await LoopClock().sleep(1200.0)
            pods = {
                pod["metadata"]["name"]: pod["spec"].get("nodeName") for pod in await listed(client, api.PODS)
            }
            claims = await listed(client, api.NODECLAIMS)
            there = {node["metadata"]["name"] for node in await listed(client, api.NODES)}
            return pods, claims, there, fleet.clusters["recorded"]

    pods, claims, there, live = run_manual(seen())
    assert placed
    assert {name: pods.get(name) for name in placed} == placed
    assert pods.keys() == placed.keys()
    assert there == nodes
    assert not any(
        condition["type"] == "Drifted" for claim in claims for condition in claim["status"]["conditions"]
    )
    assert set(live.cloud.instances) == nodes  # all of them are paid for


def test_pods_of_jobs_end_when_they_did(day):
    changes = [change for change in lines_of(day)[1:] if change.get("put", {}).get("kind") == "Pod"]
    at_work = {
        change["put"]["metadata"]["name"]
        for change in changes
        if change["t"] == 0 and change["put"]["metadata"]["name"].startswith("batch-")
    }
    ended = {change.name: change.at for change in read_recording(day).changes if change.name in at_work}
    gone = {line["gone"]["name"]: line["t"] for line in lines_of(day) if "gone" in line}
    assert at_work
    assert ended == {name: gone[name] for name in at_work}


def test_only_what_matters_is_written(day):
    text = gzip.decompress(day.read_bytes()).decode()
    assert "hidden-command" not in text
    assert "hidden-value" not in text
    assert "PASSWORD" in text

    recorder = Recorder(lambda: 1.0)
    node = {
        "metadata": {"name": "n", "uid": "u", "resourceVersion": "1"},
        "status": {"capacity": {"cpu": "1"}},
    }
    told = recordings.ObjectChange("ADDED", api.ObjectKey("", "n"), node)
    recorder.apply(api.NODES, [told])
    later = {**node, "metadata": {**node["metadata"], "resourceVersion": "2", "managedFields": [{}]}}
    later["status"] = {"capacity": {"cpu": "1"}, "images": [{"sizeBytes": 1}]}
    recorder.apply(api.NODES, [recordings.ObjectChange("MODIFIED", api.ObjectKey("", "n"), later)])
    assert recorder.changes == 1
    larger = {**node, "status": {"capacity": {"cpu": "2"}}}
    recorder.apply(api.NODES, [recordings.ObjectChange("MODIFIED", api.ObjectKey("", "n"), larger)])
    gone = recordings.ObjectChange("DELETED", api.ObjectKey("", "n"), None)
    recorder.apply(api.NODES, [gone, gone])
    assert recorder.changes == 3
    recorder.apply(api.NODES, [told])
    assert recorder.changes == 4  # one of the same name is another one


def test_a_file_whose_writer_was_killed_is_read_as_far_as_it_goes(day, tmp_path):
    data = day.read_bytes()
    whole = list(Recording(day).changes())
    cut = tmp_path / "cut.gz"
    draw = random.Random(1)
    for size in sorted(draw.sample(range(len(data) // 3, len(data) - 1), 12)):
        cut.write_bytes(data[:size])
        recording = Recording(cut)
        read = list(recording.changes())
        assert read == whole[: len(read)]
        assert len(read) > 50
    cut.write_bytes(data[: len(data) - 5])
    notes = read_recording(cut).notes
    assert len(notes) == 1
    assert "ends within a line" in notes[0]


@pytest.mark.parametrize(
    ("lines", "problem"),
    [
        ([b'{"t":5}', b'{"t":4}'], "time goes back"),
        ([b'{"t":1,"put":{"kind":"Pod"}}'], "put: needs apiVersion, kind and metadata.name"),
        ([b'{"t":1,"put":{"apiVersion":"v1","kind":"Pod","metadata":{"name":7}}}'], "as text"),
        ([b'{"t":1e300}'], "time goes back"),
        ([b"nothing"], "is not a change"),
        ([b'{"t":0}'], "nothing after its first moment"),
        ([b'{"t":9}'], "pass --region"),
    ],
)
def test_what_no_writer_leaves_behind_is_refused(lines, problem, tmp_path, capsys):
    path = tmp_path / "odd.gz"
    header = header_line(
        RecordingHeader(format=recordings.FORMAT, version=1, started_at="2026-01-01T00:00:00Z")
    )
    path.write_bytes(packed([header, *lines]))
    assert run(["simulate", "--replay", str(path)], "karpool") == 1
    assert problem in capsys.readouterr().err


def test_damage_is_not_taken_for_an_end(day, tmp_path):
    data = bytearray(day.read_bytes())
    data[len(data) // 2] ^= 0xFF
    path = tmp_path / "damaged.gz"
    path.write_bytes(data)
    with pytest.raises(SnapshotError, match=r"damaged|is not a change"):
        list(Recording(path).changes())


def test_newer_formats_and_other_files_are_told_apart(tmp_path):
    newer = tmp_path / "newer.gz"
    newer.write_bytes(packed([header_line(RecordingHeader(format=recordings.FORMAT, version=9))]))
    with pytest.raises(SnapshotError, match="newer version"):
        Recording(newer)
    other = tmp_path / "other.yaml"
    other.write_text("kind: Pod\n")
    with pytest.raises(SnapshotError, match=r"damaged|is not a recording"):
        Recording(other)


@pytest.mark.parametrize(
    ("flags", "problem"),
    [
        (["--replay", "DAY", "--from-snapshot", "DAY"], "pass --from-snapshot or --replay"),
        (["consolidation-policies", "--replay", "DAY"], "pass --from-snapshot or --replay"),
        (["--replay", "DAY", "--duration", "9000h"], "the recording is 40m long"),
        (["--replay", "DAY", "--duration", "soon"], "is not a duration"),
        (["--replay", "DAY", "--trace", "DAY"], "--trace needs a scenario"),
        (["consolidation-policies", "--region", "us-east-1"], "--region needs"),
        (["--replay", "DAY", "--region", "nowhere-1"], "nowhere-1"),
        (["--replay", "DAY", "--variant", "Other"], "there are WhenEmpty, Balanced"),
        (["--replay", "nowhere.gz"], "nowhere.gz"),
    ],
)
def test_wrong_usage_is_said(flags, problem, day, capsys):
    code = run(["simulate", *(str(day) if flag == "DAY" else flag for flag in flags)], "karpool")
    assert code in (1, 2)
    assert problem in capsys.readouterr().err


def test_the_report_shows_what_was_beside_what_would_have_been(day, capsys):
    assert (
        run(["simulate", "--replay", str(day), "--duration", "5m", "--variant", "Balanced"], "karpool") == 0
    )
    out = capsys.readouterr().out
    assert out.splitlines()[0].split() == ["FIGURE", "RECORDED", "BALANCED"]
    for form in ("json", "html", "svg"):
        flags = ["--duration", "5m", "--variant", "Balanced", "-o", form]
        assert run(["simulate", "--replay", str(day), *flags], "karpool") == 0
        assert "recorded" in capsys.readouterr().out.lower()


def test_a_cluster_that_does_not_answer_is_said_at_once(tmp_path, capsys):
    config = tmp_path / "config"
    config.write_text(
        "apiVersion: v1\nkind: Config\ncurrent-context: far\n"
        "clusters: [{name: far, cluster: {server: 'http://127.0.0.1:1'}}]\n"
        "users: [{name: me, user: {}}]\n"
        "contexts: [{name: far, context: {cluster: far, user: me}}]\n"
    )
    output = tmp_path / "out.gz"
    assert run(["record", "--kubeconfig", str(config), "--out", str(output)], "karpool") == 1
    assert "127.0.0.1:1" in capsys.readouterr().err
    assert not output.exists()


@pytest.mark.parametrize("length", ["0s", "soon"])
def test_a_length_that_is_none_is_wrong_usage(length, tmp_path, capsys):
    assert run(["record", "--out", str(tmp_path / "x"), "--for", length], "karpool") == 2
    assert "--for" in capsys.readouterr().err


def test_what_is_no_recording_is_not_replaced(tmp_path, capsys):
    diary = tmp_path / "diary.txt"
    diary.write_text("dear diary")
    assert run(["record", "--out", str(diary)], "karpool") == 1
    assert "is not a recording" in capsys.readouterr().err
    assert diary.read_text() == "dear diary"
