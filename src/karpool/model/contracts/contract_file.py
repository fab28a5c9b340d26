"""Reads a contract file in YAML or JSON; an error names its line."""

import math
import re
from collections.abc import Iterable, Sequence
from difflib import get_close_matches
from typing import Annotated, Any

import msgspec

from karpool.model import safe_yaml
from karpool.model.catalogue.files import (
    PROVIDERS,
    load_shipped,
    shipped_families,
    shipped_provider,
    shipped_regions,
    shipped_type_names,
    unknown_region,
)
from karpool.model.contracts.contract import (
    AgreementScope,
    BilledKind,
    Commitment,
    CommitmentKind,
    CommitmentUnit,
    Contract,
    Discount,
    MeetingPlace,
    Term,
    pairs_about_the_same,
)
from karpool.model.contracts.contracted_prices import billed_kind
from karpool.model.contracts.written_lines import line_of, refuse_doubled
from karpool.model.contracts.written_machines import (
    CAPACITY_TYPES,
    Amount,
    WrittenMachines,
    machines_of,
)
from karpool.model.contracts.written_price_source import WrittenPriceSource, price_source
from karpool.model.errors import Invalid
from karpool.model.karpenter.objects import ON_DEMAND
from karpool.model.kubernetes.meta import Wire, decode
from karpool.model.kubernetes.times import moment

FORMAT = "karpool-contract/1"
_FILE_MAX = 2**20
_ENTRIES_MAX = 10_000
_NAME_MAX = 200
_UNKNOWN_FIELD = re.compile(r"unknown field `(.+?)`")
_NEVER = "9999-"  # the year that clouds write as the end of an agreement without an end
_DAY = re.compile(r"\d{4}-\d{2}-\d{2}")
_DATED = re.compile(r"\d{4}-\d{2}-\d{2}(T.*([+-]\d\d:\d\d|Z))?")
_DOLLAR_KINDS = (CommitmentKind.INSTANCE_SAVINGS_PLAN, CommitmentKind.SAVINGS_PLAN)

CLUSTER_NAME = re.compile(r"[a-z0-9]([a-z0-9.-]{0,61}[a-z0-9])?")

Percent = Annotated[float, msgspec.Meta(ge=0, le=100)]


class WrittenDiscount(Wire, frozen=True, forbid_unknown_fields=True):
    name: str
    percent: Percent
    provider: str = ""
    regions: tuple[str, ...] = ()
    families: tuple[str, ...] = ()
    types: tuple[str, ...] = ()
    accounts: tuple[str, ...] = ()
    capacity_types: tuple[str, ...] = (ON_DEMAND,)
    start: str = ""
    end: str = ""


class WrittenCommitment(Wire, frozen=True, forbid_unknown_fields=True):
    name: str
    kind: str
    provider: str = ""
    regions: tuple[str, ...] = ()
    zones: tuple[str, ...] = ()
    families: tuple[str, ...] = ()
    types: tuple[str, ...] = ()
    accounts: tuple[str, ...] = ()
    percent: Percent = 0.0
    per_hour: Amount = 0.0
    count: Amount | None = None
    cpus: Amount | None = None
    used_elsewhere: Amount = 0.0
    targeted: bool = False
    start: str = ""
    end: str = ""


class WrittenMeetingPlace(Wire, frozen=True, forbid_unknown_fields=True):
    namespace: str = "karpool-system"
    kubeconfig: str = ""
    context: str = ""


class WrittenContract(Wire, frozen=True, forbid_unknown_fields=True):
    format: str
    currency: str = "USD"
    account: str = ""
    discounts: tuple[WrittenDiscount, ...] = ()
    commitments: tuple[WrittenCommitment, ...] = ()
    elsewhere: dict[str, tuple[Any, ...]] = msgspec.field(default_factory=dict)
    prices_from: WrittenPriceSource = WrittenPriceSource()
    shared_by: tuple[str, ...] = ()
    shared_in: WrittenMeetingPlace | None = None


def read_contract(data: bytes) -> Contract:
    """Read a contract. Raises Invalid, which names the line."""
    try:
        documents = list(safe_yaml.load_documents(data, size_limit=_FILE_MAX))
    except safe_yaml.UnusableYaml as error:
        raise Invalid("", data[:40], str(error)) from None
    if len(documents) != 1 or not isinstance(documents[0], dict):
        raise Invalid("", data[:40], "must be one document with `format: karpool-contract/1`")
    refuse_doubled(data)
    try:
        return contract_from(documents[0])
    except Invalid as error:
        unknown = _UNKNOWN_FIELD.search(error.reason)
        if unknown is None:
            raise error.at(f"line {line_of(data, error.path)}") from None
        parent = error.path.removeprefix(WrittenContract.__name__)
        path = f"{parent}.{unknown[1]}".lstrip(".")
        raise Invalid(f"line {line_of(data, path)}.{path}", unknown[1], "is not a known field") from None


def contract_from(document: dict[Any, Any]) -> Contract:
    """Return the contract of a parsed document. Raises Invalid, which names the path."""
    if document.get("format") != FORMAT:
        raise Invalid("format", document.get("format"), f"must be {FORMAT}; see docs/contracts.md")
    written = decode(document, WrittenContract)
    if written.currency != "USD":
        raise Invalid("currency", written.currency, "prices are in USD; convert the amounts first")
    if len(written.discounts) + len(written.commitments) > _ENTRIES_MAX:
        raise Invalid("commitments", len(written.commitments), f"more than {_ENTRIES_MAX} entries")
    discounts = [
        _at(f"discounts[{index}]", _discount, entry) for index, entry in enumerate(written.discounts)
    ]
    commitments = [
        _at(f"commitments[{index}]", _commitment, entry) for index, entry in enumerate(written.commitments)
    ]
    _refuse_overlaps("discounts", written.discounts, discounts)
    _refuse_overlaps("commitments", written.commitments, commitments)
    order = list(CommitmentKind)
    return Contract(
        tuple(
            discount
            for discount, entry in zip(discounts, written.discounts, strict=True)
            if _is_ours(entry.accounts, written.account)
        ),
        tuple(
            sorted(
                (
                    commitment
                    for commitment, entry in zip(commitments, written.commitments, strict=True)
                    if _is_ours(entry.accounts, written.account)
                ),
                key=lambda commitment: (
                    order.index(commitment.kind),
                    not commitment.scope.zones,
                    commitment.name,
                ),
            )
        ),
        {
            _cluster_name("elsewhere", cluster): machines_of(
                f"elsewhere.{cluster}",
                [
                    _at(f"elsewhere.{cluster}[{index}]", _written_machines, entry)
                    for index, entry in enumerate(machines)
                ],
            )
            for cluster, machines in written.elsewhere.items()
        },
        price_source(written.prices_from),
        _shared_by(written.shared_by),
        _meeting_place(written),
    )


def _at(path: str, read: Any, entry: Any) -> Any:
    try:
        return read(entry)
    except Invalid as error:
        raise error.at(path) from None


def _shared_by(names: Sequence[str]) -> frozenset[str]:
    for index, name in enumerate(names):
        _cluster_name(f"sharedBy[{index}]", name)
        if name in names[:index]:
            raise Invalid(f"sharedBy[{index}]", name, "occurs twice")
    return frozenset(names)


def _cluster_name(path: str, name: str) -> str:
    if not CLUSTER_NAME.fullmatch(name):
        raise Invalid(path, name[:100], "must be the name of a cluster, like north-1")
    return name


def _written_machines(entry: Any) -> WrittenMachines:
    return decode(entry, WrittenMachines)


def _meeting_place(written: WrittenContract) -> MeetingPlace | None:
    place = written.shared_in
    if place is None:
        return None
    if not written.shared_by:
        raise Invalid("sharedIn", place.namespace, "needs `sharedBy`, the list of clusters")
    if not CLUSTER_NAME.fullmatch(place.namespace):
        raise Invalid("sharedIn.namespace", place.namespace, "must be the name of a namespace")
    return MeetingPlace(place.namespace, place.kubeconfig, place.context)


def _is_ours(accounts: Sequence[str], account: str) -> bool:
    return not accounts or account in accounts


def _term(entry: WrittenDiscount | WrittenCommitment) -> Term:
    """Return the term. Days are in UTC; an end date includes that day, an end time is exclusive."""
    start, end = _moment("start", entry.start), _moment("end", entry.end)
    if entry.end.startswith(_NEVER):
        end = None
    elif end is not None and _DAY.fullmatch(entry.end):
        end += 86_400
    if start is not None and end is not None and end <= start:
        raise Invalid("end", entry.end, f"is before the start, {entry.start}")
    return Term(-math.inf if start is None else start, math.inf if end is None else end)


def _moment(field: str, text: str) -> float | None:
    seconds = moment(f"{text}T00:00:00Z" if _DAY.fullmatch(text) else text)
    if text and (seconds is None or not _DATED.fullmatch(text)):
        raise Invalid(field, text, "must be a day, 2026-12-31, or a time with its zone, 2026-12-31T12:00:00Z")
    return seconds


def _place(entry: WrittenCommitment) -> BilledKind:
    """Return how an empty slot of reserved capacity is billed: as an on-demand machine."""
    catalogue = load_shipped(entry.regions[0])
    listed = catalogue.price(entry.types[0], entry.zones[0], ON_DEMAND)
    if listed is None and not entry.per_hour:
        reason = "no price of it is shipped for that zone; say with `perHour` what all of it costs"
        raise Invalid("types[0]", entry.types[0], reason)
    assert entry.count is not None
    rate = entry.per_hour / entry.count if entry.per_hour else listed or 0.0
    return billed_kind(catalogue, entry.types[0], entry.zones[0], ON_DEMAND, rate)


def _discount(entry: WrittenDiscount) -> Discount:
    if entry.percent >= 100:
        raise Invalid("percent", entry.percent, "must be below 100: nothing is free")
    if not entry.capacity_types:
        raise Invalid("capacityTypes", [], "must name at least one of on-demand, spot, reserved")
    for index, capacity_type in enumerate(entry.capacity_types):
        if capacity_type not in CAPACITY_TYPES:
            reason = f"must be one of {', '.join(CAPACITY_TYPES)}"
            raise Invalid(f"capacityTypes[{index}]", capacity_type, reason)
    fraction, kinds = entry.percent / 100, frozenset(entry.capacity_types)
    return Discount(entry.name, _scope(entry), fraction, kinds, _term(entry))


def _commitment(entry: WrittenCommitment) -> Commitment:
    try:
        kind = CommitmentKind(entry.kind)
    except ValueError:
        raise Invalid("kind", entry.kind, f"must be one of {', '.join(CommitmentKind)}") from None
    scope = _scope(entry)
    if kind in _DOLLAR_KINDS:
        if not entry.per_hour:
            raise Invalid("perHour", entry.per_hour, "must be what the plan costs per hour, above 0")
        if not 0 < entry.percent < 100:
            raise Invalid(
                "percent", entry.percent, "must be what the plan takes off a rate: above 0, below 100"
            )
        if kind is CommitmentKind.INSTANCE_SAVINGS_PLAN and not (entry.families and entry.regions):
            raise Invalid("families", entry.families, "such a plan is for families in regions: name both")
        unit, amount = CommitmentUnit.DOLLARS, entry.per_hour
    elif kind is CommitmentKind.CAPACITY_RESERVATION:
        for field in ("types", "zones", "regions"):
            if len(getattr(entry, field)) != 1:
                reason = "capacity is reserved for one type in one zone: name `types`, `zones`, `regions`"
                raise Invalid(field, list(getattr(entry, field)), reason)
        if not entry.count or entry.cpus is not None:
            raise Invalid("count", entry.count, "must be the number of machines, above 0")
        unit, amount = CommitmentUnit.MACHINES, _whole(entry.count)
    elif entry.cpus is not None and entry.count is None:
        if not entry.families:
            raise Invalid("families", [], "is required: CPUs are committed for families")
        unit, amount = CommitmentUnit.CPUS, entry.cpus
    elif entry.count is not None and entry.cpus is None:
        if not entry.types:
            raise Invalid("types", [], "machines are committed by type: name it")
        unit, amount = CommitmentUnit.MACHINES, _whole(entry.count)
    else:
        raise Invalid("count", entry.count, f"a {kind} has either `count` machines or `cpus`")
    if unit is not CommitmentUnit.DOLLARS and entry.percent:
        raise Invalid("percent", entry.percent, f"a {kind} covers machines whole: it has none")
    if entry.targeted and kind is not CommitmentKind.CAPACITY_RESERVATION:
        raise Invalid("targeted", True, f"only capacity is reserved for machines that name it, not a {kind}")
    if entry.used_elsewhere > amount:
        raise Invalid("usedElsewhere", entry.used_elsewhere, f"is more than there is, {amount:g}")
    return Commitment(
        entry.name,
        kind,
        scope,
        unit,
        amount,
        entry.percent / 100,
        entry.per_hour,
        entry.used_elsewhere,
        _term(entry),
        place=_place(entry) if kind is CommitmentKind.CAPACITY_RESERVATION else None,
        is_targeted=entry.targeted,
    )


def _whole(count: float) -> float:
    if not count.is_integer():
        raise Invalid("count", count, "must be a whole number of machines")
    return count


def _scope(entry: WrittenDiscount | WrittenCommitment) -> AgreementScope:
    if not 0 < len(entry.name) <= _NAME_MAX or not entry.name.isprintable():
        reason = f"must be a name of 1 to {_NAME_MAX} characters that can be printed"
        raise Invalid("name", entry.name[:100], reason)
    if entry.provider not in ("", *PROVIDERS):
        raise Invalid("provider", entry.provider, f"must be one of {', '.join(PROVIDERS)}")
    providers = {entry.provider} if entry.provider else set(PROVIDERS)
    for index, region in enumerate(entry.regions):
        provider = shipped_provider(region)
        if not provider:
            raise unknown_region(f"regions[{index}]", region)
        if provider not in providers:
            raise Invalid(f"regions[{index}]", region, f"is a region of {provider}, not of {entry.provider}")
    within = {shipped_provider(region) for region in entry.regions} or providers
    for index, family in enumerate(entry.families):
        if not any(family in shipped_families(provider) for provider in within):
            raise Invalid(
                f"families[{index}]",
                family,
                f"is no family of {', '.join(sorted(within))}; `karpool catalogue list --region ... --family"
                f" {family[:1]}` shows which there are",
            )
    for index, name in enumerate(entry.types):
        if not any(name in shipped_type_names(provider) for provider in within):
            raise _unknown_type(f"types[{index}]", name[:100], within)
    zones = entry.zones if isinstance(entry, WrittenCommitment) else ()
    for index, zone in enumerate(zones):
        regions = entry.regions or shipped_regions()
        if not any(zone.startswith(region) for region in regions):
            where = ", ".join(entry.regions) or "any region that is known"
            raise Invalid(f"zones[{index}]", zone[:100], f"is no zone of {where}; name it like eu-central-1a")
    return AgreementScope(
        entry.provider,
        frozenset(entry.regions),
        frozenset(zones),
        frozenset(entry.families),
        frozenset(entry.types),
    )


def _unknown_type(path: str, name: str, providers: Iterable[str]) -> Invalid:
    names = {shipped for provider in providers for shipped in shipped_type_names(provider)}
    near = get_close_matches(name, names, n=3, cutoff=0.7)
    hint = f"; did you mean {' or '.join(near)}?" if near else ""
    return Invalid(path, name, f"is no type of {', '.join(sorted(providers))}{hint}")


def _refuse_overlaps(
    part: str,
    entries: Sequence[WrittenDiscount | WrittenCommitment],
    agreements: Sequence[Discount | Commitment],
) -> None:
    """Refuse two agreements of a kind for the same machines at the same time, because they are ambiguous."""
    names: dict[str, int] = {}
    for index, entry in enumerate(entries):
        if entry.name in names:
            raise Invalid(
                f"{part}[{index}].name", entry.name, f"is the name of {part}[{names[entry.name]}], too"
            )
        names[entry.name] = index
    for index, before in pairs_about_the_same([agreement.scope for agreement in agreements]):
        entry, other = entries[index], entries[before]
        one, two = agreements[index], agreements[before]
        if _kind(entry) != _kind(other) or not one.scope.overlaps(two.scope):
            continue
        if not one.term.overlaps(two.term) or not _capacity_types(one) & _capacity_types(two):
            continue
        if not entry.accounts or not other.accounts or set(entry.accounts) & set(other.accounts):
            reason = f"is about machines that {other.name!r} is about, too; make them one, or keep them apart"
            raise Invalid(f"{part}[{index}]", entry.name, reason)


def _capacity_types(agreement: Discount | Commitment) -> frozenset[str]:
    return agreement.capacity_types if isinstance(agreement, Discount) else frozenset((ON_DEMAND,))


def _kind(entry: WrittenDiscount | WrittenCommitment) -> str:
    return entry.kind if isinstance(entry, WrittenCommitment) else ""
