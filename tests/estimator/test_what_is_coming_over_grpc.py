"""GetUnschedulableReplicas leaves what is coming, whoever asks, also after a restart of the estimator."""

import pytest

from karpool.model.kubernetes.api_resources import NODEPOOLS, STATEFULSETS
from karpool.model.kubernetes.times import rfc3339
from karpool_fleet.clusters.object_loader import restore_objects
from tests.estimator.serving import serving
from tests.estimator.test_future_nodes_over_grpc import world
from tests.estimator.test_unschedulable_replicas_of_any_workload import FIVE_MINUTES, named, waiting
from tests.fleet.living import pool

FLAGS = {"node_capacity_providers": ["karpenter"], "region": "us-east-1"}


def claim(made, *, age, cpu="2", launched=True, registered=False):
    states = {"Launched": launched, "Registered": registered, "Initialized": False}
    room = {"cpu": cpu, "memory": "8Gi", "pods": "10"}
    status = {
        "conditions": [
            {"type": kind, "status": "True" if is_so else "Unknown", "reason": "x", "message": ""}
            for kind, is_so in states.items()
        ]
    }
    if launched:
        status |= {"providerID": "aws:///us-east-1a/i-1", "capacity": room, "allocatable": room}
    meta = {
        "name": "general-1",
        "uid": "general-1",
        "labels": {"karpenter.sh/nodepool": "general"},
        "creationTimestamp": rfc3339(made.clock.now() - age),
    }
    spec = {
        "requirements": [],
        "nodeClassRef": {"group": "karpenter.kwok.sh", "kind": "KWOKNodeClass", "name": "default"},
    }
    return {
        "apiVersion": "karpenter.sh/v1",
        "kind": "NodeClaim",
        "metadata": meta,
        "spec": spec,
        "status": status,
    }


@pytest.mark.parametrize(
    ("reached", "left"),
    [
        (None, 3),
        ({"age": 60}, 1),
        ({"age": 60, "cpu": "8"}, 0),
        ({"age": 800}, 1),
        ({"age": 1000}, 3),
        ({"age": 1000, "registered": True}, 1),
        ({"age": 2000, "registered": True}, 3),
        ({"age": 400, "launched": False}, 3),
    ],
)
async def test_replicas_whose_node_is_coming_are_left_until_it_is_overdue(reached, left):
    made = await world()
    owner = await made.workload(STATEFULSETS, "web")
    await made.add(*(waiting(made, f"web-{number}", owner) for number in range(3)))
    await made.create(NODEPOOLS, pool("general", type=["m5.large"]))
    if reached is not None:
        restore_objects(made.server, [claim(made, **reached)])
    for _ in range(2):  # nothing is remembered: the second estimator says the same
        async with serving(made.transport, **FLAGS) as estimator:
            assert await estimator.unschedulable(FIVE_MINUTES, **named(STATEFULSETS, "web")) == left
