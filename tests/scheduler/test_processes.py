"""`karpool scheduler` as people run it: processes, HTTPS, leases, signals; and `karpool explain binding`."""

import asyncio
import json
import signal
import sys
from contextlib import asynccontextmanager

import pytest

from karpool.cli.main import run
from karpool.kube.api.client import Client
from karpool.kube.clock import RealClock
from karpool.manager.options import InvalidOptions, read_options
from karpool.model.kubernetes.api_resources import CLUSTERS, CRDS, LEASES, NAMESPACES, RESOURCEBINDINGS
from karpool.scheduler.controller.options import DeschedulerOptions, SchedulerOptions
from karpool_fleet.apiserver.kinds.bundled_crds import KARMADA, bundled_crds
from karpool_fleet.apiserver.serve.inprocess import InProcessTransport
from karpool_fleet.apiserver.serve.run import run_apiserver
from tests.scheduler.acting import APIS, binding, cluster, condition, summary, targets

QUICK_LEASE = [
    "--leader-elect-lease-duration=3s",
    "--leader-elect-renew-deadline=2s",
    "--leader-elect-retry-period=200ms",
]


@asynccontextmanager
async def control_plane(kubeconfig):
    """An API server on a port, and a client that needs none."""
    started, stop = asyncio.get_running_loop().create_future(), asyncio.Event()
    serving = asyncio.create_task(run_apiserver(kubeconfig=kubeconfig, ready=started.set_result, stop=stop))
    running = await started
    client = Client(InProcessTransport(running.server), RealClock(), qps=None)
    for definition in bundled_crds(KARMADA):
        await client.create(CRDS, definition)
    await client.create(NAMESPACES, {"metadata": {"name": "karmada-system"}})
    try:
        yield client
    finally:
        stop.set()
        await serving


async def join(client, name, cpu):
    await client.create(CLUSTERS, cluster(name))
    status = {"resourceSummary": summary(cpu), "apiEnablements": APIS}
    await client.patch(CLUSTERS, name, {"status": status}, subresource="status")


async def start(kubeconfig, *flags):
    return await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "karpool.cli.main",
        "scheduler",
        f"--kubeconfig={kubeconfig}",
        "--metrics-bind-address=0",
        "--health-probe-bind-address=0",
        *QUICK_LEASE,
        *flags,
        stderr=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )


async def until(is_so, seconds=80.0):
    async with asyncio.timeout(seconds):
        while not await is_so():  # noqa: ASYNC110 - what is waited for is a state, not an event
            await asyncio.sleep(0.05)


async def _states(client):
    return [condition(each)[0] for each in (await client.list(RESOURCEBINDINGS)).items]


@pytest.mark.long
@pytest.mark.timeout(180)  # four processes, on a machine that may be busy
async def test_killed_between_decision_and_binding_then_a_burst_and_nothing_is_overcommitted(
    tmp_path, capsys
):
    kubeconfig = tmp_path / "karmada.yaml"
    async with control_plane(kubeconfig) as client:
        await join(client, "m1", 10)
        first = await start(kubeconfig)
        for number in range(3):
            await client.create(RESOURCEBINDINGS, binding(f"app{number}", 2))

        async def three() -> bool:
            return await _states(client) == ["True"] * 3

        await until(three)
        first.kill()
        await first.wait()
        # No pod has come: the summary still shows all ten cores free.
        for number in range(8):
            await client.create(RESOURCEBINDINGS, binding(f"burst{number}", 2))
        second = await start(kubeconfig)

        async def all_told() -> bool:
            return all(await _states(client))

        await until(all_told)
        found = (await client.list(RESOURCEBINDINGS)).items
        assert sum(sum(targets(each).values()) for each in found) == 10
        waiting = next(each for each in found if condition(each)[0] == "False")

        name = f"default/{waiting['metadata']['name']}"
        arguments = ["explain", "binding", name, "--kubeconfig", str(kubeconfig)]
        assert await asyncio.to_thread(run, arguments, "karpool") == 3
        told = capsys.readouterr().out
        assert "m1: score 0, room for 0 more" in told
        assert "general-estimator: 0, counts (after 10 promised)" in told
        assert "Clusters available replicas 0 are not enough to schedule." in told
        assert await asyncio.to_thread(run, [*arguments, "-o", "json"], "karpool") == 3
        document = json.loads(capsys.readouterr().out)
        assert document["kind"] == "BindingExplanation"
        assert document["reason"] == "Unschedulable"

        second.send_signal(signal.SIGTERM)
        assert await second.wait() == 0
        lease = await client.get(LEASES, "karpool-scheduler", namespace="karmada-system")
        assert lease["spec"]["holderIdentity"] == ""


@pytest.mark.timeout(120)
async def test_a_dry_run_prints_decisions_and_writes_nothing(tmp_path):
    kubeconfig = tmp_path / "karmada.yaml"
    async with control_plane(kubeconfig) as client:
        await join(client, "m1", 10)
        await client.create(RESOURCEBINDINGS, binding("web", 4))
        child = await start(kubeconfig, "--dry-run")
        line = json.loads(await asyncio.wait_for(child.stdout.readline(), 80))
        assert line["binding"] == {"kind": "ResourceBinding", "name": "default/web-deployment"}
        assert line["clusters"] == [{"name": "m1", "replicas": 4}]
        child.send_signal(signal.SIGTERM)
        assert await child.wait() == 0
        (found,) = (await client.list(RESOURCEBINDINGS)).items
        assert "clusters" not in found["spec"]
        assert not found.get("status")
        assert (await client.list(LEASES)).items == []


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        ({"scheduler-name": ""}, "--scheduler-name: '': must not be empty"),
        ({"plugins": ("Nope",)}, "--plugins: 'Nope': is not a plugin"),
        ({"feature-gates": "Nope=true"}, "--feature-gates: 'Nope': is not a gate"),
        ({"leader-elect-retry-period": "1h"}, "each must be larger than the next"),
        ({"workers": 0}, "--workers: 0: must be at least 1"),
        ({"assumption-ttl": "soon"}, "--assumption-ttl"),
        ({"unschedulable-retry": "0s"}, "--unschedulable-retry: '0s': must be longer than 0s"),
        ({"cost": "free"}, "--cost: 'free': must be one of off, tie-break, weight"),
    ],
    ids=str,
)
def test_what_cannot_work_is_refused_before_anything_starts(flags, said):
    with pytest.raises(InvalidOptions) as refused:
        read_options(SchedulerOptions, flags)
    assert said in str(refused.value)


def test_the_descheduler_refuses_in_the_same_way():
    with pytest.raises(InvalidOptions, match="unschedulable-threshold"):
        read_options(DeschedulerOptions, {"unschedulable-threshold": "-1s"})
    with pytest.raises(InvalidOptions, match="--descheduling-interval: '0': must be longer than 0s"):
        read_options(DeschedulerOptions, {"descheduling-interval": "0"})
