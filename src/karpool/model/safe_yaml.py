"""YAML as Kubernetes reads it, from input that may be hostile.

The result is plain data. Dates and 12:30 stay text, as in Go's reader. Size, nesting and the expansion of
aliases are bounded, and every refusal is an `UnusableYaml` that names the place.
"""

import re
from collections.abc import Iterator
from typing import Any

import msgspec
import yaml

SIZE_LIMIT = 64 * 1024 * 1024
DEPTH_LIMIT = 200
NODE_LIMIT = 5_000_000  # after expanding aliases
_SHOWN_MAX = 200  # characters of the input in a refusal


class UnusableYaml(Exception):
    pass


_Base: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class _Loader(_Base):  # type: ignore[misc]  # the C loader is there or not, at run time
    pass


_TAGS = "tag:yaml.org,2002:"
# Sets, dates and binary data are not JSON, whatever a tag says.
_PLAIN = ("null", "bool", "int", "float", "str", "seq", "map")
_Loader.yaml_constructors = {
    tag: make
    for tag, make in yaml.SafeLoader.yaml_constructors.items()
    if tag is None or tag.removeprefix(_TAGS) in _PLAIN
}
# YAML 1.1 also has base-60 numbers, dates and "="; Go's reader does not.
_Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in pairs if tag.removeprefix(_TAGS) in ("bool", "null", "merge")]
    for first, pairs in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
_Loader.add_implicit_resolver(
    _TAGS + "int",
    re.compile(r"[-+]?(0b[01_]+|0o?[0-7_]+|0x[0-9a-fA-F_]+|0|[1-9][0-9_]*)\Z"),
    list("-+0123456789"),
)
_Loader.add_implicit_resolver(
    _TAGS + "float",
    re.compile(
        r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?\Z|[-+]?\.(inf|Inf|INF)\Z|\.(nan|NaN|NAN)\Z"
    ),
    list("-+0123456789."),
)


def _integer(loader: Any, node: Any) -> int:
    text = loader.construct_scalar(node).replace("_", "")
    if len(text) > 400:
        raise UnusableYaml(f"line {node.start_mark.line + 1}: a number of {len(text)} digits")
    sign = -1 if text.startswith("-") else 1
    digits = text.lstrip("+-").lower()
    if digits.startswith(("0b", "0o", "0x")):
        return sign * int(digits, 0)
    return sign * int(digits, 8 if len(digits) > 1 and digits.startswith("0") else 10)


_Loader.add_constructor(_TAGS + "int", _integer)


def compose(data: bytes) -> Any:
    """Return the nodes of text that `load_documents` has read, for finding positions.

    It uses the same loader, because Python's refuses some input that the C loader accepts.
    """
    return yaml.compose(data, Loader=_Loader)


def load_documents(data: bytes, *, size_limit: int = SIZE_LIMIT) -> Iterator[Any]:
    """Yield every document that is not empty. Raises UnusableYaml."""
    if len(data) > size_limit:
        raise UnusableYaml(f"is larger than {size_limit} bytes")
    loader = _Loader(data)
    try:
        _bound_nesting(data)
        while loader.check_data():
            document = loader.get_data()
            _bound_expansion(document)
            if document is not None:
                yield document
    except yaml.MarkedYAMLError as error:
        where = f"line {error.problem_mark.line + 1}: " if error.problem_mark else ""
        problem = error.problem or error.context or "is not YAML"
        raise UnusableYaml(f"{where}{problem[:_SHOWN_MAX]}") from None
    except yaml.YAMLError as error:
        raise UnusableYaml(f"is not YAML: {str(error).splitlines()[0][:_SHOWN_MAX]}") from None
    except RecursionError:
        raise UnusableYaml("is nested too deeply") from None
    except (ValueError, TypeError, OverflowError):  # the value may be a secret, so it is not shown
        raise UnusableYaml("contains an invalid value") from None
    finally:
        loader.dispose()


def json_or_yaml(data: bytes, *, size_limit: int = SIZE_LIMIT) -> Any:
    """Return the one document of a file in either format. Raises UnusableYaml."""
    if len(data) > size_limit:
        raise UnusableYaml(f"is larger than {size_limit} bytes")
    try:
        return msgspec.json.decode(data)  # many times faster
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        pass
    try:
        documents = list(load_documents(data, size_limit=size_limit))
    except UnusableYaml as error:
        raise UnusableYaml(f"is neither JSON nor YAML: {error}") from None
    if len(documents) != 1:
        raise UnusableYaml(f"must hold one document, not {len(documents)}")
    return documents[0]


def _bound_nesting(data: bytes) -> None:
    """Refuse deep nesting, because the C loader recurses without a limit and would crash the process."""
    depth = 0
    for event in yaml.parse(data, Loader=_Loader):
        if isinstance(event, yaml.CollectionStartEvent):
            depth += 1
            if depth > DEPTH_LIMIT:
                raise UnusableYaml(f"is nested more than {DEPTH_LIMIT} levels deep")
        elif isinstance(event, yaml.CollectionEndEvent):
            depth -= 1


def _bound_expansion(document: Any) -> None:
    """Refuse documents whose aliases expand too far, or contain themselves."""
    sizes: dict[int, int] = {}
    open_nodes: set[int] = set()

    def size(node: Any) -> int:
        if not isinstance(node, dict | list):
            return 1
        identity = id(node)
        if identity in open_nodes:
            raise UnusableYaml("an alias refers to what contains it")
        node_count = sizes.get(identity)
        if node_count is None:
            open_nodes.add(identity)
            if isinstance(node, dict) and not all(
                isinstance(key, str | int | float) and not isinstance(key, bool) for key in node
            ):
                raise UnusableYaml("contains a key that is neither text nor a number")
            children = node.values() if isinstance(node, dict) else node
            node_count = sizes[identity] = 1 + sum(map(size, children))
            open_nodes.discard(identity)
        if node_count > NODE_LIMIT:
            raise UnusableYaml(f"contains more than {NODE_LIMIT} values")
        return node_count

    size(document)
