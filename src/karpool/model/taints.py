"""Taints and tolerations."""

from collections.abc import Iterable

from karpool.model.kubernetes.meta import Int64, Wire

NO_SCHEDULE = "NoSchedule"
PREFER_NO_SCHEDULE = "PreferNoSchedule"
NO_EXECUTE = "NoExecute"
HARD_EFFECTS = frozenset((NO_SCHEDULE, NO_EXECUTE))


class Taint(Wire, frozen=True):
    key: str = ""
    value: str = ""
    effect: str = ""

    def __str__(self) -> str:
        return f"{self.key}={self.value}:{self.effect}" if self.value else f"{self.key}:{self.effect}"


class Toleration(Wire, frozen=True):
    key: str = ""
    operator: str = ""
    value: str = ""
    effect: str = ""
    toleration_seconds: Int64 | None = None

    def tolerates(self, taint: Taint) -> bool:
        if self.effect and self.effect != taint.effect:
            return False
        if self.key and self.key != taint.key:
            return False
        match self.operator:
            case "" | "Equal":
                return self.value == taint.value
            case "Exists":
                return True
        return False


# The taint of a cordoned node.
UNSCHEDULABLE = Taint(key="node.kubernetes.io/unschedulable", effect=NO_SCHEDULE)


def untolerated(taints: Iterable[Taint], tolerations: Iterable[Toleration]) -> Taint | None:
    """Return the first taint that keeps a pod away, if any. PreferNoSchedule never does."""
    tolerations = tuple(tolerations)
    for taint in taints:
        if taint.effect in HARD_EFFECTS and not any(
            toleration.tolerates(taint) for toleration in tolerations
        ):
            return taint
    return None
