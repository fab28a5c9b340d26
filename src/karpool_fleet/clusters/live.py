"""A live cluster: an API server with all its controllers.

Scheduler, kubelets, workload controllers, quotas, a cloud and an autoscaler over one embedded API server, as
a cluster of a fleet file describes it.
"""

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from karpool.kube.bounded_input import read_bounded
from karpool.kube.clock import Clock
from karpool.kube.errors import KubeError
from karpool.kube.snapshots.reader import read_objects
from karpool.kube.snapshots.recording import read_saved_cluster
from karpool.model import resources, safe_yaml
from karpool.model.catalogue.catalogue import Catalogue, InstanceType
from karpool.model.catalogue.files import (
    load_shipped,
    read_catalogue,
    shipped_provider,
    shipped_zones,
    unknown_region,
)
from karpool.model.errors import Invalid
from karpool.model.kubernetes.meta import decode
from karpool.model.kubernetes.node import HOSTNAME
from karpool.model.taints import Taint
from karpool_fleet.apiserver.kinds.bundled_crds import KARPENTER, bundled_crds
from karpool_fleet.cloud.cloud import Cloud, CloudOffer, CloudSettings, offer_labels
from karpool_fleet.cloud.delays import Delay
from karpool_fleet.cluster_autoscaler.controller import cluster_autoscaler
from karpool_fleet.cluster_autoscaler.groups import NodeGroup
from karpool_fleet.clusters.embedded import EmbeddedCluster
from karpool_fleet.clusters.fleet_file import ClusterSpec, StaticNodes
from karpool_fleet.clusters.node_class import node_class, node_class_kind
from karpool_fleet.clusters.object_loader import load_objects, restore_objects
from karpool_fleet.clusters.restored import restored
from karpool_fleet.clusters.strict_file import FleetError
from karpool_fleet.karpenter import karpenter_components
from karpool_fleet.karpenter.settings import KarpenterSettings
from karpool_fleet.kube_controllers.node_lifecycle import node_lifecycle
from karpool_fleet.kube_controllers.quota import enforce_quotas
from karpool_fleet.kube_controllers.resource_claims import ResourceClaimController
from karpool_fleet.kube_controllers.volumes import VolumeController
from karpool_fleet.kube_scheduler.scheduler import kube_scheduler
from karpool_fleet.kube_scheduler.settings import KubeSchedulerSettings
from karpool_fleet.kubelet.kubelet import KubeletSettings, kubelet
from karpool_fleet.runtime.supervisor import Build
from karpool_fleet.workloads import workload_components

ZONES = 3  # zones of a cluster that names none
_CLOUD_DELAYS = frozenset(("launch", "terminate"))
Object = dict[str, Any]


class LiveCluster:
    """One cluster and its cloud."""

    def __init__(
        self,
        spec: ClusterSpec,
        *,
        clock: Clock,
        seed: int = 0,
        catalogue: Path | None = None,
        idle_seconds: float = 0.0,
    ) -> None:
        """Create a cluster.

        `catalogue` is a file instead of the shipped one. `idle_seconds`: see EmbeddedCluster. Raises
        FleetError when the catalogue lacks what the spec needs.
        """
        self.spec = spec
        self.catalogue_file = catalogue
        self.catalogue = catalogue_of(spec, catalogue)
        node_classes = node_class_kind(self.catalogue)
        definitions = (*KARPENTER, *([str(node_classes)] if node_classes is not None else []))
        self.embedded = EmbeddedCluster(
            spec.name, clock=clock, seed=seed, crds=bundled_crds(definitions), idle_seconds=idle_seconds
        )
        delays = spec.timing.delays()
        self._kubelet = replace(KubeletSettings(), **_without(delays, _CLOUD_DELAYS))
        cloud = replace(CloudSettings(), **_without(delays, delays.keys() - _CLOUD_DELAYS))
        self.cloud = Cloud(self.catalogue, clock, self.embedded.random("cloud"), cloud)
        if spec.autoscaler == "cluster-autoscaler":
            self._autoscaler = self._cluster_autoscaler()
        self.nodes = [node for nodes in spec.nodes for node in self._static(nodes)]
        self.notes: list[str] = []  # differences from the snapshot that it started with
        enforce_quotas(self.embedded.server)

    @property
    def name(self) -> str:
        return self.spec.name

    @asynccontextmanager
    async def running(self, folder: Path = Path()) -> AsyncIterator["LiveCluster"]:
        """Run the cluster; `folder` is the directory of the snapshot to start with."""
        async with self.embedded as cluster:
            if self.spec.snapshot:
                self._restore(folder / self.spec.snapshot)
            elif self.spec.autoscaler == "karpenter" and self.catalogue_file is None:
                where = node_class(self.catalogue)
                restore_objects(cluster.server, [where] if where is not None else [])
            for name, build in workload_components().items():
                cluster.add(name, build)
            scheduler = KubeSchedulerSettings(preemption=self.spec.preemption)
            cluster.add("kube-scheduler", kube_scheduler(scheduler))
            cluster.add("kubelet", kubelet(self.cloud, self._kubelet))
            cluster.add("node-lifecycle", node_lifecycle(self.cloud))
            cluster.add("volumes", VolumeController)
            cluster.add("resource-claims", ResourceClaimController)
            if self.spec.autoscaler == "karpenter":
                settings = KarpenterSettings(consolidates=self.spec.consolidation)
                for name, build in karpenter_components(self.cloud, settings).items():
                    cluster.add(name, build)
            elif self.spec.autoscaler == "cluster-autoscaler":
                cluster.add("cluster-autoscaler", self._autoscaler)
            yield self

    async def load(self, folder: Path) -> int:
        """Write the nodes and objects of the spec and of its files; return how many."""
        objects = [*self.nodes, *self._from_files(folder), *(dict(obj) for obj in self.spec.objects)]
        try:
            return await load_objects(self.embedded.client("loader"), objects)
        except KubeError as error:
            raise FleetError(f"cluster {self.name}: {error}") from None

    def _from_files(self, folder: Path) -> list[Object]:
        objects: list[Object] = []
        for name in self.spec.files:
            path = (folder / name).resolve()
            if not path.is_relative_to(folder.resolve()):
                raise FleetError(
                    f"cluster {self.name}: files: {name!r} is outside the folder of the fleet file"
                )
            objects.extend(read_objects(path))
        return objects

    def _restore(self, path: Path) -> None:
        clock = self.embedded.clock
        saved = read_saved_cluster(path)
        begun = restored(
            saved.objects,
            self.name,
            self.catalogue,
            taken_at=clock.now() if saved.taken_at is None else saved.taken_at,
            now=clock.now(),
            uptime=clock.monotonic(),
        )
        served = [obj for obj in begun.objects if self._serves(obj)]
        restore_objects(self.embedded.server, served)
        self.notes = begun.notes
        for machine in begun.machines:
            self.cloud.adopt(machine)

    def _serves(self, obj: Object) -> bool:
        group = str(obj["apiVersion"]).rpartition("/")[0]
        return self.embedded.server.cluster.types.of_kind(group, str(obj["kind"])) is not None

    def _cluster_autoscaler(self) -> Build:
        groups = [
            NodeGroup(
                name=group.name,
                instance_type=group.type,
                zones=tuple(group.zones),
                min_size=group.min,
                max_size=group.max,
                capacity_type=group.capacity_type,
                labels=group.labels,
                taints=tuple(decode(taint, Taint) for taint in group.taints),
            )
            for group in self.spec.node_groups
        ]
        try:
            return cluster_autoscaler(self.cloud, groups)
        except Invalid as error:
            raise FleetError(f"cluster {self.name}: nodeGroups: {error}") from None

    def _static(self, nodes: StaticNodes) -> list[Object]:
        """Return static nodes: they are ready at once, and faults of the cloud do not affect them."""
        instance_type = self.catalogue.types.get(nodes.type)
        if instance_type is None:
            raise FleetError(
                f"cluster {self.name}: nodes: the catalogue of {self.spec.region} has no type {nodes.type!r}"
            )
        zones = [nodes.zone] if nodes.zone else list(self.catalogue.zones)
        return [
            _node(
                f"{self.name}-{nodes.type.replace('.', '-')}-{number}",
                instance_type,
                zones[number % len(zones)],
                nodes,
            )
            for number in range(nodes.count)
        ]


def catalogue_of(spec: ClusterSpec, file: Path | None = None) -> Catalogue:
    """Return the catalogue of the cluster's region and zones, shipped or from a file; raises FleetError."""
    if file is not None:
        return _of_file(spec, file)
    if not shipped_provider(spec.region):
        raise FleetError(f"cluster {spec.name}: {unknown_region('region', spec.region)}")
    return load_shipped(spec.region, zones=_zones(spec, shipped_zones(spec.region)))


def _of_file(spec: ClusterSpec, file: Path) -> Catalogue:
    try:
        data = read_bounded(file, safe_yaml.SIZE_LIMIT)
        whole = read_catalogue(data, spec.region)
        if whole.region != spec.region:
            raise FleetError(
                f"cluster {spec.name}: region: {spec.region!r}: {file} is of {whole.region}; set region"
            )
        return read_catalogue(data, spec.region, zones=_zones(spec, tuple(whole.zones)))
    except OSError as error:
        raise FleetError(f"{file}: {error.strerror}; give the path of a catalogue") from None
    except Invalid as error:
        raise FleetError(f"cluster {spec.name}: {file}: {error}") from None


def _zones(spec: ClusterSpec, there: tuple[str, ...]) -> dict[str, str | None]:
    zones = spec.zones or there[:ZONES]
    if unknown := [zone for zone in zones if zone not in there]:
        names = ", ".join(there)
        raise FleetError(
            f"cluster {spec.name}: zones: {unknown[0]!r}: not in {spec.region}; there are {names}"
        )
    return dict.fromkeys(zones)


def _without(delays: Mapping[str, Delay], names: "frozenset[str] | set[str]") -> dict[str, Any]:
    return {name: delay for name, delay in delays.items() if name not in names}


def _node(name: str, instance_type: InstanceType, zone: str, nodes: StaticNodes) -> Object:
    offer = CloudOffer(nodes.type, zone, nodes.capacity_type)
    labels = {**offer_labels(instance_type, offer), HOSTNAME: name, **nodes.labels}
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "labels": labels},
        "spec": {"providerID": f"static:///{zone}/{name}", "taints": list(nodes.taints)},
        "status": {
            "capacity": resources.quantities(instance_type.capacity),
            "allocatable": resources.quantities(instance_type.allocatable),
            "conditions": [{"type": "Ready", "status": "True", "reason": "KubeletReady"}],
        },
    }
