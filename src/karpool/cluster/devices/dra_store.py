"""Slices, classes, claims and templates of DRA devices, and the state that the kernel uses.

An object that contradicts itself is reported and left out; what depends on it fails closed. A slice that
cannot be read leaves its pool incomplete. A claim or a taint rule that cannot be read may affect any device:
pods with claims then fit nowhere until it can be read. The same holds for a kind that may not be listed.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, TypeVar

from karpool.cluster.changes import WHOLE_KIND
from karpool.cluster.problems import UnreadableObjects
from karpool.model.dra.claim import ClaimSpec, DraClaim, DraClass
from karpool.model.dra.device import DeviceSlice
from karpool.model.dra.objects import claim_of, class_of, slice_of, spec_of
from karpool.model.dra.wire import (
    DeviceClass,
    DeviceTaintRule,
    ResourceClaim,
    ResourceClaimTemplate,
    ResourceSlice,
)
from karpool.model.errors import Invalid
from karpool.model.kubernetes.api_resources import ObjectKey
from karpool.packing.dra.pod_claims import DraState, HeldClaims, claims_of_nodes, state_of
from karpool.packing.dra.stock import DeviceStock, stock_of

T = TypeVar("T")


class DraStore:
    def __init__(self, problems: UnreadableObjects) -> None:
        self._problems = problems
        self._slices: dict[str, ResourceSlice] = {}
        self._compiled: dict[str, DeviceSlice] = {}
        self._rules: dict[str, DeviceTaintRule] = {}
        self._classes: dict[str, DraClass] = {}
        self._claims: dict[str, DraClaim] = {}
        self._templates: dict[str, ClaimSpec] = {}
        self._unreadable: set[tuple[str, str]] = set()  # kind and name of objects that may affect any device
        self._gone: frozenset[str] = frozenset()  # UIDs of pods that a what-if leaves out
        self._stock: DeviceStock | None = None
        self._state: DraState | None = None
        self._held: HeldClaims | None = None

    def state(self) -> DraState | None:
        """Return the state, the same object until a change; None if a claim or rule cannot be read."""
        if self._unreadable:
            return None
        if self._stock is None:
            self._stock = stock_of(list(self._compiled.values()), list(self._classes.values()))
            self._state = None
        if self._state is None:
            claims = (_without(claim, self._gone) for claim in self._claims.values())
            held = [claim for claim in claims if claim is not None]
            self._state = state_of(self._stock, held, dict(self._templates))
        return self._state

    def held_claims(self) -> HeldClaims:
        """Return the claims that hold devices, the same object until something changes.

        This also works without a `state`: an unreadable claim must not free a node.
        """
        if self._held is None:
            unreadable = (name for kind, name in self._unreadable if kind == "ResourceClaim")
            claims = (_without(claim, self._gone) for claim in self._claims.values())
            self._held = HeldClaims(
                claims_of_nodes(claim for claim in claims if claim is not None),
                # A kind that may not be listed has no claim to name.
                min((name for name in unreadable if name != str(WHOLE_KIND)), default=""),
                frozenset(one.spec.node_name for one in self._slices.values() if one.spec.node_name),
            )
        return self._held

    def leave_out(self, pods: frozenset[str]) -> None:
        """Treat these pods (UIDs) as deleted, for a what-if.

        Their own claims are removed, and a claim that no other pod has reserved is deallocated.
        """
        self._gone, self._state, self._held = pods, None, None

    def put(self, kind: str, key: ObjectKey, obj: Any) -> None:
        self._held = None
        self._unreadable.discard((kind, str(key)))
        match obj:
            case ResourceSlice():
                self._slices[key.name] = obj
                self._compile(key.name)
            case DeviceTaintRule():
                self._rules[key.name] = obj
                self._compile_all()
            case DeviceClass():
                self._read(kind, key, lambda: class_of(obj), self._classes, key.name)
                self._stock = None
            case ResourceClaim():
                if not self._read(
                    kind, key, lambda: claim_of(obj, defaulted=_is_manifest(obj)), self._claims, str(key)
                ):
                    self._unreadable.add((kind, str(key)))
                self._state = None
            case ResourceClaimTemplate():
                manifest = _is_manifest(obj)
                self._read(
                    kind, key, lambda: spec_of(obj.spec.spec, defaulted=manifest), self._templates, str(key)
                )
                self._state = None

    def drop(self, kind: str, key: ObjectKey) -> None:
        self._held = None
        self._unreadable.discard((kind, str(key)))
        self._problems.clear(kind, str(key))
        if kind == "ResourceSlice":
            self._slices.pop(key.name, None)
        by_kind: Mapping[str, tuple[dict[str, Any], str]] = {
            "ResourceSlice": (self._compiled, key.name),
            "DeviceClass": (self._classes, key.name),
            "ResourceClaim": (self._claims, str(key)),
            "ResourceClaimTemplate": (self._templates, str(key)),
            "DeviceTaintRule": (self._rules, key.name),
        }
        table, name = by_kind[kind]
        table.pop(name, None)
        if kind == "DeviceTaintRule":
            self._compile_all()
        if kind in ("ResourceSlice", "DeviceClass"):
            self._stock = None
        self._state = None

    def unreadable(self, kind: str, key: ObjectKey, reason: str) -> None:
        """Forget what was known about the object, because nothing may rely on it."""
        self.drop(kind, key)
        if key != WHOLE_KIND:  # reported once for all kinds that may not be listed
            self._problems.add(kind, str(key), Invalid("", "", reason))
        if kind in ("ResourceClaim", "DeviceTaintRule") or key == WHOLE_KIND:
            self._unreadable.add((kind, str(key)))

    def _compile_all(self) -> None:
        for name in self._slices:
            self._compile(name)

    def _compile(self, name: str) -> None:
        self._stock = None
        rules = [self._rules[rule] for rule in sorted(self._rules)]
        resource_slice = self._slices[name]
        self._read(
            "ResourceSlice",
            ObjectKey("", name),
            lambda: _plausible(slice_of(resource_slice, rules)),
            self._compiled,
            name,
        )

    def _read(self, kind: str, key: ObjectKey, read: Callable[[], T], into: dict[str, T], name: str) -> bool:
        try:
            into[name] = read()
        except Invalid as error:
            into.pop(name, None)
            self._problems.add(kind, str(key), error)
            return False
        self._problems.clear(kind, str(key))
        return True


def _without(claim: DraClaim, pods: frozenset[str]) -> DraClaim | None:
    if not pods:
        return claim
    if any(owner.controller and owner.uid in pods for owner in claim.owners):
        return None
    if claim.reserved_for and all(uid in pods for _, uid in claim.reserved_for):
        return replace(claim, allocation=None, reserved_for=())
    return claim


def _plausible(slice_: DeviceSlice) -> DeviceSlice:
    """Return the slice. Raises Invalid for negative amounts."""
    for index, device in enumerate(slice_.devices):
        for name, capacity in device.capacity:
            _not_negative(f"spec.devices[{index}].capacity[{name}]", capacity.nanos)
        for use in device.counters:
            for name, nanos in use.counters:
                _not_negative(f"spec.devices[{index}].consumesCounters[{use.counter_set}][{name}]", nanos)
    for counter_set, counters in slice_.counter_sets:
        for name, nanos in counters:
            _not_negative(f"spec.sharedCounters[{counter_set}][{name}]", nanos)
    return slice_


def _not_negative(path: str, nanos: int) -> None:
    if nanos < 0:
        raise Invalid(path, nanos / 10**9, "must not be negative")


def _is_manifest(obj: ResourceClaim | ResourceClaimTemplate) -> bool:
    """Whether the object is a manifest that no API server has defaulted."""
    return not obj.metadata.resource_version
