"""Write a decision to its binding, and learn what became of it.

Every write checks first that we still lead, and carries the version that was read. What
the API server answers is sorted into what the caller does next; a status that another
controller changed in between is read again and written again, because the decision
it reports still stands.
"""

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum

import structlog

from karpool.kube.api.client import Client
from karpool.kube.api.decoding import Object, identity_of
from karpool.kube.errors import ApiUnreachable, Conflict, Denied, KubeError, NotFound, Rejected, StatusError
from karpool.model.errors import Invalid
from karpool.model.karmada.binding import Binding, BindingKey, read_binding
from karpool.model.kubernetes.api_resources import CLUSTERRESOURCEBINDINGS, RESOURCEBINDINGS, ApiResource
from karpool.model.kubernetes.times import rfc3339
from karpool.scheduler.controller.patches import ScheduledCondition, observed_patch, status_patch

log = structlog.get_logger(__name__)

QUOTA_EXCEEDED = "QuotaExceeded"
STATUS_TRIES = 5


class WriteOutcome(Enum):
    """What became of a write."""

    WRITTEN = "written"
    UNCHANGED = "unchanged"  # there was nothing to write
    CONFLICT = "conflict"  # someone else wrote: look again
    GONE = "gone"  # the binding, or its namespace, is going: nothing to do
    REFUSED = "refused"  # by a quota
    FAILED = "failed"  # refused for another reason: it was not carried out
    UNKNOWN = "unknown"  # no answer came: it may have been carried out


@dataclass(frozen=True)
class WriteResult:
    fate: WriteOutcome
    binding: Binding | None = None  # as the server has it now, where it said so
    message: str = ""


def resource_of(key: BindingKey) -> ApiResource:
    return RESOURCEBINDINGS if key.is_namespaced else CLUSTERRESOURCEBINDINGS


class BindingWriter:
    """`check` raises LeadershipLost when we may no longer write. `known` gives a version that the watch
    delivered before the answer came, so that it is not read twice."""

    def __init__(
        self,
        client: Client,
        *,
        check: Callable[[], None] = lambda: None,
        count: Callable[[str, str], None] = lambda what, result: None,
        known: Callable[[BindingKey, str], Binding | None] = lambda key, version: None,
    ) -> None:
        self._client = client
        self._clock = client.clock
        self._check = check
        self._count = count
        self._known = known

    async def result(self, binding: Binding, patch: Object | None) -> WriteResult:
        """Apply a result patch; with WRITTEN comes the binding as it is now."""
        if patch is None:
            self._count("result", "unchanged")
            return WriteResult(WriteOutcome.UNCHANGED, binding)
        written = await self._sorted("result", binding.key, patch)
        if written.fate is WriteOutcome.WRITTEN and written.binding is None:
            # A webhook made something of it that we cannot read: look again.
            return WriteResult(WriteOutcome.UNKNOWN, message=written.message)
        return written

    async def status(
        self, binding: Binding, outcome: ScheduledCondition, *, scheduled_now: bool = False
    ) -> WriteResult:
        """Say how it went. `binding` is as the result was written; a newer spec is not spoken for."""
        return await self._status(
            binding,
            lambda current: status_patch(
                current, outcome, rfc3339(self._clock.now()), scheduled_now=scheduled_now
            ),
        )

    async def observed(self, binding: Binding) -> WriteResult:
        return await self._status(binding, observed_patch)

    async def read(self, key: BindingKey) -> Binding | None:
        """The binding as the server has it; None when it is gone or cannot be read."""
        try:
            return read_binding(
                await self._client.get(resource_of(key), key.name, namespace=key.namespace or None)
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
            if written.fate is not WriteOutcome.CONFLICT:
                return written
            found = await self.read(binding.key)
            if found is None or found.uid != binding.uid:
                return WriteResult(WriteOutcome.GONE)
            if found.generation != binding.generation:
                return WriteResult(
                    WriteOutcome.CONFLICT, found, "the binding changed while its result was written"
                )
            current = found
        return WriteResult(WriteOutcome.CONFLICT, current, f"others wrote {STATUS_TRIES} times in between")

    async def _sorted(
        self, what: str, key: BindingKey, patch: Object, *, subresource: str = ""
    ) -> WriteResult:
        self._check()
        try:
            answer = await self._client.patch(
                resource_of(key), key.name, patch, namespace=key.namespace or None, subresource=subresource
            )
        except Conflict as error:
            self._count(what, "conflict")
            return WriteResult(WriteOutcome.CONFLICT, message=str(error))
        except NotFound as error:
            return WriteResult(WriteOutcome.GONE, message=str(error))
        except Denied as error:
            return self._denied(what, error)
        except KubeError as error:
            self._count(what, "error")
            certain = isinstance(error, Rejected) or (isinstance(error, ApiUnreachable) and not error.sent)
            return WriteResult(WriteOutcome.FAILED if certain else WriteOutcome.UNKNOWN, message=str(error))
        self._count(what, "written")
        version = identity_of(answer).version
        if (known := self._known(key, version)) is not None:
            return WriteResult(WriteOutcome.WRITTEN, known)
        try:
            return WriteResult(WriteOutcome.WRITTEN, read_binding(answer))
        except Invalid as error:  # also when it was to be told just that
            return WriteResult(WriteOutcome.WRITTEN, message=str(error))

    def _denied(self, what: str, error: StatusError) -> WriteResult:
        if error.has_cause("NamespaceTerminating") or "being terminated" in error.message:
            return WriteResult(WriteOutcome.GONE, message=str(error))
        if error.reason == QUOTA_EXCEEDED:
            self._count(what, "refused")
            return WriteResult(WriteOutcome.REFUSED, message=error.message)
        self._count(what, "error")
        return WriteResult(WriteOutcome.FAILED, message=str(error))
