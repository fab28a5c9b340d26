"""Plugins of other packages: found through entry points and loaded only when enabled."""

from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from karpool.model.errors import Invalid

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint


class ChosenPlugins(NamedTuple):
    wanted: Sequence[str]  # may contain `*`
    unwanted: frozenset[str]


def installed(group: str, ours: Collection[str]) -> "Mapping[str, EntryPoint]":
    """Return installed plugins by name, without those that have the name of one of ours."""
    from importlib.metadata import entry_points  # slow to import and rarely needed

    return {point.name: point for point in entry_points(group=group) if point.name not in ours}


def known_plugins(plugins: Sequence[str], group: str, ours: Collection[str]) -> set[str]:
    """Return the names of all plugins; entry points are searched only if the list names one of them."""
    names = {name.strip().removeprefix("-") for name in plugins} - {""}
    return {*ours} if names <= {*ours} else {*ours, *installed(group, ours)}


def chosen_plugins(plugins: Sequence[str], known: Collection[str]) -> ChosenPlugins:
    """Evaluate a `--plugins` list; `-Name` excludes a plugin. Raises Invalid for an unknown name."""
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
    """Load an entry point and call it with `arguments`; the result has at least one of `methods`.

    Raises Invalid.
    """
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
