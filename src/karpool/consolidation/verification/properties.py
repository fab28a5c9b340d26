"""Enumerates all small clusters of a model and checks the properties of the Balanced policy.

The model: pools of 1 to 6 nodes at 15 price points, 0 to 4 pods per node with costs of 1, 2, 5 or 10, and k
from 1 to 5. Prices and costs are integers and the rule is cross-multiplied, so nothing is rounded; the base
cost of a node is left out, as in the published experiment (in uniform pools it cancels). Of the eight
properties six follow from algebra and must hold; two depend on the prices and show which k to choose.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import combinations, pairwise

# USD per hour x 10,000 (karpenter's Balanced design): c7i, m7i, r7i from medium to 4xlarge.
FAMILIES = {
    "c7i": (446, 892, 1785, 3570, 7140),
    "m7i": (504, 1008, 2016, 4032, 8064),
    "r7i": (661, 1323, 2646, 5292, 10584),
}
PRICES = tuple(sorted(price for prices in FAMILIES.values() for price in prices))
POD_COSTS = (1, 2, 5, 10)
THRESHOLDS = (1, 2, 3, 4, 5)
NODES_MAX = 6
PODS_MAX = 4
DISRUPTION_MAX = PODS_MAX * max(POD_COSTS)


def approves(k: int, savings: int, disruption: int, pool_cost: int, pool_disruption: int) -> bool:
    """score >= 1/k, without a division."""
    if pool_cost == 0:
        return False
    if disruption == 0 or pool_disruption == 0:
        return savings > 0
    return k * savings * pool_disruption >= disruption * pool_cost


def pod_sets() -> tuple[tuple[int, ...], ...]:
    """Representative pods of one node, the empty node first. Repeats are those of the published script."""
    mixed = {
        2: ((1, 10), (1, 1, 10), (10, 10, 1)),
        3: ((1, 5, 10),),
        4: ((1, 1, 1, 10), (1, 2, 5, 10), (10, 10, 10, 1)),
    }
    sets_of_pods: list[tuple[int, ...]] = [()]
    for pods in range(1, PODS_MAX + 1):
        sets_of_pods += [(cost,) * pods for cost in POD_COSTS]
        sets_of_pods += [costs for least, sets in mixed.items() if least <= pods for costs in sets]
    return tuple(sets_of_pods)


@dataclass(frozen=True, slots=True)
class PolicyProperty:
    """`checked`: number of cases. `counterexample` is empty if the property holds."""

    name: str
    statement: str
    checked: int
    holds: bool
    counterexample: str = ""
    note: str = ""


@dataclass(frozen=True, slots=True)
class ThresholdRow:
    """What one k allows in pools of equal nodes."""

    k: int
    threshold: float
    approved_pairs: int
    configurations: int
    new_pairs: tuple[tuple[int, int], ...]
    longest_chain: tuple[int, ...]  # prices, from the first node to the last

    @property
    def chain_length(self) -> int:
        return max(0, len(self.longest_chain) - 1)


@dataclass(frozen=True, slots=True)
class PolicyVerification:
    properties: tuple[PolicyProperty, ...]
    thresholds: tuple[ThresholdRow, ...]
    pairs: int

    @property
    def holds(self) -> bool:
        return all(policy_property.holds for policy_property in self.properties)


def verify(
    thresholds: Sequence[int] = THRESHOLDS, prices: Sequence[int] = PRICES, nodes_max: int = NODES_MAX
) -> PolicyVerification:
    """Check all properties. Takes a fraction of a minute; the result is deterministic."""
    prices = tuple(sorted(prices))
    rows = threshold_table(thresholds, prices)
    return PolicyVerification(
        properties=(
            cheaper_is_never_worse(thresholds, prices, min(4, nodes_max)),
            heavier_is_never_better(thresholds, prices, min(4, nodes_max)),
            empty_nodes_go(thresholds, prices, nodes_max),
            nothing_saved_is_rejected(thresholds, prices, min(4, nodes_max)),
            replaces_exist(rows, prices),
            disruption_decides(thresholds, prices, min(4, nodes_max)),
            pool_size_does_not_matter(thresholds, prices, nodes_max),
            chains_end(thresholds, prices, min(4, nodes_max)),
        ),
        thresholds=rows,
        pairs=len(prices) * (len(prices) - 1) // 2,
    )


# The rest of a pool, as the published experiment chooses it


def _others(nodes: int, prices: Sequence[int]) -> list[tuple[int, int]]:
    """Cost and disruption of the other nodes: equal ones, cheap, with 0, 2 or 4 ordinary pods."""
    if nodes == 0:
        return [(0, 0)]
    return [(nodes * price, nodes * pods) for price in prices[:3] for pods in (0, 2, 4)]


def _found(name: str, statement: str, cases: Iterable[str | None], note: str = "") -> PolicyProperty:
    """`cases`: one entry per case: None, or the violation."""
    checked = 0
    for checked, wrong in enumerate(cases, 1):
        if wrong is not None:
            return PolicyProperty(name, statement, checked, holds=False, counterexample=wrong, note=note)
    return PolicyProperty(name, statement, checked, holds=True, note=note)


# The properties


def cheaper_is_never_worse(
    thresholds: Sequence[int], prices: Sequence[int], nodes_max: int
) -> PolicyProperty:
    def cases() -> Iterator[str | None]:
        for k, price, disruption, cost, total in _one_node_in_pools(thresholds, prices, nodes_max):
            approved_at: int | None = None
            for new in sorted((other_price for other_price in prices if other_price < price), reverse=True):
                ok = approves(k, price - new, disruption, cost, total)
                if approved_at is None and ok:
                    approved_at = new
                wrong = approved_at is not None and not ok
                yield (
                    f"k={k}: {price} -> {approved_at} is approved, {price} -> {new} is not" if wrong else None
                )

    return _found("P1", "if a replacement is approved, so is every cheaper one", cases())


def heavier_is_never_better(
    thresholds: Sequence[int], prices: Sequence[int], nodes_max: int
) -> PolicyProperty:
    def cases() -> Iterator[str | None]:
        for k in thresholds:
            for nodes in range(2, nodes_max + 1):
                for rest_cost, rest_disruption in _others(nodes - 1, prices):
                    for price in prices:
                        answers = [
                            approves(k, price, heavy, price + rest_cost, heavy + rest_disruption)
                            for heavy in range(DISRUPTION_MAX + 1)
                        ]
                        yield from _never_rises(answers, k, price)

    return _found("P2", "more disruption never turns a rejected delete into an approved one", cases())


def _never_rises(answers: Sequence[bool], k: int, price: int) -> Iterator[str | None]:
    for low, high in combinations(range(len(answers)), 2):
        wrong = answers[high] and not answers[low]
        yield f"k={k}, price {price}: disruption {high} is approved, {low} is not" if wrong else None


def empty_nodes_go(thresholds: Sequence[int], prices: Sequence[int], nodes_max: int) -> PolicyProperty:
    def cases() -> Iterator[str | None]:
        for k in thresholds:
            for nodes in range(1, nodes_max + 1):
                for price in prices:
                    for other in prices:
                        for pods in range(PODS_MAX + 1):
                            cost = price + (nodes - 1) * other
                            ok = approves(k, price, 0, cost, (nodes - 1) * pods)
                            yield None if ok else f"k={k}: an empty node at {price} of {nodes} stays"

    return _found("P3", "a node without pods and with a price can always go", cases())


def nothing_saved_is_rejected(
    thresholds: Sequence[int], prices: Sequence[int], nodes_max: int
) -> PolicyProperty:
    def cases() -> Iterator[str | None]:
        for k, price, disruption, cost, total in _one_node_in_pools(thresholds, prices, nodes_max):
            wrong = approves(k, 0, disruption, cost, total)
            yield f"k={k}, price {price}: approved without a saving" if wrong else None

    return _found("P4", "a move that saves nothing is never approved", cases())


def replaces_exist(rows: Sequence[ThresholdRow], prices: Sequence[int]) -> PolicyProperty:
    """Lists the k that allow any replacement; there is nothing to violate."""
    first = next((row.k for row in rows if row.approved_pairs), None)
    note = "no k of those asked for" if first is None else f"the smallest k that allows one is {first}"
    checked = sum(len(prices) * (len(prices) - 1) // 2 for _ in rows) * _loaded_sets()
    monotonic = all(before.approved_pairs <= after.approved_pairs for before, after in pairwise(rows))
    return PolicyProperty(
        "P5", "pools of equal nodes have approved replacements", checked, monotonic, note=note
    )


def disruption_decides(thresholds: Sequence[int], prices: Sequence[int], nodes_max: int) -> PolicyProperty:
    """There are pools in which a light node may go and a heavy one may not. Pool disruption is fixed."""
    missing, checked, first = [], 0, ""
    for k in thresholds:
        counterexample = ""
        for nodes in range(2, nodes_max + 1):
            for price in prices:
                for heavy, light in _distinct_loads():
                    checked += 1
                    total = sum(heavy) + sum(light) * (nodes - 1)
                    cost = nodes * price
                    if not approves(k, price, sum(heavy), cost, total) and approves(
                        k, price, sum(light), cost, total
                    ):
                        counterexample = (
                            f"k={k}: {nodes} nodes at {price}, pods {heavy} rejected, pods {light} approved"
                        )
                        break
                if counterexample:
                    break
            if counterexample:
                break
        first = first or counterexample
        if not counterexample:
            missing.append(k)
    note = first + (f"; none for k={', '.join(map(str, missing))} in this space" if missing else "")
    return PolicyProperty(
        "P6", "disruption can decide: of two nodes only the lighter may go", checked, bool(first), note=note
    )


def pool_size_does_not_matter(
    thresholds: Sequence[int], prices: Sequence[int], nodes_max: int
) -> PolicyProperty:
    def cases() -> Iterator[str | None]:
        for k in thresholds:
            for high, low in _pairs(prices):
                for disruption in _loads():
                    answers = {
                        approves(k, high - low, disruption, nodes * high, nodes * disruption)
                        for nodes in range(1, nodes_max + 1)
                    }
                    yield None if len(answers) == 1 else f"k={k}: {high} -> {low} depends on the pool's size"

    return _found("P7", "in pools of equal nodes their number does not matter", cases())


def chains_end(thresholds: Sequence[int], prices: Sequence[int], nodes_max: int) -> PolicyProperty:
    """Each step is cheaper, so a chain is never longer than the price list; the table says how long."""
    lengths, checked, broken = [], 0, ""
    for k in thresholds:
        longest = 0
        for nodes in range(1, nodes_max + 1):
            for start in prices:
                chain = longest_chain(k, prices, start, (nodes - 1) * start, nodes)
                checked += 1
                longest = max(longest, len(chain) - 1)
                if any(later >= earlier for earlier, later in pairwise(chain)):
                    broken = f"k={k}: {chain}"
        lengths.append(f"k={k}: {longest}")
    return PolicyProperty(
        "P8",
        "chains of approved replacements end",
        checked,
        not broken,
        broken,
        "longest " + ", ".join(lengths),
    )


def _one_node_in_pools(
    thresholds: Sequence[int], prices: Sequence[int], nodes_max: int
) -> Iterator[tuple[int, int, int, int, int]]:
    """k, the node's price and disruption, and its pool's cost and disruption."""
    for k in thresholds:
        for nodes in range(1, nodes_max + 1):
            for rest_cost, rest_disruption in _others(nodes - 1, prices):
                for price in prices:
                    for disruption in _loads():
                        yield k, price, disruption, price + rest_cost, disruption + rest_disruption


@cache
def _loads() -> tuple[int, ...]:
    return tuple(sum(pods) for pods in pod_sets())


@cache
def _loaded_sets() -> int:
    return sum(1 for pods in pod_sets() if pods)


@cache
def _distinct_loads() -> tuple[tuple[tuple[int, ...], tuple[int, ...]], ...]:
    """Heavy first; the lightest pairs come first."""
    by_load = {sum(pods): pods for pods in reversed(pod_sets()) if pods}
    return tuple(
        (by_load[high], by_load[low]) for high in sorted(by_load) for low in sorted(by_load) if low < high
    )


def _pairs(prices: Sequence[int]) -> Iterator[tuple[int, int]]:
    """A price and a cheaper one."""
    yield from ((high, low) for high in prices for low in prices if low < high)


# The table that chooses k


def threshold_table(thresholds: Sequence[int], prices: Sequence[int]) -> tuple[ThresholdRow, ...]:
    rows: list[ThresholdRow] = []
    before: set[tuple[int, int]] = set()
    for k in thresholds:
        pairs = {pair for pair in _pairs(prices) if approves(k, pair[0] - pair[1], 1, pair[0], 1)}
        chains = [longest_chain(k, prices, start) for start in prices]
        rows.append(
            ThresholdRow(
                k=k,
                threshold=1 / k,
                approved_pairs=len(pairs),
                configurations=len(pairs) * _loaded_sets(),
                new_pairs=tuple(sorted(pairs - before)),
                longest_chain=max(chains, key=len, default=()),
            )
        )
        before = pairs
    return tuple(rows)


def longest_chain(
    k: int, prices: Sequence[int], start: int, rest_cost: int = 0, nodes: int = 1
) -> tuple[int, ...]:
    """The longest chain of cheaper replacements of one node while the others keep their price; all nodes have
    the same pods.
    """

    @cache
    def down(price: int) -> tuple[int, ...]:
        steps = (
            down(low)
            for low in prices
            if low < price and approves(k, price - low, 1, price + rest_cost, nodes)
        )
        return (price, *max(steps, key=len, default=()))

    return down(start)
