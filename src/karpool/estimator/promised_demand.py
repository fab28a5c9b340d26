"""Promised replicas that are there as pods and wait for a node.

Whoever could launch nodes serves pods that wait before anybody else, so these replicas are taken care of
there; deducted as a promise as well, each of them would cost two.
"""

from collections import Counter
from collections.abc import Callable

from karpool.cluster.pods.owner_store import Requests
from karpool.wire.requests import AssumedWorkload

FindWanting = Callable[[str, str, str, str], Counter[Requests]]  # namespace, API version, kind and name


def wanting(find: FindWanting, assumed: AssumedWorkload) -> tuple[int, ...]:
    """Of each component: replicas that wait for a node, no more than are `assumed`. Empty: not known."""
    workload = assumed.workload
    if workload is None:
        return ()
    pods = find(assumed.namespace, workload.api_version, workload.kind, workload.name)
    if not pods:
        return ()
    counts = []
    for component in assumed.components:
        alike = min(component.replicas, pods[component.shape.requests])
        pods[component.shape.requests] -= alike
        counts.append(alike)
    # A pod may ask for more than its template: admission adds sidecars and defaults.
    rest = pods.total()
    for index, component in enumerate(assumed.components):
        more = min(component.replicas - counts[index], rest)
        counts[index] += more
        rest -= more
    return tuple(counts)
