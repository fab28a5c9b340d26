"""Each controller and the dashboard: a kind that is denied or fails is waited for, and named; none is "none".

What may be closed to a capability is listed here: its answers are given without, and say so.
"""

import asyncio
from types import SimpleNamespace

import pytest

from karpool.cluster.aspects import Aspect
from karpool.cluster.cluster import Cluster
from karpool.cluster.market.market import Market
from karpool.consolidation.execution.controller import Consolidator
from karpool.dashboard.change_notifier import ChangeNotifier
from karpool.dashboard.cluster_watch import DashboardCluster
from karpool.estimator.plugins.framework import Framework
from karpool.estimator.serving.member import MemberEstimator
from karpool.gpu.controller.controller import GpuScaler
from karpool.kube.event_recorder import EventRecorder
from karpool.manager.controller import Environment
from karpool.scheduler.controller.controller import Scheduler
from karpool.scheduler.descheduler.descheduler import Descheduler
from karpool.scheduler.summaries.summary_writer import ClusterSummaryWriter
from tests.kube.tiny_server import Fault, TinyServer, status
from tests.kube.virtual import client_of, virtually


def environment(client):
    return Environment({client.name: client}, EventRecorder(client, "test"))


BUILD = {
    "consolidator": lambda client: Consolidator(environment(client), market=Market()),
    "dashboard": lambda client: DashboardCluster("c", client, ChangeNotifier()),
    "descheduler": lambda client: Descheduler(environment(client), SimpleNamespace()),
    "estimator": lambda client: MemberEstimator("c", client, Cluster(~Aspect(0)), Framework([])),
    "gpu-scaler": lambda client: GpuScaler(environment(client)),
    "scheduler": lambda client: Scheduler(environment(client)),
    "cluster-summary": lambda client: ClusterSummaryWriter(environment(client), SimpleNamespace()),
}
# What they decide on: never counted as none. The others read roles that were written for less, and say what
# is closed to them; the picture of the cluster then holds what such objects could concern.
NEEDED = {
    "estimator": {"nodes", "pods", "resourcequotas"},
    "gpu-scaler": {
        "nodes",
        "pods",
        "gpus.tensor-fusion.ai",
        "scaleups.gpu.karpool.dev",
        "nodeclaims.karpenter.sh",
    },
    "dashboard": {"nodes", "pods"},
}
SECONDS = 20.0


def sets_of(built):
    informers = built.informers
    return list(informers) if isinstance(informers, tuple) else [informers]


def kinds_of(name):
    async def kinds():
        built = BUILD[name](client_of(TinyServer()))
        return sorted({informer.resource for one in sets_of(built) for informer in one.informers}, key=str)

    return virtually(kinds())


def judged(name, resource, code):
    """What is not ready, and what answers are given without, when one kind is answered like this."""

    async def life():
        server = TinyServer()
        refusal = Fault(response=status(code, {403: "Forbidden", 503: "ServiceUnavailable"}[code]))
        plural = f"/{resource.plural}"
        server.fault = lambda request: (
            refusal
            if request.path.startswith(resource.root) and request.path.split("?")[0].endswith(plural)
            else None
        )
        watched = sets_of(BUILD[name](client_of(server)))
        running = [asyncio.ensure_future(one.run()) for one in watched]
        try:
            await asyncio.sleep(SECONDS)
            not_ready = [reason for one in watched if (reason := one.not_ready()) is not None]
            return not_ready, [line for one in watched for line in one.unseen()]
        finally:
            for task in running:
                task.cancel()
            await asyncio.gather(*running, return_exceptions=True)

    return virtually(life())


@pytest.mark.long
@pytest.mark.parametrize("name", BUILD)
def test_a_kind_that_is_denied_or_fails_is_waited_for_and_named(name):
    closed = set()
    for resource in kinds_of(name):
        not_ready, unseen = judged(name, resource, 503)
        assert any(str(resource) in reason for reason in not_ready) and not unseen, (resource, not_ready)
        not_ready, unseen = judged(name, resource, 403)
        if unseen:
            closed |= {str(resource)} if not not_ready else set()
            assert all(str(resource) in line for line in (*unseen, *not_ready))
        else:
            assert any(str(resource) in reason for reason in not_ready), (resource, not_ready)
    if name in NEEDED:
        assert closed and not closed & NEEDED[name]
    else:
        assert not closed
