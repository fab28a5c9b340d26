"""Computes a short text that is equal for clusters that give equal plans."""

from hashlib import blake2b
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from karpool.cluster.pods.disruption_store import EVICTABLE, NONE, RESCHEDULABLE
from karpool.consolidation.view import ClusterView
from karpool.packing.dra.pod_claims import HeldClaims

_ENCODER = msgspec.json.Encoder(order="deterministic")


def fingerprint(view: ClusterView) -> str:
    """Hash nodes, claims, prices, pods and their nodes, pools and budgets; not time or pod readiness."""
    digest = blake2b(digest_size=12)
    names, pods = view.snapshot.names, view.pods
    order = sorted(range(view.snapshot.n), key=names.__getitem__)
    counts = np.diff(pods.starts)[order]
    digest.update(counts.tobytes())
    for row in order:
        digest.update(view.machines[row].digest)
    in_order = [pod for row in order for pod in pods.on(row)]
    digest.update("\0".join([pods.keys[pod] for pod in in_order]).encode())
    for column in _of_pods(view):
        digest.update(column[in_order].tobytes())
    for name in sorted(view.pool_objects):
        pool = view.pool_objects[name]
        digest.update(_ENCODER.encode((name, pool.spec, pool.metadata.annotations)))
    for budget in sorted(view.budgets, key=lambda pdb: (pdb.namespace, pdb.name)):
        digest.update(f"{budget.namespace}/{budget.name}:{budget.disruptions_allowed > 0}".encode())
    waiting, table = view.snapshot.pending, view.snapshot.shapes
    for pod in sorted(view.buffer_of):
        digest.update(f"{pod}:{table[waiting[pod]]!r}".encode())
    digest.update(repr((view.stop, sorted(view.unclear_buffers.items()))).encode())
    digest.update(repr(_claims(view.held_claims)).encode())
    return digest.hexdigest()


def _claims(held: HeldClaims) -> tuple[object, ...]:
    return sorted(held.by_node.items()), held.unreadable, sorted(held.with_devices) if held.unreadable else ()


def _of_pods(view: ClusterView) -> tuple[npt.NDArray[Any], ...]:
    """The facts of each pod that plans depend on: requests, cost, whether it moves, and what protects it."""
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
