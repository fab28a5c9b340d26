"""The descheduler leaves replicas whose node is on its way, until that node is overdue."""

import pytest

from karpool.cluster.kinds import NODECLAIMS, NODES, PODS
from karpool.cluster.market.market import Market
from karpool.estimator.pending_demand import served_by_expected
from karpool.estimator.providers.karpenter import KarpenterProvider
from karpool.model.kubernetes.api_resources import ObjectKey
from tests.estimator.pictures import Told
from tests.estimator.test_usage_of_pools import At, claim, node, pod
from tests.packing.pool_cases import catalogue, instance_type

CREATED = 600.0  # as `claim` has it


def told(*pods):
    types = instance_type("four", 4, 16), instance_type("eight", 8, 32)
    picture = Told(KarpenterProvider(At()), Market(catalogue(*types)))
    for each in pods:
        picture.put(PODS, each)
    return picture


def spared(picture, now):
    return {key.name for key in served_by_expected(picture.snapshot(), now)}


@pytest.mark.parametrize(
    ("reached", "seconds"),
    [
        ({"launched": False}, 300),
        ({"launched": True}, 900),
        ({"launched": True, "registered": True}, 1800),
    ],
)
def test_until_the_deadline_of_the_claim(reached, seconds):
    picture = told(pod("one"))
    picture.put(NODECLAIMS, claim("a", **reached))

    assert spared(picture, CREATED + seconds - 1) == {"one"}
    assert spared(picture, CREATED + seconds) == set()


def test_no_more_than_the_node_will_hold():
    picture = told(*(pod(f"p{number}") for number in range(6)))
    picture.put(NODECLAIMS, claim("a"))

    assert len(spared(picture, 1000.0)) == 4  # cores of the machine


def test_a_node_that_is_starting_is_coming_and_one_that_goes_is_not():
    picture = told(pod("one"))
    picture.put(NODECLAIMS, claim("a", registered=True))
    picture.put(NODES, node("a", taints=[{"key": "node.kubernetes.io/not-ready", "effect": "NoSchedule"}]))
    assert spared(picture, 1000.0) == {"one"}

    picture.put(NODECLAIMS, claim("a", registered=True, going=True))
    assert spared(picture, 1000.0) == set()


def test_a_placeholder_takes_nothing_from_those_it_stands_for():
    placeholder = pod("smart")
    placeholder["metadata"]["labels"] = {"provisioning.karpool.dev/request": "r"}
    placeholder["spec"]["containers"][0]["resources"]["requests"]["cpu"] = "4"
    picture = told(pod("worker"), placeholder)
    picture.put(NODECLAIMS, claim("a"))

    assert spared(picture, 1000.0) == {"worker"}


def test_nothing_is_coming():
    assert spared(told(pod("one")), 1000.0) == set()


def nominated(name, where):
    one = pod(name)
    one["status"]["nominatedNodeName"] = where
    return one


def test_a_pod_for_which_others_leave_a_node_is_coming():
    picture = told(nominated("one", "there"), nominated("two", "gone"), pod("three"))
    picture.put(NODES, node("there"))
    since = next(iter(picture.snapshot().waiting.values())).since

    assert spared(picture, since + 899) == {"one"}
    assert spared(picture, since + 900) == set()


def smart(cpu, **spec):
    placeholder = pod("smart")
    placeholder["metadata"]["labels"] = {"provisioning.karpool.dev/request": "r"}
    placeholder["spec"]["containers"][0]["resources"]["requests"]["cpu"] = cpu
    placeholder["spec"].update(spec)
    return placeholder


def test_room_that_a_smart_pod_asks_for_is_coming_for_as_many_as_it_holds():
    picture = told(smart("2"), *(pod(f"p{number}") for number in range(3)))
    since = picture.snapshot().waiting[ObjectKey("default", "smart")].wants_node_since

    assert len(spared(picture, since + 299)) == 2
    assert spared(picture, since + 300) == set()


@pytest.mark.parametrize(
    "spec",
    [
        {"nodeSelector": {"disk": "fast"}},
        {"tolerations": [{"key": "gpu", "operator": "Exists"}]},
    ],
)
def test_a_smart_pod_under_other_rules_asks_for_room_elsewhere(spec):
    picture = told(smart("2", **spec), pod("one"))

    assert spared(picture, 1000.0) == set()
