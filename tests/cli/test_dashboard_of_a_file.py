"""`karpool dashboard --snapshot FILE`: the page of a file, at the time it was taken; no cluster is asked."""

import json
from pathlib import Path

import aiohttp
import pytest

from karpool.cli.main import run
from karpool.kube.clock import RealClock
from karpool.kube.snapshots.writer import take_snapshot
from tests.cli.test_dashboard_command import started
from tests.dashboard.fleets import answers_for_people, clusters_of


async def asked(address: str, *paths: str) -> list[dict]:
    async with aiohttp.ClientSession(address) as session:
        return [await (await session.get(f"/api/v1/{path}")).json() for path in paths]


@pytest.mark.long
async def test_a_snapshot_is_shown_as_the_cluster_was(tmp_path: Path) -> None:
    path = tmp_path / "east.karpool.gz"
    async with clusters_of(answers_for_people(RealClock().now())) as clusters:
        await take_snapshot(clusters["east"].client("snapshot"), path, context="east")

    async with started("--snapshot", str(path), "--port", "0") as (_, address):
        clusters_shown, waiting, gpus, pod = await asked(
            address, "clusters", "waiting", "gpus", "pods?cluster=east&namespace=team&name=stuck-0"
        )

    (row,) = clusters_shown["items"]
    assert (row["name"], row["nodes"], row["notReady"]) == ("east", 8, "")
    assert clusters_shown["file"]["name"] == "east.karpool.gz"
    assert clusters_shown["file"]["takenAt"] == clusters_shown["at"] == waiting["at"]  # time stands still
    assert waiting["total"] == row["pending"] == 5
    assert gpus["total"] == 5
    assert pod["items"][0]["verdict"] == "fits nowhere, and no new node would take it"


@pytest.mark.long
async def test_objects_of_kubectl_are_shown_too(tmp_path: Path) -> None:
    path = tmp_path / "all.json"
    objects = answers_for_people(RealClock().now())["east"]
    path.write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": objects}))

    async with started("--snapshot", str(path), "--port", "0") as (_, address):
        nodes, moves, shown = await asked(address, "nodes", "moves", "clusters")

    assert nodes["total"] == 8
    assert moves["done"] == 1
    assert shown["file"] == {"name": "all.json", "takenAt": None}


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--cluster", "east"], "--snapshot cannot be combined"),
        (["--all-contexts"], "--snapshot cannot be combined"),
        (["--members"], "--snapshot cannot be combined"),
    ],
)
def test_a_file_is_no_cluster(
    tmp_path: Path, arguments: list[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "x.json"
    path.write_text("{}")

    assert run(["dashboard", "--snapshot", str(path), *arguments], "karpool") == 2
    assert says in capsys.readouterr().err


@pytest.mark.parametrize("content", ["no objects {", "[1, 2]", ""])
def test_a_file_that_cannot_be_read_is_an_error(
    tmp_path: Path, content: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "broken.json"
    path.write_text(content)

    assert run(["dashboard", "--snapshot", str(path), "--port", "0"], "karpool") == 1
    assert "broken.json" in capsys.readouterr().err


def test_a_file_that_is_not_there_is_an_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["dashboard", "--snapshot", str(tmp_path / "none.json")], "karpool") == 2
    assert "none.json" in capsys.readouterr().err
