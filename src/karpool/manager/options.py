"""Declares options once: a struct defines flags, defaults, checks, scenario keys, chart values and pages.

A field has a type and a description: `hold_seconds: Annotated[Duration, option("...")] = 120.0`. Fields that
several controllers share are in groups, which are structs of their own; the flags of a group are flags of the
controller. Type and range check a single value; `problems` checks rules between fields. Both run whenever a
struct is created, so an options struct is always valid. `cli` shows the options; no other module parses them.
Declarations import nothing slow, because `--help` must answer at once.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from functools import lru_cache
from math import inf
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, ClassVar, Literal, TypeVar, Union, get_args, get_origin

import msgspec
from msgspec import Meta

from karpool.model import durations
from karpool.model.errors import Invalid, ModelError
from karpool.wire.addresses import ListenAddress, listener

Kind = Literal["switch", "integer", "number", "duration", "text", "choice", "file"]
T = TypeVar("T", bound="Options")
_DURATION = "duration"
NO_EFFECT = "Accepted for compatibility; has no effect."

Duration = Annotated[float, Meta(ge=0, extra={"unit": _DURATION})]
LongerThanNothing = Annotated[float, Meta(gt=0, extra={"unit": _DURATION})]  # zero is not allowed
Count = Annotated[int, Meta(ge=0)]
Amount = Annotated[float, Meta(ge=0)]


class InvalidOptions(ModelError):
    """All problems of a set of options, one per line. Paths of `Invalid` are flags: `--hold`."""

    def __init__(self, errors: Iterable[Invalid | str]) -> None:
        self.errors = tuple({str(error): error for error in errors}.values())
        super().__init__("\n".join(map(str, self.errors)))


def option(
    text: str = "",
    *,
    flag: str = "",
    short: str = "",
    metavar: str = "",
    chart: str = "",
    least: float | None = None,
    most: float | None = None,
    negated: bool = False,
    ignored: bool = False,
    process_only: bool = False,
    exists: bool = False,
    pattern: str = "",
    suggestions: tuple[str, ...] = (),
) -> Meta:
    """Describe a field, and its flag if the name of the field does not suit.

    `chart` is its key among the chart's values. `negated`: the flag says the opposite of the field.
    `ignored`: the flag exists for manifests of Go binaries and has no effect. `process_only`: the option has
    no meaning for a controller inside another process. `exists`: the file must exist. `pattern` restricts a
    text in the chart's schema; `suggestions` are for shell completion.
    """
    extra = {
        "flag": flag,
        "short": short,
        "metavar": metavar,
        "chart": chart,
        "negated": negated,
        "ignored": ignored,
        "process_only": process_only,
        "exists": exists,
        "pattern": pattern,
        "suggestions": suggestions,
    }
    chosen = {name: value for name, value in extra.items() if value}
    return Meta(description=text or None, ge=least, le=most, extra=chosen)


@dataclass(frozen=True, slots=True)
class OptionField:
    """One option for flags, scenarios, chart and pages. `name` is its flag, and its key in a scenario."""

    path: tuple[str, ...]  # attributes from the struct to the value
    name: str
    kind: Kind
    default: Any
    help: str
    base: type  # type of one value
    many: bool
    may_be_none: bool
    choices: tuple[str, ...]
    least: float | None
    above: float | None
    most: float | None
    about: Mapping[str, Any]
    go: bool  # parsed and shown as in Go

    @property
    def ignored(self) -> bool:
        return bool(self.about.get("ignored"))

    @property
    def process_only(self) -> bool:
        return bool(self.about.get("process_only"))

    @property
    def negated(self) -> bool:
        return bool(self.about.get("negated"))

    @property
    def full_help(self) -> str:
        return f"{self.help} {NO_EFFECT}".lstrip() if self.ignored else self.help

    @property
    def shown_default(self) -> Any:
        """Return the default as a person would write it; False for a negated switch with its default."""
        if self.negated:
            return not self.default
        if self.default is None:
            return None
        if self.kind == _DURATION:
            return durations.show(self.default)
        if self.kind == "choice":
            return tuple(map(str, self.default)) if self.many else str(self.default)
        return self.default

    def of(self, options: "Options") -> Any:
        value: Any = options
        for name in self.path:
            value = getattr(value, name)
        return value

    def check(self, value: Any) -> None:
        """Check a value of the right type. Raises Invalid if it is out of range or not one of the choices."""
        for one in value if self.many else () if value is None else (value,):
            if self.choices and str(one) not in self.choices:
                raise self._refused(one, f"must be one of {', '.join(filter(None, self.choices))}")
            if (self.least is not None and one < self.least) or (self.most is not None and one > self.most):
                raise self._refused(one, _range(self.least, self.most))
            if self.above is not None and one <= self.above:
                raise self._refused(one, "must be longer than 0s")

    def _refused(self, value: Any, reason: str) -> Invalid:
        shown = durations.show(value) if self.kind == _DURATION else value
        return Invalid(f"--{self.name}", shown, reason)

    def read(self, raw: Any) -> Any:
        """Return the field's value for the text of a flag. Raises Invalid with the text."""
        value = self.value(raw)
        try:
            self.check(value)
        except Invalid as error:
            raise Invalid(error.path, error.value if self.many else raw, error.reason) from None
        return not value if self.negated else value

    def value(self, raw: Any) -> Any:
        """Return the typed value of a text on a command line or in a file. Raises Invalid."""
        try:
            if not self.many:
                return self._read_one(raw)
            texts = list(raw) if isinstance(raw, list | tuple) else [raw]
            if self.go:
                texts = [part.strip() for text in texts for part in str(text).split(",") if part.strip()]
            return tuple(self._read_one(text) for text in texts)
        except Invalid as error:
            raise Invalid(f"--{self.name}", error.value, error.reason) from None

    def _read_one(self, raw: Any) -> Any:
        if self.kind == "choice" and (str(raw) not in self.choices or isinstance(raw, bool)):
            raise Invalid("", raw, f"must be one of {', '.join(filter(None, self.choices))}")
        value = _READERS[self.kind](raw) if not (self.go and self.kind == _DURATION) else _go_seconds(raw)
        return self.base(value) if self.kind == "choice" and issubclass(self.base, Enum) else value


def _range(least: float | None, most: float | None) -> str:
    if least is not None and most is not None:
        return f"must be between {least} and {most}"
    if least is not None:
        return "must not be negative" if least == 0 else f"must be at least {least}"
    return f"must be at most {most}"


def _switch(raw: Any) -> bool:
    text = str(raw).lower()
    if text not in ("1", "t", "true", "0", "f", "false"):  # as Go parses them
        raise Invalid("", raw, "is neither true nor false")
    return text in ("1", "t", "true")


def _integer(raw: Any) -> int:
    try:
        return int(str(raw).removeprefix("="))  # `-v=4`
    except ValueError:
        raise Invalid("", raw, "is not a whole number") from None


def _number(raw: Any) -> float:
    try:
        if isinstance(raw, bool):
            raise ValueError
        return float(raw)
    except (ValueError, TypeError):
        raise Invalid("", raw, "is not a number") from None


def _seconds(raw: Any) -> float:
    """Parse a duration; a plain number is accepted, as in kubectl."""
    text = str(raw)
    return float(text) if text.isascii() and text.isdecimal() else _go_seconds(raw)


def _go_seconds(raw: Any) -> float:
    return raw if isinstance(raw, float) else durations.seconds(str(raw))


def _text(raw: Any) -> str:
    if isinstance(raw, bool) or not isinstance(raw, str | int | float):
        raise Invalid("", raw, "must be a text")
    return str(raw)


_READERS: Mapping[str, Callable[[Any], Any]] = {
    "switch": _switch,
    "integer": _integer,
    "number": _number,
    _DURATION: _seconds,
    "text": _text,
    "choice": str,
    "file": lambda raw: Path(str(raw)),
}


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """Options of a controller, or a group of them. Raises InvalidOptions if they are not valid."""

    command: ClassVar[str] = ""
    chart: ClassVar[str] = ""  # the controller's key among the chart's values
    go_flags: ClassVar[bool] = False  # spelled as in the Go binary that the command replaces

    def __post_init__(self) -> None:
        errors: list[Invalid | str] = []
        for field in _own_fields(type(self)):
            try:
                field.check(getattr(self, field.path[-1]))
            except Invalid as error:
                errors.append(error)
        errors += self.problems()
        if errors:
            raise InvalidOptions(errors)

    def problems(self) -> Iterator[Invalid | str]:
        """Yield violations of rules between fields; strings are messages of Go binaries."""
        return iter(())


def option_fields(options: type[Options]) -> tuple[OptionField, ...]:
    """Return all fields in order of declaration; the fields of a group are in its place."""
    return _all_fields(options, (), None, process_only=False, go=False)


def _all_fields(
    options: type[Options], path: tuple[str, ...], usual: Options | None, *, process_only: bool, go: bool
) -> tuple[OptionField, ...]:
    """Return all fields; `usual` is the owner's default instance of the group."""
    go = go or options.go_flags
    fields: list[OptionField] = []
    for name, (declared, about, declared_default) in _declared(options).items():
        default = getattr(usual, name) if usual is not None else declared_default
        only = process_only or bool(about.get("process_only"))
        if _is_group(declared):
            fields += _all_fields(declared, (*path, name), default, process_only=only, go=go)
        else:
            fields.append(_field((*path, name), declared, {**about, "process_only": only}, default, go))
    return tuple(fields)


def _is_group(declared: Any) -> bool:
    return isinstance(declared, type) and issubclass(declared, Options)


@lru_cache
def _own_fields(options: type[Options]) -> tuple[OptionField, ...]:
    return tuple(
        _field((name,), declared, about, default, options.go_flags)
        for name, (declared, about, default) in _declared(options).items()
        if not _is_group(declared)
    )


@lru_cache
def _declared(options: type[Options]) -> Mapping[str, tuple[Any, Mapping[str, Any], Any]]:
    """Return type, metadata and default of each field."""
    declared_fields: dict[str, tuple[Any, Mapping[str, Any], Any]] = {}
    for info in msgspec.structs.fields(options):
        about: dict[str, Any] = {}
        declared = info.type
        if get_origin(declared) is Annotated:
            declared, *metas = get_args(declared)
            for meta in metas:
                limits = {"least": meta.ge, "above": meta.gt, "most": meta.le, "help": meta.description}
                about |= {key: value for key, value in limits.items() if value is not None}
                about |= meta.extra or {}
        declared_fields[info.name] = (declared, about, info.default)
    return declared_fields


def _field(
    path: tuple[str, ...], declared: Any, about: Mapping[str, Any], default: Any, go: bool
) -> OptionField:
    many = get_origin(declared) is tuple
    one = get_args(declared)[0] if many else declared
    may_be_none = get_origin(one) in (Union, UnionType)
    if may_be_none:
        (one,) = (kind for kind in get_args(one) if kind is not type(None))
    choices: tuple[str, ...] = ()
    if get_origin(one) is Literal:
        choices, one = get_args(one), str
    elif issubclass(one, Enum):
        choices = tuple(str(choice) for choice in one)
    kinds: dict[type, Kind] = {bool: "switch", int: "integer", float: "number", Path: "file"}
    kind: Kind = "choice" if choices else kinds.get(one, "text")
    return OptionField(
        path=path,
        name=about.get("flag") or path[-1].replace("_", "-"),
        kind="duration" if about.get("unit") == _DURATION else kind,
        default=default,
        help=about.get("help", ""),
        base=one,
        many=many,
        may_be_none=may_be_none,
        choices=choices,
        least=about.get("least"),
        above=about.get("above"),
        most=about.get("most"),
        about=about,
        go=go,
    )


def read_options(options: type[T], given: Mapping[str, Any], *, embedded: bool = False, **fixed: Any) -> T:
    """Return the struct for given flags or keys; others have their defaults.

    Raises InvalidOptions with all problems. `embedded`: the controller runs inside another process. `fixed`
    are fields that cannot be chosen.
    """
    errors: list[Invalid | str] = []
    fields = {field.name: field for field in option_fields(options) if not (embedded and field.process_only)}
    values: dict[tuple[str, ...], Any] = {}
    for name, raw in given.items():
        if name not in fields:
            errors.append(Invalid(f"--{name}", raw, f"is not a flag; there are {', '.join(sorted(fields))}"))
            continue
        try:
            values[fields[name].path] = fields[name].read(raw)
        except Invalid as error:
            errors.append(error)
    values |= {(name,): value for name, value in fixed.items()}
    made = _make(options, values, (), None, errors)
    if errors or made is None:
        raise InvalidOptions(errors)
    return made


def read_fields(options: type[T], given: Mapping[str, Any]) -> T:
    """Return the struct for a file that names fields, not flags; ignore other keys.

    Raises Invalid or InvalidOptions.
    """
    fields = {field.path[-1]: field for field in _own_fields(options)}
    values = {name: raw for name, raw in given.items() if name in fields and raw is not None}
    return options(**{name: fields[name].value(raw) for name, raw in values.items()})


def _make(
    options: type[T],
    values: Mapping[tuple[str, ...], Any],
    path: tuple[str, ...],
    usual: T | None,
    errors: list[Invalid | str],
) -> T | None:
    """Create the struct, groups first.

    A problem is added to `errors` and the default is used instead, so that the rest is checked.
    """
    chosen: dict[str, Any] = {}
    for name, (declared, _, declared_default) in _declared(options).items():
        default = getattr(usual, name) if usual is not None else declared_default
        if _is_group(declared):
            chosen[name] = _make(declared, values, (*path, name), default, errors)
        elif (*path, name) in values:
            chosen[name] = values[*path, name]
        else:
            chosen[name] = default
    try:
        return options(**chosen)
    except InvalidOptions as error:
        errors += error.errors
        return usual


# Options that several controllers share


class ConnectionOptions(Options, frozen=True):
    """Which API server to talk to, spelled as kubectl spells it."""

    kubeconfig: Annotated[
        Path | None,
        option(
            "Path of the kubeconfig file. Default: $KUBECONFIG, or ~/.kube/config, or the service "
            "account of the pod."
        ),
    ] = None
    context: Annotated[str, option("Context of the kubeconfig. Default: the current context.")] = ""
    request_timeout_seconds: Annotated[
        float | None,
        Meta(ge=0, extra={"unit": _DURATION}),
        option(
            "Timeout of each request, like 30s; 0 means no timeout. Default: 30s.",
            flag="request-timeout",
        ),
    ] = None

    @property
    def timeout_seconds(self) -> float | None:
        """Return the timeout; None is the client's default."""
        return inf if self.request_timeout_seconds == 0 else self.request_timeout_seconds


class ProbeOptions(Options, frozen=True):
    """Where metrics and probes are answered."""

    metrics_bind_address: Annotated[str, option("Address that serves /metrics; 0 disables it.")] = ":8080"
    health_probe_bind_address: Annotated[
        str, option("Address that serves /healthz, /livez and /readyz; 0 disables them.")
    ] = ":8081"

    def problems(self) -> Iterator[Invalid | str]:
        for field in _own_fields(ProbeOptions):
            try:
                listener(f"--{field.name}", field.of(self))
            except Invalid as error:
                yield error

    @property
    def addresses(self) -> tuple[ListenAddress, ...]:
        """Return the addresses without duplicates: both may be the same."""
        texts = (self.metrics_bind_address, self.health_probe_bind_address)
        listeners = (listener("", text) for text in texts)
        return tuple(dict.fromkeys(address for address in listeners if address is not None))


class WatchOptions(Options, frozen=True):
    """How old a picture of a cluster may be that is acted on."""

    max_staleness_seconds: Annotated[
        Duration,
        option(
            "Pause if the API server has sent nothing for this long; 0 disables the check.",
            flag="max-staleness",
            chart="maxStaleness",
        ),
    ] = 180.0


Catalogue = Annotated[
    Path | None,
    option(
        "File of instance types and prices; see docs/catalogue.md. Default: the shipped catalogue.",
        exists=True,
    ),
]


ContractFile = Annotated[
    Path | None,
    option(
        "File of discounts, reservations and commitments; see docs/contracts.md. Default: list prices.",
        exists=True,
    ),
]


ContractCluster = Annotated[
    str, option("Name of this cluster in `sharedBy` of the contract. Default: its name in the kubeconfig.")
]


def region_problems(region: str, catalogue: Path | None) -> Iterator[Invalid]:
    """Yield a problem if no shipped catalogue has the region.

    Catalogue files are checked when they are read.
    """
    if region and catalogue is None:
        # A slow import, needed only if a region is named.
        from karpool.model.catalogue.files import shipped_provider, unknown_region

        if not shipped_provider(region):
            yield unknown_region("--region", region)
