"""A certificate for a plan: at most so much cheaper is possible, whoever plans.

Needs a solver for linear programs, which `karpool[bound]` brings; without it the certificate says so. The
bound holds for the rules that the plan was made by: what is no candidate stays, budgets, switches and the
rule for spot count, and prices are those of the plan.
"""

from collections.abc import Callable
from dataclasses import replace

from karpool.consolidation.bound.linear_program import EXTRA, is_installed, least_cost
from karpool.consolidation.bound.relaxation import relaxation_of
from karpool.consolidation.planning.plan import ConsolidationPlan, PlanCertificate
from karpool.consolidation.planning.planner import Planner
from karpool.consolidation.policy.settings import PlanSettings
from karpool.consolidation.view import ClusterView

# Candidates up to which whole nodes are asked for: beyond, the search for them proves next to nothing more.
WHOLE_NODES_UP_TO = 100
# Nodes of the tree in that search. On the clusters of `bench.plans` with 50 nodes the first 200 prove nine
# tenths of what 2,000 do.
TREE_NODES_MAX = 200
WHOLE_NODES_SECONDS = 5.0  # a safety net for odd clusters; the count above ends it earlier
# Rounding of the solver, as a share of what the cluster costs.
SOLVER_TOLERANCE = 1e-6

LEAVES_OUT = (
    "topology between pods and host ports",
    "limits of pools",
    "that pods on nodes that stay do not move",
)


def certified(
    plan: ConsolidationPlan,
    view: ClusterView,
    settings: PlanSettings,
    now: float,
    *,
    elapsed: Callable[[], float] | None = None,
    whole_nodes: bool = True,
) -> ConsolidationPlan:
    """The plan with its certificate. `whole_nodes`: small clusters are asked for whole nodes."""
    certificate = certificate_of(plan, view, settings, now, elapsed=elapsed, whole_nodes=whole_nodes)
    return replace(plan, certificate=certificate)


def certificate_of(
    plan: ConsolidationPlan,
    view: ClusterView,
    settings: PlanSettings,
    now: float,
    *,
    elapsed: Callable[[], float] | None = None,
    whole_nodes: bool = True,
) -> PlanCertificate:
    if not is_installed():
        return PlanCertificate(None, f"no solver is installed; pip install '{EXTRA}'")
    if view.bill is not None:
        return PlanCertificate(None, "what was contracted makes prices depend on each other")
    if plan.stopped is not None:
        return PlanCertificate(0.0)

    def seconds_left() -> float | None:
        if settings.deadline_seconds is None or elapsed is None:
            return None
        return settings.deadline_seconds - elapsed()

    late = "there was no time for it before the planning deadline"
    if (left := seconds_left()) is not None and left <= 0:
        return PlanCertificate(None, late)
    state = Planner(view, settings, now).world
    scored = any(state.policies[state.pool_of[row]].is_scored for row in state.candidates.tolist())
    disruption = plan.disruption if scored else None
    relaxation = relaxation_of(state, disruption=disruption)
    if relaxation.current <= 0:  # nothing that costs anything may go
        return PlanCertificate(0.0, at_disruption=disruption, leaves_out=LEAVES_OUT)
    least = least_cost(relaxation.program, seconds=seconds_left())
    if least is None:
        return PlanCertificate(None, late if settings.deadline_seconds is not None else "the solver gave up")
    whole = False
    if whole_nodes and len(state.candidates) <= WHOLE_NODES_UP_TO:
        left = seconds_left()
        proven = least_cost(
            relaxation.program,
            relaxed=False,
            nodes_max=TREE_NODES_MAX,
            seconds=WHOLE_NODES_SECONDS if left is None else min(left, WHOLE_NODES_SECONDS),
        )
        if proven is not None and proven > least:
            least, whole = proven, True
    possible = max(relaxation.current - least, 0.0) + SOLVER_TOLERANCE * relaxation.current
    return PlanCertificate(possible, at_disruption=disruption, whole_nodes=whole, leaves_out=LEAVES_OUT)
