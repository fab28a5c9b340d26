"""One estimator over several clusters: each counts the machines of the others under the contract."""

from pathlib import Path

import pytest
import yaml

from karpool.cluster.aspects import Aspect
from karpool.estimator.plugins.registry import PluginSettings
from karpool.packing.new_nodes.pack_result import LaunchOption
from karpool.provisioning.market_file import shared_contract
from tests.consolidation.cluster_objects import flat, node

ASPECTS = Aspect.NODECLAIMS | Aspect.POOLS
OPTION = LaunchOption("m5.large", "us-east-1a", "on-demand", None)


def test_what_one_cluster_uses_is_not_there_for_another(tmp_path: Path) -> None:
    file = tmp_path / "contract.yaml"
    reserved = {"name": "ri", "kind": "reservation", "types": ["m5.large"], "count": 3}
    contract = {"format": "karpool-contract/1", "commitments": [reserved], "sharedBy": ["north", "south"]}
    file.write_text(yaml.safe_dump(contract))
    shared = shared_contract(file)
    north, south = (
        PluginSettings(providers=("karpenter",), contract=shared.member(name)) for name in ("north", "south")
    )
    clusters = [
        settings.cluster_of((), aspects) for settings, aspects in ((north, ASPECTS), (south, ASPECTS))
    ]

    def cost() -> float | None:
        clusters[0].snapshot(0.0)
        return clusters[0].market.launch_billing().cost("general", [(1, OPTION)]).per_hour

    clusters[0].load(flat(node("a")), 0.0)
    assert cost() == pytest.approx(0.0, abs=1e-6)
    clusters[1].load(flat(node("b"), node("c")), 0.0)
    clusters[1].snapshot(0.0)
    assert cost() == pytest.approx(0.096)
    shared.leave("south")  # nobody knows any more what it uses
    assert cost() == pytest.approx(0.096)
