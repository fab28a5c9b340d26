"""Requests nodes with ProvisioningRequests, because cluster-autoscaler ignores pods of low priority.

There is one request for each unit. They are one-shot and immutable: a failed or expired one must be withdrawn
and requested again in another epoch. Pods that use the booked capacity have the annotation
`autoscaling.x-k8s.io/consume-provisioning-request`; the capacity is reserved against other requests only, not
against other pods.
"""

from collections.abc import Mapping
from typing import Any

from karpool.kube.api.client import Client
from karpool.model.kubernetes.api_resources import ApiResource
from karpool.model.kubernetes.meta import Condition
from karpool.provisioning.node_request import RequestPurpose
from karpool.provisioning.placeholders.backend_name import BackendName
from karpool.provisioning.placeholders.placeholder import PlaceholderState
from karpool.provisioning.placeholders.smart_pod import SmartPodSettings
from karpool.provisioning.placeholders.template_backend import TemplateBackend, is_true, message_of

KIND = "ProvisioningRequest"
ATOMIC = "best-effort-atomic-scale-up.autoscaling.x-k8s.io"
_ENDS = ("Failed", "BookingExpired", "CapacityRevoked")


class ProvisioningRequestBackend(TemplateBackend):
    name = BackendName.PROVISIONING_REQUEST

    def __init__(
        self,
        client: Client,
        settings: SmartPodSettings,
        resource: ApiResource,
        purpose: RequestPurpose | None = None,
        *,
        class_name: str = ATOMIC,
        valid_seconds: int = 960,
    ) -> None:
        super().__init__(client, settings, resource, purpose)
        self._class = class_name
        self._valid = valid_seconds

    def spec(self, template: str) -> dict[str, Any]:
        return {
            "provisioningClassName": self._class,
            "parameters": {"ValidUntilSeconds": str(self._valid)},
            "podSets": [{"podTemplateRef": {"name": template}, "count": 1}],
        }

    def judge(self, said: Mapping[str, Condition]) -> tuple[PlaceholderState, str]:
        for kind in _ENDS:
            if is_true(said, kind):
                return PlaceholderState.ENDED, f"{kind}: {message_of(said, kind)}"
        if is_true(said, "Provisioned"):
            return PlaceholderState.THERE, message_of(said, "Provisioned")
        if is_true(said, "Accepted"):
            return PlaceholderState.COMING, message_of(said, "Accepted")
        return PlaceholderState.WAITING, message_of(said, "Accepted")
