"""Stores the templates of a StatefulSet or DaemonSet as ControllerRevisions.

Names are derived from the template, so the same template is never stored twice, by any instance. Returning to
an old template gives its revision a new number.
"""

from collections.abc import Callable, Iterable
from typing import NamedTuple

from karpool.kube.api.decoding import Object
from karpool.model.kubernetes.api_resources import ObjectKey
from karpool_fleet.runtime.writes import owner_reference
from karpool_fleet.workloads.controller import WorkloadController
from karpool_fleet.workloads.dependents import Dependents
from karpool_fleet.workloads.revisions import (
    CONTROLLERREVISIONS,
    REVISION_HASH,
    revision_body,
    same_template,
    template_of,
)


class RevisionHistory(NamedTuple):
    update: Object  # the revision of the current template
    all: list[Object]  # oldest first

    @property
    def update_hash(self) -> str:
        return hash_of(self.update)


def hash_of(revision: Object) -> str:
    return str((revision["metadata"].get("labels") or {}).get(REVISION_HASH, ""))


async def remember(
    controller: WorkloadController, obj: Object, revisions: Dependents[Object]
) -> RevisionHistory | None:
    """Make sure that the current template has a revision; None after a name collision: retry."""
    held = sorted(revisions.of(obj["metadata"]["uid"]), key=_order)
    template = obj["spec"]["template"]
    same = [revision for revision in held if same_template(template_of(revision), template, REVISION_HASH)]
    newest = held[-1].get("revision", 0) if held else 0
    if same and same[-1] is held[-1]:
        return RevisionHistory(held[-1], held)
    if same:
        patch = {"revision": newest + 1}
        meta = same[-1]["metadata"]
        answer = await controller.client.patch(
            CONTROLLERREVISIONS, meta["name"], patch, namespace=meta["namespace"]
        )
        revisions.assume(answer)
    elif not await _create(controller, obj, revisions, newest + 1):
        return None
    held = sorted(revisions.of(obj["metadata"]["uid"]), key=_order)
    return RevisionHistory(held[-1], held)


async def _create(
    controller: WorkloadController, obj: Object, revisions: Dependents[Object], number: int
) -> bool:
    meta = obj["metadata"]
    collisions = (obj.get("status") or {}).get("collisionCount") or 0
    body = revision_body(obj, owner_reference(controller.resource, obj), number, collisions)
    if await controller.create_named(revisions, body, meta["uid"]):
        return True
    status = {**(obj.get("status") or {}), "collisionCount": collisions + 1}
    await controller.write_status(obj, status)
    controller.queue.add(ObjectKey(meta["namespace"], meta["name"]))
    return False


async def forget_old(
    controller: WorkloadController,
    obj: Object,
    revisions: Dependents[Object],
    history: RevisionHistory,
    used: Callable[[], Iterable[str]],
) -> None:
    """Delete the oldest revisions beyond the limit whose hash is not in use."""
    limit = obj["spec"].get("revisionHistoryLimit", 10)
    if len(history.all) - 1 <= limit:
        return
    kept = {*used(), history.update_hash}
    spare = [revision for revision in history.all if hash_of(revision) not in kept]
    for revision in spare[: max(0, len(spare) - limit)]:
        await controller.delete_dependent(revisions, revision)


def _order(revision: Object) -> tuple[int, str]:
    return revision.get("revision", 0), revision["metadata"]["name"]
