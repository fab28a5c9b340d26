"""Pod shapes by number.

Thousands of pods share a few shapes, so pods are stored and counted by shape number. A table only grows: a
number keeps its meaning for the lifetime of the table. `ClusterState` starts a new table when most of one is
unused.
"""

from collections.abc import Callable, Hashable

import msgspec
import numpy as np

from karpool.model.devices.pod_requests import device_annotations
from karpool.model.kubernetes.meta import condition
from karpool.model.kubernetes.pod import ContainerStatus, Pod
from karpool.model.kubernetes.pod_shape import PodShape, shape_of
from karpool.packing.tables.columns import Bools, read_only

_MEMO_LIMIT = 512
_TEMPLATE_LIMIT = 16_384
_ENCODER = msgspec.msgpack.Encoder()


class ShapeTable:
    def __init__(self) -> None:
        self._shapes: list[PodShape] = []
        self._ids: dict[PodShape, int] = {}
        self._memo: dict[Hashable, Bools] = {}
        self._templates: dict[bytes, int] = {}

    def __len__(self) -> int:
        return len(self._shapes)

    def __getitem__(self, shape_id: int) -> PodShape:
        return self._shapes[shape_id]

    def intern(self, shape: PodShape) -> int:
        shape_id = self._ids.get(shape)
        if shape_id is None:
            shape_id = self._ids[shape] = len(self._shapes)
            self._shapes.append(shape)
        return shape_id

    def intern_pod(self, pod: Pod, check: Callable[[Pod], None]) -> int:
        """Return the number of `shape_of(pod)`. Raises Invalid.

        Pods of one template are compiled and checked once; for the others this takes a tenth of the time.
        """
        template = _template(pod)
        shape_id = self._templates.get(template)
        if shape_id is None:
            shape = shape_of(pod)
            check(pod)
            if len(self._templates) >= _TEMPLATE_LIMIT:
                self._templates.clear()
            shape_id = self._templates[template] = self.intern(shape)
        return shape_id

    def where(self, key: Hashable, test: Callable[[PodShape], bool]) -> Bools:
        """Return the result of `test` for every shape, by number.

        `key` identifies the test: the result is cached under it, and only newer shapes are tested again.
        """
        mask = self._memo.get(key)
        size = len(self._shapes)
        if mask is not None and len(mask) == size:
            return mask
        start = 0 if mask is None else len(mask)
        answer = np.empty(size, dtype=np.bool_)
        if mask is not None:
            answer[:start] = mask
        answer[start:] = [test(shape) for shape in self._shapes[start:]]
        if mask is None and len(self._memo) >= _MEMO_LIMIT:
            del self._memo[next(iter(self._memo))]
        self._memo[key] = read_only(answer)
        return answer


def _template(pod: Pod) -> bytes:
    """Return everything that `shape_of` may read, as a key.

    That is the whole spec without the node name and the mounts, the resize status, and the annotations that
    ask for devices. Other annotations differ from pod to pod and would make every pod a template of its own.
    """
    spec, status = msgspec.structs.replace(pod.spec, node_name="", volumes=None), pod.status
    resized = (
        _resized(status.container_statuses),
        _resized(status.init_container_statuses),
        pending.reason if (pending := condition(status.conditions, "PodResizePending")) else None,
    )
    asked = device_annotations(annotations) if (annotations := pod.metadata.annotations) else None
    return _ENCODER.encode((spec, pod.metadata.labels, pod.metadata.namespace, resized, asked))


def _resized(statuses: list[ContainerStatus] | None) -> list[tuple[str, object, object]]:
    return [
        (status.name, status.allocated_resources, status.resources)
        for status in statuses or ()
        if status.resources is not None or status.allocated_resources is not None
    ]
