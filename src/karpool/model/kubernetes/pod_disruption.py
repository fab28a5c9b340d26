"""Which pods may be moved: disruption budgets, ownership, and do-not-disrupt.

Nothing here needs a clock: the caller passes how long the pod has run. Predicates follow Karpenter (docs of
its disruption controllers), budgets follow the disruption controller and the Eviction API of Kubernetes.
"""

import math
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from karpool.model import durations
from karpool.model.devices import tensor_fusion
from karpool.model.devices.pod_requests import asks_for_share
from karpool.model.errors import Invalid
from karpool.model.karpenter.objects import DISRUPTED, DO_NOT_DISRUPT
from karpool.model.kubernetes.meta import Condition, Int32, Int64, LabelSelector, Wire, WireObject, condition
from karpool.model.kubernetes.pod import Pod
from karpool.model.kubernetes.times import moment
from karpool.model.labels import LabelMatcher

DELETION_COST = "controller.kubernetes.io/pod-deletion-cost"
ALWAYS_ALLOW = "AlwaysAllow"


class PodDisruptionBudgetSpec(Wire, frozen=True):
    min_available: Int32 | str | None = None
    max_unavailable: Int32 | str | None = None
    selector: LabelSelector | None = None
    unhealthy_pod_eviction_policy: str | None = None


class PodDisruptionBudgetStatus(Wire, frozen=True):
    disruptions_allowed: Int32 = 0
    current_healthy: Int32 = 0
    desired_healthy: Int32 = 0
    expected_pods: Int32 = 0
    observed_generation: Int64 = 0
    disrupted_pods: dict[str, str] | None = None
    conditions: list[Condition] | None = None


class PodDisruptionBudget(WireObject, frozen=True):
    spec: PodDisruptionBudgetSpec = PodDisruptionBudgetSpec()
    status: PodDisruptionBudgetStatus = PodDisruptionBudgetStatus()


class PdbAllowance(NamedTuple):
    """What a budget allows: the status that the disruption controller would write."""

    expected: int
    desired_healthy: int
    disruptions: int


def allowance(spec: PodDisruptionBudgetSpec, *, pods: int, replicas: int, healthy: int) -> PdbAllowance:
    """Compute the allowance from the selected pods, their desired replicas, and the healthy pods.

    Percentages are of `replicas` and round up, on either side. Raises Invalid.
    """
    if spec.max_unavailable is not None:
        expected = replicas
        desired = max(0, expected - scaled(spec.max_unavailable, expected, "spec.maxUnavailable"))
    elif isinstance(spec.min_available, str):
        expected = replicas
        desired = scaled(spec.min_available, expected, "spec.minAvailable")
    else:
        # Without either field there is no limit; the API sets no default.
        expected, desired = pods, scaled(spec.min_available or 0, pods, "spec.minAvailable")
    return PdbAllowance(expected, desired, max(0, healthy - desired) if expected > 0 else 0)


def scaled(amount: int | str, total: int, path: str, *, down: bool = False) -> int:
    """Return a number as it is, a percentage of `total` rounded up (or down). Raises Invalid otherwise."""
    if isinstance(amount, int) and not isinstance(amount, bool):
        if amount < 0:
            raise Invalid(path, amount, "must not be negative")
        return amount
    if not isinstance(amount, str) or not re.fullmatch(r"[0-9]{1,9}%", amount):
        raise Invalid(path, amount, "must be a whole number or a percentage like 25%")
    percent = int(amount[:-1])
    return percent * total // 100 if down else -(-percent * total // 100)


@dataclass(frozen=True, slots=True)
class CompiledPdb:
    """A PodDisruptionBudget, compiled."""

    namespace: str
    name: str
    selector: LabelMatcher | None  # None: no pods
    disruptions_allowed: int
    is_fully_blocking: bool
    frees_unready_pods: bool

    def selects(self, pod: Pod) -> bool:
        return (
            self.selector is not None
            and pod.metadata.namespace == self.namespace
            and self.selector.matches(pod.labels)
        )


def budget_of(pdb: PodDisruptionBudget) -> CompiledPdb:
    """Compile a budget. Raises Invalid if the selector or the amounts cannot be read.

    A missing selector selects nothing, an empty one every pod of the namespace.
    """
    spec = pdb.spec
    try:
        selector = None if spec.selector is None else spec.selector.compile()
    except Invalid as error:
        raise error.at("spec.selector") from None
    if spec.max_unavailable is not None:
        scaled(spec.max_unavailable, 0, "spec.maxUnavailable")
    if spec.min_available is not None:
        scaled(spec.min_available, 0, "spec.minAvailable")
    return CompiledPdb(
        pdb.metadata.namespace,
        pdb.name,
        selector,
        pdb.status.disruptions_allowed,
        is_fully_blocking=spec.max_unavailable in (0, "0%") or spec.min_available == "100%",
        frees_unready_pods=spec.unhealthy_pod_eviction_policy == ALWAYS_ALLOW,
    )


def blocking_budget(pod: Pod, budgets: Iterable[CompiledPdb]) -> str | None:
    """Return why the budgets prevent the eviction of a pod; None if they do not.

    One allowed disruption is enough, however many pods would be evicted.
    """
    selecting = [budget for budget in budgets if budget.selects(pod)]
    if len(selecting) > 1:
        names = ", ".join(budget.name for budget in selecting)
        return f"several disruption budgets select it ({names}), and eviction supports only one"
    if not selecting or selecting[0].disruptions_allowed > 0 or _passes_by(selecting[0], pod):
        return None
    return f"disruption budget {selecting[0].name} allows no disruption"


def over_budget(pods: Iterable[Pod], budgets: Sequence[CompiledPdb]) -> str | None:
    """Return why the budgets do not allow the eviction of all these pods at once; None if they do."""
    going: Counter[CompiledPdb] = Counter()
    for pod in pods:
        if blocked := blocking_budget(pod, budgets):
            return f"{pod.metadata.namespace}/{pod.name}: {blocked}"
        budget = next((budget for budget in budgets if budget.selects(pod)), None)
        if budget is None or _passes_by(budget, pod):
            continue
        going[budget] += 1
        if going[budget] > budget.disruptions_allowed:
            return f"disruption budget {budget.name} lets {budget.disruptions_allowed} go at once"
    return None


def _passes_by(budget: CompiledPdb, pod: Pod) -> bool:
    """Whether the budget ignores the pod, because the pod is not ready and the budget allows its eviction."""
    return budget.frees_unready_pods and _is_unready(pod)


def _is_unready(pod: Pod) -> bool:
    ready = condition(pod.status.conditions, "Ready")
    return ready is not None and ready.status == "False"


def is_active(pod: Pod) -> bool:
    return not pod.is_terminal and not pod.is_terminating


def is_daemon(pod: Pod) -> bool:
    return _is_owned_by(pod, "apps/v1", "DaemonSet")


def is_mirror(pod: Pod) -> bool:
    """Whether it is a static pod of the kubelet, which belongs to its node and never moves."""
    return _is_owned_by(pod, "v1", "Node")


def _is_owned_by(pod: Pod, api_version: str, kind: str) -> bool:
    for owner in pod.metadata.owner_references or ():  # called several times per pod: a plain loop
        if owner.kind == kind and owner.api_version == api_version:
            return True
    return False


def is_reschedulable(pod: Pod) -> bool:
    """Whether it needs a new node when its node is removed. Pods without an owner do."""
    if is_daemon(pod) or is_mirror(pod):
        return False
    # The next pod of a StatefulSet has the same name, so the old one stands for it.
    returns = pod.is_terminating and not pod.is_terminal and _is_owned_by(pod, "apps/v1", "StatefulSet")
    return is_active(pod) or returns


def is_evictable(pod: Pod, *, protected: bool) -> bool:
    """Whether it can be evicted. `protected`: do-not-disrupt holds now (`is_protected`)."""
    if not is_active(pod) or is_mirror(pod) or protected:
        return False
    tolerations = pod.spec.tolerations
    return not tolerations or not any(toleration.tolerates(DISRUPTED) for toleration in tolerations)


def is_provisionable(pod: Pod) -> bool:
    """Whether Karpenter would make room for it: it is unschedulable, and no node is nominated."""
    scheduled = condition(pod.status.conditions, "PodScheduled")
    if scheduled is None or scheduled.reason != "Unschedulable":
        return False
    placed = pod.spec.node_name or pod.status.nominated_node_name
    return not placed and not is_daemon(pod) and not is_mirror(pod)


def protected_seconds(pod: Pod) -> float:
    """Return how long do-not-disrupt protects the pod: 0 not at all, inf while it runs.

    Raises Invalid for a value that Karpenter ignores: neither `true` nor a positive duration.
    """
    if is_bare_share(pod):
        # No controller recreates it, so its share would be lost, whatever the annotation says.
        return math.inf
    wish = pod.annotations.get(DO_NOT_DISRUPT)
    if wish is None:
        return 0.0
    if wish == "true":
        return math.inf
    path = f"metadata.annotations.{DO_NOT_DISRUPT}"
    try:
        amount = durations.seconds(wish)
    except Invalid:
        amount = 0.0
    if amount <= 0:
        raise Invalid(path, wish, 'is ignored; write "true" or a duration like 30m')
    return amount


def is_bare_share(pod: Pod) -> bool:
    return not pod.metadata.owner_references and holds_share(pod)


def holds_share(pod: Pod) -> bool:
    """Whether it uses, or requests, shares of devices."""
    annotations = tensor_fusion.of_worker(pod.annotations, pod.labels)
    return bool(annotations) and (tensor_fusion.GPU_IDS in annotations or asks_for_share(annotations))


def running_seconds(pod: Pod, now: float) -> float | None:
    """Return how long it has run; None if it has not started, or the time is unknown."""
    started = moment(pod.status.start_time)
    return None if started is None else now - started


def is_protected(pod: Pod, running_seconds: float | None) -> bool:
    """Whether do-not-disrupt holds for a pod that has run this long (None: not started)."""
    try:
        amount = protected_seconds(pod)
    except Invalid:
        return False
    return amount > 0 and (running_seconds is None or running_seconds < amount)


# One unit of cost in pod priority and in the deletion-cost annotation (karpenter pkg/utils/disruption).
_PRIORITY_UNIT = 2.0**25
_DELETION_COST_UNIT = 2.0**27


def eviction_cost(pod: Pod) -> float:
    """Return the cost from -10 to 10; 1 for an ordinary pod, 0 or less if its eviction costs nothing."""
    cost = 1.0
    if (wish := _number(pod.annotations.get(DELETION_COST))) is not None:
        cost += wish / _DELETION_COST_UNIT
    if pod.spec.priority is not None:
        cost += pod.spec.priority / _PRIORITY_UNIT
    if cost < 1.0 and holds_share(pod):
        cost = 1.0  # a device is allocated: the node is in use, however cheap the pod
    return max(-10.0, min(10.0, cost))


def pod_cost(pod: Pod) -> float:
    """Return the cost of moving it; never negative."""
    return max(0.0, eviction_cost(pod))


def _number(text: str | None) -> float | None:
    if text is None or not re.fullmatch(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]{1,4})?", text[:400]):
        return None
    return float(text[:400])
