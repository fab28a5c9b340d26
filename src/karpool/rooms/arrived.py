"""What of a promise is on nodes already, and what is still to come."""

from collections import Counter
from collections.abc import Callable

from karpool.cluster.pods.owner_store import Requests
from karpool.model.karmada.replica_requirements import Component
from karpool.wire.requests import ArrivedReplicas, AssumedWorkload

NOT_KNOWN = ArrivedReplicas()
Pods = tuple[Counter[Requests], int]  # on nodes, by what they ask for; and how many wait for one
FindPods = Callable[[str, str, str, str], Pods | None]  # of a namespace, API version, kind and name


def arrived(find_pods: FindPods, assumed: AssumedWorkload) -> ArrivedReplicas:
    """How many replicas of each component are on a node; empty when it does not say whose they are, or
    nobody knows."""
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
    # A pod may ask for more than its template: admission adds sidecars and defaults.
    rest = bound.total()
    for index, limit in enumerate(desired):
        more = min(limit - counts[index], rest)
        counts[index] += more
        rest -= more
    counts[-1] += rest  # a workload that is still shrinking has more than it shall have
    return ArrivedReplicas(tuple(counts), waiting)


def desired_of(assumed: AssumedWorkload) -> list[int]:
    """What each component shall have in the end: never less than what of it is promised."""
    told = assumed.workload.desired if assumed.workload else ()
    return [
        max(component.replicas, told[index] if index < len(told) else 0)
        for index, component in enumerate(assumed.components)
    ]


def outstanding(assumed: AssumedWorkload, on_nodes: ArrivedReplicas) -> AssumedWorkload:
    """The same promise without the replicas that are on a node already, and with those that wait for one."""
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
    """Take the pods that ask for exactly what the component does, up to as many as it shall have."""
    requests = component.shape.requests
    taken = min(limit, bound[requests])
    bound[requests] -= taken
    return taken
