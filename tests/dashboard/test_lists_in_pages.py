"""Clusters, nodes, waiting pods, GPUs, moves and the search: chosen, sorted and cut by the server."""

from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import pytest
import pytest_asyncio

from karpool.cli.inspect.get_moves import moves_listing
from karpool.cli.inspect.top_gpus import gpu_listing
from karpool.dashboard.api.endpoints import PREFIX
from karpool.dashboard.pages.waiting_pods import main_reason
from karpool.dashboard.server.app import ServedDashboard, dashboard
from karpool.kube.clock import RealClock
from karpool.model.kubernetes.api_resources import PODS
from tests.dashboard.fleets import HOSTILE, answers_for_people, clusters_of
from tests.dashboard.test_the_api_over_http import everything_read

pytestmark = pytest.mark.asyncio(loop_scope="module")


class Asked:
    def __init__(self, page: ServedDashboard, session: aiohttp.ClientSession, clusters: Any) -> None:
        self.page, self.session, self.clusters = page, session, clusters

    async def get(self, path: str, status: int = 200, **query: Any) -> dict[str, Any]:
        response = await self.session.get(f"{PREFIX}/{path}", params=query)
        assert response.status == status, await response.text()
        found: dict[str, Any] = await response.json(content_type=None)
        return found


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def asked() -> AsyncIterator[Asked]:
    async with clusters_of(answers_for_people(RealClock().now())) as clusters:
        clients = {name: cluster.client("dashboard") for name, cluster in clusters.items()}
        async with dashboard(clients) as page, aiohttp.ClientSession(page.url) as session:
            await everything_read(page)
            yield Asked(page, session, clusters)


async def test_a_page_is_a_piece_of_the_whole_in_its_order(asked: Asked) -> None:
    whole = (await asked.get("nodes", sort="-price"))["items"]
    pieces = [(await asked.get("nodes", sort="-price", offset=at, limit=3))["items"] for at in (0, 3, 6)]

    assert [each for piece in pieces for each in piece] == whole
    prices = [each["node"]["pricePerHour"] for each in whole]
    assert prices == sorted(prices, reverse=True) and len(set(prices)) > 1


@pytest.mark.parametrize("path", ["clusters", "nodes", "waiting", "gpus", "moves"])
async def test_how_many_there_are_is_told_whatever_is_shown(asked: Asked, path: str) -> None:
    everything = await asked.get(path)
    nothing = await asked.get(path, q="no such thing", limit=5)
    one = await asked.get(path, limit=1)

    assert everything["matched"] == everything["total"] == len(everything["items"]) > 0
    assert (nothing["matched"], nothing["items"]) == (0, [])
    assert nothing["total"] == one["total"] == everything["total"]
    assert one["items"] == everything["items"][:1]


@pytest.mark.parametrize("path", ["clusters", "nodes", "waiting", "gpus", "moves"])
@pytest.mark.parametrize(
    ("query", "names"),
    [
        ({"sort": "colour"}, "sort"),
        ({"offset": "-1"}, "offset"),
        ({"limit": "many"}, "limit"),
        ({"limit": "1e3"}, "limit"),
        ({"offset": "٣"}, "offset"),
    ],
)
async def test_a_wrong_question_is_told_which_part_is_wrong(
    asked: Asked, path: str, query: dict[str, str], names: str
) -> None:
    problem = await asked.get(path, 422, **query)

    assert names in problem["detail"]


async def test_every_column_sorts_both_ways(asked: Asked) -> None:
    for path, column in (("waiting", "since"), ("gpus", "holders"), ("moves", "began"), ("nodes", "cpu")):
        up = (await asked.get(path, sort=column))["items"]
        down = (await asked.get(path, sort=f"-{column}"))["items"]
        assert len(up) == len(down) and up[0] != up[-1]
        assert down[0] != up[0], path


async def test_waiting_pods_say_why_and_the_commonest_reason_comes_first(asked: Asked) -> None:
    found = await asked.get("waiting")
    rows = {each["name"]: each for each in found["items"]}

    assert rows["stuck-0"]["reason"] == "Insufficient cpu"
    assert rows["gated"]["reason"] == "is held by scheduling gates"
    assert rows["gated"]["gates"] == ["team/quota"]
    assert rows["too-big"]["reason"] == "default-scheduler has not tried it yet"
    assert HOSTILE in rows["odd"]["reason"]
    assert found["reasons"][0] == {"reason": "Insufficient cpu", "pods": 2}
    fleet = await asked.get("clusters")
    assert fleet["pending"] == found["total"]


@pytest.mark.parametrize(
    ("said", "reason"),
    [
        ("0/3 nodes are available: 1 Insufficient cpu, 2 node(s) had taint {a: b}, that 1 needs.", None),
        ("0/3 nodes are available: 3 Insufficient memory. preemption: 0/3 nodes", "Insufficient memory"),
        ("something else altogether\nand more", "something else altogether"),
        ("", "no reason was given"),
        ("0/99999999999 nodes are available: 99999999999999 x", None),
    ],
)
async def test_what_the_scheduler_says_is_cut_to_its_main_reason(said: str, reason: str | None) -> None:
    found = main_reason(said)

    assert found and len(found) <= 160
    if reason is not None:
        assert found == reason


async def test_a_waiting_pod_is_explained_as_the_command_does(asked: Asked) -> None:
    (pod,) = (await asked.get("pods", cluster="east", namespace="team", name="stuck-0"))["items"]

    assert pod["verdict"] == "fits nowhere, and no new node would take it"
    assert pod["openNodes"] == 0 and pod["nodes"] == 8
    assert any("cpu" in each["detail"] and each["remedy"] for each in pod["obstacles"])
    assert {each["pool"] for each in pod["offers"]} == {"karpenter/general", "karpenter/batch"}
    assert all(each["reasons"] for each in pod["offers"])
    assert any("other pod" in line for line in pod["others"])


async def test_a_pod_that_has_a_node_waits_for_nothing_and_one_that_is_not_there_is_not_found(
    asked: Asked,
) -> None:
    (pod,) = (await asked.get("pods", cluster="east", namespace="team", name="trainer"))["items"]

    assert (pod["verdict"], pod["node"]) == ("has a node", "gpu-a")
    await asked.get("pods", 404, cluster="east", namespace="team", name="nobody")
    await asked.get("pods", 404, cluster="nowhere", namespace="team", name="trainer")
    assert (await asked.get("pods"))["items"] == []


async def test_gpus_are_those_of_the_command(asked: Asked) -> None:
    watch = asked.page.collector.watches["east"]
    listed = gpu_listing(watch.cluster.snapshot(), "east")
    found = await asked.get("gpus")

    assert [each["device"] for each in found["items"]] == [item.document["device"] for item in listed.items]
    assert found["models"] == [{"model": "L4", "devices": 5, "held": 2}]
    held = await asked.get("gpus", q="trainer")
    assert held["matched"] == 2 and all(each["freeUnits"] == 0 for each in held["items"])


async def test_moves_are_those_of_the_command_and_one_that_was_edited_is_told(asked: Asked) -> None:
    watch = asked.page.collector.watches["east"]
    found = await asked.get("moves")
    listed = moves_listing(watch.moves.records, found["at"])

    assert found["savedDollars"] == pytest.approx(listed.content["savedDollars"], rel=1e-3)
    assert (found["done"], found["rolledBack"], found["underWay"]) == (1, 1, 0)
    latest, done = found["items"]
    assert (latest["phase"], done["phase"]) == ("RolledBack", "Done")
    assert any(HOSTILE in line for line in latest["why"])
    assert done["savedDollars"] == pytest.approx(0.05, rel=0.05)
    (problem,) = found["problems"]
    assert "edited" in problem


async def test_a_cluster_says_what_fills_it_what_could_come_and_what_was_refused(asked: Asked) -> None:
    found = await asked.get("clusters/east")

    assert found["filledBy"][0]["name"] == "team" and found["filledBy"][0]["pods"] > 10
    assert any(line.startswith("general: up to") for line in found["launchable"])
    assert any("pending" in line for line in found["refused"])
    assert found["cluster"]["pools"]
    assert all(each["pools"] == [] for each in (await asked.get("clusters"))["items"])
    await asked.get("clusters/nowhere", 404)


@pytest.mark.parametrize(
    ("words", "kind", "name"),
    [
        ("east", "cluster", "east"),
        ("GENERAL", "pool", "general"),
        ("gpu-a", "node", "gpu-a"),
        ("trainer", "pod", "team/trainer"),
        ("stuck team", "pod", "team/stuck-0"),
    ],
)
async def test_everything_is_found_by_its_name(asked: Asked, words: str, kind: str, name: str) -> None:
    found = await asked.get("search", q=words)

    assert (kind, name) in {(each["kind"], each["name"]) for each in found["items"]}


async def test_a_search_is_bounded_and_says_that_there_is_more(asked: Asked) -> None:
    found = await asked.get("search", q="web-")

    assert len([each for each in found["items"] if each["kind"] == "pod"]) == 12
    assert found["leftOut"] >= 1
    assert (await asked.get("search"))["items"] == []


async def test_events_are_chosen_by_the_server(asked: Asked) -> None:
    assert (await asked.get("events", type="Nothing"))["items"] == []
    assert (await asked.get("events", cluster="nowhere"))["items"] == []


async def test_evictions_are_counted_once_each(asked: Asked) -> None:
    watch = asked.page.collector.watches["east"]
    admin = asked.clusters["east"].client("admin")
    told, deleted, *_ = (key.removeprefix("team/") for key in watch.view().pods.keys if "/web-" in key)
    with asked.page.collector.bell.listen() as listener:
        await admin.delete(PODS, deleted, namespace="team")
        await admin.evict(told, namespace="team")
        while not watch.evictions.count:
            await listener.rung()

    assert watch.evictions.count == 1
