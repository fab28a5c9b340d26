"""Vectors of the estimator that the model and the packing kernel answer."""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from karpool.model import quantity, resources
from karpool.model.errors import Invalid
from karpool.model.kubernetes.meta import decode
from karpool.model.kubernetes.pod_shape import PodShape, positive
from karpool.model.requirements import NodeSelector, node_terms_of
from karpool.model.taints import UNSCHEDULABLE, Taint, Toleration
from karpool.packing.counting.count import count, room_for
from karpool.packing.counting.first_fit import UNBOUNDED, PodGroup, first_fit
from karpool.packing.feasibility import feasible
from karpool.packing.tables.node_table import NodeRow
from karpool.packing.tables.room import Room, snapshot_of
from tests.vectors.registry import Case, kind

_VECTOR_NAMES = {"cpu": "milli_cpu", "ephemeral-storage": "ephemeral_storage"}


@kind("quantity")
def answer_quantity(case: Case) -> Mapping[str, Any]:
    text = case["input"]["text"]
    try:
        return {"milli_value": quantity.milli_value(text), "value": quantity.value(text)}
    except Invalid:
        return {"error": True}


@kind("match_node")
def answer_match_node(case: Case) -> Mapping[str, Any]:
    given = case["input"]
    if given["node"] is None:
        return {"match": True}  # there is no Node object to compare with
    snapshot = snapshot_of([node_row(given["node"])])
    return {"match": bool(feasible(snapshot, shape({"node_claim": given.get("node_claim")}))[0])}


@kind("resource_max_divided")
def answer_max_divided(case: Case) -> Mapping[str, Any]:
    try:
        snapshot = snapshot_of([node_row({"name": "n", "allocatable": case["input"]["available"]})])
        asked = shape({"resource_request": case["input"]["request"]})
    except Invalid:
        return {"error": True}
    result = count(snapshot, asked).total
    assert result == int(room_for(snapshot, asked)[0])
    return {"result": result}


@kind("simulate_components")
def answer_simulate(case: Case) -> Mapping[str, Any]:
    given = case["input"]
    try:
        snapshot = snapshot_of(_told_apart(node_row(node) for node in given.get("nodes") or ()))
        components = [
            PodGroup(shape(each.get("replica_requirements")), each.get("replicas", 0))
            for each in given.get("components") or ()
            if each is not None
        ]
        in_list_order = np.arange(snapshot.n, dtype=np.int64)
        bound = given.get("upper_bound", UNBOUNDED)
        found = first_fit(snapshot, components, bound=bound, order=in_list_order, topology=False)
    except Invalid:
        return {"error": True}
    return {"sets": found.sets, "remaining": _vectors(found.after)}


def node_row(given: Mapping[str, Any]) -> NodeRow:
    taints = tuple(decode(taint, Taint) for taint in given.get("taints") or ())
    if given.get("unschedulable"):
        taints = (UNSCHEDULABLE, *taints)
    offered = resources.parse(given.get("allocatable"))
    return NodeRow(given.get("name", ""), dict(given.get("labels") or {}), taints, offered)


def shape(requirements: Mapping[str, Any] | None) -> PodShape:
    requirements = requirements or {}
    claim = requirements.get("node_claim") or {}
    affinity = claim.get("node_affinity")
    return PodShape(
        requests=positive(resources.parse(requirements.get("resource_request"))),
        node_selector=tuple(sorted((claim.get("node_selector") or {}).items())),
        node_terms=None if affinity is None else node_terms_of(decode(affinity, NodeSelector)),
        tolerations=tuple(decode(each, Toleration) for each in claim.get("tolerations") or ()),
    )


def _told_apart(rows: Iterable[NodeRow]) -> list[NodeRow]:
    """A case may leave names out; a cluster cannot."""
    seen: dict[str, NodeRow] = {}
    for row in rows:
        name = f"{row.name}#{len(seen)}" if row.name in seen else row.name
        seen[name] = replace(row, name=name)
    return list(seen.values())


def _vectors(snapshot: Room) -> Mapping[str, Mapping[str, Any]]:
    """Each node's free amounts, under the names of Karmada's resource vector."""
    return {
        name: {
            "milli_cpu": 0,
            "memory": 0,
            "ephemeral_storage": 0,
            "pods": int(snapshot.slots[row]),
            **{
                _VECTOR_NAMES.get(resource, resource): int(snapshot.free(resource)[row])
                for resource in snapshot.resources
            },
            "scalars": {
                resource: int(snapshot.free(resource)[row])
                for resource in snapshot.resources
                if resource not in resources.NATIVE
            },
        }
        for row, name in enumerate(snapshot.names)
    }
