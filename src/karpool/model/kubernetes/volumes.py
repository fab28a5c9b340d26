"""Where the volumes of a pod let it run.

A bound volume has a node affinity and zone labels; a claim that waits for its first consumer has the
topologies of its class, or of the volumes it could bind. A claim that cannot be used yet makes the pod wait,
with a reason.

The attach limits of a node are in its CSINode (`attach_limits`), by driver; `attached_volumes` is what a pod
uses of them. ReadWriteOncePod depends on other pods: callers that know them use `exclusive_claims`.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from karpool.model import resources
from karpool.model.errors import Invalid
from karpool.model.kubernetes.meta import LabelSelector, Wire, WireObject, decode
from karpool.model.kubernetes.node import REGION, ZONE
from karpool.model.kubernetes.pod import Pod, QuantityMap, ResourceRequirements, Volume
from karpool.model.requirements import NodeSelector, NodeTerm, ValueSet, node_terms_of

BIND_COMPLETED = "pv.kubernetes.io/bind-completed"
SELECTED_NODE = "volume.kubernetes.io/selected-node"
READ_WRITE_ONCE_POD = "ReadWriteOncePod"
NO_PROVISIONER = "kubernetes.io/no-provisioner"
WAIT_FOR_FIRST_CONSUMER = "WaitForFirstConsumer"
_CLASS_ANNOTATION = "volume.beta.kubernetes.io/storage-class"
_DEFAULT_CLASS = "storageclass.kubernetes.io/is-default-class"
_OLD_ZONE = "failure-domain.beta.kubernetes.io/zone"
_OLD_REGION = "failure-domain.beta.kubernetes.io/region"
# In-tree volumes are attached by CSI drivers, too (Kubernetes' CSI migration).
_DRIVER_OF_SOURCE = {
    "aws_elastic_block_store": "ebs.csi.aws.com",
    "azure_disk": "disk.csi.azure.com",
    "azure_file": "file.csi.azure.com",
    "cinder": "cinder.csi.openstack.org",
    "gce_persistent_disk": "pd.csi.storage.gke.io",
    "portworx_volume": "pxd.portworx.com",
    "vsphere_volume": "csi.vsphere.vmware.com",
}
_DRIVER_OF_PROVISIONER = {
    "kubernetes.io/aws-ebs": "ebs.csi.aws.com",
    "kubernetes.io/azure-disk": "disk.csi.azure.com",
    "kubernetes.io/azure-file": "file.csi.azure.com",
    "kubernetes.io/cinder": "cinder.csi.openstack.org",
    "kubernetes.io/gce-pd": "pd.csi.storage.gke.io",
    "kubernetes.io/portworx-volume": "pxd.portworx.com",
    "kubernetes.io/vsphere-volume": "csi.vsphere.vmware.com",
}
_ZONE_LABELS = {_OLD_ZONE: ZONE, _OLD_REGION: REGION, ZONE: ZONE, REGION: REGION}


class VolumeClaimRef(Wire, frozen=True):
    namespace: str = ""
    name: str = ""
    uid: str = ""


class VolumeNodeAffinity(Wire, frozen=True):
    required: NodeSelector | None = None


class CsiSource(Wire, frozen=True):
    driver: str = ""
    volume_handle: str = ""


class InTreeSource(Wire, frozen=True):
    """An in-tree volume source; its presence says which driver attaches the volume."""


class PersistentVolumeSpec(Wire, frozen=True):
    capacity: QuantityMap | None = None
    access_modes: list[str] | None = None
    claim_ref: VolumeClaimRef | None = None
    storage_class_name: str = ""
    volume_mode: str = "Filesystem"
    node_affinity: VolumeNodeAffinity | None = None
    csi: CsiSource | None = None
    aws_elastic_block_store: InTreeSource | None = None
    azure_disk: InTreeSource | None = None
    azure_file: InTreeSource | None = None
    cinder: InTreeSource | None = None
    gce_persistent_disk: InTreeSource | None = None
    portworx_volume: InTreeSource | None = None
    vsphere_volume: InTreeSource | None = None


class PhaseStatus(Wire, frozen=True):
    phase: str = ""


class PersistentVolume(WireObject, frozen=True):
    spec: PersistentVolumeSpec = PersistentVolumeSpec()
    status: PhaseStatus = PhaseStatus()


class PersistentVolumeClaimSpec(Wire, frozen=True):
    access_modes: list[str] | None = None
    resources: ResourceRequirements | None = None
    storage_class_name: str | None = None  # None: the default class; empty: no class
    volume_name: str = ""
    volume_mode: str = "Filesystem"
    selector: LabelSelector | None = None


class PersistentVolumeClaim(WireObject, frozen=True):
    spec: PersistentVolumeClaimSpec = PersistentVolumeClaimSpec()
    status: PhaseStatus = PhaseStatus()

    @property
    def is_bound(self) -> bool:
        completed = BIND_COMPLETED in self.annotations or self.status.phase == "Bound"
        return bool(self.spec.volume_name) and completed


class TopologyExpression(Wire, frozen=True):
    key: str = ""
    values: list[str] | None = None


class TopologyTerm(Wire, frozen=True):
    match_label_expressions: list[TopologyExpression] | None = None


class StorageClass(WireObject, frozen=True):
    provisioner: str = ""
    volume_binding_mode: str = "Immediate"
    allowed_topologies: list[TopologyTerm] | None = None

    @property
    def is_default(self) -> bool:
        return self.annotations.get(_DEFAULT_CLASS) == "true"


class VolumeNodeResources(Wire, frozen=True):
    count: int | None = None


class CsiNodeDriver(Wire, frozen=True):
    name: str = ""
    allocatable: VolumeNodeResources | None = None


class CsiNodeSpec(Wire, frozen=True):
    drivers: list[CsiNodeDriver] | None = None


class CsiNode(WireObject, frozen=True):
    spec: CsiNodeSpec = CsiNodeSpec()


class VolumeAttachmentSource(Wire, frozen=True):
    persistent_volume_name: str | None = None


class VolumeAttachmentSpec(Wire, frozen=True):
    attacher: str = ""
    node_name: str = ""
    source: VolumeAttachmentSource = VolumeAttachmentSource()


class VolumeAttachment(WireObject, frozen=True):
    """A volume that a driver attaches to a node, has attached, or has yet to detach."""

    spec: VolumeAttachmentSpec = VolumeAttachmentSpec()


def attach_limits(csi_node: CsiNode) -> dict[str, int]:
    """Return by driver how many volumes may be attached to the node.

    A driver without a value has no limit; a negative value is 0, as in kube-scheduler.
    """
    return {
        driver.name: max(driver.allocatable.count, 0)
        for driver in csi_node.spec.drivers or ()
        if driver.allocatable is not None and driver.allocatable.count is not None
    }


Alternatives = tuple[NodeTerm, ...]


@dataclass(frozen=True, slots=True)
class VolumeNeeds:
    """Where the volumes can be used; nowhere while `waits` is not empty."""

    terms: tuple[Alternatives, ...] = ()
    waits: tuple[str, ...] = ()


def volume_terms(
    pod: Pod,
    claims: Mapping[str, PersistentVolumeClaim],
    volumes: Mapping[str, PersistentVolume],
    classes: Mapping[str, StorageClass],
) -> tuple[Alternatives, ...]:
    """Return the terms for `PodShape.with_volumes`; a waiting pod has an entry that no node satisfies."""
    needs = volume_needs(pod, claims, volumes, classes)
    return (*needs.terms, ()) if needs.waits else needs.terms


def volume_needs(
    pod: Pod,
    claims: Mapping[str, PersistentVolumeClaim],
    volumes: Mapping[str, PersistentVolume],
    classes: Mapping[str, StorageClass],
) -> VolumeNeeds:
    """Return the needs of a pod. Claims are keyed by `namespace/name`. Raises Invalid for bad quantities."""
    terms: list[Alternatives] = []
    waits: list[str] = []
    for volume in pod.spec.volumes or ():
        try:
            claim = _claim(pod, volume, claims)
            if claim is not None:
                terms += _claim_terms(claim, volumes, classes)
        except _Waits as reason:
            waits.append(str(reason))
    return VolumeNeeds(tuple(terms), tuple(waits))


def attached_volumes(
    pod: Pod,
    claims: Mapping[str, PersistentVolumeClaim],
    volumes: Mapping[str, PersistentVolume],
    classes: Mapping[str, StorageClass],
) -> dict[str, int]:
    """Return by CSI driver the volumes that must be attached to the node of the pod.

    A volume that two pods of a node share is counted twice: the room is rather too small than too large.
    """
    limits: dict[str, int] = {}
    seen: set[str] = set()
    for volume in pod.spec.volumes or ():
        try:
            claim = _claim(pod, volume, claims)
            driver = _driver(claim, volumes, classes) if claim is not None else ""
        except _Waits:
            continue
        name = claim.metadata.key or volume.name if claim is not None else ""
        if driver and name not in seen:
            seen.add(name)
            limits[driver] = limits.get(driver, 0) + 1
    return limits


def _driver(
    claim: PersistentVolumeClaim,
    volumes: Mapping[str, PersistentVolume],
    classes: Mapping[str, StorageClass],
) -> str:
    volume = volumes.get(claim.spec.volume_name) if claim.spec.volume_name else None
    if volume is not None:
        if volume.spec.csi is not None:
            return volume.spec.csi.driver
        sources = _DRIVER_OF_SOURCE.items()
        return next((driver for source, driver in sources if getattr(volume.spec, source) is not None), "")
    chosen = _class_of(claim, claim.metadata.key, classes)
    if chosen is None or chosen.provisioner == NO_PROVISIONER:
        return ""
    return _DRIVER_OF_PROVISIONER.get(chosen.provisioner, chosen.provisioner)


def exclusive_claims(pod: Pod, claims: Mapping[str, PersistentVolumeClaim]) -> list[str]:
    """Return the keys of its claims that allow one pod at a time."""
    keys = (
        f"{pod.metadata.namespace}/{volume.persistent_volume_claim.claim_name}"
        for volume in pod.spec.volumes or ()
        if volume.persistent_volume_claim is not None
    )
    return [
        key for key in keys if key in claims and READ_WRITE_ONCE_POD in (claims[key].spec.access_modes or ())
    ]


class _Waits(Exception):
    """The pod cannot be placed until something happens to one of its claims."""


def _claim(
    pod: Pod, volume: Volume, claims: Mapping[str, PersistentVolumeClaim]
) -> PersistentVolumeClaim | None:
    if volume.persistent_volume_claim is not None:
        key = f"{pod.metadata.namespace}/{volume.persistent_volume_claim.claim_name}"
        if key not in claims:
            raise _Waits(f"PersistentVolumeClaim {key} does not exist")
        return claims[key]
    if volume.ephemeral is None:
        return None
    key = f"{pod.metadata.namespace}/{pod.name}-{volume.name}"
    if key in claims and not pod.spec.node_name:
        _check_owner(pod, claims[key], key)
        return claims[key]
    # An ephemeral claim is deleted with its pod: on its next node the pod gets a new one.
    template = volume.ephemeral.get("volumeClaimTemplate")
    spec = template.get("spec") if isinstance(template, dict) else None
    return PersistentVolumeClaim(spec=decode(spec or {}, PersistentVolumeClaimSpec))


def _check_owner(pod: Pod, claim: PersistentVolumeClaim, key: str) -> None:
    owners = claim.metadata.owner_references or ()
    if pod.metadata.uid and not any(owner.uid == pod.metadata.uid for owner in owners):
        raise _Waits(f"PersistentVolumeClaim {key} was not created for this pod; delete or rename it")


def _claim_terms(
    claim: PersistentVolumeClaim,
    volumes: Mapping[str, PersistentVolume],
    classes: Mapping[str, StorageClass],
) -> list[Alternatives]:
    name = claim.metadata.key or "of an ephemeral volume"
    if claim.metadata.deletion_timestamp is not None:
        raise _Waits(f"PersistentVolumeClaim {name} is being deleted")
    if claim.status.phase == "Lost":
        raise _Waits(f"PersistentVolumeClaim {name} has lost its volume {claim.spec.volume_name}")
    if claim.is_bound:
        volume = volumes.get(claim.spec.volume_name)
        if volume is None:
            raise _Waits(f"PersistentVolume {claim.spec.volume_name} does not exist")
        return _bound_terms(volume)
    chosen = _class_of(claim, name, classes)
    if claim.spec.volume_name or chosen is None or chosen.volume_binding_mode != WAIT_FOR_FIRST_CONSUMER:
        raise _Waits(f"PersistentVolumeClaim {name} is not bound yet")
    return _unbound_terms(claim, name, chosen, volumes.values())


def class_name(claim: PersistentVolumeClaim) -> str | None:
    """Return the storage class of a claim: None for the default one, empty for none."""
    return claim.annotations.get(_CLASS_ANNOTATION, claim.spec.storage_class_name)


def _class_of(
    claim: PersistentVolumeClaim, name: str, classes: Mapping[str, StorageClass]
) -> StorageClass | None:
    """Return the class; None if the claim has none, or asks for a default that does not exist."""
    class_asked = class_name(claim)
    if class_asked is None:
        return next(
            (storage_class for _, storage_class in sorted(classes.items()) if storage_class.is_default), None
        )
    if class_asked and class_asked not in classes:
        raise _Waits(f"PersistentVolumeClaim {name} wants StorageClass {class_asked}, which does not exist")
    return classes.get(class_asked)


def _bound_terms(volume: PersistentVolume) -> list[Alternatives]:
    affinity = node_terms_of(volume.spec.node_affinity.required) if volume.spec.node_affinity else None
    terms = [] if affinity is None else [affinity]
    for key, current in _ZONE_LABELS.items():
        if key in volume.labels:
            # Several zones of one volume are joined with two underscores.
            zones = ValueSet(frozenset(volume.labels[key].split("__")))
            keys = dict.fromkeys((key, current))
            terms.append((*(NodeTerm(((key, zones),)) for key in keys), _WITHOUT_ZONES))
    return terms


# A node without a zone label is assumed to be in the only zone.
_WITHOUT_ZONES = NodeTerm(tuple((key, ValueSet()) for key in _ZONE_LABELS))


def _unbound_terms(
    claim: PersistentVolumeClaim, name: str, chosen: StorageClass, volumes: Iterable[PersistentVolume]
) -> list[Alternatives]:
    terms: list[Alternatives] = []
    if SELECTED_NODE in claim.annotations:
        node = ValueSet(frozenset((claim.annotations[SELECTED_NODE],)))
        terms.append((NodeTerm(fields=(("metadata.name", node),)),))
    places: list[NodeTerm] = []
    for volume in volumes:
        if could_bind(claim, chosen, volume):
            bound = _bound_terms(volume)
            if not bound:
                return terms
            places += _product(bound)
    if chosen.provisioner == NO_PROVISIONER:
        if not places:
            raise _Waits(f"PersistentVolumeClaim {name} finds no free volume of StorageClass {chosen.name}")
    elif not chosen.allowed_topologies:
        return terms
    places += (_topology_term(term) for term in chosen.allowed_topologies or ())
    return [*terms, tuple(places)]


def _topology_term(term: TopologyTerm) -> NodeTerm:
    return NodeTerm(
        tuple(
            (expression.key, ValueSet(frozenset(expression.values or ())))
            for expression in term.match_label_expressions or ()
        )
    )


def _product(entries: list[Alternatives]) -> list[NodeTerm]:
    """Return the entries that must all hold as one list of alternatives."""
    joined = [NodeTerm()]
    for entry in entries:
        joined = [
            NodeTerm(left.labels + right.labels, left.fields + right.fields)
            for left in joined
            for right in entry
        ]
    return joined


def could_bind(claim: PersistentVolumeClaim, chosen: StorageClass, volume: PersistentVolume) -> bool:
    """Whether a volume suits a claim, wherever it is. Raises Invalid for unreadable quantities."""
    spec, holder = volume.spec, volume.spec.claim_ref
    if volume.metadata.deletion_timestamp is not None or spec.storage_class_name != chosen.name:
        return False
    if holder is not None and f"{holder.namespace}/{holder.name}" != claim.metadata.key:
        return False
    if spec.volume_mode != claim.spec.volume_mode:
        return False
    if not set(claim.spec.access_modes or ()) <= set(spec.access_modes or ()):
        return False
    if claim.spec.selector is not None and not claim.spec.selector.compile().matches(volume.labels):
        return False
    requests = claim.spec.resources.requests if claim.spec.resources else None
    return _storage(spec.capacity, volume.name) >= _storage(requests, claim.metadata.key)


def _storage(raw: QuantityMap | None, owner: str) -> int:
    try:
        return resources.parse_all(raw).get("storage", 0)
    except Invalid as error:
        raise error.at(owner) from None
