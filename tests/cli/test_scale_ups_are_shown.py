"""`karpool get scale-ups` and `karpool explain scale-up` show what the records say, and survive bad ones."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from karpool.cli.inspect import get_scale_ups
from karpool.cli.main import run
from karpool.cluster.market.launch_reasons import LaunchReason
from karpool.gpu.records.demand_key import DemandKey
from karpool.gpu.records.scale_up_object import SCALEUPS, definition, to_object, to_status
from karpool.gpu.records.scale_up_record import ScaleUpRecord, ScaleUpState, ScaleUpUnit
from karpool.kube.clock import RealClock
from karpool.model.kubernetes.api_resources import PODS
from karpool.provisioning.candidates.attempts import CandidateHistory
from karpool.provisioning.node_request import NodeCandidate, NodeRequest, unit
from karpool.provisioning.placeholders.prerequisites import ensure_prerequisites
from karpool.provisioning.placeholders.smart_pod import SmartPodSettings, smart_pod
from karpool_fleet.clusters.embedded import EmbeddedCluster

SETTINGS = SmartPodSettings()
CANDIDATE = NodeCandidate(pools=("gpu",), instance_types=("g5.xlarge",))
LOST = NodeCandidate(pools=("gpu",), instance_types=("g6.xlarge",))
KEY = DemandKey("shared", "NVIDIA A10G", 1, 12, 30)
OTHER = DemandKey("training", "*", 8, 80, 900)


def records(now: float) -> list[ScaleUpRecord]:
    waiting = ScaleUpUnit(0, 1, 4000, 2**34, CANDIDATE.key, ScaleUpState.PENDING, now - 40, now - 50)
    ended = replace(waiting, index=1, candidate=LOST.key, ended=LaunchReason.STOCK_OUT, about=str(LOST))
    pending = ScaleUpRecord(
        KEY,
        ScaleUpState.PENDING,
        now - 300,
        now - 40,
        epoch=3,
        units=(waiting, ended),
        memory={LOST.key: CandidateHistory(1, now - 60, LaunchReason.STOCK_OUT, 0)},
        waiting=5,
        demand=("team-a/train-0", "team-a/train-1"),
        bad_nodes=("node-7",),
    )
    exhausted = ScaleUpRecord(
        OTHER,
        ScaleUpState.EXHAUSTED,
        now - 900,
        now - 100,
        epoch=9,
        reason="InsufficientCapacity",
        message="all of it \x1b[31mred\x1b[0m",
        next_attempt=now + 200,
        waiting=1,
    )
    return [pending, exhausted]


def objects(now: float) -> list[dict[str, Any]]:
    return [{**to_object(record, SETTINGS.namespace), "status": to_status(record)} for record in records(now)]


async def _fill(client: Any, now: float) -> None:
    assert await ensure_prerequisites(client, SETTINGS) == []
    for each in objects(now):
        await client.create(SCALEUPS, {key: value for key, value in each.items() if key != "status"})
        await client.patch(
            SCALEUPS,
            each["metadata"]["name"],
            {"status": each["status"]},
            namespace=SETTINGS.namespace,
            subresource="status",
        )
    odd = to_object(replace(records(now)[0], key=replace(KEY, gpus=2)), SETTINGS.namespace)
    odd["metadata"]["name"] = "scaleup-somebodys"
    await client.create(SCALEUPS, odd)
    ask = NodeRequest(KEY.name, 3, (unit({"cpu": 4000, "nvidia.com/gpu": 1}),), (CANDIDATE,), model=KEY.model)
    await client.create(PODS, smart_pod(ask, CANDIDATE, 0, SETTINGS))


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    @asynccontextmanager
    async def connect(_: object) -> AsyncIterator[Any]:
        async with EmbeddedCluster("east", clock=RealClock(), crds=[definition()]) as embedded:
            client = embedded.client("admin")
            await _fill(client, client.clock.now())
            yield client

    monkeypatch.setattr(get_scale_ups, "connect", connect)


Capture = pytest.CaptureFixture[str]


@pytest.mark.usefixtures("cluster")
def test_a_table_of_all_oldest_first_and_what_cannot_be_read_is_named(capsys: Capture) -> None:
    assert run(["get", "scale-ups"], "karpool") == 0
    shown = capsys.readouterr()
    lines = shown.out.splitlines()
    assert lines[0].split() == ["NAME", "POOL", "MODEL", "WAITING", "NODES", "STATE", "FOR", "AGE", "REASON"]
    assert [line.split()[0] for line in lines[1:3]] == [OTHER.name, KEY.name]
    assert "Exhausted" in lines[1] and "0/1" in lines[2]
    assert lines[-1] == "2 scale-ups, 6 workers waiting in east"
    assert "skipped: ScaleUp scaleup-somebodys" in shown.err


@pytest.mark.usefixtures("cluster")
def test_they_can_be_chosen_and_given_to_machines(capsys: Capture) -> None:
    assert run(["get", "scale-ups", "--state", "pending", "-o", "json"], "karpool") == 0
    found = json.loads(capsys.readouterr().out)
    assert found["kind"] == "ScaleUpList"
    (item,) = found["items"]
    assert (item["name"], item["state"], item["waiting"]) == (KEY.name, "Pending", 5)
    assert item["units"][0]["candidate"] == str(CANDIDATE), "in words, from the smart pod"
    assert item["failures"][LOST.key]["last"] == "InsufficientCapacity"
    assert run(["get", "scale-ups", "--pool", "nobody"], "karpool") == 0
    assert capsys.readouterr().out == "no scale-ups in east\n"


@pytest.mark.usefixtures("cluster")
def test_one_is_explained_with_what_failed_and_what_is_wrong(capsys: Capture) -> None:
    assert run(["explain", "scale-up", KEY.name], "karpool") == 0
    text = capsys.readouterr().out
    assert text.startswith(f"{KEY.name}: 1 x 30 TFLOPS, 12 GiB VRAM of NVIDIA A10G in pool shared\n")
    assert "the autoscaler has not reacted yet" in text
    assert "5 workers waiting: team-a/train-0, team-a/train-1 and 3 more" in text
    assert "ended: InsufficientCapacity" in text
    assert "next round" in text
    assert str(LOST) in text, "in words also when its smart pod is gone"
    assert "node-7; check the driver and the device plugin" in text


@pytest.mark.usefixtures("cluster")
def test_nothing_of_a_cluster_reaches_the_terminal_as_a_command(capsys: Capture) -> None:
    assert run(["explain", "scale-up", OTHER.name], "karpool") == 0
    text = capsys.readouterr().out
    assert "\x1b" not in text and "?[31mred" in text
    assert "the next attempt follows in 3m" in text
    assert "the next round starts with the first" in text


@pytest.mark.usefixtures("cluster")
def test_a_name_that_does_not_exist_says_where_to_look(capsys: Capture) -> None:
    assert run(["explain", "scale-up", "scaleup-nothing"], "karpool") == 1
    assert "karpool get scale-ups" in capsys.readouterr().err


def test_a_file_shows_the_same(tmp_path: Path, capsys: Capture) -> None:
    path = tmp_path / "objects.json"
    items = [{"apiVersion": SCALEUPS.api_version, "kind": SCALEUPS.kind, **each} for each in objects(1000.0)]
    path.write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": items}))
    assert run(["get", "scale-ups", "--snapshot", str(path), "-o", "yaml"], "karpool") == 0
    assert KEY.name in capsys.readouterr().out


def test_a_state_that_there_is_not_is_said(capsys: Capture) -> None:
    assert run(["get", "scale-ups", "--state", "Pendign"], "karpool") == 2
    assert "'Pendign' is not one of" in capsys.readouterr().err
