"""The status that cluster-autoscaler writes about its node groups, in both formats.

The ConfigMap `cluster-autoscaler-status` holds YAML since 1.30, and plain text before. Only sizes and states
are read. Input that cannot be parsed raises Invalid.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from karpool.model import safe_yaml
from karpool.model.errors import Invalid

NAME = "cluster-autoscaler-status"
NAMESPACE = "kube-system"
SIZE_LIMIT = 2 * 2**20
_SIZE_MAX = 2**31 - 1


@dataclass(frozen=True, slots=True)
class NodeGroupStatus:
    name: str
    min_size: int
    max_size: int
    target: int  # requested machines
    registered: int
    healthy: bool = True
    backoff: str = ""  # why it is not scaled up at present

    @property
    def room(self) -> int:
        """The number of machines that may still be requested."""
        return max(0, self.max_size - max(self.target, self.registered))

    @property
    def coming(self) -> int:
        """The number of requested machines that are not nodes yet."""
        return max(0, self.target - self.registered)


def parse(text: str) -> list[NodeGroupStatus]:
    """Parse the status; empty while the autoscaler initializes. Raises Invalid."""
    if len(text) > SIZE_LIMIT:
        raise Invalid("status", text[:40], f"is larger than {SIZE_LIMIT} bytes")
    if re.search(r"^[ \t]*(autoscalerStatus|clusterWide|nodeGroups):", text, re.MULTILINE):
        return _of_yaml(text)
    return _of_text(text)


def _of_yaml(text: str) -> list[NodeGroupStatus]:
    try:
        documents = list(safe_yaml.load_documents(text.encode(), size_limit=SIZE_LIMIT))
    except safe_yaml.UnusableYaml as error:
        raise Invalid("status", text[:40], str(error)) from None
    whole = documents[0] if len(documents) == 1 else None
    if not isinstance(whole, Mapping):
        raise Invalid("status", text[:40], "must be one document")
    groups = whole.get("nodeGroups") or []
    if not isinstance(groups, Sequence) or isinstance(groups, str):
        raise Invalid("status.nodeGroups", groups, "must be a list")
    return [_group(group, f"status.nodeGroups[{index}]") for index, group in enumerate(groups)]


def _group(raw: Any, path: str) -> NodeGroupStatus:
    health, scale_up = _part(raw, "health", path), _part(raw, "scaleUp", path)
    registered = _part(_part(health, "nodeCounts", path), "registered", path)
    name = raw.get("name")
    if not isinstance(name, str) or not name:
        raise Invalid(f"{path}.name", name, "is required")
    info = scale_up.get("backoffInfo")
    why = info.get("errorMessage") or info.get("errorCode") if isinstance(info, Mapping) else ""
    in_backoff = scale_up.get("status") == "Backoff"
    return NodeGroupStatus(
        name,
        _size(health, "minSize", path),
        _size(health, "maxSize", path),
        _size(health, "cloudProviderTarget", path),
        _size(registered, "total", path),
        healthy=health.get("status") != "Unhealthy",
        backoff=str(why or "scaling up failed") if in_backoff else "",
    )


def _part(raw: Any, key: str, path: str) -> Mapping[str, Any]:
    if not isinstance(raw, Mapping):
        raise Invalid(path, raw, "must be an object")
    value = raw.get(key)
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise Invalid(f"{path}.{key}", value, "must be an object")
    return value


def _size(raw: Mapping[str, Any], key: str, path: str) -> int:
    value = raw.get(key, 0)
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= _SIZE_MAX:
        raise Invalid(f"{path}.{key}", value, f"must be a whole number from 0 to {_SIZE_MAX}")
    return value


_NAME = re.compile(r"^\s*Name:\s+(\S+)\s*$")
_HEALTH = re.compile(r"^\s*Health:\s+(\w+)")
_REGISTERED = re.compile(r"\bregistered=(\d{1,9})\b")
_SIZES = re.compile(r"cloudProviderTarget=(\d{1,9}) \(minSize=(\d{1,9}), maxSize=(\d{1,9})\)")
_SCALE_UP = re.compile(r"^\s*ScaleUp:\s+(\w+)")


def _of_text(text: str) -> list[NodeGroupStatus]:
    statuses: list[NodeGroupStatus] = []
    for block in re.split(r"(?=^[ \t]*Name:)", text, flags=re.MULTILINE)[1:]:
        lines = block.splitlines()
        name = _NAME.match(lines[0])
        sizes = _SIZES.search(block)
        if name is None or sizes is None:
            raise Invalid("status", lines[0][:80], "is a node group without sizes")
        registered = _REGISTERED.search(block)
        health = next((match[1] for match in map(_HEALTH.match, lines) if match), "")
        scale_up = next((match[1] for match in map(_SCALE_UP.match, lines) if match), "")
        target, least, most = (int(group) for group in sizes.groups())
        statuses.append(
            NodeGroupStatus(
                name[1],
                least,
                most,
                target,
                int(registered[1]) if registered else target,
                healthy=health != "Unhealthy",
                backoff="scaling up failed" if scale_up == "Backoff" else "",
            )
        )
    return statuses
