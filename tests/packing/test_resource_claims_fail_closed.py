"""A pod with resource claims fits nowhere as long as nobody knows which devices are left."""

import pytest

from karpool.model.kubernetes.meta import decode
from karpool.model.kubernetes.pod import Pod
from karpool.model.kubernetes.pod_shape import ClaimReference, PodShape, shape_of
from karpool.packing.counting.count import count
from karpool.packing.counting.first_fit import PodGroup, first_fit
from karpool.packing.fit_reasons import FitReason, explain_nodes
from karpool.packing.tables.node_table import NodeRow
from karpool.packing.tables.room import snapshot_of

CLAIM = (ClaimReference("gpu", template="one-gpu"),)
ROOM = snapshot_of([NodeRow("n1", allocatable={"cpu": 8000, "memory": 2**34, "pods": 10})])


def test_claims_are_part_of_what_a_pod_asks_for():
    pod = decode(
        {
            "metadata": {"name": "p", "namespace": "d"},
            "spec": {
                "resourceClaims": [
                    {"name": "own", "resourceClaimTemplateName": "t"},
                    {"name": "shared", "resourceClaimName": "c"},
                ]
            },
        },
        Pod,
    )
    assert shape_of(pod).resource_claims == (
        ClaimReference("own", template="t"),
        ClaimReference("shared", claim="c"),
    )


@pytest.mark.parametrize(("claims", "fits"), [((), True), (CLAIM, False)])
def test_no_node_is_said_to_have_room(claims, fits):
    shape = PodShape(requests=(("cpu", 1000),), resource_claims=claims)

    assert (count(ROOM, shape).total > 0) is fits
    assert (first_fit(ROOM, [PodGroup(shape, 1)]).sets > 0) is fits
    reasons = [infeasible.reason for infeasible in explain_nodes(ROOM, shape)]
    assert reasons == ([] if fits else [FitReason.DYNAMIC_RESOURCES])
