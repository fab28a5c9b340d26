"""Certifies a plan: computes an upper bound on what any plan could save.

The bound needs a solver for linear programs, which `karpool[bound]` installs; without it the certificate says
so. Under a contract a weaker bound is used that needs no solver. The bound respects the rules of the plan:
only candidates are removed, budgets, switches and the spot rule apply, and prices are those of the plan.
"""

from collections.abc import Callable
from dataclasses import replace

from karpool.cluster.market.fleet_bill import FleetBill
from karpool.consolidation.bound.linear_program import EXTRA, is_installed, least_cost
from karpool.consolidation.bound.relaxation import relaxation_of
from karpool.consolidation.planning.plan import ConsolidationPlan, PlanCertificate
from karpool.consolidation.planning.planner import Planner
from karpool.consolidation.policy.settings import PlanSettings
from karpool.consolidation.state.move_objections import LEAST_SAVING
from karpool.consolidation.state.planning_state import PlanningState
from karpool.consolidation.view import ClusterView

# The program is solved with whole nodes up to this many candidates: above, branching improves the bound very
# little.
WHOLE_NODES_UP_TO = 100
# Branch-and-bound nodes of that search. On the clusters of `bench.plans` with 50 nodes the first 200 prove
# nine tenths of what 2,000 do.
TREE_NODES_MAX = 200
WHOLE_NODES_SECONDS = 5.0  # a safety net for odd clusters; TREE_NODES_MAX ends the search earlier
# Rounding error of the solver, as a share of the cluster's cost.
SOLVER_TOLERANCE = 1e-6

LEAVES_OUT = (
    "topology between pods and host ports",
    "limits of pools",
    "that pods on nodes that stay do not move",
)
LEAVES_OUT_OF_A_BILL = ("destinations of the pods of removed nodes", "budgets", "scores")


def certified(
    plan: ConsolidationPlan,
    view: ClusterView,
    settings: PlanSettings,
    now: float,
    *,
    elapsed: Callable[[], float] | None = None,
    whole_nodes: bool = True,
) -> ConsolidationPlan:
    """Return the plan with its certificate. `whole_nodes`: solve small clusters with whole nodes."""
    if plan.stopped is not None:
        return replace(plan, certificate=PlanCertificate(0.0))
    if view.bill is not None:
        certificate = _of_the_bill(plan, Planner(view, settings, now).world, view.bill)
    elif not is_installed():
        certificate = PlanCertificate(None, f"no solver is installed; pip install '{EXTRA}'")
    else:
        certificate = _of_the_prices(plan, view, settings, now, elapsed, whole_nodes=whole_nodes)
    return replace(plan, certificate=certificate)


def _of_the_bill(plan: ConsolidationPlan, state: PlanningState, bill: FleetBill) -> PlanCertificate:
    """Certify by the bill: the saving if every removable node is removed and no node is launched.

    With commitments a new node may cost next to nothing. The bill cannot fall further, so no plan saves more.
    """
    rows = [*state.open_candidates().tolist(), *state.judged.empty.tolist()]
    without = bill.without(bill.fleet, (state.view.machines[row].billed for row in rows))
    possible = bill.beyond(bill.fleet) - bill.beyond(without)
    return PlanCertificate(max(possible, 0.0) + LEAST_SAVING, leaves_out=LEAVES_OUT_OF_A_BILL)


def _of_the_prices(
    plan: ConsolidationPlan,
    view: ClusterView,
    settings: PlanSettings,
    now: float,
    elapsed: Callable[[], float] | None,
    *,
    whole_nodes: bool,
) -> PlanCertificate:
    def seconds_left() -> float | None:
        if settings.deadline_seconds is None or elapsed is None:
            return None
        return settings.deadline_seconds - elapsed()

    late = "not considered before the planning deadline"
    if (left := seconds_left()) is not None and left <= 0:
        return PlanCertificate(None, late)
    state = Planner(view, settings, now).world
    scored = any(state.policies[state.pool_of[row]].is_scored for row in state.candidates.tolist())
    disruption = plan.disruption if scored else None
    relaxation = relaxation_of(state, disruption=disruption)
    if relaxation.current <= 0:  # no removable node has a price
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
