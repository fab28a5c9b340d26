"""Turns a file of a real cluster into a scenario: its first state, and what people changed afterwards.

From a recording, the writes of people and their tools are replayed: workloads with their replicas, pods
without a workload, budgets, pools. What the cluster does by itself is left to the embedded one: pods of
workloads, nodes, claims. Jobs run as long as the recorded ones.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from karpool.cluster.aspects import Aspect
from karpool.cluster.cluster import Cluster
from karpool.kube.snapshots.recording import (
    RecordedChange,
    Recording,
    SavedCluster,
    read_saved_cluster,
)
from karpool.model import durations
from karpool.model.catalogue.catalogue import Catalogue, capacity_type_of
from karpool.model.catalogue.files import shipped_zones
from karpool.model.karpenter.objects import ON_DEMAND
from karpool.model.kubernetes import api_resources as api
from karpool.model.kubernetes.api_resources import ApiResource
from karpool.model.kubernetes.node import INSTANCE_TYPE, ZONE
from karpool.provisioning.market_file import market_of
from karpool_fleet.clusters.fleet_file import ClusterSpec
from karpool_fleet.clusters.live import catalogue_of
from karpool_fleet.clusters.restored import NODE_CLASS, RUNS_ON
from karpool_fleet.clusters.strict_file import FleetError
from karpool_fleet.kubelet.kubelet import RUN_SECONDS
from karpool_fleet.simulation.figures import FIGURES, FigureSeries, Result
from karpool_fleet.simulation.scenario_file import Named, Scenario, Variant, merged

Object = dict[str, Any]
Key = tuple[str, str, str]  # kind, namespace, name

CLUSTER = "recorded"
AHEAD = "6h"  # default duration for a snapshot
# The default variants compare policies; a scenario file may compare something else.
POLICIES = ("WhenEmpty", "Balanced", "WhenEmptyOrUnderutilized")
# Kinds that people write. ReplicaSets and Jobs count only if no other workload owns them.
_WRITTEN = {
    resource.kind: resource
    for resource in (
        api.NAMESPACES,
        api.PRIORITYCLASSES,
        api.STORAGECLASSES,
        api.PVS,
        api.PVCS,
        api.RESOURCEQUOTAS,
        api.PDBS,
        api.NODEOVERLAYS,
        api.NODEPOOLS,
        api.DEPLOYMENTS,
        api.REPLICASETS,
        api.STATEFULSETS,
        api.DAEMONSETS,
        api.JOBS,
        api.PODS,
    )
}
_MAKERS = frozenset(
    ("Deployment", "ReplicaSet", "StatefulSet", "DaemonSet", "Job")
)  # kinds that the embedded cluster has


@dataclass(frozen=True)
class ReplayedChange:
    """An object at this second; None: deleted. A change with only a status ends the object."""

    at: float
    resource: ApiResource
    namespace: str
    name: str
    object: Object | None = None


@dataclass
class Replay:
    """A recording to replay: the changes with their times, and the recorded result."""

    scenario: Scenario
    changes: list[ReplayedChange] = field(default_factory=list)
    recorded: Result | None = None
    notes: list[str] = field(default_factory=list)

    def named(self) -> list[Named]:
        document = msgspec.to_builtins(self.scenario)
        return [
            Named(variant.name, msgspec.convert(merged(document, variant.set), Scenario))
            for variant in self.scenario.variants
        ]


def read_snapshot(path: Path, catalogue: Path | None = None, *, region: str = "") -> Replay:
    """Return a scenario that starts with a saved cluster and has no further changes."""
    return Replay(_scenario(path, read_saved_cluster(path), AHEAD, catalogue, region))


def read_recording(
    path: Path, catalogue: Path | None = None, duration: str | None = None, *, region: str = ""
) -> Replay:
    """Return the whole recording, or its first `duration`. Raises SnapshotError, FleetError."""
    recording = Recording(path)
    saved = read_saved_cluster(path)
    changes = list(recording.changes())
    seconds = max((change.t for change in changes), default=0.0)
    if seconds <= 0:
        raise FleetError(f"{path}: has nothing after its first moment; --from-snapshot begins with it")
    seconds = max(seconds, 1.0)  # the shortest scenario
    length = durations.show(round(seconds))
    if duration is not None:
        if durations.seconds(duration) > seconds:
            raise FleetError(f"--duration: {duration!r}: the recording is {length} long; give that or less")
        seconds = durations.seconds(duration)
        changes = [change for change in changes if change.t <= seconds]
    replay = Replay(_scenario(path, saved, durations.show(round(seconds)), catalogue, region))
    if recording.cut:
        replay.notes.append(f"{path}: ends within a line; {length} of it are whole")
    replay.changes = list(_played(changes, _lives(changes)))
    region_catalogue = catalogue_of(replay.scenario.clusters[0], catalogue)
    replay.recorded = _as_recorded(changes, seconds, region_catalogue)
    return replay


def _region(saved: SavedCluster, catalogue: Path | None) -> str:
    """Return the region of the cluster, found as by every other command."""
    cluster = Cluster(Aspect.NODECLAIMS | Aspect.POOLS, market=market_of(catalogue))
    now = saved.taken_at or 0.0
    cluster.load(saved.objects, now)
    return cluster.snapshot(now).facts.market.region


def _scenario(
    path: Path, saved: SavedCluster, duration: str, catalogue: Path | None, region: str
) -> Scenario:
    region = region or _region(saved, catalogue)
    if not region:
        raise FleetError(f"{path}: does not name its region; pass --region")
    used = {
        (obj["metadata"].get("labels") or {}).get(ZONE, "") for obj in saved.objects if obj["kind"] == "Node"
    }
    zones = sorted(used.intersection(shipped_zones(region) if catalogue is None else ()))
    has_pools = any(obj["kind"] == "NodePool" for obj in saved.objects)
    cluster = ClusterSpec(
        name=CLUSTER,
        region=region,
        zones=zones,
        autoscaler="karpenter" if has_pools else "none",
        snapshot=str(path.absolute()),
    )
    return Scenario(
        title=f"{saved.name or path.name} under each consolidation policy",
        duration=duration,
        sample=durations.show(max(60, round(durations.seconds(duration) / 300))),
        clusters=[cluster],
        controllers={"consolidator": {"interval": "1m"}},
        variants=[
            Variant(name=policy, set={"controllers": {"consolidator": {"policy": policy}}})
            for policy in POLICIES
        ],
    )


# Changes by people


def _key(change: RecordedChange) -> Key | None:
    if change.put is not None:
        metadata = change.put["metadata"]
        return change.put["kind"], metadata.get("namespace", ""), metadata["name"]
    if change.gone is not None:
        return change.gone.kind, change.gone.namespace, change.gone.name
    return None


def _controller(obj: Object) -> Mapping[str, Any]:
    owners = obj["metadata"].get("ownerReferences") or ()
    return next((owner for owner in owners if owner.get("controller")), {})


def _lives(changes: Iterable[RecordedChange]) -> dict[Key, float]:
    """Return the run time of each Job's pods: the median of those whose end was recorded."""
    running: dict[Key, tuple[Key, float]] = {}  # pod -> its Job, and its start
    ran: dict[Key, list[float]] = {}
    for change in changes:
        key = _key(change)
        if key is None or key[0] != "Pod":
            continue
        if change.put is None:
            if key in running:
                job, since = running.pop(key)
                ran.setdefault(job, []).append(change.t - since)
        elif change.put.get("spec", {}).get("nodeName") and key not in running:
            owner = _controller(change.put)
            if owner.get("kind") == "Job":
                running[key] = ("Job", key[1], str(owner.get("name"))), change.t
    return {job: sorted(times)[len(times) // 2] for job, times in ran.items()}


def _played(changes: Iterable[RecordedChange], lives: Mapping[Key, float]) -> Iterable[ReplayedChange]:
    before: dict[Key, bytes] = {}  # the last state that people wrote
    at_work: set[Key] = set()  # pods of Jobs that ran at the start
    for change in changes:
        key = _key(change)
        if key is None or key[0] not in _WRITTEN:
            continue
        kind, namespace, name = key
        resource = _WRITTEN[kind]
        if change.put is None:
            if key in at_work:
                at_work.remove(key)
                yield ReplayedChange(change.t, resource, namespace, name, {"status": {"phase": "Succeeded"}})
            elif before.pop(key, None) is not None and change.t > 0:
                yield ReplayedChange(change.t, resource, namespace, name)
            continue
        if (maker := _controller(change.put).get("kind")) in _MAKERS:
            if maker == "Job" and change.t == 0:
                at_work.add(key)
            continue
        obj = _as_written(change.put, lives.get(key))
        text = msgspec.json.encode(obj, order="sorted")
        if before.get(key) == text or (kind == "Pod" and key in before):
            continue  # pods cannot be changed, only created
        before[key] = text
        if change.t > 0:
            yield ReplayedChange(change.t, resource, namespace, name, obj)


def _as_written(recorded: Object, runs: float | None) -> Object:
    """Return the object as its author sent it, as far as that is known."""
    metadata = {
        key: recorded["metadata"][key]
        for key in ("name", "namespace", "labels", "annotations")
        if recorded["metadata"].get(key)
    }
    rest = {key: value for key, value in recorded.items() if key not in ("metadata", "status")}
    kind, spec = recorded["kind"], dict(recorded.get("spec") or {})
    if kind == "NodePool":
        template = spec.get("template") or {}
        spec["template"] = {**template, "spec": {**(template.get("spec") or {}), "nodeClassRef": NODE_CLASS}}
    elif kind == "Pod":
        spec.pop("nodeName", None)
        metadata["annotations"] = {**metadata.get("annotations", {}), RUN_SECONDS: RUNS_ON}
    elif kind == "Job":
        spec = _job_spec(spec, runs)
    elif kind in ("StatefulSet", "DaemonSet"):
        spec["updateStrategy"] = {"type": "OnDelete"}
    elif kind == "PersistentVolumeClaim":
        spec.pop("volumeName", None)
    return {**rest, "metadata": metadata, **({"spec": spec} if spec else {})}


_UNIQUE_LABELS = re.compile(r"(batch\.kubernetes\.io/)?(controller-uid|job-name)\Z")


def _job_spec(spec: Object, runs: float | None) -> Object:
    """Return the spec without the selector, which was generated from a uid."""
    template = spec.get("template") or {}
    metadata = template.get("metadata") or {}
    labels = {k: v for k, v in (metadata.get("labels") or {}).items() if not _UNIQUE_LABELS.match(k)}
    annotations = {
        **(metadata.get("annotations") or {}),
        RUN_SECONDS: str(max(1, round(runs))) if runs is not None else RUNS_ON,
    }
    made = {**template, "metadata": {**metadata, "labels": labels, "annotations": annotations}}
    return {key: value for key, value in spec.items() if key != "selector"} | {"template": made}


# The recorded result


def _as_recorded(changes: Iterable[RecordedChange], seconds: float, catalogue: Catalogue) -> Result:
    """Return recorded nodes and their list prices; other figures are not known."""
    prices: dict[str, float] = {}
    figures: dict[str, float | None] = dict.fromkeys(FIGURES)
    spent = node_seconds = since = 0.0
    most, unpriced = 0, 0
    steps: list[tuple[float, float, int]] = []  # time, dollars per hour, nodes
    for change in changes:
        key = _key(change)
        if key is None or key[0] != "Node" or (change.put is not None) == (key[2] in prices):
            continue
        spent += sum(prices.values()) * (change.t - since) / 3600
        node_seconds += len(prices) * (change.t - since)
        since = change.t
        if change.put is not None:
            price = _price(change.put, catalogue)
            unpriced += price is None
            prices[key[2]] = price or 0.0
        else:
            del prices[key[2]]
        most = max(most, len(prices))
        steps.append((change.t, sum(prices.values()), len(prices)))
    steps.append((seconds, sum(prices.values()), len(prices)))
    spent += sum(prices.values()) * (seconds - since) / 3600
    node_seconds += len(prices) * (seconds - since)
    figures |= {
        "cost": spent,
        "costPerHour": spent / seconds * 3600,
        "nodesMean": node_seconds / seconds,
        "nodesMost": float(most),
        "nodesEnd": float(len(prices)),
    }
    note = f"{unpriced} nodes have no price and cost nothing in what was recorded"
    return Result(
        "recorded",
        0,
        seconds,
        figures,
        {CLUSTER: figures},
        [at for at, _, _ in steps],
        {
            "costPerHour": FigureSeries("cost", "$ per hour", [dollars for _, dollars, _ in steps]),
            "nodes": FigureSeries("nodes", "nodes", [count for _, _, count in steps]),
        },
        notes=(note,) if unpriced else (),
    )


def _price(node: Object, catalogue: Catalogue) -> float | None:
    labels = node["metadata"].get("labels") or {}
    kind = capacity_type_of(labels) or ON_DEMAND
    return catalogue.price(labels.get(INSTANCE_TYPE, ""), labels.get(ZONE, ""), kind)
