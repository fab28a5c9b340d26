"""One cluster with everything in it, and a random life for it: work comes and goes, things break.

The seed decides everything, so a run that ends badly can be had again. `Life.told` is what
happened, in words. Faults are aimed at components, never at the one who gives the commands.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from random import Random
from typing import Any

from karpool.kube.api.client import Client
from karpool.kube.errors import KubeError
from karpool.model.catalogue.catalogue import Catalogue, InstanceType, Offering
from karpool.model.kubernetes.api_resources import (
    DAEMONSETS,
    DEPLOYMENTS,
    JOBS,
    NAMESPACES,
    NODECLAIMS,
    NODEPOOLS,
    NODES,
    PDBS,
    PODS,
    RESOURCEQUOTAS,
    STATEFULSETS,
    STORAGECLASSES,
    ApiResource,
)
from karpool.model.kubernetes.node import ARCH, INSTANCE_TYPE, OS, ZONE
from karpool.model.kubernetes.pod import Pod
from karpool.model.requirements import ValueSet
from karpool_fleet.apiserver.kinds.bundled_crds import KARPENTER, bundled_crds
from karpool_fleet.cloud.cloud import Cloud, CloudStockOut
from karpool_fleet.clusters.clock import LoopClock
from karpool_fleet.clusters.embedded import EmbeddedCluster
from karpool_fleet.faults.faults import Fault
from karpool_fleet.karpenter import karpenter_components
from karpool_fleet.karpenter.settings import KarpenterSettings
from karpool_fleet.kube_controllers.node_lifecycle import node_lifecycle
from karpool_fleet.kube_controllers.quota import enforce_quotas
from karpool_fleet.kube_controllers.volumes import VolumeController
from karpool_fleet.kube_scheduler.scheduler import kube_scheduler
from karpool_fleet.kubelet.kubelet import kubelet
from karpool_fleet.runtime.supervisor import Build
from karpool_fleet.workloads import workload_components
from tests.fleet.invariants import Judge, after_a_step, world

Object = dict[str, Any]
GIB = 2**30
TYPES = ("small", "medium", "large", "gpu")
ZONES = ("a", "b", "c")
MAY_WAIT = "may-wait"  # a label: quotas or limits may keep this workload from being complete


def machine(name: str, cpu: int, gib: int, *, gpus: int = 0) -> InstanceType:
    capacity = {"cpu": cpu * 1000, "memory": gib * GIB, "pods": 30, "ephemeral-storage": 20 * GIB}
    if gpus:
        capacity["nvidia.com/gpu"] = gpus
    allocatable = {**capacity, "cpu": cpu * 1000 - 100, "memory": gib * GIB - GIB // 2}
    labels = {INSTANCE_TYPE: name, ARCH: "amd64", OS: "linux"}
    requirements = {key: ValueSet(frozenset((value,))) for key, value in labels.items()}
    price = cpu * 0.05 + gpus
    offerings = [
        Offering(zone, kind, price * share)
        for zone in ZONES
        for kind, share in (("on-demand", 1.0), ("spot", 0.3))
    ]
    return InstanceType(name, requirements, capacity, allocatable).sold_as(offerings)


def catalogue() -> Catalogue:
    return Catalogue(
        "test",
        "here",
        [
            machine("small", 2, 8),
            machine("medium", 4, 16),
            machine("large", 8, 32),
            machine("gpu", 4, 16, gpus=2),
        ],
    )


def pool(name: str, types: tuple[str, ...], **spec: Any) -> Object:
    taints = spec.pop("taints", None)
    requirements = [
        {"key": "karpenter.sh/capacity-type", "operator": "In", "values": ["spot", "on-demand"]},
        {"key": INSTANCE_TYPE, "operator": "In", "values": list(types)},
    ]
    inner: Object = {
        "nodeClassRef": {"group": "karpenter.kwok.sh", "kind": "KWOKNodeClass", "name": "default"},
        "requirements": requirements,
    }
    if taints:
        inner["taints"] = taints
    return {"metadata": {"name": name}, "spec": {"template": {"spec": inner}, **spec}}


GPU_TAINT = {"key": "nvidia.com/gpu", "value": "true", "effect": "NoSchedule"}
POOLS = (
    pool("general", ("small", "medium", "large"), weight=10, limits={"cpu": "40", "memory": "160Gi"}),
    pool("fallback", ("small", "medium", "large"), limits={"nodes": "80"}),
    pool("gpu", ("gpu",), limits={"nodes": "3"}, taints=[GPU_TAINT]),
)
QUOTA = {
    "metadata": {"name": "team", "namespace": "team"},
    "spec": {"hard": {"pods": "10", "requests.cpu": "6"}},
}
DISKS = {
    "metadata": {"name": "disks"},
    "provisioner": "embedded.karpool.dev/disks",
    "volumeBindingMode": "WaitForFirstConsumer",
}
CLAIM = {
    "metadata": {"name": "data"},
    "spec": {
        "accessModes": ["ReadWriteOnce"],
        "storageClassName": "disks",
        "resources": {"requests": {"storage": "1Gi"}},
    },
}
AGENT: Object = {
    "metadata": {"name": "agent", "namespace": "kube-system"},
    "spec": {
        "selector": {"matchLabels": {"app": "agent"}},
        "template": {
            "metadata": {"labels": {"app": "agent"}},
            "spec": {
                "tolerations": [{"operator": "Exists"}],
                "containers": [
                    {
                        "name": "agent",
                        "image": "agent:1",
                        "resources": {"requests": {"cpu": "100m", "memory": "64Mi"}},
                    }
                ],
            },
        },
    },
}


@asynccontextmanager
async def alive(seed: int, settings: KarpenterSettings | None = None) -> AsyncIterator["Life"]:
    clock = LoopClock()
    async with EmbeddedCluster("east", clock=clock, seed=seed, crds=bundled_crds(KARPENTER)) as cluster:
        enforce_quotas(cluster.server)
        judge = Judge(cluster.server)
        cloud = Cloud(catalogue(), clock, cluster.random("cloud"))
        builds: dict[str, Build] = {
            **workload_components(),
            "kube-scheduler": kube_scheduler(),
            "kubelet": kubelet(cloud),
            "node-lifecycle": node_lifecycle(cloud),
            "volumes": VolumeController,
            **karpenter_components(cloud, settings),
        }
        for name, build in builds.items():
            cluster.add(name, build)
        admin = cluster.client("admin")
        for each in POOLS:
            await admin.create(NODEPOOLS, each)
        await admin.create(NAMESPACES, {"metadata": {"name": "team"}})
        await admin.create(RESOURCEQUOTAS, QUOTA)
        await admin.create(DAEMONSETS, AGENT)
        await admin.create(STORAGECLASSES, DISKS)
        yield Life(cluster, cloud, admin, judge, Random(seed))


@dataclass
class Life:
    cluster: EmbeddedCluster
    cloud: Cloud
    admin: Client
    judge: Judge
    random: Random
    told: list[str] = field(default_factory=list)
    _number: int = 0
    _workloads: dict[tuple[ApiResource, str, str], bool] = field(default_factory=dict)  # -> has a budget
    _stock_outs: list[CloudStockOut] = field(default_factory=list)
    _faults: list[Fault] = field(default_factory=list)
    _down: dict[str, str] = field(default_factory=dict)  # component -> crashed or paused
    _dark: dict[str, None] = field(default_factory=dict)  # zones

    def tell(self, sentence: str) -> None:
        self.told.append(f"{self.cluster.clock.monotonic():7.1f} {sentence}")

    # Time

    async def step(self) -> None:
        """Something happens, some time passes, and everything must hold."""
        self._recover()
        for _ in range(self.random.randint(1, 3)):
            act = self.random.choices(list(ACTIONS), list(ACTIONS.values()))[0]
            with suppress(KubeError):
                await act(self)
        await asyncio.sleep(self.random.choice((0.3, 2.0, 15.0, 60.0, 200.0)))
        self.check()

    def _recover(self) -> None:
        """What is broken does not stay so for long, or nothing else would happen."""
        for component in self.cluster.components.components:
            if not self.cluster.components.is_running(component):
                self._down.setdefault(component, "crashed")
        for component in list(self._down):
            if self.random.random() < 0.4:
                self._revive(component)
        for zone in list(self._dark):
            if self.random.random() < 0.2:
                del self._dark[zone]
                self.cloud.restore_zone(zone)
                self.tell(f"zone {zone} is back")
        if self._stock_outs and self.random.random() < 0.2:
            self._stock_outs.pop(0).end()
            self.tell("stock is back")

    def check(self) -> None:
        found = [*self.judge.violations, *after_a_step(world(self.cluster.server, self.cloud))]
        assert not found, self.report(found)

    def report(self, found: list[str]) -> str:
        return "\n".join([*self.told, "", "VIOLATIONS", *found])

    async def heal(self) -> None:
        """Everything that is broken works again."""
        for fault in self._faults:
            fault.end()
        self.cluster.faults.cut_watches("informers", expired=True)
        for rule in self._stock_outs:
            rule.end()
        for zone in self._dark:
            self.cloud.restore_zone(zone)
        for component in list(self._down):
            self._revive(component)
        for component in self.cluster.components.components:
            self.cluster.components.start(component)
        for node in (await self.admin.list(NODES)).items:
            if node["spec"].get("unschedulable"):
                with suppress(KubeError):
                    await self.admin.patch(NODES, node["metadata"]["name"], {"spec": {"unschedulable": None}})
        for each in POOLS:
            # Consolidation may go on for ever where Karpenter and the scheduler disagree.
            calm = {"spec": {"disruption": {"budgets": [{"nodes": "0"}]}}}
            await self.admin.patch(NODEPOOLS, each["metadata"]["name"], calm)
        self.tell("all faults are over")

    def _revive(self, component: str) -> None:
        if self._down.pop(component) == "paused":
            self.cluster.faults.resume(component)
        self.cluster.components.start(component)
        self.tell(f"{component} is back")

    # Work

    def _name(self, kind: str) -> str:
        self._number += 1
        return f"{kind}-{self._number}"

    def _pod_spec(self, name: str) -> tuple[Object, dict[str, str]]:
        draw, labels = self.random, {"app": name}
        requests = {
            "cpu": draw.choice(("100m", "500m", "1", "1900m")),
            "memory": draw.choice(("128Mi", "1Gi", "3Gi")),
        }
        container: Object = {"name": "main", "image": f"{name}:1", "resources": {"requests": requests}}
        spec: Object = {"containers": [container]}
        match draw.choice(("plain", "plain", "spread", "apart", "gpu", "spot", "port", "zone")):
            case "spread":
                spec["topologySpreadConstraints"] = [
                    {
                        "maxSkew": 1,
                        "topologyKey": ZONE,
                        "whenUnsatisfiable": "DoNotSchedule",
                        "labelSelector": {"matchLabels": labels},
                    }
                ]
            case "apart":
                term = {"labelSelector": {"matchLabels": labels}, "topologyKey": "kubernetes.io/hostname"}
                spec["affinity"] = {
                    "podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}
                }
            case "gpu":
                container["resources"] = {
                    "requests": {**requests, "nvidia.com/gpu": "1"},
                    "limits": {"nvidia.com/gpu": "1"},
                }
                spec["tolerations"] = [{"key": "nvidia.com/gpu", "operator": "Exists"}]
                labels[MAY_WAIT] = "gpu"
            case "spot":
                spec["nodeSelector"] = {"karpenter.sh/capacity-type": "spot"}
            case "port":
                container["ports"] = [{"containerPort": 80, "hostPort": 8000 + draw.randint(0, 3)}]
            case "zone":
                expression = {"key": ZONE, "operator": "NotIn", "values": [draw.choice(ZONES)]}
                terms = {"nodeSelectorTerms": [{"matchExpressions": [expression]}]}
                spec["affinity"] = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": terms}}
        return spec, labels

    async def deploy(self) -> None:
        if len(self._workloads) >= 12:
            await self.delete_workload()
            return
        kind = self.random.choice((DEPLOYMENTS, DEPLOYMENTS, STATEFULSETS))
        name, namespace = (
            self._name(kind.kind.lower()[:6]),
            self.random.choice(("default", "default", "team")),
        )
        spec, labels = self._pod_spec(name)
        if namespace == "team":
            labels[MAY_WAIT] = "quota"
        replicas = self.random.randint(2, 9)
        extra: Object = {}
        if kind is STATEFULSETS:
            extra["podManagementPolicy"] = self.random.choice(("OrderedReady", "Parallel"))
            if self.random.random() < 0.5:
                extra["volumeClaimTemplates"] = [CLAIM]
                if "topologySpreadConstraints" in spec:
                    # Disks made while a zone was dark may leave no even spread.
                    labels[MAY_WAIT] = "zones"
        await self.admin.create(
            kind,
            {
                "metadata": {"name": name, "namespace": namespace, "labels": labels},
                "spec": {
                    "replicas": replicas,
                    "selector": {"matchLabels": {"app": name}},
                    "template": {"metadata": {"labels": labels}, "spec": spec},
                    **extra,
                },
            },
        )
        self.tell(f"{replicas} replicas of {namespace}/{name}: {spec}")
        budget = self.random.choice(
            (None, {"maxUnavailable": 1}, {"maxUnavailable": "30%"}, {"minAvailable": "50%"})
        )
        if MAY_WAIT in labels:
            budget = None  # pods that never come would make it block every drain
        self._workloads[kind, namespace, name] = budget is not None
        if budget is not None:
            selector = {"matchLabels": {"app": name}}
            await self.admin.create(
                PDBS,
                {
                    "metadata": {"name": name, "namespace": namespace},
                    "spec": {"selector": selector, **budget},
                },
            )
            self.tell(f"budget {budget} for {name}")

    async def run_job(self) -> None:
        name = self._name("job")
        spec, labels = self._pod_spec(name)
        seconds = str(self.random.randint(5, 200))
        await self.admin.create(
            JOBS,
            {
                "metadata": {"name": name, "namespace": "default"},
                "spec": {
                    "completions": 3,
                    "parallelism": 2,
                    "backoffLimit": 10,
                    "ttlSecondsAfterFinished": 60,
                    "template": {
                        "metadata": {
                            "labels": labels,
                            "annotations": {"embedded.karpool.dev/run-seconds": seconds},
                        },
                        "spec": {**spec, "restartPolicy": "Never"},
                    },
                },
            },
        )
        self.tell(f"job {name} for {seconds} s")

    def _some_workload(self) -> tuple[ApiResource, str, str] | None:
        return self.random.choice(list(self._workloads)) if self._workloads else None

    async def scale(self) -> None:
        if chosen := self._some_workload():
            kind, namespace, name = chosen
            replicas = self.random.randint(2 if self._workloads[chosen] else 0, 14)
            self.tell(f"{name} to {replicas}")
            await self.admin.scale(kind, name, replicas, namespace=namespace)

    async def roll_out(self) -> None:
        if chosen := self._some_workload():
            kind, namespace, name = chosen
            image = [{"name": "main", "image": f"{name}:{self.random.randint(2, 99)}"}]
            patch = {"spec": {"template": {"spec": {"containers": image}}}}
            self.tell(f"{name} rolls out")
            await self.admin.patch(kind, name, patch, how="strategic", namespace=namespace)

    async def delete_workload(self) -> None:
        if chosen := self._some_workload():
            kind, namespace, name = chosen
            has_budget = self._workloads.pop(chosen)
            self.tell(f"{name} is deleted")
            await self.admin.delete(kind, name, namespace=namespace, propagation="Background")
            if has_budget:
                await self.admin.delete(PDBS, name, namespace=namespace)

    # Nodes

    async def _some(self, kind: ApiResource) -> Object | None:
        items = (await self.admin.list(kind)).items
        return self.random.choice(items) if items else None

    async def cordon(self) -> None:
        if node := await self._some(NODES):
            name, now = node["metadata"]["name"], node["spec"].get("unschedulable", False)
            self.tell(f"{'un' if now else ''}cordon {name}")
            await self.admin.patch(NODES, name, {"spec": {"unschedulable": None if now else True}})

    async def drain(self) -> None:
        if node := await self._some(NODES):
            name = node["metadata"]["name"]
            self.tell(f"drain {name}")
            await self.admin.patch(NODES, name, {"spec": {"unschedulable": True}})
            for pod in (await self.admin.list(PODS, into=Pod)).items:
                if pod.spec.node_name == name and not any(
                    owner.kind == "DaemonSet" for owner in pod.metadata.owner_references or ()
                ):
                    with suppress(KubeError):
                        await self.admin.evict(pod.name, namespace=pod.metadata.namespace)

    async def delete_claim(self) -> None:
        if claim := await self._some(NODECLAIMS):
            self.tell(f"delete claim {claim['metadata']['name']}")
            await self.admin.delete(NODECLAIMS, claim["metadata"]["name"])

    async def delete_node(self) -> None:
        if node := await self._some(NODES):
            self.tell(f"delete node {node['metadata']['name']}")
            await self.admin.delete(NODES, node["metadata"]["name"])

    async def delete_pod(self) -> None:
        if pod := await self._some(PODS):
            meta = pod["metadata"]
            self.tell(f"delete pod {meta['name']}")
            await self.admin.delete(PODS, meta["name"], namespace=meta["namespace"])

    # The cloud

    async def interrupt(self) -> None:
        spot = [
            instance for instance in self.cloud.instances.values() if instance.offer.capacity_type == "spot"
        ]
        if spot:
            chosen = self.random.choice(spot)
            self.tell(f"interrupt {chosen.id}")
            self.cloud.interrupt(chosen.id)

    async def lose_machine(self) -> None:
        if self.cloud.instances:
            chosen = self.random.choice(list(self.cloud.instances))
            self.tell(f"machine {chosen} dies")
            await self.cloud.terminate(chosen)

    async def stock_out(self) -> None:
        draw = self.random
        type_, zone = draw.choice(("*", *TYPES)), draw.choice(("*", *ZONES))
        kind = draw.choice(("spot", "on-demand", "*"))
        self._stock_outs.append(self.cloud.stock_out(type_, zone, kind, left=draw.randint(0, 2)))
        self.tell(f"no stock of {type_} {kind} in {zone}")

    async def zone_outage(self) -> None:
        if not self._dark:
            zone = self.random.choice(ZONES)
            self._dark[zone] = None
            self.cloud.fail_zone(zone)
            self.tell(f"zone {zone} fails")

    async def bad_boot(self) -> None:
        if self.random.random() < 0.5:
            self.cloud.boot_badly(registers=False)
            self.tell("the next machine will never register")
        else:
            self.cloud.boot_badly(device_seconds=400)
            self.tell("the next machine will offer its devices late")

    # The control plane

    def _some_component(self) -> str:
        return self.random.choice(
            [component for component in self.cluster.components.components if component not in self._down]
        )

    async def crash(self) -> None:
        component = self._some_component()
        if self.cluster.components.is_running(component):
            self._down[component] = "crashed"
            self.tell(f"{component} crashes")
            await self.cluster.components.crash(component)

    async def crash_at_write(self) -> None:
        component, when = self._some_component(), self.random.choice(("before", "after"))
        if not self.cluster.components.is_running(component):
            return
        number = self.random.randint(1, 6)
        fault = self.cluster.faults.crash_at_write(component, number, when=when)
        self._faults.append(fault)
        self.tell(f"{component} will crash {when} its write {number}")

    async def pause(self) -> None:
        component = self._some_component()
        if not self.cluster.components.is_running(component):
            return
        self._down[component] = "paused"
        self.cluster.faults.pause(component)
        self.tell(f"{component} stands still")

    async def api_errors(self) -> None:
        component, status = self._some_component(), self.random.choice((409, 429, 500, 503, 0))
        times = self.random.randint(1, 12)
        method = self.random.choice(("", "WRITE"))
        self._faults.append(self.cluster.faults.fail(component, status=status, method=method, times=times))
        self.tell(f"{component} gets {times} times {status}")

    async def hang(self) -> None:
        component = self._some_component()
        self._faults.append(self.cluster.faults.hang(component, times=self.random.randint(1, 3)))
        self.tell(f"{component} waits for answers")

    async def jump(self) -> None:
        clock, seconds = self.cluster.clock, self.random.choice((-20.0, 40.0))
        assert isinstance(clock, LoopClock)
        clock.jump(seconds)
        self.tell(f"the clock jumps by {seconds} s")

    async def late_events(self) -> None:
        path, seconds = (
            self.random.choice(("pods", "nodes", "nodeclaims", "")),
            self.random.choice((0.5, 3.0)),
        )
        times = self.random.randint(1, 25)
        self._faults.append(
            self.cluster.faults.late_events("informers", seconds=seconds, path=path, times=times)
        )
        self.tell(f"{times} events of {path or 'everything'} come {seconds} s late")

    async def repeated_events(self) -> None:
        self._faults.append(self.cluster.faults.repeat_events("informers", times=self.random.randint(1, 25)))
        self.tell("events come twice")

    async def cut_watches(self) -> None:
        expired = self.random.random() < 0.5
        self.cluster.faults.cut_watches("informers", expired=expired)
        self.tell(f"watches are cut{', and expired' if expired else ''}")


Act = Callable[[Life], Awaitable[None]]
ACTIONS: Mapping[Act, int] = {
    Life.deploy: 14,
    Life.run_job: 3,
    Life.scale: 12,
    Life.roll_out: 4,
    Life.delete_workload: 4,
    Life.cordon: 4,
    Life.drain: 4,
    Life.delete_claim: 4,
    Life.delete_node: 2,
    Life.delete_pod: 3,
    Life.interrupt: 4,
    Life.lose_machine: 2,
    Life.stock_out: 3,
    Life.zone_outage: 2,
    Life.bad_boot: 2,
    Life.crash: 8,
    Life.crash_at_write: 5,
    Life.pause: 2,
    Life.api_errors: 5,
    Life.hang: 2,
    Life.jump: 1,
    Life.late_events: 4,
    Life.repeated_events: 2,
    Life.cut_watches: 3,
}
