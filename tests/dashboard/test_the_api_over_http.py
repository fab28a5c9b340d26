"""The JSON API: what it answers is what it describes, to whom it answers, and that it only reads."""

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

import aiohttp
import msgspec
import pytest
import pytest_asyncio

from karpool.dashboard.api import openapi
from karpool.dashboard.api.endpoints import ENDPOINTS, PREFIX
from karpool.dashboard.server.app import ServedDashboard, dashboard
from karpool.dashboard.server.certificate import ReloadingCertificate
from karpool.kube.clock import RealClock
from karpool.manager import probes
from karpool.model.errors import Invalid
from karpool.model.kubernetes.api_resources import NODES
from karpool_fleet.clusters.embedded import EmbeddedCluster
from tests.dashboard.fleets import clusters_of, something_of_everything
from tests.kube.pki import Authority

pytestmark = pytest.mark.asyncio(loop_scope="module")
GIVEN = {"cluster": "east", "node": "ip-10-0-0-5", "namespace": "default", "name": "search-deployment"}


@dataclass
class Asked:
    """A fleet, its dashboard, and somebody who asks."""

    page: ServedDashboard
    session: aiohttp.ClientSession
    clusters: dict[str, EmbeddedCluster]


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def asked() -> AsyncIterator[Asked]:
    async with clusters_of(something_of_everything(RealClock().now())) as clusters:
        clients = {name: cluster.client("dashboard") for name, cluster in clusters.items()}
        async with dashboard(clients) as page, aiohttp.ClientSession(page.url) as session:
            await everything_read(page)
            yield Asked(page, session, clusters)


async def everything_read(page: ServedDashboard) -> None:
    with page.collector.bell.listen() as listener:
        while page.collector.not_ready() is not None:
            await listener.rung()


def address(path: str, **given: str) -> str:
    return path.format(**GIVEN | given)


async def test_every_answer_is_what_the_description_says(asked: Asked) -> None:
    found = await (await asked.session.get(f"{PREFIX}/consolidation")).json()
    board = next(each for each in found["boards"] if each["cluster"] == GIVEN["cluster"])
    move = board["points"][0]["id"]
    for endpoint in ENDPOINTS:
        response = await asked.session.get(address(endpoint.path, move=move))
        assert response.status == 200, endpoint.path
        found = msgspec.json.decode(await response.read())
        # There and back: a field too many would be an answer that nobody described.
        assert msgspec.to_builtins(msgspec.convert(found, endpoint.answers)) == found


async def test_the_description_covers_every_endpoint_and_only_those() -> None:
    described = json.loads(openapi.document())

    assert set(described["paths"]) == {endpoint.path for endpoint in ENDPOINTS} | {openapi.STREAM}
    assert all(set(verbs) == {"get"} for verbs in described["paths"].values())
    names = [each["get"]["operationId"] for each in described["paths"].values()]
    assert len(names) == len(set(names))
    references = set(_references(described))
    assert references == {f"#/components/schemas/{name}" for name in described["components"]["schemas"]}


def _references(node):
    if isinstance(node, dict):
        yield from (value for key, value in node.items() if key == "$ref")
        for value in node.values():
            yield from _references(value)
    elif isinstance(node, list):
        for value in node:
            yield from _references(value)


async def test_what_did_not_change_is_not_sent_again(asked: Asked) -> None:
    first = await asked.session.get(f"{PREFIX}/promises")
    again = await asked.session.get(f"{PREFIX}/promises", headers={"If-None-Match": first.headers["ETag"]})

    assert first.status == 200
    assert again.status == 304


async def test_the_stream_tells_versions_now_and_when_they_change(asked: Asked) -> None:
    async with asked.session.get(f"{PREFIX}/stream") as stream:
        first = await _versions(stream)
        admin = asked.clusters["east"].client("admin")
        await admin.patch(NODES, "ip-10-0-0-5", {"spec": {"unschedulable": True}})
        later = await _versions(stream)

    assert stream.headers["Content-Type"] == "text/event-stream"
    assert later["fleet"] > first["fleet"]
    assert later["promises"] == first["promises"]


async def _versions(stream: aiohttp.ClientResponse) -> dict[str, int]:
    async for line in stream.content:
        if line.startswith(b"data: "):
            return json.loads(line[6:])
    raise AssertionError("the stream ended")


@pytest.mark.parametrize(
    ("path", "status"),
    [
        pytest.param("/api/v1/clusters/nowhere/nodes", 404, id="no such cluster"),
        pytest.param("/api/v1/clusters/east/nodes/nobody", 404, id="no such node"),
        pytest.param("/api/v1/clusters/east/moves/nothing", 404, id="no such move"),
        pytest.param("/api/v1/placements/default/nothing", 404, id="no such binding"),
        pytest.param(f"/api/v1/clusters/{'x' * 254}/nodes", 400, id="a name too long"),
        pytest.param("/api/v1/nothing", 404, id="no such question"),
        pytest.param("/page/../server.py", 404, id="a file of ours"),
        pytest.param("/page/%2e%2e/server.py", 404, id="the same, hidden"),
    ],
)
async def test_what_there_is_not_is_said_as_a_problem(asked: Asked, path: str, status: int) -> None:
    response = await asked.session.get(path)
    problem = await response.json(content_type="application/problem+json")

    assert (response.status, problem["status"]) == (status, status)
    assert problem["detail"]
    assert response.headers["Content-Security-Policy"].startswith("default-src 'none'")


@pytest.mark.parametrize("method", ["POST", "PUT", "PATCH", "DELETE", "OPTIONS"])
async def test_nothing_but_reading_is_answered(asked: Asked, method: str) -> None:
    response = await asked.session.request(method, f"{PREFIX}/fleet", data=b"x")

    assert response.status == 405
    assert response.headers["Allow"] == "GET, HEAD"


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        pytest.param({"Host": "localhost:1"}, 200, id="loopback by name"),
        pytest.param({"Host": "[::1]:9"}, 200, id="loopback in IPv6"),
        pytest.param({"Host": "evil.example"}, 403, id="a name that was bound to us"),
        pytest.param({"Host": "127.0.0.1.evil.example"}, 403, id="a name that looks like us"),
        pytest.param({"Origin": "http://evil.example"}, 403, id="a page of others"),
        pytest.param({"Origin": "null"}, 403, id="a page of nobody"),
        pytest.param({"Sec-Fetch-Site": "cross-site"}, 403, id="a browser that says so"),
    ],
)
async def test_pages_of_others_are_not_answered(asked: Asked, headers: dict[str, str], status: int) -> None:
    assert (await asked.session.get(f"{PREFIX}/fleet", headers=headers)).status == status


async def test_a_token_opens_the_api_and_nothing_else_does(asked: Asked) -> None:
    token = "correct-horse-battery"
    clients = {"east": asked.clusters["east"].client("guarded")}
    async with dashboard(clients, token=token) as page, aiohttp.ClientSession(page.url) as session:
        for given in ("", "Bearer", "Bearer wrong", f"Basic {token}", f"Bearer {token}x"):
            response = await session.get(f"{PREFIX}/fleet", headers={"Authorization": given})
            assert response.status == 401, given
        right = {"Authorization": f"Bearer {token}", "Host": "dashboard.example"}
        assert (await session.get(f"{PREFIX}/fleet", headers=right)).status == 200
        assert (await session.get(f"{PREFIX}/stream")).status == 401
        assert (await session.get("/metrics")).status == 401
        # The page and the description hold nothing of the fleet.
        assert (await session.get("/")).status == 200
        assert (await session.get("/openapi.json")).status == 200

    assert token in page.link and token not in page.url


async def test_metrics_tell_of_answers_and_clusters(asked: Asked) -> None:
    async def told() -> dict[str, float]:
        text = await (await asked.session.get("/metrics")).text()
        lines = (line.rpartition(" ") for line in text.splitlines() if not line.startswith("#"))
        return {name: float(value) for name, _, value in lines}

    before = await told()
    await asked.session.get(f"{PREFIX}/fleet")
    await asked.session.get(f"{PREFIX}/nothing")
    await asked.session.post(f"{PREFIX}/fleet")
    async with asked.session.get(f"{PREFIX}/stream") as stream:
        await _versions(stream)
        after = await told()

    def more(name: str) -> float:
        return after[name] - before[name]

    counted = "karpool_dashboard_requests_total"
    assert {code: more(f'{counted}{{code="{code}"}}') for code in ("2xx", "404", "4xx", "5xx")} == {
        "2xx": 2,  # one of them the metrics themselves
        "404": 1,
        "4xx": 1,
        "5xx": 0,
    }
    assert more("karpool_dashboard_open_pages") == 1
    assert more("karpool_dashboard_request_duration_seconds_count") == 4
    assert {after[f'karpool_dashboard_cluster_synced{{cluster="{name}"}}'] for name in asked.clusters} == {
        1.0
    }
    assert (
        max(after[f'karpool_dashboard_staleness_seconds{{cluster="{name}"}}'] for name in asked.clusters) < 60
    )
    assert any(name.startswith("karpool_build_info{") for name in after)


async def test_outside_loopback_a_token_is_needed(asked: Asked) -> None:
    clients = {"east": asked.clusters["east"].client("outside")}
    with pytest.raises(Invalid, match="not loopback"):
        async with dashboard(clients, host="0.0.0.0"):
            pass
    with pytest.raises(Invalid, match="at least 16"):
        async with dashboard(clients, token="short"):
            pass


async def test_one_dead_cluster_is_told_and_the_others_are_shown(asked: Asked) -> None:
    clusters = asked.clusters
    clients = {"gpu": clusters["gpu"].client("dead"), "east": clusters["east"].client("alive")}
    clusters["gpu"].faults.fail("dead", status=503)
    async with dashboard(clients) as page, aiohttp.ClientSession(page.url) as session:
        with page.collector.bell.listen() as listener:
            while not page.collector.fleet().nodes:
                await listener.rung()
        live, ready = await session.get("/livez"), await session.get("/readyz")
        text = await ready.text()
        fleet = await (await session.get(f"{PREFIX}/fleet")).json()

    assert (live.status, ready.status) == (200, 503)
    assert "cluster gpu" in text and "not listed yet" in text
    by_name = {each["name"]: each for each in fleet["clusters"]}
    assert by_name["east"]["nodes"] == 13
    assert any("not everything has been read" in line for line in by_name["gpu"]["why"])


async def test_it_writes_nothing_to_any_cluster(asked: Asked) -> None:
    before = {name: cluster.server.cluster.store.version for name, cluster in asked.clusters.items()}
    for endpoint in ENDPOINTS:
        await asked.session.get(address(endpoint.path, move="none"))
    after = {name: cluster.server.cluster.store.version for name, cluster in asked.clusters.items()}

    assert after == before


@pytest.mark.parametrize("sent", [b"", b"GET / HTTP/1.1\r\nHost: x\r\n"], ids=["nothing", "half a header"])
async def test_who_is_slow_to_ask_is_cut_off(
    asked: Asked, monkeypatch: pytest.MonkeyPatch, sent: bytes
) -> None:
    monkeypatch.setattr(probes, "IDLE_SECONDS", 0.05)
    clients = {name: cluster.client("dashboard") for name, cluster in asked.clusters.items()}
    async with dashboard(clients) as page:
        reader, writer = await asyncio.open_connection("127.0.0.1", urlsplit(page.url).port)
        writer.write(sent)
        async with asyncio.timeout(10):
            assert await reader.read() == b""
        writer.close()


async def test_who_never_ends_the_handshake_is_cut_off(
    asked: Asked, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(probes, "IDLE_SECONDS", 0.05)
    pair = Authority().issue("dashboard", hosts=["localhost"])
    files = tmp_path / "tls.crt", tmp_path / "tls.key"
    files[0].write_bytes(pair.certificate)
    files[1].write_bytes(pair.key)
    clients = {name: cluster.client("dashboard") for name, cluster in asked.clusters.items()}
    async with dashboard(clients, certificate=ReloadingCertificate(*files)) as page:
        reader, writer = await asyncio.open_connection("127.0.0.1", urlsplit(page.url).port)
        async with asyncio.timeout(10):
            assert await reader.read() == b""
        writer.close()
