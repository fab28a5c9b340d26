"""What is assumed travels with questions for sets as with questions for replicas, in every dialect."""

import pytest

from karpool.model.errors import Invalid
from karpool.wire.proto import estimator_pb2 as pb
from karpool.wire.server_protocol import read_component_sets, read_replicas

QUANTITY = pb.Quantity(string="1500m")
DIALECTS = {
    "typed": {"resource_request": {"cpu": QUANTITY}},
    "bytes": {"resource_request_bytes": {"cpu": QUANTITY.SerializeToString()}},
    "both": {
        "resource_request": {"cpu": pb.Quantity(string="9")},
        "resource_request_bytes": {"cpu": QUANTITY.SerializeToString()},
    },
}


def component(name, replicas, **fields):
    wanted = pb.ComponentReplicaRequirements(priority_class_name="high", **fields) if fields else None
    return pb.Component(name=name, replicas=replicas, replica_requirements=wanted)


def asked(*assumed):
    sets = pb.MaxAvailableComponentSetsRequest(
        cluster="m", namespace="n", components=[component("c", 1)], assumed_workloads=assumed
    )
    replicas = pb.MaxAvailableReplicasRequest(cluster="m", assumed_workloads=assumed)
    return (
        read_component_sets(sets.SerializeToString()).assumed,
        read_replicas(replicas.SerializeToString()).assumed,
    )


@pytest.mark.parametrize("dialect", DIALECTS)
def test_both_questions_read_the_same(dialect):
    parts = [component("driver", 1, **DIALECTS[dialect]), component("empty", 0), component("bare", 3)]
    workloads = [pb.AssumedWorkload(namespace="a", components=parts), pb.AssumedWorkload(namespace="b")]

    of_sets, of_replicas = asked(*workloads)

    assert of_sets == of_replicas
    assert [workload.namespace for workload in of_sets] == ["a", "b"]
    driver, empty, bare = of_sets[0].components
    assert (driver.name, driver.replicas, dict(driver.shape.requests)) == ("driver", 1, {"cpu": 1500})
    assert driver.requirements.priority_class_name == "high"
    assert (empty.replicas, empty.requirements) == (0, None)
    assert (bare.replicas, bare.requirements) == (3, None)


def test_a_negative_number_is_refused_with_its_path():
    workload = pb.AssumedWorkload(namespace="a", components=[component("c", 1), component("d", -1)])

    with pytest.raises(Invalid, match=r"assumedWorkloads\[0\]\.components\[1\]\.replicas"):
        asked(workload)
