"""Executes a scale-up plan: stores the records first, and acts only on stored ones.

A process that is killed in between leaves a record that says what to finish. An object that the API server
refuses does not stop the others; it is reported, and the next step sees the cluster as it is. The caller
provides the actuator (a client or a simulation).
"""

from collections.abc import Awaitable, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Protocol

import structlog

from karpool.gpu.records.scale_up_record import ScaleUpRecord
from karpool.gpu.scale_up.input import (
    CommitHold,
    CreatePlaceholder,
    DeletePlaceholder,
    HoldDevices,
    ScaleUpPlan,
)
from karpool.kube.errors import Conflict, KubeError, LeadershipLost

log = structlog.get_logger(__name__)


class ScaleUpActuator(Protocol):
    """Every method may raise KubeError, and may be repeated."""

    async def store(self, record: ScaleUpRecord) -> ScaleUpRecord:
        """Create the record, or update exactly the version that was read (Conflict otherwise)."""

    async def remove(self, record: ScaleUpRecord) -> None: ...

    async def create(self, record: ScaleUpRecord, creates: Sequence[CreatePlaceholder]) -> None: ...

    async def delete(self, delete: DeletePlaceholder) -> None: ...

    async def hold(self, hold: HoldDevices) -> None: ...

    async def drop(self, uid: str) -> None: ...

    async def commit(self, commit: CommitHold, record: ScaleUpRecord) -> None:
        """Try to commit once, and remember the attempt, whatever its result."""


@dataclass
class ActuationResult:
    """The result of one plan. `stale`: another writer was first; step again soon. `unwritten` are records
    that were not stored or not removed.
    """

    stored: dict[str, ScaleUpRecord] = field(default_factory=dict)
    unwritten: set[str] = field(default_factory=set)
    failed: list[str] = field(default_factory=list)
    stale: bool = False


async def actuate(
    plan: ScaleUpPlan, records: dict[str, ScaleUpRecord], hands: ScaleUpActuator
) -> ActuationResult:
    """Execute the plan. `records` are those the step saw. Cancellation may come at any point."""
    done = ActuationResult(stored=dict(records))
    for record in plan.store:
        if not await _attempt(done, record.name, _store(done, record, hands)):
            done.unwritten.add(record.name)
    for drop in plan.drops:
        await hands.drop(drop.uid)
    for hold in plan.holds:
        await hands.hold(hold)
    for delete in plan.deletes:
        if delete.placeholder.request not in done.unwritten:
            await _attempt(done, delete.placeholder.key.name, hands.delete(delete))
    for name, group in groupby(plan.creates, key=lambda create: create.record):
        creates = list(group)
        if name not in done.unwritten:
            await _attempt(done, name, hands.create(done.stored[name], creates))
    for commit in plan.commits:
        if commit.record not in done.unwritten:
            await _attempt(done, commit.item.request.key, hands.commit(commit, done.stored[commit.record]))
    for record in plan.remove:
        if not await _attempt(done, record.name, hands.remove(record)):
            done.unwritten.add(record.name)
    return done


async def _store(done: ActuationResult, record: ScaleUpRecord, hands: ScaleUpActuator) -> None:
    done.stored[record.name] = await hands.store(record)


async def _attempt(done: ActuationResult, name: str, work: Awaitable[None]) -> bool:
    try:
        await work
    except LeadershipLost:
        raise  # this process may not write any longer
    except KubeError as error:
        done.stale |= isinstance(error, Conflict)
        done.failed.append(f"{name}: {error}")
        say = log.debug if isinstance(error, Conflict) else log.warning
        say("scale-up action failed", object=name, reason=str(error))
        return False
    return True
