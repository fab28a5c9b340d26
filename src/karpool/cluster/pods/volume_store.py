"""Claims, volumes and storage classes, and which pods to update when one changes.

Only pods that mount a claim are stored, with only the fields that `model.volumes` reads. A pod whose claims
are all bound is affected by those claims and their volumes; any other pod by every volume and class. Volumes
count against the attach limits of nodes if some node limits their driver (`limited_drivers`).
"""

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

import msgspec

from karpool.model.kubernetes.meta import ObjectMeta
from karpool.model.kubernetes.pod import Pod, PodSpec
from karpool.model.kubernetes.volumes import (
    Alternatives,
    PersistentVolume,
    PersistentVolumeClaim,
    StorageClass,
    attached_volumes,
    class_name,
    exclusive_claims,
    volume_needs,
    volume_terms,
)
from karpool.model.resources import ATTACHED_VOLUMES


@dataclass(frozen=True, slots=True)
class PodVolume:
    """A claim that a pod mounts.

    `waits` says what must happen before the pod can be placed; `terms` where the volume can be used.
    """

    claim: str
    volume: str = ""
    storage_class: str | None = None
    is_bound: bool = False
    waits: str = ""
    terms: tuple[Alternatives, ...] = ()


class VolumeStore:
    def __init__(self) -> None:
        self.affected: set[str] = set()  # keys of pods whose terms may have changed
        self.affected_nodes: set[str] = set()  # nodes whose pods may use other volumes than before
        self.claims: dict[str, PersistentVolumeClaim] = {}
        self.volumes: dict[str, PersistentVolume] = {}
        self.classes: dict[str, StorageClass] = {}
        self.limited_drivers: frozenset[str] = frozenset()
        self._pods: dict[str, Pod] = {}
        self._users: defaultdict[str, set[str]] = defaultdict(set)  # claim to pods
        self._holders: defaultdict[str, set[str]] = defaultdict(set)  # volume to claims
        self._unsettled: set[str] = set()

    def put_pod(self, key: str, pod: Pod) -> bool:
        """Add a pod; return whether it mounts a claim, and so has terms."""
        if not pod.spec.volumes or not any(
            volume.persistent_volume_claim or volume.ephemeral is not None for volume in pod.spec.volumes
        ):
            self.remove_pod(key)
            return False
        slim = _slimmed(pod)
        if slim != self._pods.get(key):
            self.remove_pod(key)
            self._pods[key] = slim
            self.affected_nodes.add(slim.spec.node_name)
            for claim in _claim_keys(slim):
                self._users[claim].add(key)
            self._affect_rivals(slim, key)
        return True

    def terms(self, key: str) -> tuple[Alternatives, ...]:
        """Return the node terms of the pod's volumes. Raises Invalid for unreadable quantities."""
        pod = self._pods[key]
        self._unsettled.discard(key)
        if not all((claim := self.claims.get(name)) and claim.is_bound for name in _claim_keys(pod)):
            self._unsettled.add(key)
        terms = volume_terms(pod, self.claims, self.volumes, self.classes)
        return (*terms, ()) if self._is_locked_out(key, pod) else terms

    def attached(self, key: str) -> list[tuple[str, int]]:
        """Return by resource how many attachable volumes the pod uses."""
        if not self.limited_drivers:
            return []
        volumes = attached_volumes(self._pods[key], self.claims, self.volumes, self.classes)
        return [
            (f"{ATTACHED_VOLUMES}{driver}", number)
            for driver, number in volumes.items()
            if driver in self.limited_drivers
        ]

    def is_used(self, volume: str, node: str) -> bool:
        """Whether a pod on the node has a claim on the volume."""
        return any(
            self._pods[user].spec.node_name == node
            for claim in self._holders.get(volume, ())
            for user in self._users.get(claim, ())
        )

    def limit(self, drivers: frozenset[str]) -> None:
        """Set the drivers that some node limits."""
        if drivers != self.limited_drivers:
            self.limited_drivers = drivers
            self.affected |= self._pods.keys()

    def _is_locked_out(self, key: str, pod: Pod) -> bool:
        """Whether an unbound pod waits for a claim that allows one pod at a time and is in use."""
        if pod.spec.node_name:
            return False
        return any(
            self._pods[user].spec.node_name
            for claim in exclusive_claims(pod, self.claims)
            for user in self._users.get(claim, ())
            if user != key
        )

    def _affect_rivals(self, pod: Pod, key: str) -> None:
        for claim in exclusive_claims(pod, self.claims):
            self.affected |= self._users.get(claim, set()) - {key}

    def volumes_of(self, pod: Pod) -> list[PodVolume]:
        """Return the state of each claim of a pod. Raises Invalid for unreadable quantities."""
        mounted = _slimmed(pod)
        volumes: list[PodVolume] = []
        for volume, key in zip(mounted.spec.volumes or (), _claim_keys(mounted), strict=True):
            alone = msgspec.structs.replace(
                mounted, spec=msgspec.structs.replace(mounted.spec, volumes=[volume])
            )
            needs = volume_needs(alone, self.claims, self.volumes, self.classes)
            claim = self.claims.get(key)
            rivals = [
                f"{name} is used by pod {user}, and only one pod at a time may"
                for name in exclusive_claims(alone, self.claims)
                for user in sorted(self._users.get(name, ()))
                if user != pod.metadata.key and self._pods[user].spec.node_name and not pod.spec.node_name
            ]
            volumes.append(
                PodVolume(
                    key,
                    claim.spec.volume_name if claim is not None else "",
                    class_name(claim) if claim is not None else None,
                    claim is not None and claim.is_bound,
                    "; ".join((*needs.waits, *rivals)),
                    needs.terms,
                )
            )
        return volumes

    def remove_pod(self, key: str) -> None:
        pod = self._pods.pop(key, None)
        if pod is None:
            return
        self._unsettled.discard(key)
        self.affected.discard(key)
        self.affected_nodes.add(pod.spec.node_name)
        self._affect_rivals(pod, key)
        for claim in _claim_keys(pod):
            _discard(self._users, claim, key)

    def put_claim(self, claim: PersistentVolumeClaim) -> None:
        key = claim.metadata.key
        self._forget_holder(key)
        self.claims[key] = claim
        self._holders[claim.spec.volume_name].add(key)
        self._affect_claims((key,))

    def remove_claim(self, namespace: str, name: str) -> None:
        key = f"{namespace}/{name}"
        self._forget_holder(key)
        if self.claims.pop(key, None) is not None:
            self._affect_claims((key,))

    def put_volume(self, volume: PersistentVolume) -> None:
        self.volumes[volume.name] = volume
        self._affect_volume(volume.name)

    def remove_volume(self, name: str) -> None:
        if self.volumes.pop(name, None) is not None:
            self._affect_volume(name)

    def put_class(self, storage_class: StorageClass) -> None:
        self.classes[storage_class.name] = storage_class
        self.affected |= self._unsettled

    def remove_class(self, name: str) -> None:
        if self.classes.pop(name, None) is not None:
            self.affected |= self._unsettled

    def _forget_holder(self, claim: str) -> None:
        old = self.claims.get(claim)
        if old is not None:
            _discard(self._holders, old.spec.volume_name, claim)

    def _affect_volume(self, name: str) -> None:
        self._affect_claims(self._holders.get(name, ()))
        self.affected |= self._unsettled

    def _affect_claims(self, claims: Iterable[str]) -> None:
        for claim in claims:
            users = self._users.get(claim, set())
            self.affected |= users
            self.affected_nodes.update(self._pods[user].spec.node_name for user in users)


def _discard(index: dict[str, set[str]], key: str, value: str) -> None:
    if key in index:
        index[key].discard(value)
        if not index[key]:
            del index[key]


def _slimmed(pod: Pod) -> Pod:
    meta = pod.metadata
    return Pod(
        metadata=ObjectMeta(name=meta.name, namespace=meta.namespace, uid=meta.uid),
        spec=PodSpec(
            node_name=pod.spec.node_name,
            volumes=[
                volume
                for volume in pod.spec.volumes or ()
                if volume.persistent_volume_claim is not None or volume.ephemeral is not None
            ],
        ),
    )


def _claim_keys(pod: Pod) -> list[str]:
    """Return the names of the claims; the claim of an ephemeral volume is named after pod and volume."""
    names = (
        f"{pod.name}-{volume.name}"
        if volume.persistent_volume_claim is None
        else volume.persistent_volume_claim.claim_name
        for volume in pod.spec.volumes or ()
    )
    return [f"{pod.metadata.namespace}/{name}" for name in names]
