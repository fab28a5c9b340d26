"""Requests nodes with CapacityBuffers: the autoscaler keeps room for virtual pods, which use no devices.

A buffer refills when its room is used, so it must be withdrawn before the workload is placed. It reserves
room for no particular pod, and cannot report that it will never succeed. It needs an autoscaler with the API
enabled (Karpenter's feature gate `CapacityBuffer`).
"""

from collections.abc import Mapping
from typing import Any

from karpool.model.kubernetes.meta import Condition
from karpool.provisioning.placeholders.backend_name import BackendName
from karpool.provisioning.placeholders.placeholder import PlaceholderState
from karpool.provisioning.placeholders.template_backend import TemplateBackend, is_true, message_of

KIND = "CapacityBuffer"
ACTIVE = "buffer.x-k8s.io/active-capacity"


class CapacityBufferBackend(TemplateBackend):
    name = BackendName.CAPACITY_BUFFER

    def spec(self, template: str) -> dict[str, Any]:
        return {"provisioningStrategy": ACTIVE, "podTemplateRef": {"name": template}, "replicas": 1}

    def judge(self, said: Mapping[str, Condition]) -> tuple[PlaceholderState, str]:
        ready = said.get("ReadyForProvisioning")
        if ready is not None and ready.status == "False":
            return PlaceholderState.REFUSED, message_of(said, "ReadyForProvisioning")
        filled = said.get("Provisioning")
        if filled is None:
            return PlaceholderState.WAITING, message_of(said, "ReadyForProvisioning")
        if is_true(said, "Provisioning") and filled.reason == "FitsExistingCapacity":
            return PlaceholderState.THERE, message_of(said, "Provisioning")
        return PlaceholderState.COMING, message_of(said, "Provisioning")
