"""The state of one scheduler: the newest version of every binding and cluster, and the promises.

Each version is parsed once. `SchedulerStores` is shared by the parts of a scheduler and owned by none.

Our own writes are known before the watch delivers them: a decision never uses a binding older than our last
write, and workloads with affinity to each other see each other's results at once. A binding that cannot be
read is kept with the `Invalid` that says why.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from karpool.cluster.changes import ObjectChange
from karpool.kube.api.decoding import identity_of
from karpool.kube.clock import Clock
from karpool.model.errors import Invalid
from karpool.model.karmada.binding import (
    Binding,
    BindingHead,
    BindingKey,
    TargetCluster,
    head_of,
    read_binding,
)
from karpool.model.karmada.member_cluster import MemberCluster, read_cluster
from karpool.scheduler.promises.ledger import PendingPromise, PromiseLedger

Object = dict[str, Any]


@dataclass(frozen=True, slots=True)
class BindingVersion:
    """One version of a binding. `binding` is None if it cannot be read; `problem` says why."""

    head: BindingHead
    uid: str
    version: str
    binding: Binding | None
    problem: Invalid | None = None
    raw_conditions: tuple[Mapping[str, Any], ...] = ()

    def is_ours(self, scheduler: str) -> bool:
        """Whether the scheduler of that name is responsible for it now."""
        head = self.head
        return head.scheduler_name == scheduler and not head.is_suspended and not head.is_carrier


class BindingStore:
    def __init__(self) -> None:
        self._held: dict[BindingKey, BindingVersion] = {}
        self._groups: dict[tuple[str, str], dict[BindingKey, None]] = {}  # (namespace, group) -> members
        self._decided: dict[BindingKey, tuple[TargetCluster, ...]] = {}  # results that are being written

    def __len__(self) -> int:
        return len(self._held)

    def get(self, key: BindingKey) -> BindingVersion | None:
        return self._held.get(key)

    def get_version(self, key: BindingKey, version: str) -> Binding | None:
        stored = self._held.get(key)
        return stored.binding if stored is not None and stored.version == version else None

    def all(self) -> Iterator[BindingVersion]:
        return iter(list(self._held.values()))

    def bindings(self) -> Iterator[Binding]:
        return (version.binding for version in self.all() if version.binding is not None)

    def in_groups_of(self, binding: Binding) -> list[Binding]:
        """Bindings that share a group with this one, including results that are being written."""
        bindings: dict[BindingKey, Binding] = {}
        for group in _groups_of(binding):
            for key in self._groups.get(group, ()):
                other = self._held[key].binding
                if other is not None:
                    targets = self._decided.get(key)
                    bindings[key] = other if targets is None else replace(other, targets=targets)
        return list(bindings.values())

    def decided(self, key: BindingKey, targets: tuple[TargetCluster, ...]) -> None:
        """Store a result that is about to be written; until `settled` other decisions use it."""
        self._decided[key] = targets

    def settled(self, key: BindingKey) -> None:
        self._decided.pop(key, None)

    def apply(
        self, change: ObjectChange[Object], key: BindingKey
    ) -> tuple[BindingVersion | None, BindingVersion | None]:
        """Return the previous and the current version; equal if the change is outdated."""
        before = self._held.get(key)
        if change.type == "DELETED" or change.object is None:
            self._put(key, None)
            return before, None
        _, uid, version = identity_of(change.object)
        if before is not None and before.uid == uid and not is_newer(version, before.version):
            return before, before
        after = read(change.object)
        self._put(key, after)
        return before, after

    def wrote(self, binding: Binding) -> None:
        """Store the server's answer to a read or write of ours, unless a newer version is known."""
        before = self._held.get(binding.key)
        if before is None or before.uid != binding.uid:
            return
        if not is_newer(binding.resource_version, before.version):
            return
        head = BindingHead(
            binding.key,
            binding.scheduler_name,
            binding.is_suspended,
            binding.is_deleting,
            before.head.is_carrier,
            binding.generation,
            binding.priority,
        )
        self._put(binding.key, BindingVersion(head, binding.uid, binding.resource_version, binding))

    def _put(self, key: BindingKey, stored: BindingVersion | None) -> None:
        before = self._held.pop(key, None)
        for group in _groups_of(before.binding if before else None):
            members = self._groups[group]
            members.pop(key, None)
            if not members:
                del self._groups[group]
        if stored is not None:
            self._held[key] = stored
            for group in _groups_of(stored.binding):
                self._groups.setdefault(group, {})[key] = None


def read(raw: Object) -> BindingVersion:
    """Parse a binding. Never fails: an error is stored in `problem`."""
    meta = raw.get("metadata") or {}
    uid, version = str(meta.get("uid") or ""), str(meta.get("resourceVersion") or "")
    try:
        return BindingVersion(head_of(raw), uid, version, read_binding(raw))
    except Invalid as error:
        return BindingVersion(head_of(raw), uid, version, None, error, _conditions(raw))


def unread(version: BindingVersion) -> Binding:
    """The parts of an unreadable binding that are needed to report the error on it."""
    return Binding(
        key=version.head.key,
        uid=version.uid,
        resource_version=version.version,
        generation=version.head.generation,
        raw_conditions=version.raw_conditions,
    )


def is_newer(version: str, than: str) -> bool:
    """Compare versions of one kind as integers; other versions count as newer."""
    if version.isdecimal() and than.isdecimal():
        return int(version) > int(than)
    return version != than


def _conditions(raw: Object) -> tuple[Mapping[str, Any], ...]:
    status = raw.get("status")
    conditions = status.get("conditions") if isinstance(status, dict) else None
    return (
        tuple(condition for condition in conditions if isinstance(condition, dict))
        if isinstance(conditions, list)
        else ()
    )


def _groups_of(binding: Binding | None) -> list[tuple[str, str]]:
    if binding is None:
        return []
    groups = {binding.affinity_group, binding.anti_affinity_group} - {""}
    return [(binding.key.namespace, group) for group in sorted(groups)]


class MemberClusterStore:
    def __init__(self) -> None:
        self._held: dict[str, MemberCluster] = {}
        self._ordered: tuple[MemberCluster, ...] | None = None

    def __len__(self) -> int:
        return len(self._held)

    def get(self, name: str) -> MemberCluster | None:
        return self._held.get(name)

    def all(self) -> tuple[MemberCluster, ...]:
        """All clusters by name. The same tuple until a cluster changes."""
        if self._ordered is None:
            self._ordered = tuple(self._held[name] for name in sorted(self._held))
        return self._ordered

    def apply(self, change: ObjectChange[Object]) -> tuple[MemberCluster | None, MemberCluster | None]:
        """Return the previous and the current version."""
        name = change.key.name
        before = self._held.pop(name, None)
        self._ordered = None
        if change.type == "DELETED" or change.object is None:
            return before, None
        self._held[name] = now = read_cluster(change.object)
        return before, now


@dataclass
class SchedulerStores:
    """`ledger` None: overcommit protection is off. `room_in` is called with clusters that may have more
    capacity.
    """

    clock: Clock
    ledger: PromiseLedger | None = None
    bindings: BindingStore = field(default_factory=BindingStore)
    clusters: MemberClusterStore = field(default_factory=MemberClusterStore)
    room_in: Callable[[Iterable[str]], None] = lambda clusters: None

    def rebuild(self) -> None:
        """Restore all promises from the listed bindings."""
        if self.ledger is not None:
            now = self.clock.monotonic()
            for cluster in self.clusters.all():
                self.ledger.observe_cluster(cluster.name, cluster.summary, now)
            self.ledger.rebuild(self.bindings.bindings(), now, self.clock.now())

    def observe(self, binding: Binding) -> None:
        """Update promises from a version of a binding, of any scheduler."""
        if self.ledger is not None:
            self.room_in(self.ledger.observe(binding, self.clock.monotonic(), self.clock.now()))

    def forget(self, key: BindingKey) -> None:
        if self.ledger is not None:
            self.room_in(self.ledger.forget(key, self.clock.monotonic()))

    def keep(self, token: PendingPromise | None, generation: int) -> None:
        """Confirm the promise: the decision was written as this generation; 0 if unknown."""
        if token is not None and self.ledger is not None:
            self.ledger.confirm(token, generation)

    def take_back(self, token: PendingPromise | None) -> None:
        """Undo the promise: the decision was not written."""
        if token is not None and self.ledger is not None:
            self.room_in(self.ledger.undo(token, self.clock.monotonic()))
