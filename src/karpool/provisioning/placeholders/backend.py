"""Ways to make an autoscaler add a node, behind one interface.

A backend gets a request and a rung of the ladder, creates the missing objects, and deletes only its own
objects. `request` and `withdraw` are idempotent; neither waits for a node. The result is read from the
cluster (`placeholders`), not from the answers to writes.
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
    """The result of one call: indices that were created, that existed, and that were refused."""

    created: tuple[int, ...] = ()
    present: tuple[int, ...] = ()
    going: tuple[int, ...] = ()  # being deleted; request again when they are gone
    # By index, the message of the API server: quota, admission, or a name used by another object.
    refused: Mapping[int, Infeasible[LaunchReason]] = field(default_factory=dict)


class ProvisioningBackend(Protocol):
    @property
    def name(self) -> str: ...

    @property
    def watches(self) -> Sequence[WatchedKind[Any]]:
        """The kinds to watch; before they are synced, no placeholder is known."""

    async def request(
        self, ask: NodeRequest, candidate: NodeCandidate, indices: Collection[int] | None = None
    ) -> RequestResult:
        """Create the missing objects of these units (None: of all units).

        Raises KubeError if the server does not answer; then repeat the call.
        """

    def placeholders(self) -> Sequence[Placeholder]:
        """Return all placeholders of this backend in the cluster, of every request, as last seen."""

    async def withdraw(self, placeholder: Placeholder) -> bool:
        """Delete exactly this object, by UID; return whether it is gone."""
