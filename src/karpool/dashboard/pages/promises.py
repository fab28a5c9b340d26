"""The promise ledger as a list, and as sums for the bars of clusters. Pure."""

from collections.abc import Iterable, Iterator

from karpool.dashboard.api.views import PromiseList, PromiseRow
from karpool.dashboard.pages.fleet_map import PromisedCapacity
from karpool.model import resources
from karpool.model.karmada.replica_requirements import NO_SHAPE
from karpool.scheduler.promises.ledger import PromiseLedger
from karpool.scheduler.promises.promise import Promise, PromiseLifetime

SHOWN_MAX = 2000


def promises(ledgers: Iterable[PromiseLedger], monotonic: float, now: float) -> PromiseList:
    """Return the outstanding promises, by cluster, oldest first."""
    held = list(ledgers)
    rows = [
        _row(promise, ledger.lifetime, monotonic)
        for ledger in held
        for promise in ledger.promises()
        if promise.replicas
    ]
    lifetime = max(
        (promise_ledger.lifetime.seconds for promise_ledger in held), default=PromiseLifetime().seconds
    )
    return PromiseList(
        at=now, lifetime_seconds=lifetime, items=rows[:SHOWN_MAX], left_out=max(0, len(rows) - SHOWN_MAX)
    )


def by_cluster(ledgers: Iterable[PromiseLedger]) -> dict[str, PromisedCapacity]:
    counts: dict[str, PromisedCapacity] = {}
    for ledger in ledgers:
        for promise in ledger.promises():
            if promise.replicas:
                before = counts.get(promise.cluster, PromisedCapacity())
                amounts = dict(before.amounts)
                resources.add(amounts, requests_of(promise))
                counts[promise.cluster] = PromisedCapacity(before.replicas + promise.replicas, amounts)
    return counts


def requests_of(promise: Promise) -> dict[str, int]:
    """Return the total requests of the outstanding replicas."""
    total: dict[str, int] = {}
    for requirements, replicas in zip(promise.workload.requirements, promise.in_flight, strict=True):
        shape = NO_SHAPE if requirements is None else requirements.shape
        resources.add(total, {name: units * replicas for name, units in shape.requests})
    return total


def _row(promise: Promise, lifetime: PromiseLifetime, monotonic: float) -> PromiseRow:
    key = promise.binding
    age = max(0.0, monotonic - promise.made_at)
    left = max(0.0, promise.ends_at(lifetime) - monotonic)
    return PromiseRow(
        cluster=promise.cluster,
        kind=key.kind,
        namespace=key.namespace,
        name=key.name,
        replicas=promise.replicas,
        promised=sum(promise.promised),
        desired=sum(promise.desired),
        requests=requests_of(promise),
        age_seconds=round(age, 1),
        expires_in_seconds=round(left, 1),
        why=list(_why(promise, lifetime, left)),
    )


def _why(promise: Promise, lifetime: PromiseLifetime, left: float) -> Iterator[str]:
    yield (
        f"{promise.replicas} of {sum(promise.desired)} replicas were placed in "
        f"{promise.cluster} and are not known to run on a node; their capacity is reserved"
    )
    yield "it ends when the pods are on nodes, or the member reports them ready"
    yield f"it expires in {left:.0f} s, {lifetime.seconds:.0f} s after it was made"
    if len(promise.increments) > 1:
        yield f"it was made in {len(promise.increments)} steps, and each has its own age"
    if promise.shrank:
        yield ("the workload was scaled down; its pod counts are used when they show the smaller size")
