"""The names of the backends that request nodes from an autoscaler."""

from enum import StrEnum


class BackendName(StrEnum):
    SMART_POD = "smart-pod"
    CAPACITY_BUFFER = "capacity-buffer"
    PROVISIONING_REQUEST = "provisioning-request"
