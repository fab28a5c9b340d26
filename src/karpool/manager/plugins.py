"""Plugins of other packages: found through entry points, and loaded only when somebody enables them."""

from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from karpool.model.errors import Invalid

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint


class ChosenPlugins(NamedTuple):
    wanted: Sequence[str]  # `*` may be among them
    unwanted: frozenset[str]


def installed(group: str, ours: Collection[str]) -> "Mapping[str, EntryPoint]":
    """By name. One that takes the name of ours is not among them."""
    from importlib.metadata import entry_points  # slow to import, and most never ask

    return {point.name: point for point in entry_points(group=group) if point.name not in ours}


def known_plugins(plugins: Sequence[str], group: str, ours: Collection[str]) -> set[str]:
    """Every plugin there is; installed packages are only looked through when the list needs it."""
    names = {name.strip().removeprefix("-") for name in plugins} - {""}
    return {*ours} if names <= {*ours} else {*ours, *installed(group, ours)}


def chosen_plugins(plugins: Sequence[str], known: Collection[str]) -> ChosenPlugins:
    """What a `--plugins` list says, `-Name` taking one out. Raises Invalid for one that nobody knows."""
    names = [name.strip() for name in plugins if name.strip()]
    unknown = [name for name in names if name.removeprefix("-") not in (*known, "*")]
    if unknown:
        shown = unknown[0].removeprefix("-")
        raise Invalid("--plugins", shown, f"is not a plugin; known are {', '.join(sorted(known))}")
    return ChosenPlugins(
        [name for name in names if not name.startswith("-")],
        frozenset(name[1:] for name in names if name.startswith("-")),
    )


def loaded(entry: "EntryPoint", methods: Sequence[str], *arguments: object) -> Any:
    """What the entry names, called with `arguments`; it has one of `methods`, at least. Raises Invalid."""
    try:
        plugin = entry.load()(*arguments)
        named = plugin.name
    except Exception as error:
        raise Invalid(
            "--plugins", entry.name, f'failed to initialize plugin "{entry.name}": {error}'
        ) from error
    if named != entry.name:
        raise Invalid("--plugins", entry.name, f'the plugin calls itself "{named}"; both names must agree')
    if not any(callable(getattr(plugin, method, None)) for method in methods):
        raise Invalid("--plugins", entry.name, f"has neither {' nor '.join(methods)}")
    return plugin
