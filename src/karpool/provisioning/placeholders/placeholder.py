"""What stands in the cluster for an ask, whichever backend made it.

`Placeholder` is read back from objects, never remembered: after a restart the same
objects give the same placeholders. Only what carries our labels *and* the name that
follows from them is one, so nothing else can ever be withdrawn.
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
    """How a placeholder stands with its autoscaler."""

    WAITING = "Waiting"  # nobody has reacted yet
    REFUSED = "Refused"  # the autoscaler says that it cannot; it may change its mind
    COMING = "Coming"  # a claim is nominated, or the autoscaler accepted
    THERE = "There"  # bound, or the autoscaler says that the room exists
    ENDED = "Ended"  # it failed, ran out, or was preempted: it asks for nothing any more


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
    message: str = ""  # of the autoscaler or the scheduler
    node: str = ""
    claim: str = ""  # best effort before it is bound

    def is_overdue(self, now: float, maximum_age: float) -> bool:
        """From creation, bound or not: `activeDeadlineSeconds` counts only once a kubelet has it."""
        ends = self.created + maximum_age
        return now >= (ends if self.deadline is None else min(ends, self.deadline))


def delete_again_at(placeholder: Placeholder, tries: int, last: float | None) -> float:
    """When a deletion that was tried `tries` times, last at `last`, may be tried (again).

    Whoever was restarted has no tries, but sees from the object that a deletion was asked for.
    """
    moments = [at for at in (last, placeholder.deleting_since) if at is not None]
    if not moments:
        return float("-inf")
    wait = DELETE_RETRY_SECONDS * 2.0 ** (min(max(tries, 1), 10) - 1)
    return max(moments) + min(DELETE_RETRY_LONGEST_SECONDS, wait)
