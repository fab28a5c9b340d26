"""Plans made by hand, for those that show or carry them."""

from karpool.consolidation.planning.plan import (
    ClusterTotals,
    ConsolidationPlan,
    Move,
    MovedPod,
    MoveKind,
    NotConsidered,
    PoolSummary,
    RejectedMove,
    ReplacementNode,
    SourceNode,
)
from karpool.consolidation.policy.kept_node import KeptNode
from karpool.consolidation.policy.policy import ConsolidationPolicy, PolicyName
from karpool.consolidation.policy.reasons import ConsolidationReason, DisruptionReason
from karpool.consolidation.policy.scoring import PoolTotals, ScoredNode, score_sources
from karpool.model.infeasible import Infeasible
from karpool.packing.new_nodes.pack_result import LaunchOption

BALANCED = ConsolidationPolicy(PolicyName.BALANCED, 2, "field")
TOTALS = {"general": PoolTotals(10.0, 50.0, nodes=10)}


def source(name="node-1", price=1.0, disruption=4.0, pool="general"):
    return SourceNode(
        name, f"claim-{name}", pool, "m7i.large", "us-east-1a", "on-demand", price, disruption, f"uid-{name}"
    )


def move(*nodes, kind=MoveKind.DELETE, pods=(), new_nodes=(), policy=BALANCED, notes=()):
    nodes = nodes or (source(),)
    price = sum(each.chosen.price_per_hour for each in new_nodes) if new_nodes else None
    verdict = score_sources(
        [ScoredNode(node.pool, node.price_per_hour, node.disruption) for node in nodes],
        price,
        {node.pool: policy for node in nodes},
        TOTALS,
    )
    return Move(
        "m-" + "-".join(node.name for node in nodes),
        kind,
        DisruptionReason.UNDERUTILIZED,
        tuple(nodes),
        tuple(pods),
        tuple(new_nodes),
        verdict,
        tuple(notes),
    )


def new_node(price=0.4, type_="m7i.medium"):
    choice = LaunchOption(type_, "us-east-1b", "spot", price)
    return ReplacementNode("general", (choice,), ("team/web-2",), {"cpu": 500})


def totals(nodes, price, **by_type):
    by_type = by_type or {"m7i.large": nodes}
    return ClusterTotals(nodes, 40, price, 0, {"cpu": 0.5, "memory": 0.25}, by_type, {"general": nodes})


def plan(*, moves=None, rejected=None, held=None, **more):
    if moves is None:
        moves = (
            move(source("node-1"), pods=[MovedPod("team/web-1", "node-1", 1.0, "node-3")]),
            move(
                source("node-2"),
                kind=MoveKind.REPLACE,
                pods=[
                    MovedPod("team/web-2", "node-2", 1.0, new_node=0),
                    MovedPod("team/free", "node-2", 0.0),
                ],
                new_nodes=[new_node()],
                notes=["spot is pinned"],
            ),
        )
    if rejected is None:
        heavy = source("node-4", 0.5, 20.0)
        rejected = (
            RejectedMove(
                move(heavy), (Infeasible(ConsolidationReason.SCORE, "score 0.12 < threshold 0.50"),)
            ),
        )
    if held is None:
        held = (
            KeptNode(
                "node-3",
                "general",
                1.0,
                5.0,
                (Infeasible(ConsolidationReason.PDB_BLOCKED, "disruption budget db allows none", "pod a/b"),),
            ),
            KeptNode(
                "node-5",
                "",
                None,
                1.0,
                (Infeasible(ConsolidationReason.UNMANAGED, "no NodeClaim: Karpenter does not manage it"),),
            ),
        )
    pools = (
        PoolSummary("general", str(BALANCED), 10, 10.0, 50.0, 1, {"Empty": 2**31 - 1, "Underutilized": 1}),
    )
    given = {
        "made_at": 1_767_225_600.0,
        "fingerprint": "abc123",
        "moves": tuple(moves),
        "rejected": tuple(rejected),
        "held": tuple(held),
        "pools": pools,
        "before": totals(10, 10.0),
        "after": totals(9, 8.4, **{"m7i.large": 8, "m7i.medium": 1}),
        "problems": ("NodePool broken: weight",),
        "not_looked_at": (NotConsidered(("node-9",), "the deadline of 1 s passed"),),
    }
    return ConsolidationPlan(**{**given, **more})
