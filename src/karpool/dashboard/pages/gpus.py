"""Every accelerator of the fleet: its model, its users, and what is free."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from karpool.cluster.devices.accelerators import Accelerator, accelerators
from karpool.cluster.snapshot import Snapshot
from karpool.dashboard.api.list_views import CountedModel, DeviceHolderRow, DeviceList, DeviceRow
from karpool.dashboard.pages.paging import ListQuery, in_order, page_of

HOLDERS_MAX = 50
PROBLEMS_MAX = 20
MODELS_MAX = 50
UNKNOWN_MODEL = "unknown model"


@dataclass(frozen=True, slots=True)
class ClusterDevices:
    """The devices of one version of a cluster."""

    cluster: str
    devices: tuple[Accelerator, ...]
    problems: tuple[str, ...]


def cluster_devices(cluster: str, snapshot: Snapshot) -> ClusterDevices:
    devices, problems = accelerators(snapshot)
    return ClusterDevices(cluster, tuple(devices), tuple(problems))


_Place = tuple[str, Accelerator]
COLUMNS: Mapping[str, Callable[[_Place], Any]] = {
    "node": lambda place: (place[1].node, place[1].device),
    "cluster": lambda place: (place[0], place[1].node, place[1].device),
    "device": lambda place: place[1].device,
    "model": lambda place: place[1].model or None,
    "memory": lambda place: place[1].memory_bytes,
    "holders": lambda place: len(place[1].holders),
    "free": lambda place: place[1].free_memory_bytes,
}


def gpus(clusters: Iterable[ClusterDevices], query: ListQuery, now: float) -> DeviceList:
    """Return the devices by cluster and node, unless the query sorts by a column."""
    everything = list(clusters)
    chosen = [
        (of_cluster.cluster, device)
        for of_cluster in everything
        if query.cluster in ("", of_cluster.cluster)
        for device in of_cluster.devices
        if query.finds(*_texts(of_cluster.cluster, device))
    ]
    models = Counter(device.model or UNKNOWN_MODEL for _, device in chosen)
    held = Counter(device.model or UNKNOWN_MODEL for _, device in chosen if device.holders)
    problems = [f"{cluster.cluster}: {line}" for cluster in everything for line in cluster.problems]
    return DeviceList(
        at=now,
        items=[_row(*place) for place in page_of(in_order(chosen, query, COLUMNS), query)],
        matched=len(chosen),
        total=sum(len(of_cluster.devices) for of_cluster in everything),
        offset=query.offset,
        models=[
            CountedModel(model=model, devices=number, held=held[model])
            for model, number in models.most_common(MODELS_MAX)
        ],
        problems=problems[:PROBLEMS_MAX],
    )


def _texts(cluster: str, device: Accelerator) -> Iterator[str]:
    yield from (cluster, device.node, device.device, device.model, device.handed_out_by)
    yield from (holder.pod for holder in device.holders)


def _row(cluster: str, device: Accelerator) -> DeviceRow:
    return DeviceRow(
        cluster=cluster,
        node=device.node,
        device=device.device,
        model=device.model,
        memory_bytes=device.memory_bytes,
        handed_out_by=device.handed_out_by,
        form=device.form,
        profile=device.profile,
        shareable=device.shareable,
        resource=device.resource,
        holders=[
            DeviceHolderRow(
                pod=holder.pod,
                units=holder.units,
                memory_bytes=holder.memory_bytes,
                tflops_milli=holder.tflops_milli,
            )
            for holder in device.holders[:HOLDERS_MAX]
        ],
        holders_left_out=max(0, len(device.holders) - HOLDERS_MAX),
        free_units=device.free_units,
        free_memory_bytes=device.free_memory_bytes,
        unstable=device.unstable,
    )
