"""The GPUResourceQuota of a namespace, read from the API: limits per request and in total."""

from karpool.model.devices.amounts import NOTHING, DeviceAmount, parse_amount
from karpool.model.devices.quota import (
    ALERT_THRESHOLD_PERCENT,
    WORKERS_MAX,
    GpuQuota,
    NamespaceQuota,
    WorkloadQuota,
    problem_of,
)
from karpool.model.errors import Invalid
from karpool.model.kubernetes.api_resources import ApiResource
from karpool.model.kubernetes.meta import Int32, Wire, WireObject

QUOTAS = ApiResource("tensor-fusion.ai", "v1", "gpuresourcequotas", "GPUResourceQuota")
Quantity = str | int | float


class QuotaAmounts(Wire, frozen=True):
    tflops: Quantity | None = None
    vram: Quantity | None = None

    def read(self, path: str) -> DeviceAmount:
        return parse_amount({"tflops": self.tflops, "vram": self.vram}, path)


class WorkloadQuotaSpec(Wire, frozen=True):
    max_requests: QuotaAmounts | None = None
    max_limits: QuotaAmounts | None = None
    max_gpu_count: Int32 | None = None


class NamespaceQuotaSpec(Wire, frozen=True):
    requests: QuotaAmounts | None = None
    limits: QuotaAmounts | None = None
    max_workers: Int32 | None = None
    alert_threshold_percent: Int32 | None = None


class GpuQuotaSpec(Wire, frozen=True):
    single: WorkloadQuotaSpec | None = None
    total: NamespaceQuotaSpec | None = None


class GpuResourceQuota(WireObject, frozen=True):
    spec: GpuQuotaSpec = GpuQuotaSpec()
    status: dict[str, object] | None = None  # read only to skip a write that changes nothing


def quota_of(quota_object: GpuResourceQuota) -> GpuQuota:
    """Read a quota. Raises Invalid, which names the problem; such a quota admits nothing new."""
    spec = quota_object.spec
    single = total = None
    if spec.single is not None:
        single = WorkloadQuota(
            _amount(spec.single.max_requests, "spec.single.maxRequests") or NOTHING,
            _amount(spec.single.max_limits, "spec.single.maxLimits") or NOTHING,
            spec.single.max_gpu_count or 0,
        )
    if spec.total is not None:
        workers, threshold = spec.total.max_workers, spec.total.alert_threshold_percent
        total = NamespaceQuota(
            _amount(spec.total.requests, "spec.total.requests"),
            _amount(spec.total.limits, "spec.total.limits"),
            WORKERS_MAX if workers is None else workers,
            ALERT_THRESHOLD_PERCENT if threshold is None else threshold,
        )
    quota = GpuQuota(quota_object.metadata.namespace, single, total)
    problem = problem_of(quota)
    if problem is not None:
        raise Invalid("spec", quota_object.name, problem)
    return quota


def quota_admitting_nothing(namespace: str) -> GpuQuota:
    """Return a quota that admits nothing, in place of one that cannot be read."""
    return GpuQuota(namespace, None, NamespaceQuota(NOTHING, None, 0))


def _amount(amounts: QuotaAmounts | None, path: str) -> DeviceAmount | None:
    return None if amounts is None else amounts.read(path)
