import asyncio

import aiohttp
import pytest
from prometheus_client import CollectorRegistry, Counter

from karpool.manager import probes
from karpool.manager.probes import HealthChecks, ProbeServer


@pytest.fixture
async def served():
    registry = CollectorRegistry()
    Counter("decisions", "Decisions made", registry=registry).inc(3)
    health = HealthChecks()
    async with ProbeServer(health, registry=registry) as server, aiohttp.ClientSession() as session:

        async def get(path):
            async with session.get(f"http://127.0.0.1:{server.port}{path}") as answer:
                return answer.status, await answer.text()

        yield health, get


async def test_a_process_without_checks_is_alive_and_ready(served):
    _, get = served

    for path in ("/livez", "/readyz", "/healthz"):
        assert await get(path) == (200, "ok\n")


async def test_readiness_waits_for_its_checks_and_liveness_does_not(served):
    health, get = served
    reasons = {"pods": "not synced"}
    health.add("readyz", "informer-pods", lambda: reasons.get("pods"))

    assert await get("/livez") == (200, "ok\n")
    assert await get("/readyz") == (
        503,
        "[+]ping ok\n[-]informer-pods failed: not synced\nreadyz check failed\n",
    )
    reasons.clear()
    assert await get("/readyz?verbose") == (200, "[+]ping ok\n[+]informer-pods ok\nreadyz check passed\n")


async def test_a_check_that_raises_is_a_failure_without_details(served):
    health, get = served
    health.add("livez", "loop", lambda: 1 / 0)

    status, text = await get("/livez")

    assert status == 503
    assert "[-]loop failed: the check raised ZeroDivisionError" in text


async def test_metrics_are_in_prometheus_form(served):
    _, get = served

    status, text = await get("/metrics")

    assert status == 200
    assert "decisions_total 3.0" in text


async def test_other_paths_and_methods_are_not_there(served):
    _, get = served

    assert (await get("/"))[0] == 404
    assert (await get("/" + "x" * 3000))[0] == 400


async def test_a_port_that_is_taken_is_named_with_the_flags_that_choose_another():
    registry = CollectorRegistry()
    async with ProbeServer(HealthChecks(), registry=registry) as server:
        with pytest.raises(
            OSError, match=rf"127\.0\.0\.1:{server.port}: .*in use; choose another with --metrics"
        ):
            await ProbeServer(HealthChecks(), port=server.port, registry=registry).__aenter__()


@pytest.mark.parametrize(
    "sent", [b"", b"GET /livez HTTP/1.1\r\nHost: x\r\n"], ids=["nothing", "half a header"]
)
async def test_who_is_slow_to_ask_is_cut_off(monkeypatch, sent):
    monkeypatch.setattr(probes, "IDLE_SECONDS", 0.05)
    async with ProbeServer(HealthChecks()) as server:
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(sent)
        async with asyncio.timeout(10):
            assert await reader.read() == b""
        writer.close()
