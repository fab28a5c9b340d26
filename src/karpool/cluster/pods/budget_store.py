"""PodDisruptionBudgets and ResourceQuotas by namespace."""

from collections.abc import Iterable, Mapping, Sequence

from karpool.cluster.problems import UnreadableObjects
from karpool.model.errors import Invalid
from karpool.model.kubernetes.api_resources import ObjectKey
from karpool.model.kubernetes.pod_disruption import CompiledPdb, PodDisruptionBudget, budget_of
from karpool.model.kubernetes.resource_quota import QuotaHeadroom, ResourceQuota, headroom_of
from karpool.model.labels import EVERYTHING


class BudgetStore:
    def __init__(self, problems: UnreadableObjects) -> None:
        self._problems = problems
        self._budgets: dict[str, dict[str, CompiledPdb]] = {}  # by namespace, by name

    def put(self, key: ObjectKey, pdb: PodDisruptionBudget) -> None:
        try:
            budget = budget_of(pdb)
        except Invalid as error:
            self.close_namespace(key, error)
            return
        self._budgets.setdefault(key.namespace, {})[key.name] = budget
        self._problems.clear("PodDisruptionBudget", str(key))

    def close_namespace(self, key: ObjectKey, error: Invalid) -> None:
        """Block the whole namespace, because an unreadable budget may protect any of its pods."""
        self._budgets.setdefault(key.namespace, {})[key.name] = CompiledPdb(
            key.namespace, key.name, EVERYTHING, 0, is_fully_blocking=True, frees_unready_pods=False
        )
        self._problems.add("PodDisruptionBudget", str(key), error)

    def drop(self, key: ObjectKey) -> None:
        self._budgets.get(key.namespace, {}).pop(key.name, None)
        self._problems.clear("PodDisruptionBudget", str(key))

    def of(self, namespace: str) -> Iterable[CompiledPdb]:
        return self._budgets.get(namespace, {}).values()

    def all(self) -> list[CompiledPdb]:
        """Return budgets by namespace and name, so that equal clusters have equal tables."""
        return [held[name] for _, held in sorted(self._budgets.items()) for name in sorted(held)]


class QuotaStore:
    """ResourceQuotas. A quota that cannot be read keeps its last state and is reported."""

    def __init__(self, problems: UnreadableObjects) -> None:
        self._problems = problems
        self._quotas: dict[ObjectKey, QuotaHeadroom] = {}

    def put(self, key: ObjectKey, quota: ResourceQuota) -> None:
        try:
            self._quotas[key] = headroom_of(quota)
            self._problems.clear("ResourceQuota", str(key))
        except Invalid as error:
            self._problems.add("ResourceQuota", str(key), error)

    def drop(self, key: ObjectKey) -> None:
        self._quotas.pop(key, None)
        self._problems.clear("ResourceQuota", str(key))

    def by_namespace(self) -> Mapping[str, Sequence[QuotaHeadroom]]:
        quotas: dict[str, list[QuotaHeadroom]] = {}
        for key, headroom in self._quotas.items():
            quotas.setdefault(key.namespace, []).append(headroom)
        return quotas
