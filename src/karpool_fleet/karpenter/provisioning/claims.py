"""The NodeClaim of a planned node, and the hash that shows whether its pool has changed.

Pure. The hash covers the same fields as upstream's: the template without its requirements, regardless of the
order of lists. Its value is our own, because only its writer compares it.
"""

import hashlib
import json
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from karpool.model import resources
from karpool.model.karpenter.objects import CAPACITY_TYPE, NODEPOOL, TERMINATION_FINALIZER, NodePool
from karpool.model.kubernetes.node import INSTANCE_TYPE
from karpool.model.requirements import WELL_KNOWN, Requirements, ValueSet
from karpool.model.taints import Taint
from karpool.packing.new_nodes.pack_result import PlannedNode

HASH = "karpenter.sh/nodepool-hash"
HASH_VERSION = "karpenter.sh/nodepool-hash-version"
VERSION = "v3"
MIN_VALUES_RELAXED = "karpenter.sh/nodeclaim-min-values-relaxed"

Object = dict[str, Any]


def pool_hash(pool: NodePool) -> str:
    template = msgspec.to_builtins(pool.spec.template)
    template.get("spec", {}).pop("requirements", None)
    text = json.dumps(_canonical(template), sort_keys=True)
    return str(int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big"))


def _canonical(value: Any) -> Any:
    """Return the value without empty parts, and with sorted lists."""
    if isinstance(value, dict):
        kept = {key: _canonical(item) for key, item in value.items()}
        return {key: item for key, item in kept.items() if item not in (None, "", [], {}, 0, False)}
    if isinstance(value, list):
        return sorted((_canonical(item) for item in value), key=lambda item: json.dumps(item, sort_keys=True))
    return value


def node_claim(pool: NodePool, planned: PlannedNode, requirements: Sequence[Object]) -> Object:
    """Return the object to create. `requirements` are those of the plan, from `wire_requirements`."""
    template = pool.spec.template.spec
    meta = pool.spec.template.metadata
    labels = {**((meta.labels if meta else None) or {}), **_decided(planned.requirements)}
    ref = template.node_class_ref
    labels |= {NODEPOOL: pool.name, ref.label: ref.name}
    spec: Object = {
        "nodeClassRef": {"group": ref.group, "kind": ref.kind, "name": ref.name},
        "requirements": requirements,
        "resources": {"requests": resources.quantities(planned.requests)},
        "expireAfter": template.expire_after or "720h",
    }
    if template.taints:
        spec["taints"] = [wire_taint(taint) for taint in template.taints]
    if template.startup_taints:
        spec["startupTaints"] = [wire_taint(taint) for taint in template.startup_taints]
    if template.termination_grace_period:
        spec["terminationGracePeriod"] = template.termination_grace_period
    return {
        "metadata": {
            "generateName": f"{pool.name}-",
            "labels": labels,
            "annotations": {
                **((meta.annotations if meta else None) or {}),
                HASH: pool_hash(pool),
                HASH_VERSION: VERSION,
                MIN_VALUES_RELAXED: "false",
            },
            "finalizers": [TERMINATION_FINALIZER],
            "ownerReferences": [
                {
                    "apiVersion": "karpenter.sh/v1",
                    "kind": "NodePool",
                    "name": pool.name,
                    "uid": pool.metadata.uid,
                    "blockOwnerDeletion": True,
                }
            ],
        },
        "spec": spec,
    }


def _decided(requirements: Requirements) -> dict[str, str]:
    """Return labels with only one possible value that no provider sets at launch."""
    return {
        key: next(iter(wanted.values))
        for key, wanted in requirements.items()
        if not wanted.complement
        and len(wanted.values) == 1
        and (key == CAPACITY_TYPE or key not in WELL_KNOWN)
    }


def wire_requirements(
    requirements: Requirements, types: Iterable[str], capacity_types: Iterable[str]
) -> list[Object]:
    """Return the requirements sorted by key, with the remaining instance types and capacity types."""
    narrowed = {
        **requirements,
        INSTANCE_TYPE: _among(requirements.get(INSTANCE_TYPE), types),
        CAPACITY_TYPE: _among(requirements.get(CAPACITY_TYPE), capacity_types),
    }
    return [entry for key in sorted(narrowed) for entry in _entries(key, narrowed[key])]


def _among(wanted: ValueSet | None, values: Iterable[str]) -> ValueSet:
    least = wanted.min_values if wanted is not None else None
    return ValueSet(frozenset(values), min_values=least)


def _entries(key: str, wanted: ValueSet) -> Iterable[Object]:
    """Return a value set as operators; bounds with exclusions take several."""
    least: Object = {} if wanted.min_values is None else {"minValues": wanted.min_values}
    if not wanted.complement:
        operator = "In" if wanted.values else "DoesNotExist"
        values: Object = {"values": sorted(wanted.values)} if wanted.values else {}
        yield {"key": key, "operator": operator, **values, **least}
        return
    if wanted.values:
        yield {"key": key, "operator": "NotIn", "values": sorted(wanted.values), **least}
    for operator, bound in (("Gte", wanted.at_least), ("Lte", wanted.at_most)):
        if bound is not None:
            yield {"key": key, "operator": operator, "values": [str(bound)], **least}
    if not wanted.values and wanted.at_least is None and wanted.at_most is None:
        yield {"key": key, "operator": "Exists", **least}


def wire_taint(taint: Taint) -> Object:
    return {
        "key": taint.key,
        "effect": taint.effect,
        **({"value": taint.value} if taint.value else {}),
    }
