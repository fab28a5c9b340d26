"""The binding status controller: collects the status of works in the binding and the template.

Only bindings with `lastScheduledTime` are handled. The status of the template is the sum over its members.
"""

import asyncio
from collections.abc import Sequence

from karpool.cluster.changes import ObjectChange
from karpool.kube.api.conditions import changed_fields, condition_of, upsert_condition
from karpool.kube.work_queue import Requeue
from karpool.model.kubernetes.api_resources import WORKS
from karpool.model.kubernetes.times import rfc3339
from karpool_fleet.karmada.propagation.binding_controller import WorksByBinding
from karpool_fleet.karmada.propagation.bindings import BindingFeeds, BindingRef, ref_of, targets_of
from karpool_fleet.karmada.propagation.names import GATHER_SECONDS, Object, cluster_of
from karpool_fleet.karmada.propagation.templates import (
    TemplateKey,
    WatchedTemplates,
    key_in,
    same_specification,
)
from karpool_fleet.karmada.status import resource_interpreter
from karpool_fleet.runtime.controller import QueueController
from karpool_fleet.runtime.informers import Feed
from karpool_fleet.runtime.supervisor import Context
from karpool_fleet.runtime.writes import patch_object, patch_version

_DONE = ("True", "FullyAppliedSuccess", "All works have been successfully applied")
_NOT_DONE = (
    "False",
    "FullyAppliedFailed",
    "Failed to apply all works, see status.aggregatedStatus for details",
)


def aggregated(works: Sequence[Object]) -> list[Object]:
    """Return the status of the works of one binding, by cluster."""
    items = [_item(work) for work in works if "deletionTimestamp" not in work["metadata"]]
    return sorted(items, key=lambda item: item["clusterName"])


def _item(work: Object) -> Object:
    status = work.get("status") or {}
    item: Object = {"clusterName": cluster_of(work["metadata"]["namespace"])}
    applied = condition_of(status.get("conditions"), "Applied")
    if applied is not None and applied["status"] == "True":
        item["applied"] = True
    elif applied is not None and applied.get("message"):
        item["appliedMessage"] = applied["message"]
    told: Object = next(iter(status.get("manifestStatuses") or ()), {})
    item["health"] = told.get("health", resource_interpreter.UNKNOWN)
    if told.get("status"):
        item["status"] = told["status"]
    return item


def is_fully_applied(spec: Object, items: Sequence[Object]) -> bool:
    names = {target["name"] for target in targets_of(spec)}
    there = {item["clusterName"] for item in items if item.get("applied")}
    return bool(names) and names <= there


class BindingStatusController(QueueController[BindingRef]):
    workers = 5

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self._templates = WatchedTemplates(context, self._on_template)
        self._by_template: dict[TemplateKey, BindingRef] = {}
        self._bindings = BindingFeeds(context)
        feed: Feed[Object] = context.informers.of(WORKS)
        self._works = WorksByBinding(feed)
        feed.on_change(self._on_work)
        self._bindings.on_change(self._on_binding)

    async def _work(self, group: asyncio.TaskGroup) -> None:
        self._templates.group = group
        await super()._work(group)

    # Triggers

    def _on_work(self, change: ObjectChange[Object]) -> None:
        ref = self._works.note(change)
        if ref is None or change.object is None:
            return
        old = change.old
        told = old is None or change.type == "DELETED" or old.get("status") != change.object.get("status")
        if told or "deletionTimestamp" in change.object["metadata"]:
            self._queue.add_after(ref, GATHER_SECONDS)

    def _on_binding(self, change: ObjectChange[Object]) -> None:
        if change.object is None:
            return
        template = key_in(change.object["spec"]["resource"])
        if change.type == "DELETED":
            self._by_template.pop(template, None)
            return
        ref = ref_of(change.object)
        self._by_template[template] = ref
        self._queue.add_after(ref, GATHER_SECONDS)

    def _on_template(self, key: TemplateKey, change: ObjectChange[Object]) -> None:
        ref = self._by_template.get(key)
        if ref is None or change.object is None or change.type == "DELETED":
            return
        # Its status too: we may have compared with a state older than our last write.
        told = change.old is None or change.old.get("status") != change.object.get("status")
        if told or (change.old is not None and not same_specification(change.old, change.object)):
            self._queue.add_after(ref, GATHER_SECONDS)

    # Reconciliation

    async def _reconcile(self, ref: BindingRef) -> Requeue | None:
        binding = self._bindings.get(ref)
        if binding is None or "deletionTimestamp" in binding["metadata"]:
            return None
        status = binding.get("status") or {}
        if not status.get("lastScheduledTime"):
            return None
        items = aggregated(self._works.of(ref))
        await self._write_binding(ref, binding, items)
        await self._write_template(key_in(binding["spec"]["resource"]), items)
        return None

    async def _write_binding(self, ref: BindingRef, binding: Object, items: list[Object]) -> None:
        status, patch = binding.get("status") or {}, {}
        if (status.get("aggregatedStatus") or []) != items:
            patch["aggregatedStatus"] = items
        values = _DONE if is_fully_applied(binding["spec"], items) else _NOT_DONE
        fields = dict(zip(("status", "reason", "message"), values, strict=True))
        held = status.get("conditions") or []
        now = rfc3339(self._clock.now())
        conditions = upsert_condition(held, {"type": "FullyApplied", **fields}, now)
        if conditions != held:
            patch["conditions"] = conditions
        if patch:
            # The list of conditions is replaced as a whole, so a newer one of the scheduler must not be
            # overwritten.
            await patch_version(self._client, ref.resource, binding, {"status": patch}, status=True)

    async def _write_template(self, key: TemplateKey, items: Sequence[Object]) -> None:
        resource = await self._templates.watch(key.api_version, key.kind)
        if resource is None or not self._templates.kinds.has_status(resource):
            return
        template = self._templates.get(key)
        if template is None:
            return  # the watch has just started, and its events bring us back
        template = {**template, "apiVersion": key.api_version, "kind": key.kind}
        status = resource_interpreter.aggregated(template, items)
        if status is None:
            return
        held = template.get("status") or {}
        # Fields that are not summed, such as conditions, are kept.
        ours = {*resource_interpreter.interpretation(template).counts, *status}
        patch = changed_fields({name: held[name] for name in held if name in ours}, status)
        if patch:
            await patch_object(self._client, resource, template, {"status": patch}, status=True)
