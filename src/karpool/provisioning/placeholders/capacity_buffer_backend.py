"""Ask with CapacityBuffers: the autoscaler keeps room for virtual pods, and no pod holds a device.

A buffer fills up again as it is used, so it has to be withdrawn before the room is
given away. It reserves for nobody in particular, and cannot say that it never will.
Needs an autoscaler with the API switched on (Karpenter's gate `CapacityBuffer`).
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
