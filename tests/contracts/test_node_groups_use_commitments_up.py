"""Machines of cluster-autoscaler's groups draw from commitments, also where no NodeClaims are seen."""

import pytest

from karpool.cluster.cluster import Cluster
from karpool.cluster.market.market import Market
from karpool.estimator.providers.cluster_autoscaler import ClusterAutoscalerProvider
from karpool.model.contracts.contract_file import contract_from
from karpool.packing.new_nodes.pack_result import LaunchOption
from tests.consolidation.cluster_objects import flat, node


@pytest.mark.parametrize(("count", "costs"), [(1, 0.096), (2, 0.096), (3, 0.0)])
def test_a_new_machine_costs_its_rate_once_those_that_run_fill_the_reservation(count, costs):
    reserved = {"name": "ri", "kind": "reservation", "types": ["m5.large"], "count": count}
    contract = contract_from({"format": "karpool-contract/1", "commitments": [reserved]})
    cluster = Cluster(ClusterAutoscalerProvider.aspects, market=Market(contract=contract))
    cluster.load([one for one in flat(node("a"), node("b")) if one["kind"] == "Node"], 0.0)

    cluster.snapshot(0.0)
    option = LaunchOption("m5.large", "us-east-1a", "on-demand", None)

    cost = cluster.market.launch_billing().cost("group", [(1, option)])
    assert cost.per_hour == pytest.approx(costs, abs=1e-6)
    assert cost.list_per_hour == pytest.approx(0.096)
