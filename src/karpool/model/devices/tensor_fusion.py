"""Reads the annotations of TensorFusion into a request.

An unreadable value counts as zero, as upstream, and is reported: a request with problems is not allocated,
and its author is told.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from karpool.model import durations, quantity
from karpool.model.devices.amounts import DeviceShare
from karpool.model.devices.device import PREFIX
from karpool.model.devices.device_reasons import DeviceReason
from karpool.model.devices.isolation import MODES, PARTITIONED, SHARED, SOFT
from karpool.model.devices.request import COUNT_MAX, Gang, GpuRequest
from karpool.model.errors import Invalid

POOL = PREFIX + "gpupool"
WORKLOAD_LABEL = PREFIX + "workload"
COMPONENT_LABEL, WORKER = PREFIX + "component", "worker"
GPU_IDS = PREFIX + "gpu-ids"
PARTITION = PREFIX + "partition"  # the template by which its device plugin partitions a device
VRAM_REQUEST = PREFIX + "vram-request"
# What a pod says about its devices; gangs and QoS are about when, not about what.
REQUEST_ANNOTATIONS = tuple(
    PREFIX + key
    for key in (
        "gpupool",
        "tflops-request",
        "vram-request",
        "compute-percent-request",
        "tflops-limit",
        "vram-limit",
        "compute-percent-limit",
        "gpu-count",
        "gpu-indices",
        "gpu-model",
        "vendor",
        "isolation",
        "partition-id",
        "qos",
    )
)
_AMOUNTS = tuple(PREFIX + key for key in ("tflops-request", "vram-request", "compute-percent-request"))
_ASKING = (
    *_AMOUNTS,
    *(PREFIX + key for key in ("gpu-count", "gpu-indices", "isolation", "partition-id")),
)
QOS = ("low", "medium", "high", "critical")
_INDEX_MAX = 2**31 - 1
_TEXT_MAX = 4096
_MEMBERS_MIN = 2

Annotations = Mapping[str, str]


@dataclass(frozen=True, slots=True)
class AnnotationProblem:
    """The problem of one annotation, and its code."""

    code: DeviceReason
    cause: Invalid

    def __str__(self) -> str:
        return str(self.cause)


class BadGpuRequest(Exception):
    """A pod whose GPU request cannot be read."""

    def __init__(self, name: str, problems: tuple[AnnotationProblem, ...]) -> None:
        self.problems = problems
        self.code = problems[0].code
        super().__init__(f"{name}: " + "; ".join(str(problem) for problem in problems))


def is_worker(annotations: Annotations) -> bool:
    """Whether the annotations request devices. A pool alone does not: it says where, in any dialect."""
    return any(key in annotations for key in _ASKING)


def sets_amounts(annotations: Annotations) -> bool:
    """Whether they set amounts of a device; a count or an index beside another dialect does not."""
    mode = annotations.get(PREFIX + "isolation", "").strip()
    return mode in (SHARED, PARTITIONED) or any(key in annotations for key in _AMOUNTS)


def of_worker(annotations: Annotations, labels: Annotations) -> Annotations:
    """Return the annotations, without the requests of a pod that is not a worker.

    A client has the annotations of the worker that is created for it, and the worker uses the device.
    """
    if not annotations or labels.get(COMPONENT_LABEL, WORKER) == WORKER:
        return annotations
    return {key: text for key, text in annotations.items() if key not in REQUEST_ANNOTATIONS}


def read_request(
    annotations: Annotations, *, uid: str = "", namespace: str = "", name: str = "", workload: str = ""
) -> tuple[GpuRequest, tuple[AnnotationProblem, ...]]:
    reading = _Reading(annotations)
    mode = reading.choice("isolation", MODES, SOFT)
    request = GpuRequest(
        uid=uid,
        namespace=namespace,
        name=name,
        workload=workload,
        pool=reading.text("gpupool"),
        request=reading.share("request"),
        limit=reading.share("limit"),
        count=reading.count(),
        indices=reading.indices(),
        model=reading.text("gpu-model"),
        vendor=reading.text("vendor"),
        isolation=mode,
        template=reading.text("partition-id") if mode == PARTITIONED else "",
        qos=reading.choice("qos", QOS, "medium"),
        gang=reading.gang(namespace, workload),
    )
    return request, tuple(reading.problems)


def assigned(annotations: Annotations) -> tuple[str, ...]:
    """Return the devices written on an allocated pod."""
    names = annotations.get(GPU_IDS, "")[: _TEXT_MAX * 4]
    return tuple(name for part in names.split(",") if (name := part.strip()))


class _Reading:
    def __init__(self, annotations: Annotations) -> None:
        self._annotations = annotations
        self.problems: list[AnnotationProblem] = []

    def text(self, key: str) -> str:
        return self._annotations.get(PREFIX + key, "")[:_TEXT_MAX]

    def share(self, what: str) -> DeviceShare:
        tflops = self._amount(f"tflops-{what}", quantity.milli_value)
        vram = self._amount(f"vram-{what}", quantity.value)
        percent = self._amount(f"compute-percent-{what}", quantity.milli_value)
        if tflops and percent:
            self._problem(
                f"compute-percent-{what}",
                DeviceReason.BAD_REQUEST,
                "cannot be given together with TFLOPS; leave one out",
            )
            return DeviceShare()
        if percent > 100_000:
            self._problem(
                f"compute-percent-{what}", DeviceReason.BAD_REQUEST, "is more than 100 percent of a GPU"
            )
            percent = 0
        return DeviceShare(tflops, vram, percent)

    def count(self) -> int:
        text = self.text("gpu-count").strip()
        if not text:
            return 1
        if text.isascii() and text.isdigit() and len(text) < 8 and 1 <= int(text) <= COUNT_MAX:
            return int(text)
        self._problem(
            "gpu-count", DeviceReason.GPU_COUNT_OUT_OF_RANGE, f"must be a whole number from 1 to {COUNT_MAX}"
        )
        return 1

    def indices(self) -> tuple[int, ...]:
        text = self.text("gpu-indices")
        if not text.strip():
            return ()
        tokens = [part.strip() for part in text.split(",")]
        if all(part.isascii() and part.isdigit() and len(part) < 12 for part in tokens):
            numbers = tuple(int(part) for part in tokens)
            if max(numbers) <= _INDEX_MAX:
                return numbers
        self._problem(
            "gpu-indices", DeviceReason.BAD_GPU_INDICES, 'must be device numbers with commas, like "0,2"'
        )
        return ()

    def choice(self, key: str, choices: tuple[str, ...], default: str) -> str:
        text = self.text(key).strip()
        if not text or text in choices:
            return text or default
        self._problem(key, DeviceReason.BAD_REQUEST, f"must be one of {', '.join(choices)}")
        return default

    def gang(self, namespace: str, workload: str) -> Gang | None:
        if self.text("gang-enabled").strip().lower() != "true":
            return None
        desired, required = self._members("gang-desired-members"), self._members("gang-required-members")
        if desired < _MEMBERS_MIN or required < _MEMBERS_MIN:
            return None
        return Gang(
            self.text("gang-group-key") or f"{namespace}/{workload}",
            self._members("gang-min-members"),
            desired,
            required,
            self._timeout(),
        )

    def _members(self, key: str) -> int:
        text = self.text(key).strip()
        return int(text) if text.isascii() and text.isdigit() and len(text) < 8 else 0

    def _timeout(self) -> float:
        text = self.text("gang-timeout").strip()
        if text in ("", "0"):
            return 0.0
        try:
            return max(0.0, durations.seconds(text))
        except Invalid:
            self._problem("gang-timeout", DeviceReason.BAD_REQUEST, 'must be a duration like "5m"')
            return 0.0

    def _amount(self, key: str, read: Callable[[str], int]) -> int:
        text = self.text(key).strip()
        if not text:
            return 0
        try:
            amount = read(text)
        except Invalid as error:
            self._problem(key, DeviceReason.BAD_REQUEST, error.reason)
            return 0
        if amount < 0:
            self._problem(key, DeviceReason.BAD_REQUEST, "must not be negative")
            return 0
        return amount

    def _problem(self, key: str, code: DeviceReason, reason: str) -> None:
        self.problems.append(
            AnnotationProblem(code, Invalid(f"annotation {PREFIX}{key}", self.text(key), reason))
        )
