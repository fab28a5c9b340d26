"""Chooses the backend: the smart pod, unless another one is configured and the cluster serves its API."""

from karpool.kube.api.client import Client
from karpool.model.errors import Invalid
from karpool.provisioning.claims.claim_monitor import ClaimMonitor
from karpool.provisioning.node_request import RequestPurpose
from karpool.provisioning.placeholders.backend import ProvisioningBackend
from karpool.provisioning.placeholders.backend_name import BackendName
from karpool.provisioning.placeholders.capacity_buffer_backend import KIND as BUFFER
from karpool.provisioning.placeholders.capacity_buffer_backend import CapacityBufferBackend
from karpool.provisioning.placeholders.provisioning_request_backend import KIND as REQUEST
from karpool.provisioning.placeholders.provisioning_request_backend import ProvisioningRequestBackend
from karpool.provisioning.placeholders.smart_pod import SmartPodSettings
from karpool.provisioning.placeholders.smart_pod_backend import SmartPodBackend
from karpool.provisioning.placeholders.template_backend import GROUP, served

_KINDS = {CapacityBufferBackend.name: BUFFER, ProvisioningRequestBackend.name: REQUEST}


async def backend(
    name: BackendName,
    client: Client,
    settings: SmartPodSettings,
    monitor: ClaimMonitor,
    purpose: RequestPurpose | None = None,
) -> ProvisioningBackend:
    """Return the backend. Raises Invalid if the cluster does not serve its API."""
    if name == SmartPodBackend.name:
        return SmartPodBackend(client, settings, monitor, purpose)
    resource = await served(client, _KINDS[name])
    if resource is None:
        hint = f"the cluster serves no {_KINDS[name]} of {GROUP}; install it, or use {SmartPodBackend.name}"
        raise Invalid("backend", name, hint)
    if name == CapacityBufferBackend.name:
        return CapacityBufferBackend(client, settings, resource, purpose)
    return ProvisioningRequestBackend(client, settings, resource, purpose)
