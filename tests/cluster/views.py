"""A snapshot as plain values, by name, so that two can be compared."""

from collections import Counter

KEYS = ("topology.kubernetes.io/zone", "topology.kubernetes.io/region", "disk", "size", "nowhere")


def described(snapshot):
    resources = ["cpu", "memory", "nvidia.com/gpu", "pods", "nowhere"]
    bound = snapshot.bound
    pods = {name: Counter() for name in snapshot.names}
    for shape, node, count in zip(
        bound.shape.tolist(), bound.node.tolist(), bound.count.tolist(), strict=True
    ):
        pods[snapshot.names[node]][snapshot.shapes[shape]] += count
    return {
        name: {
            "row": snapshot.find(name) == row,
            "labels": dict(snapshot.nodes.labels_of(row)),
            "codes": {key: _value(snapshot.label(key), row) for key in KEYS},
            "taints": snapshot.taint_sets[int(snapshot.taint_codes[row])],
            "free": {resource: int(snapshot.free(resource)[row]) for resource in resources},
            "allocatable": {resource: int(snapshot.allocatable(resource)[row]) for resource in resources},
            "slots": int(snapshot.slots[row]),
            "bound": pods[name],
            "pods": {key: snapshot.shapes[shape] for key, shape in snapshot.pods_on(row).items()},
        }
        for row, name in enumerate(snapshot.names)
    }


def ordered(snapshot):
    return [snapshot.names[row] for row in snapshot.order]


def pending(snapshot):
    return {key: snapshot.shapes[shape] for key, shape in snapshot.pending.items()}


def _value(label, row):
    code = int(label.codes[row])
    return None if code < 0 else label.values[code]
