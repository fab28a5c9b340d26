"""Columns of volumes, storage classes and devices."""

from typing import Any

from karpool_fleet.apiserver.objects.types import Object
from karpool_fleet.apiserver.printing.cell_text import NONE, age_of, joined, shown
from karpool_fleet.apiserver.printing.printer import Cell, Printer, columns, spec_of, status_of

_MODES = {
    "ReadWriteOnce": "RWO",
    "ReadOnlyMany": "ROX",
    "ReadWriteMany": "RWX",
    "ReadWriteOncePod": "RWOP",
}


def _modes(values: Any) -> str:
    return ",".join(_MODES.get(value, value) for value in values or ())


def _volume(obj: Object, now: float) -> list[Cell]:
    spec, status = spec_of(obj), status_of(obj)
    claim = spec.get("claimRef") or {}
    terminating = obj["metadata"].get("deletionTimestamp")
    return [
        (spec.get("capacity") or {}).get("storage") or "",
        _modes(spec.get("accessModes")),
        spec.get("persistentVolumeReclaimPolicy") or "",
        "Terminating" if terminating else status.get("phase") or "",
        f"{claim.get('namespace')}/{claim.get('name')}" if claim else "",
        spec.get("storageClassName") or "",
        shown(spec.get("volumeAttributesClassName")).replace(NONE, "<unset>"),
        status.get("reason") or "",
        age_of(obj, now),
        spec.get("volumeMode") or "Filesystem",
    ]


def _claim(obj: Object, now: float) -> list[Cell]:
    spec, status = spec_of(obj), status_of(obj)
    bound = bool(spec.get("volumeName"))
    terminating = obj["metadata"].get("deletionTimestamp")
    return [
        "Terminating" if terminating else status.get("phase") or "",
        spec.get("volumeName") or "",
        (status.get("capacity") or {}).get("storage", "") if bound else "",
        _modes(status.get("accessModes")) if bound else "",
        spec.get("storageClassName") or "",
        shown(spec.get("volumeAttributesClassName")).replace(NONE, "<unset>"),
        age_of(obj, now),
        spec.get("volumeMode") or "Filesystem",
    ]


def _storage_class(obj: Object, now: float) -> list[Cell]:
    return [
        obj.get("provisioner") or "",
        obj.get("reclaimPolicy") or "Delete",
        obj.get("volumeBindingMode") or "Immediate",
        bool(obj.get("allowVolumeExpansion")),
        age_of(obj, now),
    ]


def _attachment(obj: Object, now: float) -> list[Cell]:
    spec = spec_of(obj)
    source = spec.get("source") or {}
    return [
        spec.get("attacher") or "",
        source.get("persistentVolumeName") or "",
        spec.get("nodeName") or "",
        bool(status_of(obj).get("attached")),
        age_of(obj, now),
    ]


def _slice(obj: Object, now: float) -> list[Cell]:
    spec = spec_of(obj)
    return [
        shown(spec.get("nodeName")),
        spec.get("driver") or "",
        (spec.get("pool") or {}).get("name") or "",
        age_of(obj, now),
    ]


def _device_claim(obj: Object, now: float) -> list[Cell]:
    status, states = status_of(obj), []
    if obj["metadata"].get("deletionTimestamp"):
        states.append("deleted")
    if status.get("allocation") is None:
        states.append("pending")
    else:
        states.append("allocated")
        if status.get("reservedFor"):
            states.append("reserved")
    return [",".join(states), age_of(obj, now)]


STORAGE: dict[tuple[str, str], Printer] = {
    ("", "PersistentVolume"): Printer(
        columns(
            "Capacity,Access Modes,Reclaim Policy,Status,Claim,StorageClass,"
            "VolumeAttributesClass,Reason,Age,VolumeMode*"
        ),
        _volume,
    ),
    ("", "PersistentVolumeClaim"): Printer(
        columns("Status,Volume,Capacity,Access Modes,StorageClass,VolumeAttributesClass,Age,VolumeMode*"),
        _claim,
    ),
    ("storage.k8s.io", "StorageClass"): Printer(
        columns("Provisioner,ReclaimPolicy,VolumeBindingMode,AllowVolumeExpansion,Age"), _storage_class
    ),
    ("storage.k8s.io", "VolumeAttachment"): Printer(columns("Attacher,PV,Node,Attached,Age"), _attachment),
    ("resource.k8s.io", "ResourceSlice"): Printer(columns("Node,Driver,Pool,Age"), _slice),
    ("resource.k8s.io", "ResourceClaim"): Printer(columns("State,Age"), _device_claim),
    ("storage.k8s.io", "CSINode"): Printer(
        columns("Drivers,Age", "Drivers"),
        lambda obj, now: [len(spec_of(obj).get("drivers") or ()), age_of(obj, now)],
    ),
    ("storage.k8s.io", "CSIDriver"): Printer(
        columns("AttachRequired,PodInfoOnMount,StorageCapacity,Modes,Age"),
        lambda obj, now: [
            bool(spec_of(obj).get("attachRequired")),
            bool(spec_of(obj).get("podInfoOnMount")),
            bool(spec_of(obj).get("storageCapacity")),
            joined(spec_of(obj).get("volumeLifecycleModes")),
            age_of(obj, now),
        ],
    ),
}
