"""Applies override policies to a manifest for one cluster.

Cluster-wide policies come first, then those of the namespace, each in order of name, exact matches last.
Plain text, labels, annotations, arguments and commands can be overridden. Overriders of images and of fields
inside texts are ignored with a warning in the log.
"""

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec
import structlog

from karpool_fleet.apiserver.patches.json_patch import PatchError, json_patch
from karpool_fleet.karmada.propagation.affinity import matches_cluster
from karpool_fleet.karmada.propagation.names import APPLIED_CLUSTER_OVERRIDES, APPLIED_OVERRIDES, Object
from karpool_fleet.karmada.propagation.policies import MATCH_ALL, MISMATCH, match

log = structlog.get_logger(__name__)


class BadOverride(ValueError):
    """An override that does not apply to the manifest."""


def override(
    manifest: Object, cluster: Object, wide: Iterable[Object], own: Iterable[Object]
) -> tuple[Object, dict[str, str]]:
    """Return the manifest for a cluster, and annotations with the applied policies; raises BadOverride."""
    notes: dict[str, str] = {}
    for policies, annotation in ((wide, APPLIED_CLUSTER_OVERRIDES), (own, APPLIED_OVERRIDES)):
        applied: list[Object] = []
        for policy in _in_order(policies, manifest):
            for overriders in _rules(policy["spec"], cluster):
                manifest = _apply(manifest, overriders, policy["metadata"]["name"])
                applied.append({"policyName": policy["metadata"]["name"], "overriders": overriders})
        if applied:
            notes[annotation] = msgspec.json.encode(applied).decode()
    return manifest, notes


def means(policy: Object, manifest: Object) -> int:
    """Return how exactly an override policy matches a manifest; without selectors it matches all it may."""
    namespace = policy["metadata"].get("namespace", "")
    selectors = policy["spec"].get("resourceSelectors")
    if not selectors:
        inside = not namespace or namespace == manifest["metadata"].get("namespace", "")
        return MATCH_ALL if inside else MISMATCH
    return max(match(selector, manifest, namespace) for selector in selectors)


def _in_order(policies: Iterable[Object], manifest: Object) -> list[Object]:
    applicable = [(means(policy, manifest), policy["metadata"]["name"], policy) for policy in policies]
    return [
        policy for exact, _, policy in sorted(applicable, key=lambda match: match[:2]) if exact > MISMATCH
    ]


def _rules(spec: Object, cluster: Object) -> Iterable[Object]:
    rules = spec.get("overrideRules") or ()
    if not rules and spec.get("overriders"):  # the old form
        rules = ({"targetCluster": spec.get("targetCluster"), "overriders": spec["overriders"]},)
    return [rule["overriders"] for rule in rules if matches_cluster(rule.get("targetCluster"), cluster)]


def _apply(manifest: Object, overriders: Object, policy: str) -> Object:
    for name in ("imageOverrider", "fieldOverrider"):
        if overriders.get(name):
            log.warning("override is not simulated", policy=policy, overrider=name)
    for field, name in (("labels", "labelsOverrider"), ("annotations", "annotationsOverrider")):
        for rule in overriders.get(name) or ():
            manifest = _with_map(manifest, field, rule)
    operations = [_operation(overrider) for overrider in overriders.get("plaintext") or ()]
    try:
        if operations:
            manifest = json_patch(manifest, operations)
    except PatchError as error:
        raise BadOverride(f"override policy {policy}: {error.message}") from None
    for field, name in (("args", "argsOverrider"), ("command", "commandOverrider")):
        for rule in overriders.get(name) or ():
            manifest = _with_words(manifest, field, rule)
    return manifest


def _operation(rule: Object) -> Object:
    operation = {"op": rule["operator"], "path": rule["path"]}
    return operation if rule["operator"] == "remove" else {**operation, "value": rule.get("value")}


def _with_map(manifest: Object, field: str, rule: Object) -> Object:
    held: Mapping[str, str] = manifest["metadata"].get(field) or {}
    values: Mapping[str, str] = rule.get("value") or {}
    match rule["operator"]:
        case "add":
            held = {**held, **values}
        case "replace":
            held = {**held, **{key: value for key, value in values.items() if key in held}}
        case "remove":
            held = {key: value for key, value in held.items() if key not in values}
    return {**manifest, "metadata": {**manifest["metadata"], field: dict(held)}}


def _with_words(manifest: Object, field: str, rule: Object) -> Object:
    """Add or remove words of the arguments or command of one container."""
    words: list[str] = rule.get("value") or []

    def changed(container: Any) -> Any:
        if container.get("name") != rule["containerName"]:
            return container
        held: list[str] = container.get(field) or []
        if rule["operator"] == "add":
            return {**container, field: [*held, *words]}
        return {**container, field: [word for word in held if word not in words]}

    spec = manifest.get("spec") or {}
    if manifest.get("kind") == "Pod":
        return {**manifest, "spec": {**spec, "containers": [changed(c) for c in spec.get("containers", ())]}}
    template = spec.get("template") or {}
    pod = template.get("spec") or {}
    pod = {**pod, "containers": [changed(container) for container in pod.get("containers") or ()]}
    return {**manifest, "spec": {**spec, "template": {**template, "spec": pod}}}
