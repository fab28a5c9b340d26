"""Counts the replicas of a workload that have been unschedulable for too long.

As in Karmada, a Deployment's pods count only if they belong to its newest ReplicaSet. Any other workload's
pods count if a chain of controllers leads from them to it: StatefulSets, Jobs, and custom resources that own
any of these.
"""

from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any

from karpool.cluster.pods.owner_store import controller_of, is_of
from karpool.cluster.pods.waiting_store import WaitingPod
from karpool.estimator.serving.owner_reader import OwnerReader
from karpool.kube.api.client import Client
from karpool.model import quantity
from karpool.model.errors import Invalid
from karpool.model.kubernetes.api_resources import REPLICASETS, ApiResource, ListOptions
from karpool.model.kubernetes.meta import LabelSelector, OwnerReference, Wire, WireObject
from karpool.model.resources import Quantities
from karpool.wire.requests import WorkloadReference

TEMPLATE_HASH = "pod-template-hash"
NANOSECONDS = 10**9
_AMOUNTS = ("requests", "limits", "overhead")


class PodControllerSpec(Wire, frozen=True):
    selector: LabelSelector | None = None
    template: dict[str, Any] | None = None


class PodController(WireObject, frozen=True):
    """The needed fields of a Deployment or a ReplicaSet."""

    spec: PodControllerSpec = PodControllerSpec()


def is_deployment(reference: WorkloadReference) -> bool:
    return reference.kind == "Deployment" and reference.api_version.startswith("apps/")


def check_supported(reference: WorkloadReference, kinds: Collection[str]) -> None:
    """Raises UnsupportedKind for a kind that the operator excluded. No kinds: all are supported."""
    if kinds and reference.kind not in kinds:
        name = f"{reference.namespace}/{reference.name}"
        raise UnsupportedKind(f"kind({reference.kind}) of workload({name}) is not supported")


class UnsupportedKind(Exception):
    """The message is that of Karmada's server."""


def of_deployment(
    deployment: PodController, replica_sets: Iterable[PodController], overdue: Iterable[WaitingPod]
) -> int:
    newest = newest_replica_set(deployment, replica_sets)
    if newest is None:
        return 0
    selector = _selector(deployment)
    return sum(
        1
        for pod in overdue
        if pod.controller is not None
        and pod.controller.uid == newest.metadata.uid
        and selector.matches(pod.labels)
    )


def newest_replica_set(
    deployment: PodController, replica_sets: Iterable[PodController]
) -> PodController | None:
    """The ReplicaSet of the Deployment's current template; of several, the oldest."""
    selector = _selector(deployment)
    newest = comparable_template(deployment.spec.template)
    owned = [
        pod_controller
        for pod_controller in replica_sets
        if pod_controller.metadata.namespace == deployment.metadata.namespace
        and selector.matches(pod_controller.labels)
        and _controls(deployment, controller_of(pod_controller.metadata))
    ]
    owned.sort(key=lambda pod: (pod.metadata.creation_timestamp or "", pod.name))
    return next(
        (controller for controller in owned if comparable_template(controller.spec.template) == newest), None
    )


def comparable_template(template: Mapping[str, Any] | None) -> Any:
    """Normalise a template: null like empty, quantities by value, no hash label."""
    plain = dict(template or {})
    meta = dict(plain.get("metadata") or {})
    meta["labels"] = {k: v for k, v in (meta.get("labels") or {}).items() if k != TEMPLATE_HASH}
    meta.pop("creationTimestamp", None)
    plain["metadata"] = meta
    return _plain(plain)


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        fields = {
            key: _amounts(entry) if key in _AMOUNTS and isinstance(entry, Mapping) else _plain(entry)
            for key, entry in value.items()
        }
        return {key: entry for key, entry in fields.items() if entry not in (None, {}, [], "")}
    if isinstance(value, list):
        return [_plain(item) for item in value]
    return value


def _amounts(quantities: Quantities) -> Mapping[str, Any]:
    return {name: _amount(text) for name, text in quantities.items()}


def _amount(text: Any) -> Any:
    try:
        return quantity.milli_value(text)
    except Invalid:
        return text


def _selector(deployment: PodController) -> Any:
    if deployment.spec.selector is None:
        raise Invalid("spec.selector", None, f"Deployment {deployment.metadata.key} has none")
    return deployment.spec.selector.compile()


def _controls(owner: PodController, reference: OwnerReference | None) -> bool:
    return reference is not None and bool(reference.uid) and reference.uid == owner.metadata.uid


class UnschedulableReader:
    """Counts on a live cluster: reads the workload and related objects on demand."""

    def __init__(
        self, client: Client, find: Callable[[str, str], Any], owners: OwnerReader, kinds: Collection[str]
    ) -> None:
        self._client, self._find, self._owners, self._kinds = client, find, owners, kinds

    async def count(self, reference: WorkloadReference, overdue: list[WaitingPod]) -> int:
        """Raises NotFound or Unsupported."""
        resource: ApiResource = await self._find(reference.api_version, reference.kind)
        where = reference.namespace if resource.namespaced else None
        workload = await self._client.get(resource, reference.name, namespace=where, into=PodController)
        check_supported(reference, self._kinds)
        if not overdue:
            return 0
        if is_deployment(reference):
            selection = ListOptions(namespace=reference.namespace)
            listed = await self._client.list(REPLICASETS, selection, into=PodController)
            return of_deployment(workload, listed.items, overdue)
        total = 0
        for pod in overdue:
            if await self._owners.leads_to(pod.controller, pod.key.namespace, _is(reference)):
                total += 1
        return total


def _is(reference: WorkloadReference) -> Callable[[OwnerReference], bool]:
    return lambda owner: is_of(owner, reference.api_version, reference.kind, reference.name)
