"""Writes a decision to its binding, and classifies the API server's answer.

Every write first checks that this process still leads, and carries the resourceVersion that was read. The
answer is mapped to what the caller does next. If another controller changed the status in between, the
binding is read and the status written again, because the decision that it reports still stands.

A patch contains only differences, so that a second pass over an unchanged binding writes nothing. Merge
patches replace lists as a whole, therefore `conditions` are always those of the version that the patch names.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

import msgspec
import structlog

from karpool.kube.api.client import Client
from karpool.kube.api.conditions import upsert_condition
from karpool.kube.api.decoding import Object, identity_of
from karpool.kube.errors import ApiUnreachable, Conflict, Denied, KubeError, NotFound, Rejected, StatusError
from karpool.model.errors import Invalid
from karpool.model.karmada.binding import Binding, BindingKey, TargetCluster, read_binding
from karpool.model.karmada.names import APPLIED_PLACEMENT
from karpool.model.kubernetes.times import rfc3339
from karpool.scheduler.cycle.decision import ScheduleReason, SchedulingDecision
from karpool.scheduler.cycle.triggers import stripped

log = structlog.get_logger(__name__)

QUOTA_EXCEEDED = "QuotaExceeded"
STATUS_TRIES = 5


# Patches: plain values, no I/O

SCHEDULED = "Scheduled"
MESSAGE_MAX = 4096  # of a condition; the API allows 32768, people read less


@dataclass(frozen=True, slots=True)
class ScheduledCondition:
    """The result of a pass over a binding, as written to its condition."""

    reason: ScheduleReason
    message: str
    affinity_name: str | None = None  # name of the affinity group in use; None: do not change it
    is_partial: bool = False  # a result was written, and replicas are missing

    @property
    def is_success(self) -> bool:
        return self.reason is ScheduleReason.SUCCESS

    def condition(self) -> Object:
        return {
            "type": SCHEDULED,
            "status": "True" if self.is_success else "False",
            "reason": str(self.reason),
            "message": self.message[:MESSAGE_MAX],
        }


def outcome_of(decision: SchedulingDecision) -> ScheduledCondition:
    placed = decision.targets is not None and (decision.is_success or decision.is_partial)
    name = decision.group if placed and decision.group else None
    return ScheduledCondition(decision.reason, decision.message, name, decision.is_partial)


def result_patch(
    binding: Binding, targets: Sequence[TargetCluster], annotations: Mapping[str, str | None]
) -> Object | None:
    """A merge patch that makes `targets` the result; None if nothing changes.

    `annotations` are written together with a change of the targets, so that both become visible at once.
    """
    changed: Object = {}
    if not same_placement(binding.applied_placement, binding.raw_placement):
        changed[APPLIED_PLACEMENT] = placement_text(binding.raw_placement)
    patch: Object = {"metadata": {"resourceVersion": binding.resource_version}}
    if tuple(targets) != binding.targets:
        patch["spec"] = {"clusters": [target.to_json() for target in targets] or None}
        held = binding.annotations
        changed |= {name: text for name, text in annotations.items() if held.get(name) != text}
    if changed:
        patch["metadata"]["annotations"] = changed
    return patch if changed or "spec" in patch else None


def status_patch(
    binding: Binding, outcome: ScheduledCondition, now: str, *, scheduled_now: bool = False
) -> Object | None:
    """A merge patch of the status; None if nothing changes.

    With `scheduled_now` the time of the last success changes even if nothing else does: it answers a
    requested rescheduling.
    """
    conditions = [dict(condition) for condition in binding.raw_conditions]
    updated = upsert_condition(conditions, outcome.condition(), now)
    changed: Object = {}
    if updated != conditions:
        changed["conditions"] = updated
    if outcome.is_success or outcome.is_partial:
        # After a partial placement too: members only report on bindings that were scheduled once.
        if binding.observed_generation != binding.generation:
            changed["schedulerObservedGeneration"] = binding.generation
        if outcome.affinity_name is not None and outcome.affinity_name != binding.observing_affinity_name:
            changed["schedulerObservingAffinityName"] = outcome.affinity_name
        if changed or scheduled_now or not binding.last_scheduled_time:
            changed["lastScheduledTime"] = now
    return _of_version(binding, changed)


def observed_patch(binding: Binding) -> Object | None:
    """A patch for a binding that needs no scheduling: other controllers wait for the observed generation."""
    if binding.observed_generation == binding.generation:
        return None
    return _of_version(binding, {"schedulerObservedGeneration": binding.generation})


def placement_text(placement: Mapping[str, Any]) -> str:
    return msgspec.json.encode(placement).decode()


def same_placement(text: str | None, placement: Mapping[str, Any]) -> bool:
    """Whether the annotation equals the placement: absent, null and empty are the same."""
    if text is None:
        return False
    try:
        held = msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError):
        return False
    return bool(stripped(held) == stripped(placement))


def _of_version(binding: Binding, changed: Object) -> Object | None:
    if not changed:
        return None
    return {"metadata": {"resourceVersion": binding.resource_version}, "status": changed}


# Writing


class WriteOutcome(Enum):
    """The outcome of a write."""

    WRITTEN = "written"
    UNCHANGED = "unchanged"  # there was nothing to write
    CONFLICT = "conflict"  # another writer was first: read again
    GONE = "gone"  # the binding or its namespace is being deleted: nothing to do
    REFUSED = "refused"  # by a quota
    FAILED = "failed"  # refused for another reason: it was not applied
    UNKNOWN = "unknown"  # no answer: it may have been applied


@dataclass(frozen=True)
class WriteResult:
    outcome: WriteOutcome
    binding: Binding | None = None  # the current object, if the server returned it
    message: str = ""


class BindingWriter:
    """`check` raises LeadershipLost if this process may no longer write. `get_version` returns a version that
    the watch delivered before the answer, so that it is not parsed twice.
    """

    def __init__(
        self,
        client: Client,
        *,
        check: Callable[[], None] = lambda: None,
        count: Callable[[str, str], None] = lambda write, result: None,
        get_version: Callable[[BindingKey, str], Binding | None] = lambda key, version: None,
    ) -> None:
        self._client = client
        self._clock = client.clock
        self._check = check
        self._count = count
        self._get_version = get_version

    async def result(self, binding: Binding, patch: Object | None) -> WriteResult:
        """Apply a result patch; with WRITTEN the current binding is returned."""
        if patch is None:
            self._count("result", "unchanged")
            return WriteResult(WriteOutcome.UNCHANGED, binding)
        written = await self._sorted("result", binding.key, patch)
        if written.outcome is WriteOutcome.WRITTEN and written.binding is None:
            # A webhook changed it to something unreadable: read again.
            return WriteResult(WriteOutcome.UNKNOWN, message=written.message)
        return written

    async def status(
        self, binding: Binding, outcome: ScheduledCondition, *, scheduled_now: bool = False
    ) -> WriteResult:
        """Write the condition. `binding` is the version of the result; a newer spec is not reported on."""
        return await self._status(
            binding,
            lambda current: status_patch(
                current, outcome, rfc3339(self._clock.now()), scheduled_now=scheduled_now
            ),
        )

    async def observed(self, binding: Binding) -> WriteResult:
        return await self._status(binding, observed_patch)

    async def read(self, key: BindingKey) -> Binding | None:
        """Read the binding from the server; None if it is gone or cannot be read."""
        try:
            return read_binding(
                await self._client.get(key.resource, key.name, namespace=key.namespace or None)
            )
        except (NotFound, Invalid):
            return None

    async def _status(self, binding: Binding, patch_for: Callable[[Binding], Object | None]) -> WriteResult:
        current = binding
        for _ in range(STATUS_TRIES):
            patch = patch_for(current)
            if patch is None:
                self._count("status", "unchanged")
                return WriteResult(WriteOutcome.UNCHANGED, current)
            written = await self._sorted("status", binding.key, patch, subresource="status")
            if written.outcome is not WriteOutcome.CONFLICT:
                return written
            newer = await self.read(binding.key)
            if newer is None or newer.uid != binding.uid:
                return WriteResult(WriteOutcome.GONE)
            if newer.generation != binding.generation:
                return WriteResult(
                    WriteOutcome.CONFLICT, newer, "the binding changed while its result was written"
                )
            current = newer
        return WriteResult(WriteOutcome.CONFLICT, current, f"others wrote {STATUS_TRIES} times in between")

    async def _sorted(
        self, write: str, key: BindingKey, patch: Object, *, subresource: str = ""
    ) -> WriteResult:
        self._check()
        try:
            answer = await self._client.patch(
                key.resource, key.name, patch, namespace=key.namespace or None, subresource=subresource
            )
        except Conflict as error:
            self._count(write, "conflict")
            return WriteResult(WriteOutcome.CONFLICT, message=str(error))
        except NotFound as error:
            return WriteResult(WriteOutcome.GONE, message=str(error))
        except Denied as error:
            return self._denied(write, error)
        except KubeError as error:
            self._count(write, "error")
            certain = isinstance(error, Rejected) or (isinstance(error, ApiUnreachable) and not error.sent)
            return WriteResult(WriteOutcome.FAILED if certain else WriteOutcome.UNKNOWN, message=str(error))
        self._count(write, "written")
        version = identity_of(answer).version
        if (delivered := self._get_version(key, version)) is not None:
            return WriteResult(WriteOutcome.WRITTEN, delivered)
        try:
            return WriteResult(WriteOutcome.WRITTEN, read_binding(answer))
        except Invalid as error:  # also if the patch was the condition that reports this
            return WriteResult(WriteOutcome.WRITTEN, message=str(error))

    def _denied(self, write: str, error: StatusError) -> WriteResult:
        if error.has_cause("NamespaceTerminating") or "being terminated" in error.message:
            return WriteResult(WriteOutcome.GONE, message=str(error))
        if error.reason == QUOTA_EXCEEDED:
            self._count(write, "refused")
            return WriteResult(WriteOutcome.REFUSED, message=error.message)
        self._count(write, "error")
        return WriteResult(WriteOutcome.FAILED, message=str(error))
