"""Enforces ResourceQuotas and reports their usage.

Usage is updated in the same step as every write, so it is always exact: a create is checked against all
creates before it, from any number of clients. The status of the quotas is written right after, in the
background work of the server.
"""

from dataclasses import dataclass, field

import structlog

from karpool.model.errors import Invalid
from karpool.model.resources import Resources
from karpool_fleet.apiserver.objects.cluster import Operation, ServedCluster
from karpool_fleet.apiserver.objects.types import Object, ResourceType
from karpool_fleet.apiserver.serve.server import ApiServer
from karpool_fleet.apiserver.serve.status import forbidden
from karpool_fleet.apiserver.storage.history import StoredEvent
from karpool_fleet.apiserver.storage.record import StoredObject
from karpool_fleet.kube_controllers.quota_usage import (
    BARE,
    COUNT,
    QuotaScope,
    parse_hard,
    scopes_of,
    show,
    unstated,
    usage_of,
)

log = structlog.get_logger(__name__)

QUOTAS = "resourcequotas"
_PODS = "pods"


def enforce_quotas(server: ApiServer) -> "EmbeddedQuotas":
    """Make a server enforce ResourceQuotas, including existing ones."""
    quotas = EmbeddedQuotas(server.cluster)
    server.admission.append(quotas.admit)
    return quotas


@dataclass(slots=True)
class _Quota:
    name: str
    spec: Object
    hard: Resources
    scopes: tuple[QuotaScope, ...]
    used: Resources = field(default_factory=dict)
    charged: dict[str, Resources] = field(default_factory=dict)  # by uid

    def counts(self, kind: str) -> bool:
        """Whether the quota counts objects of this kind."""
        if kind == _PODS:
            return True
        return not self.scopes and (f"{COUNT}{kind}" in self.hard or kind in BARE)

    def covers(self, kind: str, obj: Object) -> bool:
        return not self.scopes or (kind == _PODS and all(scope.covers(obj) for scope in self.scopes))

    def measure(self, kind: str, obj: Object) -> Resources:
        """Return what the quota would count for an object, by the names that it limits."""
        if not self.covers(kind, obj):
            return {}
        try:
            usage = usage_of(kind, obj)
        except (Invalid, ValueError):
            return {}  # the API refuses such objects; one that exists nevertheless must not stop the others
        return {name: units for name, units in usage.items() if units and name in self.hard}

    def charge(self, uid: str, usage: Resources) -> bool:
        """Charge an object with this usage from now on; return whether anything changed."""
        before = self.charged.pop(uid, {})
        if usage:
            self.charged[uid] = usage
        if usage == before:
            return False
        for name in before.keys() | usage.keys():
            self.used[name] = self.used.get(name, 0) + usage.get(name, 0) - before.get(name, 0)
        return True

    def status(self) -> Object:
        used = {name: self.used.get(name, 0) for name in self.hard}
        return {"hard": self.spec.get("hard") or {}, "used": show(used)}


class EmbeddedQuotas:
    def __init__(self, cluster: ServedCluster) -> None:
        self._cluster = cluster
        self._quotas: dict[str, dict[str, _Quota]] = {}  # by namespace and name
        for record in list(cluster.store.collection(QUOTAS).records()):
            self._on_quota(record, gone=False)
        cluster.store.listeners.append(self._on_change)

    def used(self, namespace: str, name: str) -> Resources:
        """Return the current usage of a quota, by the names that it limits."""
        quota = self._quotas[namespace][name]
        return {resource: quota.used.get(resource, 0) for resource in quota.hard}

    def admit(
        self, operation: Operation, resource: ResourceType, new: Object | None, old: Object | None
    ) -> None:
        if new is None or not resource.namespaced:
            return
        meta = new["metadata"]
        quotas = self._quotas.get(meta.get("namespace") or "")
        if not quotas or (old is not None and new.get("spec") == old.get("spec")):
            return
        kind = resource.group_resource
        for quota in quotas.values():
            if quota.counts(kind):
                _check(quota, resource, new, is_new=operation == "CREATE")

    def _on_change(self, event: StoredEvent) -> None:
        record = event.record
        kind = record.collection.group_resource
        gone = event.type == "DELETED"
        if kind == QUOTAS:
            self._on_quota(record, gone=gone)
        quotas = self._quotas.get(record.namespace) if record.namespace else None
        if not quotas:
            return
        obj: Object | None = None
        for quota in quotas.values():
            if not quota.counts(kind):
                continue
            if obj is None and not gone:
                obj = record.object()
            usage = quota.measure(kind, obj) if obj is not None else {}
            if quota.charge(record.uid, usage):
                self._schedule(record.namespace, quota.name)

    def _on_quota(self, record: StoredObject, *, gone: bool) -> None:
        here = self._quotas.setdefault(record.namespace, {})
        if gone:
            here.pop(record.name, None)
            if not here:
                del self._quotas[record.namespace]
            return
        spec = record.object().get("spec") or {}
        entry = here.get(record.name)
        if entry is None or entry.spec != spec:
            here[record.name] = self._counted(record, spec)
        self._schedule(record.namespace, record.name)

    def _counted(self, record: StoredObject, spec: Object) -> _Quota:
        """Return a quota with the usage of its whole namespace. O(objects in the namespace)."""
        try:
            hard = parse_hard(spec.get("hard") or {})
        except Invalid as error:
            log.warning("quota ignored", quota=f"{record.namespace}/{record.name}", reason=str(error))
            hard = {}
        quota = _Quota(record.name, spec, hard, scopes_of(spec))
        for collection in self._cluster.store.collections():
            kind = collection.group_resource
            if quota.counts(kind):
                for stored_object in collection.in_namespace(record.namespace).values():
                    quota.charge(stored_object.uid, quota.measure(kind, stored_object.object()))
        return quota

    def _schedule(self, namespace: str, name: str) -> None:
        self._cluster.background.schedule(("quota", namespace, name), lambda: self._write(namespace, name))

    def _write(self, namespace: str, name: str) -> None:
        collection = self._cluster.store.collection(QUOTAS)
        record = collection.get(namespace, name)
        quota = self._quotas.get(namespace, {}).get(name)
        if record is None or quota is None:
            return
        obj, status = record.object(), quota.status()
        if obj.get("status") != status:
            self._cluster.store.put(collection, {**obj, "status": status})


def _check(quota: _Quota, resource: ResourceType, obj: Object, *, is_new: bool) -> None:
    kind, name = resource.group_resource, str(obj["metadata"].get("name", ""))
    if not quota.covers(kind, obj):
        return
    usage = quota.measure(kind, obj)
    if kind == _PODS and is_new and (missing := unstated(quota.hard, obj)):
        message = f"failed quota: {quota.name}: must specify {'; '.join(missing)}"
        raise forbidden(resource, name, message)
    before = quota.charged.get(obj["metadata"]["uid"], {})
    increase = {resource: units - before.get(resource, 0) for resource, units in usage.items()}
    over = {
        resource: units
        for resource, units in increase.items()
        if units > 0 and quota.used.get(resource, 0) + units > quota.hard[resource]
    }
    if over:
        message = (
            f"exceeded quota: {quota.name}, requested: {_listed(over)}, "
            f"used: {_listed({resource: quota.used.get(resource, 0) for resource in over})}, "
            f"limited: {_listed({resource: quota.hard[resource] for resource in over})}"
        )
        raise forbidden(resource, name, message)


def _listed(amounts: Resources) -> str:
    return ",".join(f"{name}={text}" for name, text in sorted(show(amounts).items()))
