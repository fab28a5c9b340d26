"""Counts promised replicas that exist as pending pods.

Providers serve pending pods before other requests, so these replicas are already counted there; deducted as a
promise as well, each of them would count twice.
"""

from collections import Counter
from collections.abc import Callable

from karpool.cluster.pods.owner_store import Requests
from karpool.wire.requests import AssumedWorkload

FindWanting = Callable[[str, str, str, str], Counter[Requests]]  # namespace, API version, kind and name


def wanting(find: FindWanting, assumed: AssumedWorkload) -> tuple[int, ...]:
    """By component: pending replicas, at most those `assumed`. Empty: unknown."""
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
    # A pod may request more than its template: admission adds sidecars and defaults.
    rest = pods.total()
    for index, component in enumerate(assumed.components):
        more = min(component.replicas - counts[index], rest)
        counts[index] += more
        rest -= more
    return tuple(counts)
