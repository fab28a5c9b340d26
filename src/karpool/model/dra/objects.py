"""Converts API objects into the values of the allocator. A bad object raises Invalid with the field.

`defaulted` sets the defaults that the API server would have set.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import msgspec

from karpool.model import quantity
from karpool.model.dra.claim import (
    EXACT_COUNT,
    AllocatedDevice,
    Allocation,
    AttributeConstraint,
    ClaimConfig,
    ClaimRequest,
    ClaimSpec,
    DeviceRequest,
    DraClaim,
    DraClass,
)
from karpool.model.dra.device import (
    AttributeValue,
    CapacityPolicy,
    CounterUse,
    DeviceId,
    DeviceSlice,
    DraCapacity,
    DraDevice,
    NodePlace,
)
from karpool.model.dra.wire import (
    DeviceClass,
    DeviceTaintRule,
    Quantity,
    ResourceClaim,
    ResourceClaimSpec,
    ResourceSlice,
    ResourceSliceSpec,
    WireAllocation,
    WireAttribute,
    WireCapacity,
    WireConfig,
    WireCounter,
    WireDevice,
    WireDeviceFields,
    WireRequest,
    WireRequestFields,
    WireSelector,
)
from karpool.model.errors import Invalid
from karpool.model.requirements import NodeSelector, node_terms_of

# The limits of the API server, so that nothing larger reaches the search.
DEVICES_MAX = 128
CONSTRAINTS_MAX = 32
REQUESTS_MAX = 32
ALTERNATIVES_MAX = 8
SELECTORS_MAX = 32
NAME_MAX = 253

T = TypeVar("T")


def slice_of(resource_slice: ResourceSlice, rules: Sequence[DeviceTaintRule] = ()) -> DeviceSlice:
    """Return the slice, with the taints that rules put on its devices."""
    spec = resource_slice.spec
    where = "spec"
    if not spec.driver or not spec.pool.name:
        raise Invalid(f"{where}.driver", spec.driver, "needs a driver and a pool name")
    _bounded(spec.devices, DEVICES_MAX, f"{where}.devices")
    place = place_of(spec.node_name, spec.all_nodes, spec.node_selector)
    return DeviceSlice(
        name=resource_slice.name,
        driver=spec.driver,
        pool=spec.pool.name,
        generation=spec.pool.generation,
        pool_slices=spec.pool.resource_slice_count,
        place=place if place.is_set or place.unreadable else None,
        per_device=bool(spec.per_device_node_selection),
        devices=tuple(
            _device(device, spec, rules, f"{where}.devices[{index}]")
            for index, device in enumerate(spec.devices or ())
        ),
        counter_sets=tuple(
            (counters.name, _counters(counters.counters, f"{where}.sharedCounters[{index}]"))
            for index, counters in enumerate(spec.shared_counters or ())
        ),
    )


def _device(
    device: WireDevice, spec: ResourceSliceSpec, rules: Sequence[DeviceTaintRule], where: str
) -> DraDevice:
    if not device.name or len(device.name) > NAME_MAX:
        raise Invalid(f"{where}.name", device.name, "is required, and is a DNS label")
    fields: WireDeviceFields = device.basic or device
    own = DeviceId(spec.driver, spec.pool.name, device.name)
    return DraDevice(
        id=own,
        attributes=tuple((name, _attribute(value)) for name, value in (fields.attributes or {}).items()),
        capacity=tuple(
            (name, _capacity(value, f"{where}.capacity[{name}]"))
            for name, value in (fields.capacity or {}).items()
        ),
        shareable=bool(fields.allow_multiple_allocations),
        counters=tuple(
            CounterUse(use.counter_set, _counters(use.counters, f"{where}.consumesCounters[{index}]"))
            for index, use in enumerate(fields.consumes_counters or ())
        ),
        taints=(*(fields.taints or ()), *(rule.spec.taint for rule in rules if _concerns(rule, own))),
        place=place_of(fields.node_name, fields.all_nodes, fields.node_selector),
        binds_to_node=bool(fields.binds_to_node),
        binding_conditions=_tuple(fields.binding_conditions),
        binding_failure_conditions=_tuple(fields.binding_failure_conditions),
    )


def _concerns(rule: DeviceTaintRule, device: DeviceId) -> bool:
    """Whether a rule applies to a device: without a selector to none, with an empty one to all."""
    chosen = rule.spec.device_selector
    return chosen is not None and all(
        asked is None or asked == have
        for asked, have in (
            (chosen.driver, device.driver),
            (chosen.pool, device.pool),
            (chosen.device, device.device),
        )
    )


def place_of(node: str | None, all_nodes: bool | None, selector: NodeSelector | None) -> NodePlace:
    terms = node_terms_of(selector)
    written = [
        term
        for term in (selector.node_selector_terms or () if selector else ())
        if term.match_expressions or term.match_fields
    ]
    unreadable = terms is not None and len(terms) != len(written)
    return NodePlace(node or None, bool(all_nodes), terms, unreadable, selector)


def _attribute(value: WireAttribute) -> AttributeValue:
    lists: tuple[tuple[str, Sequence[int | bool | str] | None], ...] = (
        ("int", value.ints),
        ("bool", value.bools),
        ("string", value.strings),
        ("version", value.versions),
    )
    for kind, several in lists:
        if several is not None:
            return AttributeValue(kind, tuple(several), is_list=True)
    singles: tuple[tuple[str, int | bool | str | None], ...] = (
        ("int", value.int_),
        ("bool", value.bool_),
        ("string", value.string),
        ("version", value.version),
    )
    for kind, single in singles:
        if single is not None:
            return AttributeValue(kind, (single,))
    return AttributeValue()


def _capacity(capacity: WireCapacity, where: str) -> DraCapacity:
    policy = capacity.request_policy
    if policy is None:
        return DraCapacity(_nanos(capacity.value, f"{where}.value"))
    limits = policy.valid_range
    place = f"{where}.requestPolicy"
    step = _maybe_nanos(limits.step if limits else None, f"{place}.validRange.step")
    if step is not None and step < 10**9:
        raise Invalid(f"{place}.validRange.step", limits and limits.step, "must be at least 1")
    return DraCapacity(
        _nanos(capacity.value, f"{where}.value"),
        CapacityPolicy(
            default=_maybe_nanos(policy.default, f"{place}.default"),
            has_range=limits is not None,
            least=_maybe_nanos(limits.min_ if limits else None, f"{place}.validRange.min"),
            most=_maybe_nanos(limits.max_ if limits else None, f"{place}.validRange.max"),
            step=step,
            values=tuple(_nanos(value, f"{place}.validValues") for value in policy.valid_values or ()),
        ),
    )


def _counters(counters: Mapping[str, WireCounter] | None, where: str) -> tuple[tuple[str, int], ...]:
    return tuple(
        (name, _nanos(counter.value, f"{where}.{name}")) for name, counter in (counters or {}).items()
    )


def _nanos(amount: Quantity, where: str) -> int:
    try:
        return quantity.nano_value(amount)
    except Invalid as error:
        raise error.at(where) from None


def _maybe_nanos(amount: Quantity | None, where: str) -> int | None:
    return None if amount is None else _nanos(amount, where)


def _tuple(values: Sequence[T] | None) -> tuple[T, ...] | None:
    return None if values is None else tuple(values)


def _bounded(values: Sequence[object] | None, most: int, where: str) -> None:
    if values is not None and len(values) > most:
        raise Invalid(where, len(values), f"may have at most {most} entries")


def class_of(device_class: DeviceClass) -> DraClass:
    spec = device_class.spec
    return DraClass(
        device_class.name,
        _selectors(spec.selectors, "spec.selectors"),
        tuple(_config(config) for config in spec.config or ()),
        spec.extended_resource_name,
        device_class.metadata.creation_timestamp or "",
    )


def _selectors(selectors: Sequence[WireSelector] | None, where: str) -> tuple[str | None, ...]:
    _bounded(selectors, SELECTORS_MAX, where)
    return tuple(selector.cel.expression if selector.cel else None for selector in selectors or ())


def _config(config: WireConfig) -> ClaimConfig:
    return ClaimConfig(tuple(config.requests or ()), config.opaque or {})


def claim_of(claim: ResourceClaim, *, defaulted: bool = False) -> DraClaim:
    """Return the claim. `defaulted`: a manifest that the API server has not defaulted yet."""
    meta, status = claim.metadata, claim.status
    return DraClaim(
        meta.namespace,
        meta.name,
        spec_of(claim.spec, defaulted=defaulted),
        meta.uid,
        None if status.allocation is None else _allocation(status.allocation),
        meta.deletion_timestamp is not None,
        tuple((consumer.resource, consumer.uid) for consumer in status.reserved_for or ()),
        tuple(meta.owner_references or ()),
    )


def spec_of(spec: ResourceClaimSpec, *, defaulted: bool = False) -> ClaimSpec:
    devices = spec.devices
    _bounded(devices.requests, REQUESTS_MAX, "spec.devices.requests")
    _bounded(devices.constraints, CONSTRAINTS_MAX, "spec.devices.constraints")
    return ClaimSpec(
        tuple(
            _claim_request(request, f"spec.devices.requests[{index}]", defaulted)
            for index, request in enumerate(devices.requests or ())
        ),
        tuple(
            AttributeConstraint(
                constraint.match_attribute or constraint.distinct_attribute or "",
                constraint.match_attribute is None,
                frozenset(constraint.requests or ()),
            )
            for constraint in devices.constraints or ()
        ),
        tuple(_config(config) for config in devices.config or ()),
    )


def _claim_request(request: WireRequest, where: str, defaulted: bool) -> ClaimRequest:
    alternatives = request.first_available or ()
    _bounded(alternatives, ALTERNATIVES_MAX, f"{where}.firstAvailable")
    if alternatives:
        return ClaimRequest(
            request.name,
            tuple(
                _request(entry, entry.name, request.name, f"{where}.firstAvailable[{index}]", defaulted)
                for index, entry in enumerate(alternatives)
            ),
            prioritized=True,
        )
    fields = request.exactly or (request if request.device_class_name else None)
    if fields is None:
        return ClaimRequest(request.name, ())
    return ClaimRequest(request.name, (_request(fields, request.name, "", where, defaulted),))


def _request(fields: WireRequestFields, name: str, parent: str, where: str, defaulted: bool) -> DeviceRequest:
    mode, count = fields.allocation_mode, fields.count
    if defaulted:
        mode = mode or EXACT_COUNT
        count = count or (1 if mode == EXACT_COUNT else 0)
    if mode == EXACT_COUNT and count < 0:
        raise Invalid(f"{where}.count", count, "must be positive")
    asked = fields.capacity.requests if fields.capacity else None
    return DeviceRequest(
        name=name,
        device_class=fields.device_class_name,
        mode=mode,
        count=count,
        admin_access=None if parent else fields.admin_access,
        selectors=_selectors(fields.selectors, f"{where}.selectors"),
        tolerations=tuple(fields.tolerations or ()),
        capacity=None
        if fields.capacity is None
        else tuple((key, _nanos(value, f"{where}.capacity[{key}]")) for key, value in (asked or {}).items()),
        parent=parent,
    )


def _allocation(allocation: WireAllocation) -> Allocation:
    return Allocation(
        tuple(
            AllocatedDevice(
                result.request,
                DeviceId(result.driver, result.pool, result.device),
                bool(result.admin_access),
                result.share_id,
                None
                if result.consumed_capacity is None
                else tuple(
                    (name, _nanos(amount, f"status.allocation.devices.results[{index}]"))
                    for name, amount in result.consumed_capacity.items()
                ),
            )
            for index, result in enumerate(allocation.devices.results or ())
        ),
        node_terms_of(allocation.node_selector),
    )


def allocation_object(allocation: Allocation, new_share: Callable[[], str]) -> dict[str, Any]:
    """Return `status.allocation` of a claim, as the scheduler writes it."""
    results = [
        {
            "request": device.request,
            "driver": device.id.driver,
            "pool": device.id.pool,
            "device": device.id.device,
            **({"adminAccess": True} if device.admin_access else {}),
            **({"shareID": new_share()} if device.share else {}),
            **({"consumedCapacity": _shown(device.consumed)} if device.consumed else {}),
            **({"tolerations": msgspec.to_builtins(list(device.tolerations))} if device.tolerations else {}),
            **_set("bindingConditions", device.binding_conditions),
            **_set("bindingFailureConditions", device.binding_failure_conditions),
        }
        for device in allocation.devices
    ]
    config = [
        {"source": source, "opaque": opaque, **_set("requests", requests)}
        for source, requests, opaque in allocation.config
    ]
    selector = allocation.selector
    return {
        "devices": {**_set("results", results), **_set("config", config)},
        **({"nodeSelector": msgspec.to_builtins(selector)} if selector is not None else {}),
    }


def _shown(amounts: Sequence[tuple[str, int]]) -> dict[str, str]:
    return {name: quantity.format_nano(nanos) for name, nanos in amounts}


def _set(name: str, values: Sequence[object] | None) -> dict[str, list[object]]:
    return {name: list(values)} if values else {}
