"""Ways to make an autoscaler add a node, behind one interface.

A backend is told what is asked and on which rung of the ladder, makes what is missing,
and takes back only what is its own. `request` and `withdraw` may be repeated at any
time and by anybody; neither waits for a node. What became of it is read from the
cluster (`placeholders`), not from answers.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from karpool.cluster.market.launch_reasons import LaunchReason
from karpool.kube.watched import WatchedKind
from karpool.model.infeasible import Infeasible
from karpool.provisioning.node_request import NodeCandidate, NodeRequest
from karpool.provisioning.placeholders.placeholder import Placeholder


@dataclass(frozen=True, slots=True)
class RequestResult:
    """What one call did: indices that it created, that were there, and that were refused."""

    created: tuple[int, ...] = ()
    present: tuple[int, ...] = ()
    going: tuple[int, ...] = ()  # being deleted; ask again when they are gone
    # By index, what the API server says: quota, admission, a name that somebody else uses.
    refused: Mapping[int, Infeasible[LaunchReason]] = field(default_factory=dict)


class ProvisioningBackend(Protocol):
    @property
    def name(self) -> str: ...

    @property
    def watches(self) -> Sequence[WatchedKind[Any]]:
        """What it has to see of the cluster; until that is synced it knows of nothing."""

    async def request(
        self, ask: NodeRequest, candidate: NodeCandidate, indices: Collection[int] | None = None
    ) -> RequestResult:
        """Make what is missing of these units (None: of all), and nothing of the others.

        Raises KubeError when the server cannot be asked; then repeat.
        """

    def placeholders(self) -> Sequence[Placeholder]:
        """All of this backend's in the cluster, as last seen, of every request."""

    async def withdraw(self, placeholder: Placeholder) -> bool:
        """Whether it is gone. Deletes that very object and nothing that came after it."""
