"""GPUResourceQuota of a namespace, read from the API: what may be asked for, singly and in all."""

from karpool.gpu.amounts import NOTHING, Amount, parse_amount
from karpool.gpu.quota import ALERT_THRESHOLD_PERCENT, WORKERS_MAX, Quota, Single, Total, problem_of
from karpool.kube.resource import Resource
from karpool.model.errors import Invalid
from karpool.model.meta import Int32, Wire, WireObject

QUOTAS = Resource("tensor-fusion.ai", "v1", "gpuresourcequotas", "GPUResourceQuota")
Quantity = str | int | float


class Amounts(Wire, frozen=True):
    tflops: Quantity | None = None
    vram: Quantity | None = None

    def read(self, path: str) -> Amount:
        return parse_amount({"tflops": self.tflops, "vram": self.vram}, path)


class SingleSpec(Wire, frozen=True):
    max_requests: Amounts | None = None
    max_limits: Amounts | None = None
    max_gpu_count: Int32 | None = None


class TotalSpec(Wire, frozen=True):
    requests: Amounts | None = None
    limits: Amounts | None = None
    max_workers: Int32 | None = None
    alert_threshold_percent: Int32 | None = None


class QuotaSpec(Wire, frozen=True):
    single: SingleSpec | None = None
    total: TotalSpec | None = None


class GpuResourceQuota(WireObject, frozen=True):
    spec: QuotaSpec = QuotaSpec()


def quota_of(found: GpuResourceQuota) -> Quota:
    """Raises Invalid naming what is wrong; such a quota admits nothing new until it is corrected."""
    spec = found.spec
    single = total = None
    if spec.single is not None:
        single = Single(
            _amount(spec.single.max_requests, "spec.single.maxRequests") or NOTHING,
            _amount(spec.single.max_limits, "spec.single.maxLimits") or NOTHING,
            spec.single.max_gpu_count or 0,
        )
    if spec.total is not None:
        workers, threshold = spec.total.max_workers, spec.total.alert_threshold_percent
        total = Total(
            _amount(spec.total.requests, "spec.total.requests"),
            _amount(spec.total.limits, "spec.total.limits"),
            WORKERS_MAX if workers is None else workers,
            ALERT_THRESHOLD_PERCENT if threshold is None else threshold,
        )
    quota = Quota(found.metadata.namespace, single, total)
    problem = problem_of(quota)
    if problem is not None:
        raise Invalid("spec", found.name, problem)
    return quota


def closed(namespace: str) -> Quota:
    """For a quota that cannot be read: what it would have allowed is not known, so nothing is."""
    return Quota(namespace, None, Total(NOTHING, None, 0))


def _amount(given: Amounts | None, path: str) -> Amount | None:
    return None if given is None else given.read(path)
