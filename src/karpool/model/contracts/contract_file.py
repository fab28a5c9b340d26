"""A contract as a file: YAML or JSON, checked whole; what is wrong is named with its line."""

import re
from collections.abc import Iterator, Sequence
from typing import Annotated, Any

import msgspec
import yaml

from karpool.model import safe_yaml
from karpool.model.catalogue.files import shipped_families, shipped_provider, unknown_region
from karpool.model.contracts.contract import (
    AgreementScope,
    Commitment,
    CommitmentKind,
    CommitmentUnit,
    Contract,
    Discount,
)
from karpool.model.errors import Invalid
from karpool.model.karpenter.objects import ON_DEMAND
from karpool.model.kubernetes.meta import Wire, decode

FORMAT = "karpool-contract/1"
PROVIDERS = ("aws", "azure", "gcp")
_FILE_MAX = 2**20
_ENTRIES_MAX = 10_000
_STEP = re.compile(r"([^.\[\]]+)|\[(\d+)\]")
_DOLLAR_KINDS = (CommitmentKind.INSTANCE_SAVINGS_PLAN, CommitmentKind.SAVINGS_PLAN)

Amount = Annotated[float, msgspec.Meta(ge=0, le=1e9)]
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


class WrittenContract(Wire, frozen=True, forbid_unknown_fields=True):
    format: str
    currency: str = "USD"
    account: str = ""
    discounts: tuple[WrittenDiscount, ...] = ()
    commitments: tuple[WrittenCommitment, ...] = ()


def read_contract(data: bytes) -> Contract:
    """Raises Invalid naming the line."""
    try:
        documents = list(safe_yaml.load_documents(data, size_limit=_FILE_MAX))
    except safe_yaml.UnusableYaml as error:
        raise Invalid("", data[:40], str(error)) from None
    if len(documents) != 1 or not isinstance(documents[0], dict):
        raise Invalid("", data[:40], "must be one document with `format: karpool-contract/1`")
    try:
        return contract_from(documents[0])
    except Invalid as error:
        raise error.at(f"line {_line(data, error.path)}") from None


def contract_from(document: dict[Any, Any]) -> Contract:
    """Of a document that was read already. Raises Invalid naming the path."""
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
    _refuse_overlaps("discounts", written.discounts, [each.scope for each in discounts])
    _refuse_overlaps("commitments", written.commitments, [each.scope for each in commitments])
    order = list(CommitmentKind)
    return Contract(
        tuple(
            each
            for each, entry in zip(discounts, written.discounts, strict=True)
            if _is_ours(entry.accounts, written.account)
        ),
        tuple(
            sorted(
                (
                    each
                    for each, entry in zip(commitments, written.commitments, strict=True)
                    if _is_ours(entry.accounts, written.account)
                ),
                key=lambda each: (order.index(each.kind), not each.scope.zones, each.name),
            )
        ),
    )


def _at(path: str, read: Any, entry: Any) -> Any:
    try:
        return read(entry)
    except Invalid as error:
        raise error.at(path) from None


def _is_ours(accounts: Sequence[str], account: str) -> bool:
    return not accounts or account in accounts


def _discount(entry: WrittenDiscount) -> Discount:
    if entry.percent >= 100:
        raise Invalid("percent", entry.percent, "must be below 100: nothing is free")
    if not entry.capacity_types:
        raise Invalid("capacityTypes", [], "must name at least one of on-demand, spot, reserved")
    return Discount(entry.name, _scope(entry), entry.percent / 100, frozenset(entry.capacity_types))


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
    elif entry.cpus is not None and entry.count is None:
        if not entry.families:
            raise Invalid("families", [], "CPUs are committed for families: name them")
        unit, amount = CommitmentUnit.CPUS, entry.cpus
    elif entry.count is not None and entry.cpus is None:
        if not entry.types:
            raise Invalid("types", [], "machines are committed by type: name it")
        unit, amount = CommitmentUnit.MACHINES, entry.count
    else:
        raise Invalid("count", entry.count, f"a {kind} has either `count` machines or `cpus`")
    if unit is not CommitmentUnit.DOLLARS and entry.percent:
        raise Invalid("percent", entry.percent, f"a {kind} covers machines whole: it has none")
    if entry.used_elsewhere > amount:
        raise Invalid("usedElsewhere", entry.used_elsewhere, f"is more than there is, {amount:g}")
    return Commitment(
        entry.name, kind, scope, unit, amount, entry.percent / 100, entry.per_hour, entry.used_elsewhere
    )


def _scope(entry: WrittenDiscount | WrittenCommitment) -> AgreementScope:
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
    families = {family for provider in within for family in shipped_families(provider)}
    for index, family in enumerate(entry.families):
        if family not in families:
            raise Invalid(
                f"families[{index}]",
                family,
                f"is no family of {', '.join(sorted(within))}; `karpool catalogue list --region ... --family"
                f" {family[:1]}` shows which there are",
            )
    zones = frozenset(entry.zones) if isinstance(entry, WrittenCommitment) else frozenset()
    return AgreementScope(
        entry.provider, frozenset(entry.regions), zones, frozenset(entry.families), frozenset(entry.types)
    )


def _refuse_overlaps(
    part: str, entries: Sequence[WrittenDiscount | WrittenCommitment], scopes: Sequence[AgreementScope]
) -> None:
    """Two of a kind that are about the same machines: nobody could say which of them counts."""
    names: dict[str, int] = {}
    for index, entry in enumerate(entries):
        if entry.name in names:
            raise Invalid(
                f"{part}[{index}].name", entry.name, f"is the name of {part}[{names[entry.name]}], too"
            )
        names[entry.name] = index
    for index, entry in enumerate(entries):
        for before in range(index):
            other = entries[before]
            if _kind(entry) != _kind(other) or not scopes[index].overlaps(scopes[before]):
                continue
            if not entry.accounts or not other.accounts or set(entry.accounts) & set(other.accounts):
                reason = (
                    f"is about machines that {other.name!r} is about, too; make them one, or keep them apart"
                )
                raise Invalid(f"{part}[{index}]", entry.name, reason)


def _kind(entry: WrittenDiscount | WrittenCommitment) -> str:
    return entry.kind if isinstance(entry, WrittenCommitment) else ""


def _line(data: bytes, path: str) -> int:
    """Where in the text a path stands: the nearest part of it that was written."""
    node: Any = yaml.compose(data, Loader=yaml.SafeLoader)
    line = 1
    for name, index in _steps(path):
        child = _child(node, name, index)
        if child is None:
            break
        node = child
        line = node.start_mark.line + 1
    return int(line)


def _steps(path: str) -> Iterator[tuple[str, int]]:
    for step in _STEP.finditer(path):
        yield (step[1], -1) if step[1] else ("", int(step[2]))


def _child(node: Any, name: str, index: int) -> Any:
    if isinstance(node, yaml.MappingNode) and name:
        return next((value for key, value in node.value if key.value == name), None)
    if isinstance(node, yaml.SequenceNode) and 0 <= index < len(node.value):
        return node.value[index]
    return None
