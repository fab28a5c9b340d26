"""Which devices a CEL selector of a class or a request selects.

The result depends on the device alone, so it can be cached. Names without a domain belong to the domain of
the driver. An unknown domain is an empty map; a missing attribute is an error, and so is everything that the
API server refuses to compile.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from karpool.model.cel.functions import INCLUDES
from karpool.model.cel.program import CelEnvironment, CelProgram, compile_program
from karpool.model.cel.syntax import CelCompileError, Expr, parse, walk
from karpool.model.cel.types import ANY, BOOL, DYN, QUANTITY, STRING, CelType, map_of
from karpool.model.cel.values import CelCostError, CelError, CelQuantity, OpenMap, semver_of
from karpool.model.dra.device import AttributeValue, DraDevice
from karpool.model.errors import Invalid


class SelectorError(Exception):
    """The selector cannot be compiled, or cannot be evaluated for a device; the text says which and why."""


def _environment(lists: bool) -> CelEnvironment:
    fields = {
        "driver": STRING,
        "attributes": map_of(STRING, map_of(STRING, DYN if lists else ANY)),
        "capacity": map_of(STRING, map_of(STRING, QUANTITY)),
        "allowMultipleAllocations": BOOL,
    }
    return CelEnvironment({"device": CelType("device", fields=fields)}, {"includes": (INCLUDES,)})


@dataclass(frozen=True, slots=True)
class DeviceSelector:
    text: str
    _program: CelProgram
    _lists: bool

    def matches(self, device: DraDevice) -> bool:
        """Whether a device matches. Raises SelectorError."""
        try:
            chosen = self._program.evaluate({"device": _variables(device, self._lists)})
        except (CelError, CelCostError, Invalid) as error:
            raise SelectorError(f"CEL {self.text!r:.200} on device {device.id}: {error!s:.500}") from None
        if not isinstance(chosen, bool):
            raise SelectorError(
                f"CEL {self.text!r:.200} on device {device.id}: gives {chosen!r:.60}, not a bool"
            )
        return chosen


@lru_cache(maxsize=1024)
def compile_selector(text: str, *, lists: bool = False) -> DeviceSelector:
    """Compile a selector. `lists`: attributes may be lists. Raises SelectorError."""
    try:
        program = compile_program(text, _environment(lists))
        if not (program.result in (BOOL, ANY) or (lists and program.result == DYN)):
            raise CelCompileError(f"must give a bool, not {program.result}")
    except CelCompileError as error:
        raise SelectorError(f"CEL {text!r:.200} does not compile: {error!s:.500}") from None
    return DeviceSelector(text, program, lists)


@lru_cache(maxsize=1024)
def attributes_read(text: str) -> frozenset[str] | None:
    """Return the attributes and capacities that a selector may read, without domains; None: any.

    Devices with the same values of these, the same driver and the same sharing get the same result.
    """
    try:
        tree = parse(text)
    except (CelCompileError, RecursionError):
        return frozenset()  # it is refused for every device
    names: set[str] = set()
    map_places: set[int] = set()  # expressions where a map of values is only a step to one value
    for expr in walk(tree):
        if expr.op in ("select", ".?select") and _is_domain(expr.args[0]):
            names.add(expr.value)
            map_places.add(id(expr.args[0]))
            map_places.add(id(expr.args[0].args[0]))
    for expr in walk(tree):
        whole = expr.op == "name" and expr.value == "device"
        in_full = _is_domain(expr) or (expr.op == "select" and expr.value in ("attributes", "capacity"))
        if in_full and id(expr) not in map_places:
            return None
        if whole and not any(id(expr) == id(outer.args[0]) for outer in walk(tree) if outer.op == "select"):
            return None
    return frozenset(names)


def _is_domain(expr: Expr) -> bool:
    """Whether the expression is `device.attributes["domain"]`, or the same for capacity."""
    if expr.op not in ("index", "[?index]"):
        return False
    values, domain = expr.args
    return (
        domain.op == "literal"
        and values.op == "select"
        and values.value in ("attributes", "capacity")
        and values.args[0].op == "name"
        and values.args[0].value == "device"
    )


def _variables(device: DraDevice, lists: bool) -> Mapping[str, Any]:
    driver = device.id.driver
    attributes, capacity = OpenMap(), OpenMap()
    for name, value in device.attributes:
        domain, _, identifier = name.rpartition("/")
        attributes.setdefault(domain or driver, {})[identifier] = _value(name, value, lists)
    for name, amount in device.capacity:
        domain, _, identifier = name.rpartition("/")
        capacity.setdefault(domain or driver, {})[identifier] = CelQuantity(amount.nanos)
    return {
        "driver": driver,
        "attributes": attributes,
        "capacity": capacity,
        "allowMultipleAllocations": device.shareable,
    }


def _value(name: str, value: AttributeValue, lists: bool) -> Any:
    if value.is_list and not lists:
        raise CelError(f"cannot read attribute {name}: lists are not enabled")
    if value.kind == "version":
        versions = [semver_of(str(text)) for text in value.values]
        return versions if value.is_list else versions[0]
    return list(value.values) if value.is_list else value.values[0]
