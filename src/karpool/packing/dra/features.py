"""Feature gates of Kubernetes that change the allocator, with the defaults of 1.36."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class DraFeatures:
    admin_access: bool = True
    binding_conditions: bool = True
    consumable_capacity: bool = True
    extended_resource: bool = True
    list_attributes: bool = False
    partitionable_devices: bool = True
    prioritized_list: bool = True
    taints: bool = True


DEFAULT_FEATURES = DraFeatures()
