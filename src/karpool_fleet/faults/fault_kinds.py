"""Starts and ends the faults of a fleet file.

Each function starts its fault and returns a function that ends it. Faults of the cloud need a cluster with a
cloud; the others work between any component and its API server.
"""

from collections.abc import Callable

from karpool.model import durations
from karpool_fleet.cloud.cloud import Cloud
from karpool_fleet.clusters.embedded import EmbeddedCluster
from karpool_fleet.clusters.fleet_file import FaultSpec
from karpool_fleet.clusters.live import LiveCluster
from karpool_fleet.faults.faults import Fault

End = Callable[[], object]

CLOUD_FAULTS = frozenset(("stock_out", "zone_outage", "interrupt_spot", "bad_boots", "slow_devices"))


async def inject(fault: FaultSpec, cluster: EmbeddedCluster, live: LiveCluster | None) -> End:
    """Start a fault now; return a function that ends it."""
    if live is not None and fault.kinds[0] in CLOUD_FAULTS:
        return _in_cloud(fault, live.cloud)
    if fault.crash is not None:
        return await _crash(cluster, fault.crash)
    if fault.pause is not None:
        return _pause(cluster, fault.pause)
    if fault.clock_jump is not None:
        cluster.jump(durations.seconds(fault.clock_jump))
        return _nothing
    started = _between(fault, cluster)
    return _nothing if started is None else started.end


def _in_cloud(fault: FaultSpec, cloud: Cloud) -> End:
    if (out := fault.stock_out) is not None:
        return cloud.stock_out(out.type, out.zone, out.capacity_type, left=out.left).end
    if (zone := fault.zone_outage) is not None:
        cloud.fail_zone(zone)
        return lambda: cloud.restore_zone(zone)
    if fault.interrupt_spot is not None:
        spot = [instance for instance in cloud.instances.values() if instance.offer.capacity_type == "spot"]
        for instance in spot[: fault.interrupt_spot]:
            cloud.interrupt(instance.id)
        return _nothing
    if (slow := fault.slow_devices) is not None:
        boot = cloud.boot_badly(slow.machines, device_seconds=slow.seconds)
    else:
        boot = cloud.boot_badly(fault.bad_boots or 0, becomes_ready=False)
    return lambda: setattr(boot, "times", 0)


async def _crash(cluster: EmbeddedCluster, component: str) -> End:
    if cluster.components.is_running(component):
        await cluster.components.crash(component)
    return lambda: cluster.components.start(component)


def _pause(cluster: EmbeddedCluster, component: str) -> End:
    cluster.faults.pause(component)
    return lambda: cluster.faults.resume(component)


def _between(fault: FaultSpec, cluster: EmbeddedCluster) -> Fault | None:
    """Start a fault of requests or watches."""
    faults = cluster.faults
    if (e := fault.api_errors) is not None:
        return faults.fail(
            e.component,
            status=e.status,
            method=e.method,
            path=e.path,
            times=e.times,
            retry_after=e.retry_after,
        )
    if (d := fault.api_delay) is not None:
        return faults.delay(d.component, seconds=d.seconds, method=d.method, path=d.path, times=d.times)
    if (h := fault.api_hang) is not None:
        return faults.hang(h.component, method=h.method, path=h.path, times=h.times)
    if (a := fault.lose_answers) is not None:
        return faults.lose_answers(a.component, method=a.method, path=a.path, times=a.times)
    if (c := fault.crash_at_write) is not None:
        return faults.crash_at_write(c.component, c.number, when=c.when)
    if (w := fault.lose_events) is not None:
        return faults.lose_events(w.component, path=w.path)
    if (w := fault.repeat_events) is not None:
        return faults.repeat_events(w.component, path=w.path)
    if (w := fault.late_events) is not None:
        return faults.late_events(w.component, seconds=w.seconds, path=w.path)
    if (w := fault.stale_reads) is not None:
        return faults.stale_reads(w.component, seconds=w.seconds, path=w.path)
    if (w := fault.cut_watches) is not None:
        faults.cut_watches(w.component, path=w.path, expired=w.expired)
    return None


def _nothing() -> None:
    pass
