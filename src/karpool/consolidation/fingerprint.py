"""A short text that is the same for the same cluster, as far as plans depend on it."""

from hashlib import blake2b
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from karpool.consolidation.pod_facts import NONE
from karpool.consolidation.view import EVICTABLE, RESCHEDULABLE, ClusterView
from karpool.model.karpenter import DO_NOT_DISRUPT

_ENCODER = msgspec.json.Encoder(order="deterministic")


def fingerprint(view: ClusterView) -> str:
    """Of nodes, claims, prices, pods and where they are, pools and budgets; not of the time, nor of
    whether pods are ready."""
    digest = blake2b(digest_size=12)
    names = view.snapshot.names
    columns = _of_pods(view)
    order = sorted(range(view.snapshot.n), key=names.__getitem__)
    for row in order:
        machine = view.machines[row]
        node, claim = machine.node, machine.claim
        marks = (
            names[row],
            claim.metadata.uid if claim is not None else "",
            machine.is_leaving,
            machine.is_initialized,
            machine.price_per_hour,
            node.annotations.get(DO_NOT_DISRUPT) if node is not None else None,
        )
        digest.update(repr(marks).encode())
        if node is not None:
            digest.update(_ENCODER.encode((node.spec, node.labels)))
        pods = view.pods.on(row)
        digest.update("\0".join(view.pods.keys[pods.start : pods.stop]).encode())
        for column in columns:
            digest.update(column[pods.start : pods.stop].tobytes())
    for name in sorted(view.pool_objects):
        pool = view.pool_objects[name]
        digest.update(_ENCODER.encode((name, pool.spec, pool.metadata.annotations)))
    for budget in sorted(view.budgets, key=lambda each: (each.namespace, each.name)):
        digest.update(f"{budget.namespace}/{budget.name}:{budget.disruptions_allowed > 0}".encode())
    digest.update(repr(view.stop).encode())
    return digest.hexdigest()


def _of_pods(view: ClusterView) -> tuple[npt.NDArray[Any], ...]:
    """What matters of each pod: what it asks for, what it costs, whether it moves, what protects it."""
    pods, table = view.pods, view.snapshot.shapes
    digests = [blake2b(repr(table[number]).encode(), digest_size=8).digest() for number in range(len(table))]
    by_shape = np.frombuffer(b"".join(digests) or bytes(8), dtype=np.uint64)
    return (
        by_shape[pods.shapes],
        pods.costs,
        pods.flags & (RESCHEDULABLE | EVICTABLE),
        pods.protected_until,
        pods.budget == NONE,
    )
