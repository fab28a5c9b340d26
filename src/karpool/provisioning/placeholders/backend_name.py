"""The ways to ask an autoscaler for a node, by the names that people give them."""

from enum import StrEnum


class BackendName(StrEnum):
    SMART_POD = "smart-pod"
    CAPACITY_BUFFER = "capacity-buffer"
    PROVISIONING_REQUEST = "provisioning-request"
