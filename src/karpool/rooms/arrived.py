"""Splits a promise into replicas that are already on nodes and replicas that are outstanding."""

from collections import Counter
from collections.abc import Callable

from karpool.cluster.pods.owner_store import Requests
from karpool.model.karmada.replica_requirements import Component
from karpool.wire.requests import ArrivedReplicas, AssumedWorkload

NOT_KNOWN = ArrivedReplicas()
# Pods on nodes, by their requests; and the number of pods without a node.
Pods = tuple[Counter[Requests], int]
FindPods = Callable[[str, str, str, str], Pods | None]  # takes namespace, API version, kind and name


def arrived(find_pods: FindPods, assumed: AssumedWorkload) -> ArrivedReplicas:
    """Return how many replicas of each component are on a node; empty if that is not known."""
    workload = assumed.workload
    if workload is None or not assumed.components:
        return NOT_KNOWN
    pods = find_pods(assumed.namespace, workload.api_version, workload.kind, workload.name)
    if pods is None:
        return NOT_KNOWN
    bound, waiting = pods[0].copy(), pods[1]
    desired = desired_of(assumed)
    counts = [
        _take(component, limit, bound) for component, limit in zip(assumed.components, desired, strict=True)
    ]
    # A pod may request more than its template: admission adds sidecars and defaults.
    rest = bound.total()
    for index, limit in enumerate(desired):
        more = min(limit - counts[index], rest)
        counts[index] += more
        rest -= more
    counts[-1] += rest  # a workload that is scaling down has more pods than desired
    return ArrivedReplicas(tuple(counts), waiting)


def desired_of(assumed: AssumedWorkload) -> list[int]:
    """Return the desired replicas of each component: never fewer than are promised."""
    told = assumed.workload.desired if assumed.workload else ()
    return [
        max(component.replicas, told[index] if index < len(told) else 0)
        for index, component in enumerate(assumed.components)
    ]


def outstanding(assumed: AssumedWorkload, on_nodes: ArrivedReplicas) -> AssumedWorkload:
    """Return the promise without replicas that are on a node, and with the number of pods without one."""
    if not on_nodes.bound:
        return assumed
    components = tuple(
        Component(component.name, min(component.replicas, max(0, limit - here)), component.requirements)
        for component, limit, here in zip(
            assumed.components, desired_of(assumed), on_nodes.bound, strict=True
        )
    )
    return AssumedWorkload(assumed.namespace, components, assumed.workload, on_nodes.waiting)


def _take(component: Component, limit: int, bound: Counter[Requests]) -> int:
    """Take at most `limit` pods with exactly the component's requests; return how many were taken."""
    requests = component.shape.requests
    taken = min(limit, bound[requests])
    bound[requests] -= taken
    return taken
