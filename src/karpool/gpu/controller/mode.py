"""The modes of gpu-scaler."""

from enum import StrEnum


class ScalerMode(StrEnum):
    AUTO = "auto"  # by the scheduler that a pod names: ours allocates, for any other's pods nodes are brought
    BRING_NODES = "bring-nodes"
    ALLOCATE = "allocate"
