"""Extended resources that a device class offers: a pod asks for `nvidia.com/gpu` and gets a DRA device.

If the device plugin of a node has the resource, the plugin serves it. Otherwise the pod gets one claim with a
request for each container and resource; init containers use the devices of containers that run longer.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from karpool.model.dra.claim import EXACT_COUNT, ClaimRequest, ClaimSpec, DeviceRequest, DraClass
from karpool.model.kubernetes.pod_shape import ContainerAsk

CLASS_PREFIX = "deviceclass.resource.kubernetes.io/"
CLAIM_NAME = "<extended-resources>"

ClassOf = Mapping[str, str]  # resource to the class that offers it


def offered_resources(classes: Iterable[DraClass]) -> dict[str, str]:
    """Map resources to classes. Of two classes, the younger one wins, then the first by name."""
    by_name: dict[str, DraClass] = {}
    offered: dict[str, str] = {}
    for device_class in classes:
        offered[f"{CLASS_PREFIX}{device_class.name}"] = device_class.name
        if device_class.extended_resource:
            other = by_name.get(device_class.extended_resource)
            if other is None or _wins(device_class, other):
                by_name[device_class.extended_resource] = device_class
    return offered | {resource: device_class.name for resource, device_class in by_name.items()}


def _wins(one: DraClass, other: DraClass) -> bool:
    return one.created > other.created or (one.created == other.created and one.name < other.name)


def is_extended(resource: str) -> bool:
    """Whether a resource is not one of Kubernetes' own."""
    if resource.startswith(CLASS_PREFIX):
        return True
    return "/" in resource and "kubernetes.io/" not in resource and not resource.startswith("requests.")


@dataclass(frozen=True, slots=True)
class RequestMapping:
    """The request of the claim that serves a container."""

    container: str
    resource: str
    request: str


def extended_claim(
    containers: Sequence[ContainerAsk], resources: Iterable[str], class_of: ClassOf
) -> tuple[ClaimSpec, tuple[RequestMapping, ...]]:
    """Return the claim for these resources of a pod."""
    requests: list[DeviceRequest] = []
    mappings: list[RequestMapping] = []
    for resource in sorted(resources):
        made, uses = _of_resource(containers, resource, class_of[resource])
        requests += made
        mappings += uses
    requests.sort(key=lambda request: request.name)
    groups = tuple(ClaimRequest(request.name, (request,)) for request in requests)
    return ClaimSpec(groups), tuple(mappings)


def _of_resource(
    containers: Sequence[ContainerAsk], resource: str, device_class: str
) -> tuple[list[DeviceRequest], list[RequestMapping]]:
    lasting: list[DeviceRequest | None] = [None] * len(containers)
    uses: list[RequestMapping] = []
    for index, container in enumerate(containers):
        if not container.brief:
            lasting[index], mapped = _of_container(index, container, resource, device_class, ())
            uses += mapped
    largest: DeviceRequest | None = None
    names: set[str] = set()
    brief_uses: list[RequestMapping] = []
    for index, container in enumerate(containers):
        if not container.brief:
            continue
        later = [request for request in lasting[index:] if request is not None]
        request, mapped = _of_container(index, container, resource, device_class, later)
        brief_uses += mapped
        if request is not None:
            names.add(request.name)
            if largest is None or largest.count < request.count:
                largest = request
    if largest is not None:
        brief_uses = [
            RequestMapping(use.container, use.resource, largest.name) if use.request in names else use
            for use in brief_uses
        ]
    made = [request for request in (largest, *lasting) if request is not None]
    return made, uses + brief_uses


def _of_container(
    index: int, container: ContainerAsk, resource: str, device_class: str, reusable: Iterable[DeviceRequest]
) -> tuple[DeviceRequest | None, list[RequestMapping]]:
    asked = dict(container.asked)
    count = asked.get(resource, 0)
    if not count:
        return None, []
    uses: list[RequestMapping] = []
    for request in reusable:
        count -= request.count
        uses.append(RequestMapping(container.name, resource, request.name))
        if count <= 0:
            return None, uses
    name = f"container-{index}-request-{sorted(asked).index(resource)}"
    uses.append(RequestMapping(container.name, resource, name))
    return DeviceRequest(name, device_class, EXACT_COUNT, count), uses
