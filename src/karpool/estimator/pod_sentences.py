"""Says in one simple sentence what to do about a pending pod. Pure."""

from collections.abc import Iterator
from math import inf

from karpool.estimator.pod_explanation import ComingNode, PodExplanation, PodVerdict
from karpool.model import durations


def next_step(pod: PodExplanation) -> Iterator[str]:
    """The texts come from clusters and are untrusted: escape them before they are shown."""
    match pod.verdict:
        case PodVerdict.GATED:
            yield f"it is scheduled after these gates are removed: {', '.join(pod.gates)}"
        case PodVerdict.WAITS_FOR_VOLUME:
            yield from (note.detail for note in pod.volumes if not note.is_ready)
        case PodVerdict.FITS:
            taking = _nodes(pod.open_nodes)
            yield f"{taking} would take it now; if it stays pending, check its scheduler"
        case PodVerdict.NODE_COMES:
            taking_it = [node for node in pod.coming if node.takes_pod]
            if not taking_it:  # cluster-autoscaler reports how many come, not which
                yield "its node group is scaling up, and the new nodes will take it"
                return
            node = min(taking_it, key=lambda node: node.expected_in_seconds or inf)
            yield f"claim {node.claim} takes it, {arrival(node)}"
        case PodVerdict.NODE_CAN_COME:
            place = next(place for place in pod.report.places[1:] if place.room)
            price = "" if place.price_per_hour is None else f" at ${place.price_per_hour:.3f} per hour"
            types = f" ({', '.join(place.instance_types[:3])})" if place.instance_types else ""
            yield f"{place.name} can launch a node for it{types}{price}; it should, within a minute"
        case PodVerdict.NOWHERE:
            yield "change the pod, a pool, or the nodes; the reasons follow"
        case PodVerdict.CANNOT_TELL:
            yield from pod.report.remarks
        case _:
            return


def arrival(node: ComingNode) -> str:
    """The expected time of arrival, and how it is known."""
    if node.is_overdue:
        return "overdue"
    if node.expected_in_seconds is None:
        return "time unknown: no node of its pool has started yet"
    compared = f"as {_nodes(node.compared_with)} of its pool took"
    if not node.expected_in_seconds:
        return f"any moment ({compared})"
    return f"in about {durations.show(float(max(0, round(node.expected_in_seconds))))} ({compared})"


def _nodes(number: int) -> str:
    return "1 node" if number == 1 else f"{number} nodes"
