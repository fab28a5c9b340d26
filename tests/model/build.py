"""Objects for tests, built as sentences: whatever a test does not care about has a default."""

from typing import Any

from karpool.model.karpenter.objects import NodeClaim, NodePool
from karpool.model.kubernetes.meta import decode
from karpool.model.kubernetes.node import Node
from karpool.model.kubernetes.pod import Pod

Raw = dict[str, Any]


def container(name: str = "main", *, limits: Raw | None = None, restart: str = "", **requests: Any) -> Raw:
    """`container(cpu="1", memory="1Gi")`; `restart="Always"` makes a sidecar of an init container."""
    amounts = {key.replace("_", "-"): value for key, value in requests.items()}
    made: Raw = {"name": name, "resources": {"requests": amounts}}
    if limits is not None:
        made["resources"]["limits"] = limits
    return made | ({"restartPolicy": restart} if restart else {})


def pod(
    name: str = "web", *containers: Raw, status: Raw | None = None, meta: Raw | None = None, **spec: Any
) -> Pod:
    return decode(
        {
            "metadata": {"name": name, "namespace": "default", **(meta or {})},
            "spec": {"containers": list(containers), **spec},
            "status": status or {},
        },
        Pod,
    )


def node(
    name: str = "node-1", labels: Raw | None = None, *, capacity: Raw | None = None, **allocatable: Any
) -> Node:
    return decode(
        {
            "metadata": {"name": name, "labels": labels or {}},
            "status": {"allocatable": allocatable, "capacity": capacity},
        },
        Node,
    )


def pool(
    name: str = "general",
    *requirements: Raw,
    labels: Raw | None = None,
    status: Raw | None = None,
    meta: Raw | None = None,
    template: Raw | None = None,
    **spec: Any,
) -> NodePool:
    return decode(
        {
            "metadata": {"name": name, **(meta or {})},
            "spec": {
                "template": {
                    "metadata": {"labels": labels},
                    "spec": {
                        "requirements": list(requirements),
                        "nodeClassRef": {
                            "group": "karpenter.k8s.aws",
                            "kind": "EC2NodeClass",
                            "name": "default",
                        },
                        **(template or {}),
                    },
                },
                **spec,
            },
            "status": status,
        },
        NodePool,
    )


def requires(key: str, operator: str, *values: str, least: int | None = None) -> Raw:
    entry: Raw = {"key": key, "operator": operator, "values": list(values)}
    return entry if least is None else entry | {"minValues": least}


def claim(
    labels: Raw | None = None,
    *,
    conditions: Raw | None = None,
    meta: Raw | None = None,
    status: Raw | None = None,
    **spec: Any,
) -> NodeClaim:
    """`claim(conditions={"Launched": "True"})`."""
    listed = [{"type": kind, "status": value} for kind, value in (conditions or {}).items()]
    return decode(
        {
            "metadata": {"name": "general-abcde", "labels": labels or {}, **(meta or {})},
            "spec": spec,
            "status": {"conditions": listed, **(status or {})},
        },
        NodeClaim,
    )
