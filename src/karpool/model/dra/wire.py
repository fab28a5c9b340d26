"""The objects of resource.k8s.io as the API sends them.

v1beta2 has the form of v1. v1beta1 puts the fields of a device under `basic` and those of an exact request
beside its name; both are read.
"""

from typing import Any

import msgspec

from karpool.model.kubernetes.meta import Int64, Wire, WireObject
from karpool.model.requirements import NodeSelector
from karpool.model.taints import Taint, Toleration

Quantity = str | int | float


class WireAttribute(Wire, frozen=True):
    int_: Int64 | None = msgspec.field(default=None, name="int")
    bool_: bool | None = msgspec.field(default=None, name="bool")
    string: str | None = None
    version: str | None = None
    ints: list[Int64] | None = None
    bools: list[bool] | None = None
    strings: list[str] | None = None
    versions: list[str] | None = None


class WireRange(Wire, frozen=True):
    min_: Quantity | None = msgspec.field(default=None, name="min")
    max_: Quantity | None = msgspec.field(default=None, name="max")
    step: Quantity | None = None


class WirePolicy(Wire, frozen=True):
    default: Quantity | None = None
    valid_range: WireRange | None = None
    valid_values: list[Quantity] | None = None


class WireCapacity(Wire, frozen=True):
    value: Quantity = 0
    request_policy: WirePolicy | None = None


class WireCounter(Wire, frozen=True):
    value: Quantity = 0


class WireCounterUse(Wire, frozen=True):
    counter_set: str = ""
    counters: dict[str, WireCounter] | None = None


class WireDeviceFields(Wire, frozen=True):
    attributes: dict[str, WireAttribute] | None = None
    capacity: dict[str, WireCapacity] | None = None
    consumes_counters: list[WireCounterUse] | None = None
    taints: list[Taint] | None = None
    node_name: str | None = None
    node_selector: NodeSelector | None = None
    all_nodes: bool | None = None
    binds_to_node: bool | None = None
    binding_conditions: list[str] | None = None
    binding_failure_conditions: list[str] | None = None
    allow_multiple_allocations: bool | None = None


class WireDevice(WireDeviceFields, frozen=True):
    name: str = ""
    basic: WireDeviceFields | None = None  # v1beta1


class WireCounterSet(Wire, frozen=True):
    name: str = ""
    counters: dict[str, WireCounter] | None = None


class WirePool(Wire, frozen=True):
    name: str = ""
    generation: Int64 = 0
    resource_slice_count: Int64 = 1


class ResourceSliceSpec(Wire, frozen=True):
    driver: str = ""
    pool: WirePool = WirePool()
    node_name: str | None = None
    node_selector: NodeSelector | None = None
    all_nodes: bool | None = None
    per_device_node_selection: bool | None = None
    devices: list[WireDevice] | None = None
    shared_counters: list[WireCounterSet] | None = None


class ResourceSlice(WireObject, frozen=True):
    spec: ResourceSliceSpec = ResourceSliceSpec()


class WireCel(Wire, frozen=True):
    expression: str = ""


class WireSelector(Wire, frozen=True):
    cel: WireCel | None = None


class WireConfig(Wire, frozen=True):
    requests: list[str] | None = None
    opaque: dict[str, Any] | None = None


class DeviceClassSpec(Wire, frozen=True):
    selectors: list[WireSelector] | None = None
    config: list[WireConfig] | None = None
    extended_resource_name: str | None = None


class DeviceClass(WireObject, frozen=True):
    spec: DeviceClassSpec = DeviceClassSpec()


class WireCapacityRequest(Wire, frozen=True):
    requests: dict[str, Quantity] | None = None


class WireRequestFields(Wire, frozen=True):
    device_class_name: str = ""
    selectors: list[WireSelector] | None = None
    allocation_mode: str = ""
    count: Int64 = 0
    admin_access: bool | None = None
    tolerations: list[Toleration] | None = None
    capacity: WireCapacityRequest | None = None


class WireAlternative(WireRequestFields, frozen=True):
    name: str = ""


class WireRequest(WireRequestFields, frozen=True):  # v1beta1 has the fields of `exactly` here
    name: str = ""
    exactly: WireRequestFields | None = None
    first_available: list[WireAlternative] | None = None


class WireConstraint(Wire, frozen=True):
    requests: list[str] | None = None
    match_attribute: str | None = None
    distinct_attribute: str | None = None


class DeviceClaim(Wire, frozen=True):
    requests: list[WireRequest] | None = None
    constraints: list[WireConstraint] | None = None
    config: list[WireConfig] | None = None


class ResourceClaimSpec(Wire, frozen=True):
    devices: DeviceClaim = DeviceClaim()


class WireResult(Wire, frozen=True):
    request: str = ""
    driver: str = ""
    pool: str = ""
    device: str = ""
    admin_access: bool | None = None
    share_id: str | None = msgspec.field(default=None, name="shareID")
    consumed_capacity: dict[str, Quantity] | None = None


class WireResults(Wire, frozen=True):
    results: list[WireResult] | None = None


class WireAllocation(Wire, frozen=True):
    devices: WireResults = WireResults()
    node_selector: NodeSelector | None = None


class ClaimConsumer(Wire, frozen=True):
    api_group: str = ""
    resource: str = ""
    name: str = ""
    uid: str = ""


class ResourceClaimStatus(Wire, frozen=True):
    allocation: WireAllocation | None = None
    reserved_for: list[ClaimConsumer] | None = None


class ResourceClaim(WireObject, frozen=True):
    spec: ResourceClaimSpec = ResourceClaimSpec()
    status: ResourceClaimStatus = ResourceClaimStatus()


class ClaimTemplateSpec(Wire, frozen=True):
    spec: ResourceClaimSpec = ResourceClaimSpec()


class ResourceClaimTemplate(WireObject, frozen=True):
    spec: ClaimTemplateSpec = ClaimTemplateSpec()


class TaintSelector(Wire, frozen=True):
    driver: str | None = None
    pool: str | None = None
    device: str | None = None


class TaintRuleSpec(Wire, frozen=True):
    device_selector: TaintSelector | None = None
    taint: Taint = Taint()


class DeviceTaintRule(WireObject, frozen=True):
    spec: TaintRuleSpec = TaintRuleSpec()
