"""Reads YAML files written by people strictly: fleets and scenarios.

A file is checked as a whole. Each error is one line with the file, the line number, the field, the value and
what would be right; unknown fields are refused, because a typo must not become a default.
"""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import yaml

from karpool.kube.bounded_input import read_bounded
from karpool.model import safe_yaml
from karpool.model.errors import Invalid, ModelError

API_VERSION = "karpool.dev/v1alpha1"
SIZE_LIMIT = 4 * 2**20
_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # the loader of `safe_yaml`
T = TypeVar("T")


_SHOWN_MAX = 500  # characters of a file that a message quotes


class FleetError(ModelError):
    """A file cannot be used."""


def read_bytes(path: Path, what: str) -> bytes:
    """Read a file of bounded size. Raises FleetError."""
    try:
        return read_bounded(path, SIZE_LIMIT)
    except OSError as error:
        raise FleetError(f"{path}: {error.strerror}; give the path of {what}") from None


def parse(data: bytes, where: str, what: str, into: type[T], check: Callable[[T], None]) -> T:
    """Parse and check a file. Raises FleetError for any invalid input; `check` raises Invalid."""
    document = one_document(data, where, what)
    try:
        converted = msgspec.convert(document, into)
        check(converted)
    except msgspec.ValidationError as error:
        message, _, at = str(error).partition(" - at `$")
        raise located(data, where, at.strip("`."), message) from None
    except Invalid as error:
        raise located(data, where, error.path, f"{error.value!r}: {error.reason}") from None
    return converted


def one_document(data: bytes, where: str, what: str) -> Any:
    """Return the only document of a file. Raises FleetError."""
    try:
        documents = list(safe_yaml.load_documents(data, size_limit=SIZE_LIMIT))
    except safe_yaml.UnusableYaml as error:
        raise FleetError(f"{where}: {error}") from None
    if len(documents) != 1:
        raise FleetError(f"{where}: has {len(documents)} documents; {what} is one")
    return documents[0]


def located(data: bytes, where: str, path: str, message: str) -> FleetError:
    line = _line_of(data, path)
    field = f"{path[:_SHOWN_MAX]}: " if path else ""
    return FleetError(f"{where}:{line}: {field}{message[:_SHOWN_MAX]}")


def _line_of(data: bytes, path: str) -> int:
    """Return the line of a field path, or of its last existing part."""
    nodes = yaml.compose_all(data, Loader=_LOADER)  # parsed and bounded once before
    node: Any = next((node for node in nodes if not isinstance(node, yaml.ScalarNode)), None)
    line = int(node.start_mark.line) if node is not None else 0
    for step in re.findall(r"[^.\[\]]+|\[\d+\]", path):
        if isinstance(node, yaml.SequenceNode) and step.startswith("["):
            index = int(step[1:-1])
            if index >= len(node.value):
                break
            node = node.value[index]
        elif isinstance(node, yaml.MappingNode):
            match = next((pair for pair in node.value if pair[0].value == step), None)
            if match is None:
                break
            line, node = int(match[0].start_mark.line), match[1]
            continue
        else:
            break
        line = int(node.start_mark.line)
    return line + 1
