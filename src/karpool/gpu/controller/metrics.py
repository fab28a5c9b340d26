"""Metrics of scale-ups, under our names and optionally under those of the original design.

Pools, models and candidates come from users' objects: beyond a maximum number of values they are counted as
`other`, so that no workload can flood the metrics store. Series with known labels (states, reasons, stages)
start at zero. All beta.
"""

from collections import Counter as Tally
from collections.abc import Iterable, Mapping, Sequence

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from karpool.cluster.market.launch_reasons import ATTEMPT_REASONS
from karpool.gpu.controller.allocator_state import DevicePoolTotals
from karpool.gpu.records.scale_up_record import ScaleUpRecord, ScaleUpState
from karpool.gpu.scale_up.demand import GpuDemand
from karpool.model.devices.quota import QuotaRoom
from karpool.provisioning.placeholders.placeholder import Placeholder

PREFIX = "karpool_gpu"
ORIGINAL_PREFIX = "tensor_fusion"
STAGES = ("decision", "launch", "registration", "device", "handoff", "total")
SUCCESS, FAILURE = "success", "failure"
OTHER = "other"
UNKNOWN = "unknown"  # for a smart pod whose request is gone
_BUCKETS = (10, 20, 30, 45, 60, 90, 120, 180, 300, 420, 600, 900, 1200, 1800)
_DIFFERENT_MAX = 200
_LABEL_CHARACTERS = 120
Pair = tuple[str, str]  # pool and model


class _Bounded:
    """At most a fixed number of different values; later ones become `other`."""

    def __init__(self, most: int = _DIFFERENT_MAX) -> None:
        self._most = most
        self._known: set[tuple[str, ...]] = set()

    def of(self, *values: str) -> tuple[str, ...]:
        cut = tuple(value[:_LABEL_CHARACTERS] for value in values)
        if cut not in self._known and len(self._known) >= self._most:
            return (OTHER,) * len(values)
        self._known.add(cut)
        return cut


class _Family:
    """All metrics under one prefix."""

    def __init__(self, registry: CollectorRegistry, prefix: str) -> None:
        def counter(name: str, text: str, labels: tuple[str, ...]) -> Counter:
            return Counter(f"{prefix}_{name}", text, labels, registry=registry)

        def gauge(name: str, text: str, labels: tuple[str, ...] = ()) -> Gauge:
            return Gauge(f"{prefix}_{name}", text, labels, registry=registry)

        pool_model = ("pool", "model")
        self.created = counter("smart_pods_created", "Smart pods created.", pool_model)
        self.deleted = counter(
            "smart_pods_deleted", "Deleted smart pods, by reason.", (*pool_model, "reason")
        )
        self.active = gauge("smart_pods_active", "Smart pods that exist.", pool_model)
        self.overdue = gauge("smart_pods_overdue", "Smart pods older than their maximum age; must be 0.")
        self.delete_tries = gauge(
            "smart_pod_delete_tries", "Largest number of deletion attempts for one smart pod."
        )
        self.seconds = Histogram(
            f"{prefix}_nodeclaim_provision_duration_seconds",
            "Time from a failed allocation to a node in use, by stage.",
            ("pool", "stage"),
            buckets=_BUCKETS,
            registry=registry,
        )
        self.attempts = counter(
            "scaling_attempts",
            "Requested nodes, by result.",
            (*pool_model, "candidate", "result", "reason"),
        )
        # Without the candidate, which is unknown beforehand: Prometheus sees no increase in a series that
        # begins at one, and an alert on the first failure would not fire.
        self.results = counter(
            "scaling_results", "Finished scale-up attempts, by result.", (*pool_model, "result", "reason")
        )
        self.success = gauge(
            "scaling_success_rate", "Share of successful attempts since the start of the process."
        )
        self.requests = gauge("scaling_requests", "Scale-ups by state.", ("state",))
        self.waiting_oldest = gauge(
            "scaling_requests_oldest_seconds", "Age of the oldest scale-up in each state.", ("state",)
        )
        self.items = gauge("scaling_demand_items", "Workers waiting for a device.", pool_model)
        self.oldest = gauge("scaling_demand_oldest_seconds", "Longest waiting time of a worker.", pool_model)
        self.holds = gauge("scaling_holds", "Reservations on new devices.", ("pool",))
        self.rejected = counter(
            "scaling_rejected", "Rejected demand that no new node could serve, by reason.", ("pool", "reason")
        )
        pool_of = ("pool", "of")
        self.tflops = gauge(
            "pool_tflops",
            "TFLOPS of a pool: capacity, available, limits, and virtual (for limits).",
            pool_of,
        )
        self.vram = gauge(
            "pool_vram_bytes", "GPU memory of a pool: capacity, available, limits, virtual.", pool_of
        )
        self.quota_room = gauge(
            "quota_available_percent",
            "Free percentage of a total of a GPUResourceQuota.",
            ("namespace", "resource"),
        )
        self.quota_alert = gauge(
            "quota_alert", "1 if the use has passed the alertThresholdPercent of the quota.", ("namespace",)
        )
        for state in ScaleUpState:
            self.requests.labels(state.value).set(0)
            self.waiting_oldest.labels(state.value).set(0)


class ScaleUpMetrics:
    """With `original_names` every metric exists twice: as `karpool_gpu_…` and as `tensor_fusion_…`."""

    def __init__(
        self,
        registry: CollectorRegistry,
        *,
        original_names: bool = False,
        maximum_age_seconds: float = 2400.0,
    ) -> None:
        prefixes = (PREFIX, ORIGINAL_PREFIX) if original_names else (PREFIX,)
        self._families = [_Family(registry, prefix) for prefix in prefixes]
        self._maximum_age = maximum_age_seconds
        self._pairs, self._pools, self._candidates = _Bounded(), _Bounded(), _Bounded()
        self._reasons, self._namespaces = _Bounded(), _Bounded()
        self._totalled: set[str] = set()  # pools
        self._ended: Tally[str] = Tally()
        self._gauged: set[Pair] = set()
        self._begun: set[Pair] = set()
        self._held: set[str] = set()

    def pool_seen(self, pool: str, model: str) -> None:
        """Start all counters of a pool and model at zero; `observe` does it for those it is passed."""
        pair = self._pair(pool, model)
        if pair in self._begun:
            return
        self._begun.add(pair)
        for family in self._families:
            family.created.labels(*pair)
            for stage in STAGES:
                family.seconds.labels(pair[0], stage)
            for setback in ATTEMPT_REASONS:
                family.results.labels(*pair, FAILURE, setback.value)
            family.results.labels(*pair, SUCCESS, "")

    def created(self, pool: str, model: str, n: int = 1) -> None:
        for family in self._families:
            family.created.labels(*self._pair(pool, model)).inc(n)

    def deleted(self, pool: str, model: str, reason: str) -> None:
        (bounded,) = self._reasons.of(reason)
        for family in self._families:
            family.deleted.labels(*self._pair(pool, model), bounded).inc()

    def attempt(self, pool: str, model: str, candidate: str, result: str, reason: str = "") -> None:
        """`result` is SUCCESS or FAILURE, `reason` the launch reason."""
        (rung,), (bounded,) = self._candidates.of(candidate), self._reasons.of(reason)
        self._ended[result] += 1
        rate = self._ended[SUCCESS] / self._ended.total()
        for family in self._families:
            family.attempts.labels(*self._pair(pool, model), rung, result, bounded).inc()
            family.results.labels(*self._pair(pool, model), result, bounded).inc()
            family.success.set(rate)

    def rejected(self, pool: str, reason: str) -> None:
        (name,), (bounded,) = self._pools.of(pool), self._reasons.of(reason)
        for family in self._families:
            family.rejected.labels(name, bounded).inc()

    def stage_seconds(self, pool: str, stage: str, seconds: float) -> None:
        """`stage` is one of STAGES."""
        assert stage in STAGES, stage
        for family in self._families:
            family.seconds.labels(*self._pools.of(pool), stage).observe(max(0.0, seconds))

    def observe(
        self,
        records: Iterable[ScaleUpRecord],
        placeholders: Iterable[Placeholder],
        demand: Mapping[str, GpuDemand],
        holds: Mapping[str, int],
        now: float,
        *,
        delete_tries: Mapping[str, int] | None = None,
    ) -> None:
        """Set every gauge. `holds` by pool, `delete_tries` by uid of the smart pod."""
        all_records = list(records)
        for key in (
            *(record.key for record in all_records),
            *(gpu_demand.key for gpu_demand in demand.values()),
        ):
            self.pool_seen(key.pool, key.model)
        pairs = {record.name: self._pair(record.key.pool, record.key.model) for record in all_records}
        pods = list(placeholders)
        active: Tally[Pair] = Tally(pairs.get(pod.request, (UNKNOWN, UNKNOWN)) for pod in pods)
        items: Tally[Pair] = Tally()
        oldest: dict[Pair, float] = {}
        for gpu_demand in demand.values():
            pair = self._pair(gpu_demand.key.pool, gpu_demand.key.model)
            items[pair] += len(gpu_demand.items)
            ages = (now - item.created for item in gpu_demand.items)
            oldest[pair] = max(oldest.get(pair, 0.0), max(ages, default=0.0))
        states = Tally(record.state for record in all_records)
        since = {
            state: [now - up_record.state_since for up_record in all_records if up_record.state is state]
            for state in ScaleUpState
        }
        overdue = sum(pod.is_overdue(now, self._maximum_age) for pod in pods)
        self._gauged |= {*active, *items}
        held: Tally[str] = Tally()
        for pool, count in holds.items():
            held[self._pools.of(pool)[0]] += count
        self._held |= held.keys()
        for family in self._families:
            for pair in self._gauged:  # including those that are zero now
                family.active.labels(*pair).set(active[pair])
                family.items.labels(*pair).set(items[pair])
                family.oldest.labels(*pair).set(oldest.get(pair, 0.0))
            for name in self._held:
                family.holds.labels(name).set(held[name])
            for state in ScaleUpState:
                family.requests.labels(state.value).set(states[state])
                family.waiting_oldest.labels(state.value).set(max(since[state], default=0.0))
            family.overdue.set(overdue)
            family.delete_tries.set(max((delete_tries or {}).values(), default=0))

    def observe_pools(self, totals: Mapping[str, DevicePoolTotals]) -> None:
        for pool in self._totalled - totals.keys():
            totals = {**totals, pool: DevicePoolTotals()}
        self._totalled |= totals.keys()
        for pool, total in totals.items():
            amounts = {
                "capacity": total.capacity,
                "available": total.available,
                "virtual": total.virtual,
                "limits": total.limits,
            }
            for family in self._families:
                for name, amount in amounts.items():
                    family.tflops.labels(*self._pools.of(pool), name).set(amount.tflops_milli / 1000)
                    family.vram.labels(*self._pools.of(pool), name).set(amount.vram_bytes)

    def observe_quotas(self, rooms: Mapping[str, Sequence[QuotaRoom]]) -> None:
        """By namespace. A deleted quota has no series."""
        for family in self._families:
            family.quota_room.clear()
            family.quota_alert.clear()
            for namespace, figures in rooms.items():
                for room in figures:
                    series = self._namespaces.of(namespace)
                    family.quota_room.labels(*series, room.resource).set(float(room.available_percent))
                family.quota_alert.labels(*self._namespaces.of(namespace)).set(
                    any(room.is_alert for room in figures)
                )

    def _pair(self, pool: str, model: str) -> Pair:
        name, kind = self._pairs.of(pool, model)
        return name, kind
