"""The object in the cluster that stands for one unit of a request, for any backend.

A `Placeholder` is read from objects, never remembered: after a restart the same objects give the same
placeholders. Only an object with our labels *and* the name derived from them is a placeholder, so no other
object can be withdrawn.
"""

from dataclasses import dataclass
from enum import StrEnum

from karpool.model.kubernetes.api_resources import ApiResource, ObjectKey
from karpool.provisioning.node_request import RequestPurpose

DOMAIN = "provisioning.karpool.dev"
REQUEST = f"{DOMAIN}/request"
EPOCH = f"{DOMAIN}/epoch"
INDEX = f"{DOMAIN}/index"
CANDIDATE = f"{DOMAIN}/candidate"
DEADLINE = f"{DOMAIN}/deadline"
MANAGED_BY = "app.kubernetes.io/managed-by"
KARPOOL = "karpool"

DELETE_RETRY_SECONDS = 5.0
DELETE_RETRY_LONGEST_SECONDS = 60.0


class PlaceholderState(StrEnum):
    """What the autoscaler has made of a placeholder."""

    WAITING = "Waiting"  # no reaction yet
    REFUSED = "Refused"  # the autoscaler cannot serve it at present; this may change
    COMING = "Coming"  # a claim is nominated, or the autoscaler has accepted it
    THERE = "There"  # bound, or the autoscaler reports that the room exists
    ENDED = "Ended"  # failed, expired or preempted: it no longer requests a node


@dataclass(frozen=True, slots=True)
class Placeholder:
    resource: ApiResource
    key: ObjectKey
    uid: str
    request: str
    epoch: int
    index: int
    purpose: RequestPurpose
    created: float  # seconds since the epoch
    candidate: str = ""  # Candidate.key
    deadline: float | None = None
    deleting_since: float | None = None
    outlook: PlaceholderState = PlaceholderState.WAITING
    message: str = ""  # from the autoscaler or the scheduler
    node: str = ""
    claim: str = ""  # best effort until it is bound

    def is_overdue(self, now: float, maximum_age: float) -> bool:
        """Whether it is too old since creation: `activeDeadlineSeconds` starts only on a kubelet."""
        ends = self.created + maximum_age
        return now >= (ends if self.deadline is None else min(ends, self.deadline))


def delete_again_at(placeholder: Placeholder, tries: int, last: float | None) -> float:
    """Return when a deletion may be tried again after `tries` attempts, the last one at `last`.

    After a restart `tries` is 0, but the object shows that its deletion was requested.
    """
    moments = [at for at in (last, placeholder.deleting_since) if at is not None]
    if not moments:
        return float("-inf")
    wait = DELETE_RETRY_SECONDS * 2.0 ** (min(max(tries, 1), 10) - 1)
    return max(moments) + min(DELETE_RETRY_LONGEST_SECONDS, wait)
