"""Who may act: judged by what passes between replicas and API servers, and by nothing of the product.

A write of a replica, other than of leases and events, while the lease is another's is a second leader.
So is a lease that is taken from a holder who was heard of within the lease's duration, and one that is
emptied by somebody who does not hold it.
"""

import re
import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec

from tests.chaos.processes.http_messages import WRITES, ProxiedRequest

_LEASE = re.compile(r"/leases(/|$)")
# Anybody may say what happened, ask what it may do, and make what must be there before anybody leads.
_HARMLESS = re.compile(
    r"/(leases|events|selfsubjectaccessreviews)(/|$)|/(namespaces|priorityclasses|customresourcedefinitions)$"
)
# A renewal is heard of a little later than it was carried out, and so is what it is measured against.
SLACK_SECONDS = 0.25
DURATION_SECONDS = 15.0  # of a lease, as the flags have it
# Who looks so late has not run, and neither had those that it looks at.
LATE_SECONDS = 3.0
# A replica that is well takes a silent lease after its duration. Twice that: it also finds out that its
# connections are dead, and shares a processor.
VACANT_DURATIONS = 2


@dataclass
class LeaseHistory:
    holder: str = ""
    version: int = 0
    uid: str = ""
    renewed_at: float = 0.0
    duration: float = 0.0
    holders: list[str] = field(default_factory=list)  # one after the other
    longest_gap: float = 0.0  # from a holder's last sign to the next one's first
    longest_vacancy: float = 0.0  # without a sign, while one replica stood for it and was well all the time

    @property
    def transitions(self) -> int:
        return max(len(self.holders) - 1, 0)


class LeaseJudge:
    """An `Observer` of the proxies of all replicas. `controllers`: whose replica each of them is."""

    def __init__(self, controllers: Mapping[str, str], clock: Callable[[], float] = time.monotonic) -> None:
        self._controllers = controllers
        self._clock = clock
        self.leases = {controller: LeaseHistory() for controller in controllers.values()}
        self.identities: dict[str, str] = {}  # of replicas, in their present life
        self.violations: list[str] = []
        self.writes: Counter[str] = Counter()
        self._looked_at = clock()
        self._candidates: dict[str, float] = {}  # since when: who has read the lease, and was well since

    def asked(self, replica: str, request: ProxiedRequest) -> None:
        if request.method not in WRITES:
            if _LEASE.search(request.path):
                self._candidates.setdefault(replica, self._clock())
            return
        if _LEASE.search(request.path):
            holder = _spec(request.body).get("holderIdentity")
            if holder:
                self.identities[replica] = holder
            return
        if _HARMLESS.search(request.path):
            return
        self.writes[replica] += 1
        lease = self.leases[self._controllers[replica]]
        identity = self.identities.get(replica, "never led")
        if lease.holder != identity:
            self.violations.append(
                f"{replica} ({identity}) writes {request.method} {request.path} "
                f"while {lease.holder or 'nobody'} holds the lease"
            )

    def answered(self, replica: str, request: ProxiedRequest, status: int, body: bytes) -> None:
        if request.method in WRITES and 200 <= status < 300 and _LEASE.search(request.path):
            self._written(replica, msgspec.json.decode(body))

    def _written(self, replica: str, lease: Mapping[str, Any]) -> None:
        history = self.leases[self._controllers[replica]]
        meta, spec = lease.get("metadata") or {}, lease.get("spec") or {}
        version = int(meta.get("resourceVersion") or 0)
        if version <= history.version:
            return  # answers may overtake each other, what was written did not
        holder, now = spec.get("holderIdentity") or "", self._clock()
        same = meta.get("uid") == history.uid  # a lease that was deleted has no holder to wait for
        silence = now - history.renewed_at
        if same and history.holder and holder != history.holder:
            self._changed(replica, history, holder, silence)
        if holder and holder != history.holder:
            history.longest_gap = max(history.longest_gap, silence if history.holders else 0.0)
            if not history.holders or history.holders[-1] != holder:
                history.holders.append(holder)
        history.holder, history.version, history.uid = holder, version, meta.get("uid") or ""
        history.renewed_at, history.duration = now, float(spec.get("leaseDurationSeconds") or 0)

    def look(self, well: Collection[str]) -> None:
        """Now and then, with the replicas that run and lack nothing: a lease that was held once is not left
        to nobody for long while one of those stands for it. A process that starts does not yet."""
        now = self._clock()
        late = now - self._looked_at > LATE_SECONDS
        self._looked_at = now
        self._candidates = {
            replica: now if late else since for replica, since in self._candidates.items() if replica in well
        }
        for replica, since in self._candidates.items():
            controller = self._controllers[replica]
            history = self.leases[controller]
            if not history.holders:
                continue
            vacant = now - max(history.renewed_at, since)
            history.longest_vacancy = max(history.longest_vacancy, vacant)
            if vacant > VACANT_DURATIONS * DURATION_SECONDS:
                self.violations.append(
                    f"{replica} stands by for {vacant:.0f} s, and nobody leads {controller}"
                )

    def _changed(self, replica: str, history: LeaseHistory, holder: str, silence: float) -> None:
        if not holder:
            if self.identities.get(replica) != history.holder:
                self.violations.append(f"{replica} empties the lease of {history.holder}")
        elif silence < history.duration - SLACK_SECONDS:
            self.violations.append(
                f"{replica} takes the lease of {history.holder} after {silence:.2f} s of {history.duration:g}"
            )


def _spec(body: bytes) -> Mapping[str, Any]:
    spec: Mapping[str, Any] = msgspec.json.decode(body or b"{}").get("spec") or {}
    return spec
