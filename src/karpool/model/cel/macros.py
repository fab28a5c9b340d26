"""Macros over lists and maps, and the scope in which terms are evaluated."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from karpool.model.cel.types import BOOL, DYN, CelType, list_of, map_of
from karpool.model.cel.values import CelCostError, CelError, truth

LIST_COST, MAP_COST = 10, 30  # cost of building one


class Scope:
    """The variables of one evaluation, and the cost so far."""

    __slots__ = ("cost", "limit", "names")

    def __init__(self, names: dict[str, Any], limit: int) -> None:
        self.names = names
        self.cost = 0.0
        self.limit = limit

    def spend(self, steps: float = 1) -> None:
        self.cost += steps
        if self.cost > self.limit:
            raise CelCostError(f"needs too many steps for this object (more than {self.limit})")


Term = Callable[[Scope], Any]

Loop = tuple[str, ...]
Run = Callable[[Scope, Loop, "list[Any] | dict[Any, Any]", list[Term]], Any]


def _rounds(scope: Scope, loop: Loop, items: "list[Any] | dict[Any, Any]", cost: float) -> Iterator[Any]:
    pairs: Iterable[tuple[Any, ...]]
    if len(loop) == 2:
        pairs = items.items() if isinstance(items, dict) else enumerate(items)
    else:
        pairs = ((item,) for item in items)
    for pair in pairs:
        scope.spend(cost)
        scope.names.update(zip(loop, pair, strict=True))
        yield pair[-1]


def _quantified(decisive: bool) -> Run:
    # An iteration tests whether to continue (exists: not true yet) and reads the result so far.
    asking = 3 if decisive else 2

    def run(scope: Scope, loop: Loop, items: Any, terms: list[Term]) -> bool:
        error: Exception | None = None
        scope.spend()
        for _ in _rounds(scope, loop, items, asking + 1):
            try:
                if truth(terms[0](scope)) is decisive:
                    scope.spend(asking)
                    return decisive
            except (CelError, TypeError, ValueError, OverflowError, AttributeError) as problem:
                error = problem
        if error is not None:
            raise error
        return not decisive

    return run


def _exists_one(scope: Scope, loop: Loop, items: Any, terms: list[Term]) -> bool:
    hits = 0
    for _ in _rounds(scope, loop, items, 0):
        hits += truth(terms[0](scope))
    scope.spend(2 * hits + 2)
    return hits == 1


def _filter(scope: Scope, loop: Loop, items: Any, terms: list[Term]) -> list[Any]:
    scope.spend()
    kept: list[Any] = []
    for item in _rounds(scope, loop, items, 0):
        if truth(terms[0](scope)):
            scope.spend(LIST_COST + 3)
            kept.append(item)
    return kept


def _mapped(scope: Scope, loop: Loop, items: Any, terms: list[Term]) -> list[Any]:
    scope.spend()
    mapped: list[Any] = []
    for _ in _rounds(scope, loop, items, 0):
        if len(terms) == 1 or truth(terms[0](scope)):
            scope.spend(LIST_COST + 2)
            mapped.append(terms[-1](scope))
    return mapped


def _transform_map(scope: Scope, loop: Loop, items: Any, terms: list[Term]) -> dict[Any, Any]:
    scope.spend()
    built: dict[Any, Any] = {}
    for _ in _rounds(scope, loop, items, 2):
        if len(terms) == 1 or truth(terms[0](scope)):
            built[scope.names[loop[0]]] = terms[-1](scope)
    return built


@dataclass(frozen=True, slots=True)
class Macro:
    run: Run
    result: CelType | None = None  # None: a list of the type of the body
    needs_bool: bool = True
    arguments: tuple[int, ...] = (2, 3)  # one or two variables, and the body


MACROS = {
    "all": Macro(_quantified(decisive=False), BOOL),
    "exists": Macro(_quantified(decisive=True), BOOL),
    "exists_one": Macro(_exists_one, BOOL),
    "existsOne": Macro(_exists_one, BOOL, arguments=(3,)),
    "filter": Macro(_filter, list_of(DYN), arguments=(2,)),
    "map": Macro(_mapped, needs_bool=False),
    "transformList": Macro(_mapped, needs_bool=False, arguments=(3, 4)),
    "transformMap": Macro(_transform_map, map_of(DYN, DYN), needs_bool=False, arguments=(3, 4)),
}
TWO_VARIABLES = ("all", "exists", "exists_one", "existsOne", "transformList", "transformMap")
