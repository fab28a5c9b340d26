"""What nodes that came for a move cost: new ones their price, each once; what was there before, nothing."""

import pytest

from karpool.cluster import kinds
from karpool.cluster.changes import ADDED, DELETED, ObjectChange
from karpool.consolidation.execution.in_flight_view import PlaceholderFilter, arrived_price, left_of
from karpool.model.kubernetes.api_resources import ObjectKey
from karpool.model.kubernetes.pod import Pod
from karpool.model.kubernetes.times import rfc3339
from tests.consolidation.built import NOW, BuiltCluster
from tests.consolidation.test_steps_of_a_move import record_of

BEGAN = NOW - 600


def bought(built: BuiltCluster, *arrived: str, new_nodes: int = 1):
    """The price of all that came, and the types and prices that the rest of the move counts with."""
    record, view = record_of(new_nodes=new_nodes, created=BEGAN, arrived=arrived), built.view()
    options = [node.options[0] for node in left_of(record, view).new_nodes]
    return arrived_price(record, view), [(option.instance_type, option.price_per_hour) for option in options]


def with_node(name: str, *, seconds_before: float | None, kind: str = "medium") -> BuiltCluster:
    """A node whose claim was made so long before the move began; None: it has no claim."""
    built = BuiltCluster()
    built.pool()
    built.node(name, kind, managed=seconds_before is not None)
    if seconds_before is not None:
        claim = {
            "metadata": {
                "name": f"claim-{name}",
                "uid": "u",
                "labels": {"karpenter.sh/nodepool": "default"},
                "creationTimestamp": rfc3339(BEGAN - seconds_before),
            },
            "status": {"providerID": f"test:///{name}"},
        }
        built.tell(kinds.NODECLAIMS, "", f"claim-{name}", claim)
    return built


@pytest.mark.parametrize(
    ("seconds_before", "price"), [(-60, 0.2), (0, 0.2), (1, 0.2), (2, 0.0), (3600, 0.0), (None, 0.2)]
)
def test_only_what_was_made_for_it_costs(seconds_before, price):
    assert bought(with_node("new", seconds_before=seconds_before), "new") == (price, [("medium", price)])


def test_two_new_nodes_that_became_one_are_paid_once():
    built = with_node("new", seconds_before=-60)
    assert bought(built, "new", "new", new_nodes=2) == (0.2, [("medium", 0.2), ("medium", 0.0)])


def test_what_is_not_seen_yet_costs_what_was_planned():
    price, options = bought(with_node("new", seconds_before=-60), "new", "unseen", new_nodes=2)
    assert price is None
    assert options == [("medium", 0.2), ("m7i.medium", 0.4)]


def test_a_pod_that_is_gone_is_passed_on_whatever_it_was():
    """Whoever counted it once would count it for ever."""
    passed = []

    class Sink:
        def apply(self, changes):
            passed.extend(changes)

    gone = ObjectChange(DELETED, ObjectKey("karpool-system", "p"), None)
    there = ObjectChange(ADDED, ObjectKey("team", "p"), Pod())
    PlaceholderFilter(Sink(), "karpool-system").apply([gone, there])
    assert passed == [gone, there]
