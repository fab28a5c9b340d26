"""Checks that the product stays tidy: python tools/check_house.py

Fails when a class name is used twice, a folder is a heap of modules, a package does not say
what it is for, or a module, a public function or a class is used by no command, entry point
or documented API: what only tests call is not part of the product. What is used is read from
the syntax: names that reachable code mentions.
"""

import ast
import sys
import tomllib
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PRODUCT, FLEET = "karpool", "karpool_fleet"
MODULES_MAX = 20  # in one folder; with more of them nobody finds the one to read first
DOCSTRING_LINES_MAX = 6  # of text: what it is for, and where to start; more belongs to docs/
GENERATED = "_pb2"

# Used from outside of this repository. Everything else must be reachable from a command.
API: Mapping[str, str] = {
    "karpool.api.cluster:open_cluster": "notebooks and scripts: docs/python.md",
    "karpool.api.simulation:simulate": "notebooks and scripts: docs/python.md",
    "karpool.plugins:SchedulerPlugin": "plugins of other packages: docs/plugins.md",
    "karpool.plugins:FiltersClusters": "plugins of other packages: docs/plugins.md",
    "karpool.plugins:ScoresClusters": "plugins of other packages: docs/plugins.md",
}

Symbol = tuple[str, str]  # module and name; an empty name is the module itself


@dataclass
class Module:
    name: str
    path: Path
    tree: ast.Module
    aliases: dict[str, Symbol] = field(default_factory=dict)  # imported name -> what it is
    symbols: dict[str, list[ast.stmt]] = field(default_factory=dict)
    body: list[ast.AST] = field(default_factory=list)  # runs when the module is imported
    registered: list[str] = field(default_factory=list)  # functions that importing hands to somebody

    @property
    def is_package(self) -> bool:
        return self.path.name == "__init__.py"


def read_modules(source: Path) -> dict[str, Module]:
    modules: dict[str, Module] = {}
    for package in (PRODUCT, FLEET):
        for path in sorted((source / package).rglob("*.py")):
            name = ".".join(path.relative_to(source).with_suffix("").parts).removesuffix(".__init__")
            modules[name] = Module(name, path, ast.parse(path.read_text()))
    for module in modules.values():
        _read_imports(module, modules)
        _read_symbols(module)
    return modules


def _read_imports(module: Module, modules: Mapping[str, Module]) -> None:
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                name = alias.name if alias.asname else alias.name.split(".")[0]
                module.aliases[alias.asname or name] = (name, "")
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            for alias in node.names:
                whole = f"{base}.{alias.name}"
                module.aliases[alias.asname or alias.name] = (
                    (whole, "") if whole in modules else (base, alias.name)
                )


def _read_symbols(module: Module) -> None:
    for statement in _statements(module.tree.body):
        names = _defined_names(statement)
        if any(_registers(call, module) for call in getattr(statement, "decorator_list", ())):
            module.registered.extend(names)
        if not names:
            module.body.append(statement)
        for name in names:
            module.symbols.setdefault(name, []).append(statement)


def _statements(body: Iterable[ast.stmt]) -> Iterator[ast.stmt]:
    """Of a module, with those under `if` and `try`."""
    for statement in body:
        if isinstance(statement, ast.If):
            yield from _statements([*statement.body, *statement.orelse])
        elif isinstance(statement, ast.Try):
            yield from _statements([*statement.body, *statement.orelse, *statement.finalbody])
        else:
            yield statement


def _defined_names(statement: ast.stmt) -> list[str]:
    if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return [statement.name]
    if isinstance(statement, ast.Assign):
        return [
            node.id for target in statement.targets for node in ast.walk(target) if isinstance(node, ast.Name)
        ]
    if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
        return [statement.target.id]
    return []


def _registers(decorator: ast.expr, module: Module) -> bool:
    """`@group.command()` puts a function where it will be called; `@dataclass` does not."""
    target = decorator.func if isinstance(decorator, ast.Call) else decorator
    while isinstance(target, ast.Attribute):
        target = target.value
    return isinstance(target, ast.Name) and target.id in module.symbols


def references(module: Module, nodes: Iterable[ast.AST], modules: Mapping[str, Module]) -> Iterator[Symbol]:
    """What code mentions: its own names, imported ones, attributes of imported modules, named modules."""
    for node in (part for root in nodes for part in ast.walk(root)):
        if isinstance(node, ast.Name):
            if node.id in module.symbols:
                yield module.name, node.id
            elif node.id in module.aliases:
                yield module.aliases[node.id]
        elif isinstance(node, ast.Attribute):
            owner = _module_of(node.value, module, modules)
            if owner is not None:
                whole = f"{owner}.{node.attr}"
                yield (whole, "") if whole in modules else (owner, node.attr)
        elif isinstance(node, ast.Tuple):
            texts = [part.value if isinstance(part, ast.Constant) else None for part in node.elts[:2]]
            if len(texts) == 2 and texts[0] in modules:
                yield str(texts[0]), str(texts[1])  # a table of commands
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            if node.value in modules:
                yield node.value, ""
            elif node.value.isidentifier() and node.value in module.symbols:
                yield module.name, node.value  # a type in quotes
            elif node.value.isidentifier() and node.value in module.aliases:
                yield module.aliases[node.value]


def _module_of(node: ast.expr, module: Module, modules: Mapping[str, Module]) -> str | None:
    if isinstance(node, ast.Name):
        name, attribute = module.aliases.get(node.id, ("", ""))
        return name if not attribute and name in modules else None
    if isinstance(node, ast.Attribute):
        owner = _module_of(node.value, module, modules)
        whole = f"{owner}.{node.attr}"
        return whole if whole in modules else None
    return None


def reachable(modules: Mapping[str, Module], roots: Iterable[Symbol]) -> set[Symbol]:
    """Symbols that somebody who starts at the roots can come to; importing a module runs its body."""
    seen: set[Symbol] = set()
    waiting = list(roots)
    while waiting:
        symbol = waiting.pop()
        module = modules.get(symbol[0])
        if symbol in seen or module is None:
            continue
        seen.add(symbol)
        name = symbol[1]
        parts = module.name.split(".")
        waiting.extend((".".join(parts[:length]), "") for length in range(1, len(parts) + 1))
        if not name:
            waiting.extend(references(module, module.body, modules))
            waiting.extend((module.name, registered) for registered in module.registered)
            waiting.extend((imported, "") for imported, _ in _imported_at_start(module))
        elif name in module.symbols:
            waiting.extend(references(module, module.symbols[name], modules))
        elif name in module.aliases:  # re-exported
            waiting.append(module.aliases[name])
    return seen


def _imported_at_start(module: Module) -> Iterator[Symbol]:
    for statement in _statements(module.tree.body):
        if isinstance(statement, ast.Import):
            yield from ((alias.name, "") for alias in statement.names)
        elif isinstance(statement, ast.ImportFrom):
            yield from (module.aliases[alias.asname or alias.name] for alias in statement.names)


def roots_of(project: Path) -> list[Symbol]:
    scripts = tomllib.loads(project.read_text())["project"]["scripts"].values()
    named = [tuple(script.split(":")) for script in scripts]
    return [(module, name) for module, name in named] + [(f"{PRODUCT}.__main__", "")]


# The checks; each yields a sentence per problem.


def classes_named_twice(modules: Mapping[str, Module]) -> Iterator[str]:
    places: dict[str, list[str]] = defaultdict(list)
    for module in modules.values():
        for statement in module.tree.body:
            if isinstance(statement, ast.ClassDef) and not statement.name.startswith("_"):
                places[statement.name].append(module.name)
    for name, found in sorted(places.items()):
        of_product = [place for place in found if _is_product(place)]
        if of_product and len(found) > 1:
            yield f"class {name} is in {', '.join(found)}: give each its own name"


def heaps(modules: Mapping[str, Module]) -> Iterator[str]:
    folders: dict[Path, int] = defaultdict(int)
    for module in modules.values():
        if not module.is_package and _is_product(module.name):
            folders[module.path.parent] += 1
    for folder, count in sorted(folders.items()):
        if count > MODULES_MAX:
            yield f"{folder} has {count} modules, more than {MODULES_MAX}: give parts of it a folder"


def packages_without_a_word(modules: Mapping[str, Module]) -> Iterator[str]:
    for module in modules.values():
        if not module.is_package or module.name.endswith(".proto"):
            continue
        text = ast.get_docstring(module.tree) or ""
        if not text:
            yield f"package {module.name} has no docstring: say what it holds and where to start"
        elif sum(bool(line) for line in text.splitlines()) > DOCSTRING_LINES_MAX:
            yield f"the docstring of package {module.name} is longer than {DOCSTRING_LINES_MAX} lines"


def unreachable(modules: Mapping[str, Module], project: Path, api: Iterable[str]) -> Iterator[str]:
    documented = [(module, name) for module, _, name in (entry.partition(":") for entry in api)]
    seen = reachable(modules, [*roots_of(project), *documented])
    for module in modules.values():
        if not _is_product(module.name) or GENERATED in module.name:
            continue
        if (module.name, "") not in seen:
            yield f"module {module.name} is used by no command"
            continue
        for name, statements in module.symbols.items():
            is_code = isinstance(statements[0], ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
            if is_code and not name.startswith("_") and (module.name, name) not in seen:
                yield f"{module.name}:{name} is used by no command"


def stale_exceptions(modules: Mapping[str, Module], api: Iterable[str]) -> Iterator[str]:
    for entry in api:
        name, _, symbol = entry.partition(":")
        if name not in modules or (symbol and symbol not in modules[name].symbols):
            yield f"the API names {entry}, which is not there"


def _is_product(name: str) -> bool:
    return name == PRODUCT or name.startswith(f"{PRODUCT}.")


def problems(root: Path = ROOT, api: Iterable[str] = tuple(API)) -> list[str]:
    modules = read_modules(root / "src")
    return [
        *classes_named_twice(modules),
        *heaps(modules),
        *packages_without_a_word(modules),
        *unreachable(modules, root / "pyproject.toml", api),
        *stale_exceptions(modules, api),
    ]


if __name__ == "__main__":
    found = problems()
    sys.stdout.write("".join(f"{problem}\n" for problem in found))
    sys.exit(1 if found else 0)
