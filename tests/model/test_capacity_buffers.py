"""How many pods a buffer stands for, and which buffers contradict themselves."""

import pytest

from karpool.model.errors import Invalid
from karpool.model.kubernetes.capacity_buffer import PODS_MAX, CapacityBuffer, buffer_pods
from karpool.model.kubernetes.meta import decode

OF_TEMPLATE = {"podTemplateRef": {"name": "t"}}
OF_WORKLOAD = {"scalableRef": {"apiGroup": "apps", "kind": "Deployment", "name": "web"}}


def pods(requests, scale, status=None, **spec):
    raw = {"metadata": {"name": "b"}, "spec": spec, "status": {"replicas": status}}
    return buffer_pods(decode(raw, CapacityBuffer), requests, scale)


@pytest.mark.parametrize(
    ("spec", "scale", "expected"),
    [
        ({**OF_TEMPLATE, "replicas": 3}, 0, 3),
        ({**OF_WORKLOAD, "percentage": 10}, 25, 3),
        ({**OF_WORKLOAD, "percentage": 10}, 0, 0),
        ({**OF_WORKLOAD, "percentage": 10, "replicas": 5}, 10, 5),
        ({**OF_WORKLOAD, "percentage": 50, "replicas": 2}, 10, 5),
        ({**OF_TEMPLATE, "replicas": 9, "limits": {"cpu": "4"}}, 0, 4),
        ({**OF_TEMPLATE, "limits": {"cpu": "4", "memory": "3Gi"}}, 0, 3),
        ({**OF_TEMPLATE, "limits": {"x.io/gpu": "4"}}, 0, 0),
        ({**OF_TEMPLATE, "replicas": 2, "limits": {"x.io/gpu": "4"}}, 0, 2),
    ],
)
def test_the_larger_of_replicas_and_percentage_within_the_limits(spec, scale, expected):
    assert pods({"cpu": 1000, "memory": 2**30}, scale, **spec) == expected


def test_what_its_controller_has_worked_out_counts_where_it_is_more():
    assert pods({"cpu": 1000}, 0, status=7, **OF_TEMPLATE, replicas=3) == 7
    assert pods({"cpu": 1000}, 0, status=1, **OF_TEMPLATE, replicas=3) == 3


@pytest.mark.parametrize(
    ("spec", "field"),
    [
        ({**OF_TEMPLATE, **OF_WORKLOAD, "replicas": 1}, "spec"),
        ({"replicas": 1}, "spec"),
        ({**OF_TEMPLATE}, "spec"),
        ({**OF_TEMPLATE, "replicas": -1}, "spec.replicas"),
        ({**OF_TEMPLATE, "percentage": 10}, "spec.percentage"),
        ({**OF_WORKLOAD, "percentage": -10}, "spec.percentage"),
        ({**OF_TEMPLATE, "limits": {"cpu": "many"}}, "spec.limits.cpu"),
        ({**OF_TEMPLATE, "replicas": PODS_MAX + 1}, "spec.replicas"),
        ({**OF_WORKLOAD, "percentage": 2**31 - 1}, "spec.replicas"),
    ],
)
def test_one_that_contradicts_itself_names_the_field(spec, field):
    with pytest.raises(Invalid) as caught:
        pods({"cpu": 1000}, 100, **spec)
    assert caught.value.path == field
