"""A pod that was known and cannot be decoded when the server is listed again: it is kept, named and counted,
and its room is not given away, in the picture of everybody who asks."""

import asyncio

import pytest

from karpool.cli.inspect import capacity, top
from karpool.cluster.aspects import Aspect
from karpool.cluster.cluster import Cluster
from karpool.consolidation import view as consolidation
from karpool.consolidation.planning.planner import plan_consolidation
from karpool.estimator.serving import member
from karpool.gpu.controller import controller as gpu_scaler
from karpool.kube.clock import RealClock
from karpool.kube.watch.feed import cluster_watches
from karpool.kube.watch.informer_set import InformerSet
from karpool.model.kubernetes.api_resources import NODES, PODS
from karpool.packing.counting.count import count
from tests.kube.tiny_server import Fault, TinyServer
from tests.kube.virtual import client_of, virtually

POD = "/api/v1/namespaces/team/pods/web"
SPEC = {"nodeName": "n", "containers": [{"name": "c", "resources": {"requests": {"cpu": "1"}}}]}
ASKING = {
    "consolidator": consolidation.ASPECTS,
    "estimator": member.MEMBER_ASPECTS,
    "capacity": capacity.ASPECTS,
    "top nodes": Aspect.NODECLAIMS | top._ASPECTS["nodes"],
    "top gpus": Aspect.NODECLAIMS | top._ASPECTS["gpus"],
    "gpu-scaler": gpu_scaler.ASPECTS | gpu_scaler.REFINING,
}


async def relisted(cluster: Cluster, **changes: object) -> dict[str, int]:
    """What the cluster knows once the pod was listed as it should be, and then with these changes; the answer
    is what /metrics counts."""
    server = TinyServer()
    amounts = {"cpu": "4", "memory": "8Gi", "pods": "10"}
    server.put("/api/v1/nodes/n", status={"allocatable": amounts})
    server.put(POD, spec=SPEC, status={"phase": "Running"})
    watches = [watch for watch in cluster_watches(cluster, RealClock()) if watch.resource in (NODES, PODS)]
    informers = InformerSet(client_of(server), watches)
    running = asyncio.ensure_future(informers.run())
    await asyncio.sleep(60)  # virtual ones
    assert informers.not_ready() is None
    assert cluster.room.node_of("team/web") == "n" and not list(cluster.problems)
    server.fault = lambda request: Fault(lose_request=True)
    server.cut()
    server.put(POD, {"spec": SPEC, "status": {"phase": "Running"}, **changes})
    server.compact()
    server.fault = lambda request: None
    await asyncio.sleep(300)
    counts = informers.unreadable()
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    return counts


BROKEN = {
    "bytes": {"status": {"phase": "Running", "conditions": "none"}},
    "quantity": {"spec": {**SPEC, "containers": [{"name": "c", "resources": {"requests": {"cpu": "NaN"}}}]}},
    "label": {"metadata": {"labels": {"app": "no such value!"}}},
}


@pytest.mark.parametrize("broken", BROKEN)
@pytest.mark.parametrize("asking", ASKING)
def test_it_is_kept_named_and_counted(asking, broken):
    cluster = Cluster(ASKING[asking])
    assert virtually(relisted(cluster, **BROKEN[broken])) == {"Node": 0, "Pod": 1}
    snapshot = cluster.snapshot(0.0)
    assert dict(snapshot.facts.blocked) == {"n": 1}
    assert any("team/web" in problem for problem in snapshot.problems)
    shape = snapshot.room.shapes[snapshot.room.pods_on(0)["team/web"]]
    assert count(snapshot.room, shape).total == 0, "nothing is free beside it"
    assert int(snapshot.room.free("cpu")[0]) == 0


def test_the_consolidator_says_what_holds_the_node():
    cluster = Cluster(consolidation.ASPECTS)
    virtually(relisted(cluster, **BROKEN["bytes"]))
    plan = plan_consolidation(consolidation.view_of(cluster.snapshot(0.0), 0.0), now=0.0)
    assert not plan.moves
    assert any("team/web" in problem for problem in plan.problems)
