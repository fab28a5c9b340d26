"""CapacityBuffers and their templates: virtual pods for which room is reserved.

A buffer that cannot be read, or whose pods are unknown, may need any room where pods of its namespace run: it
is `unclear`. So is a buffer that names a missing template or workload, unless its controller has said in the
status that it reserves no room for it.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from karpool.model.errors import Invalid
from karpool.model.kubernetes.api_resources import ObjectKey
from karpool.model.kubernetes.capacity_buffer import CapacityBuffer, buffer_pods, check_buffer
from karpool.model.kubernetes.pod_shape import PodShape, shape_of
from karpool.model.kubernetes.workload import pod_template

PRIORITY = -(2**31)  # every real pod has precedence
_SCALABLE = frozenset(("Deployment", "ReplicaSet", "StatefulSet"))


@dataclass(frozen=True, slots=True)
class BufferTemplate:
    """The shape and the replicas of a template or workload; `problem` says why it cannot be read."""

    shape: PodShape | None
    replicas: int = 0
    problem: str = ""


class BufferStore:
    def __init__(self) -> None:
        self._buffers: dict[tuple[str, ObjectKey], CapacityBuffer] = {}  # by watched version
        self._unreadable: dict[tuple[str, ObjectKey], str] = {}
        self._templates: dict[tuple[str, ObjectKey], BufferTemplate] = {}
        self._latest: BufferPods | None = None

    def put(self, version: str, key: ObjectKey, buffer: CapacityBuffer) -> None:
        self._latest = None
        self._unreadable.pop((version, key), None)
        self._buffers[version, key] = buffer

    def unreadable(self, version: str, key: ObjectKey, why: str) -> None:
        self._latest = None
        self._unreadable[version, key] = why

    def drop(self, version: str, key: ObjectKey) -> None:
        self._latest = None
        self._buffers.pop((version, key), None)
        self._unreadable.pop((version, key), None)

    def put_template(self, kind: str, key: ObjectKey, raw: Mapping[str, object]) -> None:
        """Add a PodTemplate or a workload. Its volumes are ignored, because a buffer has none."""
        template = self._templates.get((kind, key))
        try:
            whole = {**raw, "kind": kind}
            if kind == "PodTemplate":
                whole["spec"] = {"template": raw.get("template")}
            pod, replicas = pod_template(whole)
            if kind == "ReplicaSet" and replicas == 0:
                self.drop_template(kind, key)  # many are old revisions of Deployments
                return
            shape = replace(shape_of(pod), priority=PRIORITY)
            fresh = BufferTemplate(shape, replicas)
        except Invalid as error:
            fresh = BufferTemplate(None, problem=str(error))
        if fresh != template:
            self._templates[kind, key] = fresh
            self._latest = None

    def drop_template(self, kind: str, key: ObjectKey) -> None:
        if self._templates.pop((kind, key), None) is not None:
            self._latest = None

    def pods(self) -> "BufferPods":
        """Return the virtual pods; the same object until something changes."""
        if self._latest is None:
            self._latest = self._worked_out()
        return self._latest

    def _worked_out(self) -> "BufferPods":
        shapes: dict[str, PodShape] = {}
        buffer_of: dict[str, str] = {}
        problems: list[str] = []
        unclear: list[UnclearBuffer] = []
        # The same buffer is seen in every watched version.
        for key in sorted({key for _, key in (*self._buffers, *self._unreadable)}):
            name = f"CapacityBuffer {key}"
            try:
                virtual = list(self._virtual(key))
            except _NoTemplate as error:
                problems.append(f"{name}: {error}")
                continue
            except Invalid as error:
                why = str(error) if error.path else error.reason
                unclear.append(UnclearBuffer(key.namespace, f"{name}: {why}"))
                continue
            for number, shape in enumerate(virtual):
                # A name that no pod can have.
                pod = f"{key}#{number}"
                shapes[pod], buffer_of[pod] = shape, str(key)
        return BufferPods(shapes, buffer_of, tuple(problems), tuple(unclear))

    def _virtual(self, key: ObjectKey) -> Iterator[PodShape]:
        """Yield the pods of a buffer.

        Raises Invalid, or _NoTemplate if its controller does not find a template either.
        """
        for (_, other), why in self._unreadable.items():
            if other == key:
                raise Invalid("", "", why)
        for (_, other), buffer in self._buffers.items():
            if other != key:
                continue
            if not buffer.keeps_room:
                return
            template = self._template(key.namespace, buffer)
            assert template.shape is not None
            number = buffer_pods(buffer, dict(template.shape.requests), template.replicas)
            yield from (template.shape for _ in range(number))
            return

    def _template(self, namespace: str, buffer: CapacityBuffer) -> BufferTemplate:
        check_buffer(buffer)
        spec, resolved = buffer.spec, buffer.status.pod_template_ref
        kind, name = "PodTemplate", spec.pod_template_ref.name if spec.pod_template_ref else ""
        if spec.scalable_ref is not None:
            kind, name = spec.scalable_ref.kind, spec.scalable_ref.name
            if kind not in _SCALABLE and resolved is not None:
                kind, name = "PodTemplate", resolved.name
            elif kind not in _SCALABLE:
                read = ", ".join(sorted(_SCALABLE))
                why = f"is none of {read}, and status.podTemplateRef names no template"
                raise Invalid("spec.scalableRef.kind", kind, why)
        template = self._templates.get((kind, ObjectKey(namespace, name)))
        if template is None:
            missing = f"{kind} {namespace}/{name} does not exist"
            missing += ", or has no replicas" if kind == "ReplicaSet" else ""
            if buffer.is_refused:
                raise _NoTemplate(f"{missing}; its controller reserves nothing for it")
            field = "spec.podTemplateRef.name" if spec.pod_template_ref else "spec.scalableRef.name"
            raise Invalid(field, name, f"{missing}; create it, or delete the buffer")
        if template.shape is None:
            raise Invalid("", "", f"{kind} {namespace}/{name}: {template.problem}")
        return template


class _NoTemplate(Exception):
    pass


@dataclass(frozen=True, slots=True)
class UnclearBuffer:
    namespace: str
    problem: str


@dataclass(frozen=True, slots=True)
class BufferPods:
    """The virtual pods of buffers, by name. `unclear` are buffers whose pods are unknown."""

    shapes: Mapping[str, PodShape]
    buffer_of: Mapping[str, str]
    problems: tuple[str, ...] = ()
    unclear: tuple[UnclearBuffer, ...] = ()
