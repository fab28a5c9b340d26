"""Plausible mistakes: one small change of a source file each."""

import ast
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from inspect import CO_OPTIMIZED
from pathlib import Path
from types import CodeType

ROOT = Path(__file__).resolve().parent.parent
LIMIT_FROM = 10  # a named number of a module from here on is a limit or a weight: one more is no mistake

_COMPARISONS = {
    ast.Lt: "<=", ast.LtE: "<", ast.Gt: ">=", ast.GtE: ">", ast.Eq: "!=", ast.NotEq: "==",
    ast.Is: "is not", ast.IsNot: "is", ast.In: "not in", ast.NotIn: "in",
}  # fmt: skip
_ARITHMETIC = {ast.Add: "-", ast.Sub: "+", ast.Mult: "//", ast.FloorDiv: "*", ast.Div: "*", ast.BitAnd: "|"}
_CALLS = {"min": "max", "max": "min", "any": "all", "all": "any", "minimum": "maximum", "maximum": "minimum"}


Change = tuple[str, ast.expr | ast.stmt, tuple[int, int], str]  # scope, node, what is replaced, by what


@dataclass(frozen=True)
class Mutant:
    """`id` names the place by function and order, so that it survives changes elsewhere in the file."""

    id: str
    file: str
    line: int
    start: int  # offsets in the text
    end: int
    text: str

    def applied(self, source: str) -> str:
        return source[: self.start] + self.text + source[self.end :]


def mutants_of(path: Path) -> list[Mutant]:
    source = path.read_text()
    tree = ast.parse(source)
    name = str(path.relative_to(ROOT))
    offsets = [0]
    for line in source.splitlines(keepends=True):
        offsets.append(offsets[-1] + len(line))
    lines = source.splitlines(keepends=True)
    found: list[Mutant] = []
    seen: dict[str, int] = {}

    def offset(line: int, column: int) -> int:
        return offsets[line - 1] + len(lines[line - 1].encode()[:column].decode())

    for scope, node, span, text in _changes(tree, source, offset):
        start, end = span
        before = " ".join(source[start:end].split())
        key = f"{name}:{scope}:{before} -> {' '.join(text.split())}"
        seen[key] = seen.get(key, 0) + 1
        found.append(Mutant(f"{key} #{seen[key]}", name, node.lineno, start, end, text))
    return found


def is_generated(file: Path) -> bool:
    return file.stem.endswith(("_pb2", "_pb2_grpc"))


def _changes(tree: ast.Module, source: str, offset: Callable[[int, int], int]) -> Iterator[Change]:
    def span(node: ast.expr | ast.stmt) -> tuple[int, int]:
        return offset(node.lineno, node.col_offset), offset(node.end_lineno or 0, node.end_col_offset or 0)

    def between(left: ast.expr, right: ast.expr) -> tuple[int, int]:
        return span(left)[1], span(right)[0]

    def visit(node: ast.AST, scope: str) -> Iterator[Change]:
        inner = scope
        described: list[ast.expr] = []
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            inner = f"{scope}.{node.name}"
            described = node.decorator_list
        match node:
            case ast.Compare(ops=[operator]) if type(operator) in _COMPARISONS:
                gap = between(node.left, node.comparators[0])
                if "(" not in source[slice(*gap)] and ")" not in source[slice(*gap)]:
                    yield scope, node, gap, f" {_COMPARISONS[type(operator)]} "
            case ast.BoolOp():
                word, other = ("and", "or") if isinstance(node.op, ast.And) else ("or", "and")
                gap = between(node.values[0], node.values[1])
                text = source[slice(*gap)]
                if text.count(word) == 1:
                    yield scope, node, gap, text.replace(word, other)
            case ast.UnaryOp(op=ast.Not()):
                yield scope, node, span(node), source[slice(*span(node.operand))]
            case ast.BinOp() if type(node.op) in _ARITHMETIC and not _is_text(node):
                gap = between(node.left, node.right)
                if "(" not in source[slice(*gap)] and ")" not in source[slice(*gap)]:
                    yield scope, node, gap, f" {_ARITHMETIC[type(node.op)]} "
            case ast.Constant(value=bool() as value):
                yield scope, node, span(node), str(not value)
            case ast.Constant(value=int() as value) if abs(value) < (2**31 if scope else LIMIT_FROM):
                yield scope, node, span(node), str(value + 1)
            case ast.Call(func=ast.Name(id=called)) if called in _CALLS:
                yield scope, node, span(node.func), _CALLS[called]
            case ast.If() if node.orelse == [] or not isinstance(node.orelse[0], ast.If):
                yield scope, node, span(node.test), "False"
            case ast.Continue():
                yield scope, node, span(node), "break"
            case ast.Break():
                yield scope, node, span(node), "continue"
            case ast.Return(value=ast.expr() as value) if not isinstance(value, ast.Constant):
                yield scope, node, span(value), "None"
        for child in ast.iter_child_nodes(node):
            if child in described or (isinstance(child, ast.AnnAssign) and child.value is None):
                continue
            if isinstance(child, ast.Expr) and isinstance(child.value, ast.Constant):
                continue  # a docstring
            if isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test):
                continue
            yield from visit(child, inner)

    yield from visit(tree, "")


def _is_text(node: ast.BinOp) -> bool:
    """Joining texts and types is no arithmetic."""
    sides = (node.left, node.right)
    return isinstance(node.op, ast.BitOr) or any(
        isinstance(side, ast.JoinedStr) or (isinstance(side, ast.Constant) and isinstance(side.value, str))
        for side in sides
    )


# Planting one in a process that has the module already


def code_of(source: str, file: Path) -> dict[tuple[str, int], CodeType]:
    """By qualified name and order: the module, and every function and class wherever it is."""
    found: dict[tuple[str, int], CodeType] = {}
    count: dict[str, int] = {}

    def visit(code: CodeType) -> None:
        name = code.co_qualname
        count[name] = count.get(name, 0) + 1
        found[name, count[name]] = code
        for inner in code.co_consts:
            if isinstance(inner, CodeType):
                visit(inner)

    visit(compile(source, str(file), "exec"))
    return found


def changed_functions(mutant: Mutant, source: str) -> dict[tuple[str, int], CodeType] | None:
    """By name and first line in the source: the code that takes its place. None: more than that changes."""
    file = ROOT / mutant.file
    before, after = code_of(source, file), code_of(mutant.applied(source), file)
    changed = {
        (name, code.co_firstlineno): after[name, number]
        for (name, number), code in before.items()
        if (name, number) in after and _meaning(code) != _meaning(after[name, number])
    }
    return None if any(map(_is_body, changed.values())) else changed


def _meaning(code: CodeType) -> object:
    """Without line numbers; of a module or class without its functions, which are found by themselves."""
    constants = [
        _meaning(item) if isinstance(item, CodeType) else (type(item), item)
        for item in code.co_consts
        if not (isinstance(item, CodeType) and _is_body(code) and _waits_for_a_call(item))
    ]
    return code.co_code, code.co_names, code.co_varnames, code.co_freevars, constants


def _is_body(code: CodeType) -> bool:
    """Of a module or a class."""
    return not code.co_flags & CO_OPTIMIZED


def _waits_for_a_call(code: CodeType) -> bool:
    return not _is_body(code) and (not code.co_name.startswith("<") or code.co_name == "<lambda>")
