"""Writes the status of devices (what is free) and of quotas (what is used).

It writes only if no other component does: on devices that our own agent publishes, and on quotas in clusters
where no GPU object is TensorFusion's. A status is derived from observations and holds, and written if the
object differs, so that repeated writes are the same.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import structlog

from karpool.gpu.allocation.allocator import Allocator
from karpool.gpu.allocation.ledger import DeviceLedger
from karpool.gpu.controller.cluster_view import GpuClusterView
from karpool.kube.api.client import Client
from karpool.kube.errors import KubeError, LeadershipLost
from karpool.model import quantity
from karpool.model.devices.amounts import DeviceAmount
from karpool.model.devices.device import Device, apps_in_short
from karpool.model.devices.gpu_quota import QUOTAS
from karpool.model.devices.quota import GpuQuota, QuotaUsage, quota_room
from karpool.model.devices.request import GpuRequest
from karpool.model.kubernetes.api_resources import GPUS, ApiResource, ObjectKey

log = structlog.get_logger()
_WRITES_MAX = 50  # per step; the next step writes the rest


class StatusPatch(NamedTuple):
    resource: ApiResource
    key: ObjectKey
    status: dict[str, Any]


def statuses(seen: GpuClusterView, allocator: Allocator) -> Iterator[StatusPatch]:
    """The status patches of objects whose status differs."""
    quotas = allocator.quotas
    described = [use.device for uses in seen.snapshot.devices.values() for use in uses if use.described]
    yield from _of_devices([device for device in described if device.is_of_agent], allocator)
    if not all(device.is_of_agent for device in described):
        return  # TensorFusion's operator writes it
    for namespace, key in seen.quota_keys.items():
        quota_object = seen.quota_objects.get(key)
        quota = quotas.quotas.get(namespace)
        if quota_object is None or quota is None:
            continue
        status = quota_status(quota, quotas.taken(namespace))
        told = quota_object.status or {}
        if any(told.get(field) != value for field, value in status.items()):
            yield StatusPatch(QUOTAS, key, status)


def _of_devices(devices: Sequence[Device], allocator: Allocator) -> Iterator[StatusPatch]:
    """Free amounts and users of each device: two patches, so that a refusal of one does not affect
    the other.
    """
    for device in devices:
        left = allocator.free(device.name)
        if left is None:
            continue  # the allocator does not know it yet
        if left != device.available:
            yield StatusPatch(GPUS, ObjectKey("", device.name), {"available": _amount(left)})
        apps = running_apps(allocator.ledger, device.name)
        if apps_in_short(apps) != device.running_apps:
            yield StatusPatch(GPUS, ObjectKey("", device.name), {"runningApps": apps})


def running_apps(ledger: DeviceLedger, device: str) -> list[dict[str, Any]]:
    """Users by workload; a pod without a workload stands for itself."""
    requests = [ledger.committed[uid].request for uid in ledger.holders(device) if uid in ledger.committed]
    apps: dict[tuple[str, str], list[GpuRequest]] = {}
    for request in sorted(requests, key=lambda request: (request.namespace, request.name, request.uid)):
        apps.setdefault((request.namespace, request.workload or request.name), []).append(request)
    return [
        {
            "name": name,
            "namespace": namespace,
            "count": len(pods),
            "pods": [{"name": pod.name, "namespace": pod.namespace, "uid": pod.uid} for pod in pods],
        }
        for (namespace, name), pods in sorted(apps.items())
    ]


def quota_status(quota: GpuQuota, used: QuotaUsage) -> dict[str, Any]:
    percent = {room.resource: room.available_percent for room in quota_room(quota, used)}
    return {
        "used": {
            "requests": _amount(used.requests),
            "limits": _amount(used.limits),
            "workers": used.workers,
        },
        "availablePercent": {
            "requests": {name: percent.get(f"total.max.{name}.request", "") for name in ("tflops", "vram")},
            "limits": {name: percent.get(f"total.max.{name}.limit", "") for name in ("tflops", "vram")},
            "workers": percent.get("total.max.workers.limit", ""),
        },
    }


def _amount(amount: DeviceAmount) -> dict[str, str]:
    return {"tflops": quantity.format_milli(amount.tflops_milli), "vram": str(amount.vram_bytes)}


async def write_statuses(client: Client, patches: Iterable[StatusPatch]) -> None:
    """Write the patches. A failure does not stop the others: the next step tries again."""
    for number, patch in enumerate(patches):
        if number == _WRITES_MAX:
            return
        try:
            await client.patch(
                patch.resource,
                patch.key.name,
                {"status": patch.status},
                namespace=patch.key.namespace or None,
                subresource="status",
            )
        except LeadershipLost:
            raise
        except KubeError as error:
            log.info("status not written", about=f"{patch.resource.kind} {patch.key}", reason=str(error))
