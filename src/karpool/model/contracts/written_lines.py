"""Finds the line of a value in the text of a contract."""

import re
from collections.abc import Iterator
from typing import Any

import yaml

from karpool.model import safe_yaml
from karpool.model.errors import Invalid

_STEP = re.compile(r"([^.\[\]]+)|\[(\d+)\]")


def refuse_doubled(data: bytes) -> None:
    """Refuse duplicate keys: YAML parsers silently take one of them."""
    nodes, seen = [safe_yaml.compose(data)], set[int]()
    while nodes:
        node = nodes.pop()
        if id(node) in seen:
            continue  # an alias
        seen.add(id(node))
        if isinstance(node, yaml.SequenceNode):
            nodes += node.value
        elif isinstance(node, yaml.MappingNode):
            names = set[str]()
            for key, value in node.value:
                if isinstance(key, yaml.ScalarNode):
                    if key.value in names:
                        line = key.start_mark.line + 1
                        raise Invalid(f"line {line}.{key.value[:100]}", key.value[:100], "occurs twice")
                    names.add(key.value)
                nodes.append(value)


def line_of(data: bytes, path: str) -> int:
    """Return the line of a path, or of its nearest written part."""
    node = safe_yaml.compose(data)
    line = 1
    for name, index in _steps(path):
        child = _child(node, name, index)
        if child is None:
            break
        node = child
        line = node.start_mark.line + 1
    return int(line)


def _steps(path: str) -> Iterator[tuple[str, int]]:
    for step in _STEP.finditer(path):
        yield (step[1], -1) if step[1] else ("", int(step[2]))


def _child(node: Any, name: str, index: int) -> Any:
    if isinstance(node, yaml.MappingNode) and name:
        return next((value for key, value in node.value if key.value == name), None)
    if isinstance(node, yaml.SequenceNode) and 0 <= index < len(node.value):
        return node.value[index]
    return None
