"""Creates missing placeholders and deletes our own; idempotent and safe under concurrency.

A name that another object uses is refused, and that object is never touched. Deletions name the UID, so that
they cannot hit a newer object, and are repeated with backoff.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from karpool.cluster.market.launch_reasons import LaunchReason
from karpool.kube.api.client import Client
from karpool.kube.errors import AlreadyExists, Conflict, Denied, NotFound, Rejected
from karpool.model.infeasible import Infeasible
from karpool.model.kubernetes.api_resources import ApiResource
from karpool.provisioning.placeholders.backend import RequestResult
from karpool.provisioning.placeholders.placeholder import (
    EPOCH,
    INDEX,
    KARPOOL,
    MANAGED_BY,
    REQUEST,
    Placeholder,
    delete_again_at,
)

CONCURRENT_WRITES = 32
_PACED_MAX = 10_000
_IDENTITY = (MANAGED_BY, REQUEST, EPOCH, INDEX)
Object = Mapping[str, Any]


class CreateState(StrEnum):
    CREATED = "created"
    PRESENT = "present"
    GOING = "going"


@dataclass(frozen=True, slots=True)
class CreateResult:
    made: CreateState | None  # None: refused
    object: Object
    message: str = ""


async def create_missing(client: Client, resource: ApiResource, manifest: Object) -> CreateResult:
    """Create the object if it is missing. Raises KubeError if the outcome is unknown; then call again."""
    name, namespace = manifest["metadata"]["name"], manifest["metadata"]["namespace"]
    try:
        return CreateResult(CreateState.CREATED, await client.create(resource, manifest))
    except AlreadyExists:
        pass
    except (Denied, Rejected, NotFound, Conflict) as error:
        return CreateResult(None, manifest, str(error))
    try:
        present = await client.get(resource, name, namespace=namespace)
    except NotFound:
        return CreateResult(CreateState.GOING, manifest)  # deleted in between: the next call creates it
    have, want = present["metadata"].get("labels") or {}, manifest["metadata"]["labels"]
    if any(have.get(key) != want[key] for key in _IDENTITY):
        message = f"{resource} {namespace}/{name} exists and is not {KARPOOL}'s; delete or rename it"
        return CreateResult(None, present, message)
    going = present["metadata"].get("deletionTimestamp") is not None
    return CreateResult(CreateState.GOING if going else CreateState.PRESENT, present)


async def request_all(
    indices: Iterable[int], make: Callable[[int], Awaitable[CreateResult]]
) -> RequestResult:
    """Create many objects concurrently; a failure does not stop the others."""
    gate = asyncio.Semaphore(CONCURRENT_WRITES)

    async def one(index: int) -> tuple[int, CreateResult]:
        async with gate:
            return index, await make(index)

    chosen = sorted(set(indices))
    results = await asyncio.gather(*(one(index) for index in chosen), return_exceptions=True)
    by_kind: dict[CreateState, list[int]] = {made: [] for made in CreateState}
    refused: dict[int, Infeasible[LaunchReason]] = {}
    errors: list[BaseException] = []
    for result in results:
        if isinstance(result, BaseException):
            errors.append(result)
            continue
        index, outcome = result
        if outcome.made is None:
            refused[index] = Infeasible(LaunchReason.CREATE_REFUSED, outcome.message)
        else:
            by_kind[outcome.made].append(index)
    if errors:
        raise errors[0]
    return RequestResult(
        tuple(by_kind[CreateState.CREATED]),
        tuple(by_kind[CreateState.PRESENT]),
        tuple(by_kind[CreateState.GOING]),
        refused,
    )


async def delete_own(client: Client, placeholder: Placeholder) -> bool:
    """Delete exactly this object; return whether it is known to be gone."""
    try:
        await client.delete(
            placeholder.resource,
            placeholder.key.name,
            namespace=placeholder.key.namespace,
            uid=placeholder.uid,
            grace_seconds=0,
        )
    except (NotFound, Conflict):
        return True  # deleted, or another object has its name
    return False


class DeleteBackoff:
    """Limits deletions of an object to one in five seconds, then to longer and longer intervals."""

    def __init__(self) -> None:
        self._tried: OrderedDict[str, tuple[int, float]] = OrderedDict()  # UID to tries and the last time

    def is_due(self, placeholder: Placeholder, now: float) -> bool:
        return now >= self.next_at(placeholder)

    def next_at(self, placeholder: Placeholder) -> float:
        tries, last = self._tried.get(placeholder.uid, (0, None))
        return delete_again_at(placeholder, tries, last)

    def tried(self, placeholder: Placeholder, now: float) -> None:
        tries, _ = self._tried.pop(placeholder.uid, (0, 0.0))
        self._tried[placeholder.uid] = tries + 1, now
        while len(self._tried) > _PACED_MAX:
            self._tried.popitem(last=False)
