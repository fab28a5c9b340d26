"""Charts are filled by a Prometheus that scrapes dashboards: bounded, checked, and never in the way."""

import asyncio
import json
import math
import shutil
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any
from urllib.parse import parse_qs, urlparse

import aiohttp
import pytest
from prometheus_client import CollectorRegistry, generate_latest, start_http_server

from karpool.cli.main import run
from karpool.dashboard.pages.collector import CollectorSettings
from karpool.dashboard.pages.time_series import FleetHistory, filled, range_of, series_of
from karpool.dashboard.prometheus_history import EVICTIONS, METRICS, PREFIX, Past, PrometheusHistory
from karpool.dashboard.server.app import dashboard
from karpool.dashboard.server.metrics import DashboardMetrics
from karpool.kube.clock import RealClock
from karpool.kube.transport.prometheus import PrometheusServer
from tests.dashboard.fleets import answers_for_people, clusters_of
from tests.dashboard.test_the_api_over_http import everything_read
from tests.dashboard.test_the_past_is_kept import row

START = 1_790_000_000.0
DAY = range_of("day")


def matrix(*series: tuple[str, list[tuple[float, str]]]) -> bytes:
    result = [{"metric": {"__name__": name} if name else {}, "values": values} for name, values in series]
    return json.dumps({"status": "success", "data": {"resultType": "matrix", "result": result}}).encode()


class Stub:
    """Answers about gauges and evictions at the first step that was asked for."""

    def __init__(self) -> None:
        self.asked: list[dict[str, list[str]]] = []
        self.tokens: list[str | None] = []
        self.status, self.body = 200, b""

    def answer(self, path: str) -> bytes:
        query = parse_qs(urlparse(path).query)
        self.asked.append(query)
        if self.body:
            return self.body
        start, step = float(query["start"][0]), float(query["step"][0])
        if EVICTIONS in query["query"][0]:
            return matrix(("", [(start, "2")]))
        return matrix(
            (f"{PREFIX}nodes", [(start, "7"), (start + step, "NaN")]),
            (f"{PREFIX}cpu_requested_cores", [(start, "1.5")]),
            ("somebody_elses", [(start, "1")]),
        )


@contextmanager
def listening(stub: Stub) -> Iterator[str]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            stub.tokens.append(self.headers.get("Authorization"))
            body = stub.answer(self.path)
            self.send_response(stub.status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *args: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()


async def read(stub: Stub, cluster: str = "east") -> tuple[Any, str]:
    history = PrometheusHistory(stub.answer, RealClock())
    return await history.read(cluster, DAY, START, START + DAY.seconds)


async def test_what_it_kept_comes_back_by_series_and_step() -> None:
    stub = Stub()
    past, remark = await read(stub)
    first = math.ceil(START / 120)

    assert remark == ""
    assert past == {"nodes": {first: 7.0}, "cpuRequested": {first: 1500.0}, "evictions": {first: 2.0}}
    assert {query["step"][0] for query in stub.asked} == {"120"}
    for query in stub.asked:  # no more points than a chart has
        points = (float(query["end"][0]) - float(query["start"][0])) / 120 + 1
        assert points <= DAY.steps + 1


async def test_names_of_clusters_stay_names_in_questions() -> None:
    stub = Stub()
    name = 'a"} or vector(1) or {x="\\'
    await read(stub, name)

    for query in stub.asked:
        text = query["query"][0]
        written, _ = json.JSONDecoder().raw_decode(text, text.index("cluster=") + len("cluster="))
        assert written == name


async def test_the_same_is_not_asked_again_at_once() -> None:
    stub = Stub()
    history = PrometheusHistory(stub.answer, RealClock())
    for _ in range(3):
        await history.read("", DAY, START, START + 1000)

    assert len(stub.asked) == 2


@pytest.mark.parametrize(
    "body",
    [
        b"<html>",
        b"[]",
        b'{"status": "error", "error": "query timed out"}',
        b'{"status": "success", "data": {"resultType": "vector", "result": []}}',
        matrix((f"{PREFIX}nodes", [(START, "many")])),
        matrix((f"{PREFIX}nodes", [(START + number, "1") for number in range(DAY.steps + 2)])),
        b"[" * 100_000,
    ],
)
async def test_what_is_no_answer_is_a_remark(body: bytes) -> None:
    stub = Stub()
    stub.body = body
    past, remark = await read(stub)

    assert past == {}
    assert remark.startswith("no history from Prometheus: ")
    assert len(remark) < 400


def test_own_samples_come_first_and_the_past_fills_the_rest() -> None:
    history = FleetHistory()
    history.sample([row(nodes=3)], {}, START)
    own = history.read("east", "hour", START - 30, START, START)
    first, last = (round(at / 10) for at in (own.times[0], own.times[-1]))
    whole = filled(own, {"nodes": {first: 9.0, last: 9.0}}, "")

    assert whole.series["nodes"][0] == 9.0
    assert whole.series["nodes"][-1] == 3.0
    assert whole.series["cost"][0] is None


def test_what_is_exported_is_what_is_read() -> None:
    metrics = DashboardMetrics(CollectorRegistry())
    metrics.sampled([row(nodes=3), row("new", not_ready="pods")], {"east": 4})
    metrics.sampled([row(nodes=5)], {"east": 6})
    text = generate_latest(metrics.registry).decode()

    for name, (metric, _, units) in METRICS.items():
        assert f'{PREFIX}{metric}{{cluster="east"}} {float(series_of(row(nodes=5))[name] / units)}' in text
    assert f'{EVICTIONS}_total{{cluster="east"}} 6.0' in text
    assert 'cluster="new"' not in text
    metrics.forget("east")
    assert 'cluster="east"' not in generate_latest(metrics.registry).decode()


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


async def told_by(url: str, is_so: Callable[[Past], object]) -> Past:
    """The last hour as Prometheus has it, as soon as that is so."""
    server, hour = PrometheusServer(url), range_of("hour")
    async with asyncio.timeout(120):
        while True:
            now = time.time()
            past, _ = await PrometheusHistory(server.fetch, RealClock()).read("east", hour, now - 600, now)
            if is_so(past):
                return past
            await asyncio.sleep(0.2)


@pytest.mark.long
@pytest.mark.skipif(shutil.which("prometheus") is None, reason="did not run: there is no prometheus")
async def test_a_real_prometheus_scrapes_and_tells_the_past(tmp_path: Path) -> None:
    metrics = DashboardMetrics(CollectorRegistry())
    metrics.sampled([row(nodes=3), row("west", nodes=40)], {"east": 4})
    exporter, thread = start_http_server(0, addr="127.0.0.1", registry=metrics.registry)
    target, listens = f"127.0.0.1:{exporter.server_port}", f"127.0.0.1:{free_port()}"
    config = {"scrape_configs": [{"job_name": "karpool", "static_configs": [{"targets": [target]}]}]}
    config |= {"global": {"scrape_interval": "1s"}}
    (tmp_path / "prometheus.yml").write_text(json.dumps(config))
    process = await asyncio.create_subprocess_exec(
        "prometheus",
        f"--config.file={tmp_path / 'prometheus.yml'}",
        f"--storage.tsdb.path={tmp_path / 'data'}",
        f"--web.listen-address={listens}",
        stderr=asyncio.subprocess.DEVNULL,
    )
    try:
        past = await told_by(f"http://{listens}", lambda past: past.get("nodes"))
        assert set(past["nodes"].values()) == {3.0}
        assert set(past["cpuRequested"].values()) == {3000.0}

        await told_by(f"http://{listens}", lambda past: past.get("evictions"))
        metrics.sampled([row(nodes=5)], {"east": 7})
        past = await told_by(f"http://{listens}", lambda past: sum(past["evictions"].values()))
        assert sum(past["evictions"].values()) == 3.0
        assert 5.0 in past["nodes"].values()
    finally:
        process.terminate()
        await process.wait()
        exporter.shutdown()
        exporter.server_close()
        thread.join()


async def test_a_page_shows_it_and_says_when_it_cannot(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("a-secret\n")
    stub = Stub()
    with listening(stub) as url:
        server = PrometheusServer(url, bearer_token_file=str(tmp_path / "token"))
        async with clusters_of(answers_for_people(RealClock().now())) as clusters:
            clients = {name: cluster.client("dashboard") for name, cluster in clusters.items()}
            settings = CollectorSettings(prometheus=server)
            async with (
                dashboard(clients, settings=settings) as page,
                aiohttp.ClientSession(page.url) as session,
            ):
                await everything_read(page)
                told = await (await session.get("/api/v1/time?range=day&cluster=east")).json()
                stub.status, stub.body = 401, b"no"
                refused = await (await session.get("/api/v1/time?range=month")).json()

    assert 7.0 in told["series"]["nodes"] and told["remarks"] == []
    assert set(stub.tokens) == {"Bearer a-secret"}
    assert "it requires authentication" in refused["remarks"][0]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--prometheus-url", "ftp://x"], "--prometheus-url"),
        (["--prometheus-url", "http://me:hunter2@x"], "--prometheus-url"),
        (["--prometheus-url", "http://x/?query=1"], "--prometheus-url"),
        (["--prometheus-token-file", "TOKEN"], "need --prometheus-url"),
        (["--prometheus-url", "http://x", "--prometheus-token-file", "/nowhere"], "does not exist"),
        (["--prometheus-url", "http://x", "--prometheus-ca-file", "TOKEN"], "https"),
        (["--allowed-host", "Dashboard.example.com:8088"], "without port"),
        (["--allowed-host", "http://x"], "without port"),
    ],
)
def test_wrong_flags_are_said(
    tmp_path: Path, arguments: list[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "token").write_text("x")
    given = [str(tmp_path / "token") if word == "TOKEN" else word for word in arguments]

    assert run(["dashboard", *given], "karpool") == 2
    said = capsys.readouterr().err
    assert says in said
    assert "hunter2" not in said
