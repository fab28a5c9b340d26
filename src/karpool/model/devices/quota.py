"""How much GPU capacity a namespace may use.

`single` limits one workload, per GPU; waiting cannot help against it. `total` limits the sum over the
namespace. Amounts are compared in whole TFLOPS and bytes; the request per GPU is rounded up before it is
multiplied by the number of GPUs.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from karpool.model.devices.amounts import NOTHING, DeviceAmount, whole_tflops
from karpool.model.devices.device_reasons import DeviceReason, NoDevice, no_device

WORKERS_MAX = 32768
ALERT_THRESHOLD_PERCENT = 95


@dataclass(frozen=True, slots=True)
class WorkloadQuota:
    """Limits of one workload. Zero is no limit."""

    max_requests: DeviceAmount = NOTHING
    max_limits: DeviceAmount = NOTHING
    max_gpu_count: int = 0


@dataclass(frozen=True, slots=True)
class NamespaceQuota:
    """Limits of a namespace. A block that is set limits, even at zero; None does not."""

    requests: DeviceAmount | None = None
    limits: DeviceAmount | None = None
    max_workers: int = WORKERS_MAX
    alert_threshold_percent: int = ALERT_THRESHOLD_PERCENT


@dataclass(frozen=True, slots=True)
class GpuQuota:
    namespace: str = ""
    single: WorkloadQuota | None = None
    total: NamespaceQuota | None = None


@dataclass(frozen=True, slots=True)
class QuotaCharge:
    """What one worker is charged: per GPU, and the number of GPUs."""

    request: DeviceAmount = NOTHING
    limit: DeviceAmount = NOTHING
    count: int = 1


@dataclass(frozen=True, slots=True)
class QuotaUsage:
    requests: DeviceAmount = NOTHING
    limits: DeviceAmount = NOTHING
    workers: int = 0

    def __add__(self, other: "QuotaUsage") -> "QuotaUsage":
        return QuotaUsage(
            self.requests + other.requests, self.limits + other.limits, self.workers + other.workers
        )

    def __sub__(self, other: "QuotaUsage") -> "QuotaUsage":
        return QuotaUsage(
            self.requests - other.requests, self.limits - other.limits, self.workers - other.workers
        )

    def allocated(self, charge: QuotaCharge) -> "QuotaUsage":
        return self + used_by(charge)

    def deallocated(self, charge: QuotaCharge) -> "QuotaUsage":
        """Return the usage after a release; never below zero."""
        less = self - used_by(charge)
        return QuotaUsage(
            less.requests.at_least(NOTHING), less.limits.at_least(NOTHING), max(0, less.workers)
        )


UNUSED = QuotaUsage()


def used_by(charge: QuotaCharge) -> QuotaUsage:
    return QuotaUsage(charge.request * charge.count, charge.limit * charge.count, 1)


def check_single(quota: GpuQuota, charge: QuotaCharge) -> NoDevice | None:
    single = quota.single
    if single is None:
        return None
    asked = ((single.max_requests, charge.request, "request"), (single.max_limits, charge.limit, "limit"))
    for cap, amount, what in asked:
        for name, limit, value in _dimensions(cap, amount):
            if 0 < limit < value:
                return _exceeded(quota, f"single.max.{name}.{what}", limit, value, unresolvable=True)
    if 0 < single.max_gpu_count < charge.count:
        resource = "single.max.gpuCount.limit"
        return _exceeded(quota, resource, single.max_gpu_count, charge.count, unresolvable=True)
    return None


def check_total(
    quota: GpuQuota,
    charge: QuotaCharge,
    used: QuotaUsage = UNUSED,
    *,
    released: QuotaUsage = UNUSED,
    pre_scheduled: QuotaUsage | None = None,
) -> NoDevice | None:
    """Check the totals. `used` includes reservations; `pre_scheduled` is demand before this one."""
    total = quota.total
    if total is None:
        return None
    before = used - released + (pre_scheduled or UNUSED)
    asked = (
        (total.requests, before.requests, charge.request, "request"),
        (total.limits, before.limits, charge.limit, "limit"),
    )
    for cap, already, amount, what in asked:
        if cap is None:
            continue
        taken = {name: value for name, _, value in _dimensions(NOTHING, already)}
        for name, limit, value in _dimensions(cap, amount):
            would_be = taken[name] + value * charge.count
            if limit < would_be:
                return _exceeded(quota, f"total.max.{name}.{what}", limit, would_be)
    return _check_workers(quota, total, used, released, pre_scheduled)


def _check_workers(
    quota: GpuQuota,
    total: NamespaceQuota,
    used: QuotaUsage,
    released: QuotaUsage,
    pre_scheduled: QuotaUsage | None,
) -> NoDevice | None:
    added = 1 if pre_scheduled is None or not pre_scheduled.workers else pre_scheduled.workers
    if added < released.workers:
        return None
    would_be = used.workers + added - released.workers
    if would_be > total.max_workers:
        return _exceeded(quota, "total.max.workers.limit", total.max_workers, would_be)
    return None


def check_change(quota: GpuQuota, old: QuotaCharge, new: QuotaCharge, used: QuotaUsage) -> NoDevice | None:
    """Check a resize: limits of one workload against the new values, totals against the difference."""
    refused = check_single(quota, new)
    if refused is not None or quota.total is None:
        return refused
    step = QuotaCharge(new.request - old.request, new.limit - old.limit, new.count)
    without_workers = replace(quota.total, max_workers=max(quota.total.max_workers, used.workers + 1))
    return check_total(replace(quota, total=without_workers), step, used)


def _dimensions(cap: DeviceAmount, asked: DeviceAmount) -> Iterator[tuple[str, int, int]]:
    yield "tflops", whole_tflops(cap.tflops_milli), whole_tflops(asked.tflops_milli)
    yield "vram", cap.vram_bytes, asked.vram_bytes


def _exceeded(quota: GpuQuota, resource: str, cap: int, value: int, unresolvable: bool = False) -> NoDevice:
    advice = (
        "ask for less, or raise the quota" if unresolvable else "wait for others to end, or raise the quota"
    )
    where = f"the GPU quota of namespace {quota.namespace or '(unnamed)'}"
    return no_device(
        DeviceReason.QUOTA_EXCEEDED,
        f"{where} allows {resource} {cap}, this would make it {value}; {advice}",
        resource,
        resolvable=not unresolvable,
    )


def problem_of(quota: GpuQuota) -> str | None:
    """Return why a quota cannot be used, as a stable code; None if it can."""
    total, single = quota.total, quota.single
    named: list[tuple[str, DeviceAmount | None, DeviceAmount | None]] = []
    if total is not None:
        named.append(("", total.requests, total.limits))
    if single is not None:
        named.append(("single_", single.max_requests, single.max_limits))
    for prefix, requests, limits in named:
        for what, amount in (("requests", requests), ("limits", limits)):
            if amount is not None and amount.tflops_milli < 0:
                return f"{prefix}{what}_tflops_negative"
            if amount is not None and amount.vram_bytes < 0:
                return f"{prefix}{what}_vram_negative"
        if requests is not None and limits is not None:
            if 0 < limits.tflops_milli < requests.tflops_milli:
                return f"{prefix}limits_tflops_below_requests"
            if 0 < limits.vram_bytes < requests.vram_bytes:
                return f"{prefix}limits_vram_below_requests"
    if total is not None and total.max_workers < 0:
        return "max_workers_negative"
    if total is not None and not 0 <= total.alert_threshold_percent <= 100:
        return "alert_threshold_out_of_range"
    if single is not None and single.max_gpu_count < 0:
        return "max_gpu_count_negative"
    return None


def available_percent(total: int, used: int) -> str:
    """Return the percentage for the status: two decimals, `100` without a total."""
    if total <= 0:
        return "100"
    return f"{max(0.0, (total - used) / total * 100):.2f}"


def is_alert(available: str, threshold_percent: int) -> bool:
    """Whether less is available than the threshold leaves; an unknown value counts as an alert."""
    return not available or float(available) < 100 - threshold_percent


@dataclass(frozen=True, slots=True)
class QuotaRoom:
    """How much of one total is available, and whether that is less than the alert threshold leaves."""

    resource: str
    available_percent: str
    is_alert: bool


def quota_room(quota: GpuQuota, used: QuotaUsage) -> tuple[QuotaRoom, ...]:
    """Return the room of every total, in the order of the checks; a total of zero shows `100`."""
    total = quota.total
    if total is None:
        return ()
    amounts = ((total.requests, used.requests, "request"), (total.limits, used.limits, "limit"))
    figures = [
        (f"total.max.{name}.{what}", limit, value)
        for cap, already, what in amounts
        if cap is not None
        for name, limit, value in _dimensions(cap, already)
    ]
    figures.append(("total.max.workers.limit", total.max_workers, used.workers))
    threshold = total.alert_threshold_percent
    rooms = ((resource, available_percent(limit, value)) for resource, limit, value in figures)
    return tuple(QuotaRoom(resource, percent, is_alert(percent, threshold)) for resource, percent in rooms)


@dataclass
class GpuQuotas:
    """The quotas of all namespaces, with usage and reservations.

    Usage is counted with or without a quota, so that a later quota starts from the real usage.
    """

    quotas: dict[str, GpuQuota] = field(default_factory=dict)
    used: dict[str, QuotaUsage] = field(default_factory=dict)
    assumed: dict[str, QuotaUsage] = field(default_factory=dict)

    def put(self, quota: GpuQuota) -> None:
        self.quotas[quota.namespace] = quota

    def remove(self, namespace: str) -> None:
        self.quotas.pop(namespace, None)

    def check(self, namespace: str, charge: QuotaCharge, *, released: QuotaUsage = UNUSED) -> NoDevice | None:
        quota = self.quotas.get(namespace)
        if quota is None:
            return None
        return check_single(quota, charge) or check_total(
            quota, charge, self.taken(namespace), released=released
        )

    def check_change(self, namespace: str, old: QuotaCharge, new: QuotaCharge) -> NoDevice | None:
        quota = self.quotas.get(namespace)
        return None if quota is None else check_change(quota, old, new, self.taken(namespace))

    def taken(self, namespace: str) -> QuotaUsage:
        return self.used.get(namespace, UNUSED) + self.assumed.get(namespace, UNUSED)

    def assume(self, namespace: str, charge: QuotaCharge) -> None:
        self.assumed[namespace] = self.assumed.get(namespace, UNUSED).allocated(charge)

    def forget(self, namespace: str, charge: QuotaCharge) -> None:
        self.assumed[namespace] = self.assumed.get(namespace, UNUSED).deallocated(charge)

    def use(self, namespace: str, charge: QuotaCharge) -> None:
        self.used[namespace] = self.used.get(namespace, UNUSED).allocated(charge)

    def give_back(self, namespace: str, charge: QuotaCharge) -> None:
        self.used[namespace] = self.used.get(namespace, UNUSED).deallocated(charge)
