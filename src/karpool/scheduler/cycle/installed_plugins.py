"""Loads filters and scores of other packages from the entry point group `karpool.scheduler.plugins`.

The entry names a factory of a plugin: an object with a `name` and with `filter(binding, cluster)`, which
returns the reason to refuse a cluster or nothing, or `score(binding, cluster)`, from 0 to 100, or both. They
are called for every candidate of every decision, so they must not block. A plugin that fails refuses the
cluster, because its answer is unknown.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

from karpool.manager.plugins import installed, loaded
from karpool.model.karmada.binding import Binding
from karpool.model.karmada.member_cluster import MemberCluster

ENTRY_POINTS = "karpool.scheduler.plugins"
SCORE_MAX = 100  # as in Karmada: no plugin outweighs all others
_REASON_MAX = 200  # it is part of a condition, once per cluster


@dataclass(frozen=True, slots=True)
class InstalledPlugin:
    name: str
    plugin: Any

    @property
    def filters(self) -> bool:
        return callable(getattr(self.plugin, "filter", None))

    @property
    def scores(self) -> bool:
        return callable(getattr(self.plugin, "score", None))

    def refusal(self, binding: Binding, cluster: MemberCluster) -> str:
        try:
            reason = self.plugin.filter(binding, cluster) or ""
            if isinstance(reason, str):
                return reason[:_REASON_MAX]
            problem: object = f"returned {type(reason).__name__} instead of text"
        except Exception as error:
            problem = error
        _say_failed(self.name, cluster, problem)
        return f"failed: {problem}"[:_REASON_MAX]

    def score(self, binding: Binding, cluster: MemberCluster) -> int:
        """A score that is not a number counts as no preference."""
        try:
            return max(0, min(int(self.plugin.score(binding, cluster)), SCORE_MAX))
        except Exception as error:
            _say_failed(self.name, cluster, error)
            return 0


def _say_failed(plugin: str, cluster: MemberCluster, problem: object) -> None:
    import structlog  # options need this module, and --help must stay light

    structlog.get_logger(__name__).warning(
        "plugin failed", plugin=plugin, cluster=cluster.name, reason=str(problem)
    )


def load_plugins(names: Sequence[str], ours: Collection[str]) -> tuple[InstalledPlugin, ...]:
    """Raises Invalid naming the plugin that cannot be created."""
    entries = installed(ENTRY_POINTS, ours) if names else {}
    return tuple(InstalledPlugin(name, loaded(entries[name], ("filter", "score"))) for name in names)
