"""What stands in the cluster for an ask, whichever backend made it.

`Placeholder` is read back from objects, never remembered: after a restart the same
objects give the same placeholders. Only what carries our labels *and* the name that
follows from them is one, so nothing else can ever be withdrawn.
"""

from dataclasses import dataclass
from enum import StrEnum

from karpool.kube.resource import Key, Resource
from karpool.provisioning.ask import Purpose

DOMAIN = "provisioning.karpool.dev"
REQUEST = f"{DOMAIN}/request"
EPOCH = f"{DOMAIN}/epoch"
INDEX = f"{DOMAIN}/index"
CANDIDATE = f"{DOMAIN}/candidate"
DEADLINE = f"{DOMAIN}/deadline"
MANAGED_BY = "app.kubernetes.io/managed-by"
KARPOOL = "karpool"


class Outlook(StrEnum):
    """How a placeholder stands with its autoscaler."""

    WAITING = "Waiting"  # nobody has reacted yet
    REFUSED = "Refused"  # the autoscaler says that it cannot; it may change its mind
    COMING = "Coming"  # a claim is nominated, or the autoscaler accepted
    THERE = "There"  # bound, or the autoscaler says that the room exists
    ENDED = "Ended"  # it failed, ran out, or was preempted: it asks for nothing any more


@dataclass(frozen=True, slots=True)
class Placeholder:
    resource: Resource
    key: Key
    uid: str
    request: str
    epoch: int
    index: int
    purpose: Purpose
    created: float  # seconds since the epoch
    candidate: str = ""  # Candidate.key
    deadline: float | None = None
    deleting_since: float | None = None
    outlook: Outlook = Outlook.WAITING
    message: str = ""  # of the autoscaler or the scheduler
    node: str = ""
    claim: str = ""  # best effort before it is bound

    def is_overdue(self, now: float, maximum_age: float) -> bool:
        """From creation, bound or not: `activeDeadlineSeconds` counts only once a kubelet has it."""
        ends = self.created + maximum_age
        return now >= (ends if self.deadline is None else min(ends, self.deadline))
