"""Prices learnt from node annotations, or from Prometheus with the metric of OpenCost and Kubecost. Pure.

A price is learnt for an offering, not for one node: the type in its region, for spot in its zone. So a
removed node and its replacement have the same price. Nodes of one kind that disagree are ignored. Errors in
an answer are reported, and the list price is used instead.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import NamedTuple

import msgspec

from karpool.model.errors import Invalid
from karpool.model.karpenter.objects import ON_DEMAND, RESERVED

NODE_COST = "node_total_hourly_cost"  # of OpenCost and Kubecost: USD per hour of a whole node
ANSWER_MAX = 16 * 2**20
_SAMPLES_MAX = 100_000
# Older prices are out of date. Prometheus itself looks back five minutes.
STALE_SECONDS = 600.0
# Far above the price of any machine on sale.
_PRICE_MAX = 10_000.0
# Licences and tenancy double a price; yen, rupees and monthly prices are further off.
_TIMES_THE_LIST = 5.0
# Smaller differences are rounding, or times of a spot market.
_AGREEMENT = 0.01
_REMARKS_MAX = 5


@dataclass(frozen=True, slots=True)
class PriceSource:
    """Where prices are learnt from; the annotation of a node has precedence."""

    annotation: str = ""
    prometheus: str = ""  # URL
    query: str = NODE_COST
    # Authentication of Karpool and of Prometheus; secrets are in files only.
    bearer_token_file: str = ""
    username: str = ""
    password_file: str = ""
    ca_file: str = ""
    insecure_skip_verify: bool = False

    def __bool__(self) -> bool:
        return bool(self.annotation or self.prometheus)

    def beside(self, folder: Path) -> "PriceSource":
        """Return the source with its files relative to `folder`."""

        def at(path: str) -> str:
            return str(folder / path) if path else ""

        return replace(
            self,
            bearer_token_file=at(self.bearer_token_file),
            password_file=at(self.password_file),
            ca_file=at(self.ca_file),
        )


NOT_LEARNT = PriceSource()


class PriceSample(NamedTuple):
    """The reported price of a node. Empty texts were not reported."""

    price: float
    instance_type: str = ""
    provider_id: str = ""


@dataclass(frozen=True)
class PriceAnswer:
    """Samples by node. `remarks` say what could not be used."""

    samples: Mapping[str, Sequence[PriceSample]] = field(default_factory=dict)
    remarks: tuple[str, ...] = ()


class PricedNode(NamedTuple):
    """A node, its offering, the list price, and the value of its annotation."""

    name: str
    provider_id: str
    offering: "SoldAs"
    list_price: float | None
    annotated: str = ""


class SoldAs(NamedTuple):
    """An offering as it is priced: on-demand prices are the same in all zones of a region."""

    type: str
    region: str
    zone: str
    capacity_type: str

    @staticmethod
    def of(name: str, region: str, zone: str, capacity_type: str) -> "SoldAs":
        kind = capacity_type or ON_DEMAND
        return SoldAs(name, region, "" if kind == ON_DEMAND else zone, kind)


class _Series(msgspec.Struct, frozen=True):
    metric: dict[str, str]
    value: tuple[float, str]


class _Vector(msgspec.Struct, frozen=True, rename="camel"):
    result_type: str = ""
    result: list[_Series] = []


class _Reply(msgspec.Struct, frozen=True, rename="camel"):
    status: str
    data: _Vector = _Vector()
    error: str = ""


def read_answer(data: bytes, now: float) -> PriceAnswer:
    """Parse an answer of Prometheus' /api/v1/query. Raises Invalid if it is not one."""
    if len(data) > ANSWER_MAX:
        raise Invalid("", len(data), f"is more than {ANSWER_MAX} bytes")
    try:
        reply = msgspec.json.decode(data, type=_Reply)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise Invalid("", data[:40], f"is no answer of Prometheus: {error}") from None
    if reply.status != "success":
        raise Invalid("status", reply.status, f"the query was refused: {reply.error[:200]}")
    if reply.data.result_type != "vector":
        raise Invalid("data.resultType", reply.data.result_type, "the query must give one value per node")
    if len(reply.data.result) > _SAMPLES_MAX:
        raise Invalid("data.result", len(reply.data.result), f"is more than {_SAMPLES_MAX} samples")
    samples: dict[str, list[PriceSample]] = {}
    refused: list[str] = []
    for series in reply.data.result:
        labels = series.metric
        # Scraped without honor_labels, `instance` is OpenCost itself.
        node = labels.get("node") or labels.get("exported_instance") or labels.get("instance", "")
        try:
            samples.setdefault(node, []).append(_sample(series, node, now))
        except Invalid as error:
            refused.append(f"node {node!r}: {error}")
    return PriceAnswer(samples, _first(refused))


def _sample(series: _Series, node: str, now: float) -> PriceSample:
    labels, (at, text) = series.metric, series.value
    if not node:
        raise Invalid("metric.node", "", "the sample names no node")
    if (currency := labels.get("currency", "USD")) != "USD":
        raise Invalid("metric.currency", currency, "prices are in USD")
    if not abs(now - at) <= STALE_SECONDS:
        raise Invalid("value", at, f"is of another time, {now - at:.0f} s ago")
    return PriceSample(
        hourly_price("value", text), labels.get("instance_type", ""), labels.get("provider_id", "")
    )


def hourly_price(path: str, text: str) -> float:
    """Parse an hourly price. Raises Invalid if it is not the price of a machine."""
    try:
        price = float(text) if len(text) <= 40 else math.nan
    except ValueError:
        price = math.nan
    if not 0 < price <= _PRICE_MAX:
        reason = f"must be USD per hour: above 0, at most {_PRICE_MAX:.0f}; OpenCost writes 0 for unknown"
        raise Invalid(path, text[:40], reason)
    return price


def learnt_prices(
    nodes: Iterable[PricedNode], answer: PriceAnswer
) -> tuple[dict[SoldAs, float], tuple[str, ...]]:
    """Return the learnt price of each offering, and the samples that could not be used."""
    said: dict[SoldAs, dict[str, float]] = {}
    refused: list[str] = []
    for node in nodes:
        if not node.offering.type or node.offering.capacity_type == RESERVED:
            continue
        try:
            for price in _prices_of(node, answer.samples.get(node.name, ())):
                before = said.setdefault(node.offering, {}).setdefault(node.name, price)
                said[node.offering][node.name] = max(before, price)
        except Invalid as error:
            refused.append(f"node {node.name!r}: {error}")
    prices: dict[SoldAs, float] = {}
    for offering, by_node in said.items():
        low, high = min(by_node, key=lambda name: by_node[name]), max(by_node, key=lambda name: by_node[name])
        if by_node[high] - by_node[low] > _AGREEMENT * by_node[high]:
            refused.append(
                f"type {offering.type!r} as {offering.capacity_type}: nodes do not agree, {low} says"
                f" {by_node[low]:g} and {high} says {by_node[high]:g}"
            )
        else:
            prices[offering] = by_node[high]  # a price is rather too high than too low
    return prices, _first(refused)


def _prices_of(node: PricedNode, samples: Sequence[PriceSample]) -> list[float]:
    """Return the reported prices of a node. Raises Invalid."""
    if node.annotated:
        return [_likely(node, hourly_price("metadata.annotations", node.annotated))]
    prices = []
    for sample in samples:
        if sample.provider_id and node.provider_id and not _is_same(node.provider_id, sample.provider_id):
            continue  # a node with that name in another cluster
        if sample.instance_type not in ("", node.offering.type):
            raise Invalid("metric.instance_type", sample.instance_type, f"the node is {node.offering.type}")
        prices.append(_likely(node, sample.price))
    return prices


def _likely(node: PricedNode, price: float) -> float:
    if node.list_price and price > _TIMES_THE_LIST * node.list_price:
        reason = f"the list says {node.list_price:g}: another currency, or per month?"
        raise Invalid("price", price, reason)
    return price


def _is_same(provider_id: str, said: str) -> bool:
    """Whether two provider IDs are equal; OpenCost reports only the last part of a path."""
    whole, part = provider_id.casefold(), said.casefold()
    return whole == part or whole.endswith(f"/{part}")


def _first(remarks: Sequence[str]) -> tuple[str, ...]:
    more = len(remarks) - _REMARKS_MAX
    return (*remarks[:_REMARKS_MAX], *([f"and {more} more"] if more > 0 else []))
