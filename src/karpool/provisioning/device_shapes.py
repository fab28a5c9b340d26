"""Reads from a file what drivers publish on new nodes: ResourceSlices, labelled with an instance type."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from karpool.kube.bounded_input import read_bounded
from karpool.model.dra.device import DeviceSlice
from karpool.model.dra.objects import slice_of
from karpool.model.dra.wire import ResourceSlice
from karpool.model.errors import Invalid
from karpool.model.kubernetes.meta import decode
from karpool.model.kubernetes.node import INSTANCE_TYPE
from karpool.model.safe_yaml import SIZE_LIMIT, UnusableYaml, load_documents

_FLAG = "--device-shapes"
DeviceShapes = Mapping[str, Sequence[DeviceSlice]]  # by instance type


def device_shapes_of(path: Path | None) -> DeviceShapes:
    """Read the slices; empty without a file. Raises Invalid, which names the file and the slice."""
    if path is None:
        return {}
    shapes: dict[str, list[DeviceSlice]] = {}
    try:
        documents = list(load_documents(read_bounded(path, SIZE_LIMIT)))
    except OSError as error:
        raise Invalid(_FLAG, str(path), f"cannot be read: {error.strerror or error}") from None
    except (Invalid, UnusableYaml) as error:
        raise Invalid(_FLAG, str(path), str(error)) from None
    for number, document in enumerate(documents, 1):
        try:
            resource_slice = decode(document, ResourceSlice)
            instance_type = resource_slice.labels.get(INSTANCE_TYPE, "")
            if not instance_type:
                raise Invalid("metadata.labels", "", f"needs {INSTANCE_TYPE}: the type that the slice is for")
            shapes.setdefault(instance_type, []).append(slice_of(resource_slice))
        except Invalid as error:
            raise Invalid(_FLAG, str(path), f"slice {number}: {error}") from None
    return shapes
