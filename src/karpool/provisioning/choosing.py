"""Which backend to use: the smart pod, unless somebody chose another and the cluster has its API."""

from karpool.kube.client import Client
from karpool.model.errors import Invalid
from karpool.provisioning.ask import Purpose
from karpool.provisioning.backends import Backend
from karpool.provisioning.capacity_buffers import KIND as BUFFER
from karpool.provisioning.capacity_buffers import CapacityBuffers
from karpool.provisioning.claim_monitor import ClaimMonitor
from karpool.provisioning.provisioning_requests import KIND as REQUEST
from karpool.provisioning.provisioning_requests import ProvisioningRequests
from karpool.provisioning.smart_pod import SmartPodSettings
from karpool.provisioning.smart_pod_manager import SmartPods
from karpool.provisioning.templated import GROUP, served

BACKENDS = (SmartPods.name, CapacityBuffers.name, ProvisioningRequests.name)
_KINDS = {CapacityBuffers.name: BUFFER, ProvisioningRequests.name: REQUEST}


async def backend(
    name: str,
    client: Client,
    settings: SmartPodSettings,
    monitor: ClaimMonitor,
    purpose: Purpose | None = None,
) -> Backend:
    """Raises Invalid for a name that does not exist, or whose API the cluster does not serve."""
    if name == SmartPods.name:
        return SmartPods(client, settings, monitor, purpose)
    if name not in _KINDS:
        raise Invalid("backend", name, f"must be one of {', '.join(BACKENDS)}")
    resource = await served(client, _KINDS[name])
    if resource is None:
        hint = f"the cluster serves no {_KINDS[name]} of {GROUP}; install it, or use {SmartPods.name}"
        raise Invalid("backend", name, hint)
    if name == CapacityBuffers.name:
        return CapacityBuffers(client, settings, resource, purpose)
    return ProvisioningRequests(client, settings, resource, purpose)
