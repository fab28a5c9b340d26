"""A short text that is the same for the same cluster, as far as plans depend on it."""

from hashlib import blake2b

import msgspec

from karpool.consolidation.view import ClusterView

_ENCODER = msgspec.json.Encoder(order="deterministic")


def fingerprint(view: ClusterView) -> str:
    """Of nodes, claims, prices, pods and where they are, pools and budgets; not of the time."""
    digest = blake2b(digest_size=12)
    names = view.snapshot.names
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
            node.spec.unschedulable if node is not None else False,
        )
        digest.update(repr(marks).encode())
        pods = view.pods.on(row)
        digest.update("\0".join(sorted(view.pods.keys[pods.start : pods.stop])).encode())
    for name in sorted(view.pool_objects):
        pool = view.pool_objects[name]
        digest.update(_ENCODER.encode((name, pool.spec, pool.metadata.annotations)))
    for budget in sorted(view.budgets, key=lambda each: (each.namespace, each.name)):
        digest.update(f"{budget.namespace}/{budget.name}:{budget.disruptions_allowed > 0}".encode())
    digest.update(repr(view.stop).encode())
    return digest.hexdigest()
