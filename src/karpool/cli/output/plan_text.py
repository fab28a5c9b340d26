"""A plan as tables for people.

Long lists are cut in the short form, and what was cut is said; `wide` has everything.
"""

from collections.abc import Iterator, Sequence

from karpool.cli.output.text import columns, pluralize, printable
from karpool.consolidation.planning.comparison import PlanAlternative
from karpool.consolidation.planning.device_freeing import DeviceFreeing
from karpool.consolidation.planning.plan import (
    ClusterTotals,
    ConsolidationPlan,
    Move,
    MovedPod,
    RejectedMove,
    ReplacementNode,
)
from karpool.consolidation.policy.kept_node import KeptNode
from karpool.consolidation.policy.prices import HOURS_PER_MONTH

NONE = "-"
UNKNOWN = "?"
SHORT = 30  # rows of a table in the short form
NAMES = 3  # names in a cell in the short form

Table = tuple[Sequence[str], Sequence[Sequence[str]]]


def render(plan: ConsolidationPlan, *, wide: bool, cluster: str = "") -> str:
    return "\n\n".join(_parts(plan, wide, cluster))


def _parts(plan: ConsolidationPlan, wide: bool, cluster: str) -> Iterator[str]:
    if plan.stopped is not None:
        yield f"STOPPED: {plan.stopped.detail}"
    yield f"{summary(plan)} ({printable(cluster)})" if cluster else summary(plan)
    if plan.certificate is not None:
        yield certificate_line(plan)
    if plan.moves:
        yield _titled("MOVES", _cut(move_table(plan.moves, wide=wide), wide))
        yield _titled("PODS", _cut(pod_table(plan.moves), wide))
    if plan.rejected:
        yield _titled("REJECTED MOVES", _cut(rejected_table(plan.rejected, wide=wide), wide))
    if plan.held:
        held = held_table(plan.held) if wide or len(plan.held) <= SHORT else held_by_reason(plan.held)
        yield _titled("NODES THAT STAY", _cut(held, wide))
    if plan.pools:
        yield _titled("POOLS", columns(*pool_table(plan)))
    yield _titled("TOTALS", columns(*totals_table(plan)))
    yield from (
        f"not considered: {pluralize(len(considered.nodes), 'node')} ({considered.why}): "
        f"{_names(considered.nodes, wide)}"
        for considered in plan.not_looked_at
    )


def freed_devices(freeing: DeviceFreeing, *, wide: bool) -> str:
    parts = [freeing_summary(freeing)]
    parts += [_titled(title.upper(), _cut(table, wide)) for title, table in freeing_tables(freeing)]
    return "\n\n".join(parts)


def freeing_summary(freeing: DeviceFreeing) -> str:
    """What could be moved, and who would have to do what: nobody moves it."""
    summary = f"{pluralize(len(freeing.freed), 'device')} could be free if shares moved; `apply` moves none"
    if freeing.freed:
        summary += (
            ". By hand: `kubectl cordon` the node if the share goes to another one, evict the pod, `kubectl"
            " uncordon` once its scheduler has placed it (docs/gpu.md, Freeing devices)"
        )
    if freeing.not_looked_at:
        summary += f". Not considered: {pluralize(freeing.not_looked_at, 'device')} with more holders"
    return summary


def freeing_tables(freeing: DeviceFreeing) -> Iterator[tuple[str, Table]]:
    """Each with its title."""
    moves = [
        (device.node, device.device, move.pod, move.to_node, move.to_device)
        for device in freeing.freed
        for move in device.moves
    ]
    if moves:
        header = ("NODE", "DEVICE", "SHARE OF", "HAS ROOM ON", "DEVICE THERE")
        yield "Shares that could move", (header, moves)
    if freeing.kept:
        kept = [(device.node, device.device, device.why) for device in freeing.kept]
        yield "Devices that stay shared", (("NODE", "DEVICE", "WHY"), kept)


def _titled(title: str, table: str) -> str:
    return f"{title}\n{table}"


def _cut(table: Table, wide: bool) -> str:
    header, rows = table
    if wide or len(rows) <= SHORT:
        return columns(header, rows)
    return f"{columns(header, rows[:SHORT])}\n... and {len(rows) - SHORT} more; -o wide shows all"


def summary(plan: ConsolidationPlan) -> str:
    if not plan.moves:
        return "nothing to move"
    gone = sum(len(move.nodes) for move in plan.moves)
    new = sum(len(move.new_nodes) for move in plan.moves)
    return (
        f"{pluralize(len(plan.moves), 'move')}: {pluralize(gone, 'node')} away, {new} new; "
        f"saves ${money(plan.savings_per_hour)} per hour (${money(plan.savings_per_hour * HOURS_PER_MONTH)} "
        f"per month); disturbs {pluralize(plan.disturbed, 'pod')}"
    )


def certificate_line(plan: ConsolidationPlan) -> str:
    """How much cheaper the cluster could be at most."""
    certificate = plan.certificate
    if certificate is None:
        return ""
    if certificate.possible_per_hour is None:
        return f"how much cheaper is possible is unknown: {certificate.problem}"
    among = "" if certificate.at_disruption is None else " without disturbing more"
    if plan.before.unpriced:  # they count as 0, so that nothing is proven of them
        among += f", leaving out {pluralize(plan.before.unpriced, 'node')} of unknown price"
    return (
        f"at most {plan.still_possible or 0.0:.1%} cheaper is possible{among}: no plan saves more than "
        f"${money(certificate.possible_per_hour)} per hour"
    )


def move_table(moves: Sequence[Move], *, wide: bool) -> Table:
    header = ["MOVE", "KIND", "POOL", "NODES", "INTO", "$/H", "$/MONTH", "PODS", "DISRUPTION", "SCORE"]
    return header, [move_row(move, wide=wide) for move in moves]


def move_row(move: Move, *, wide: bool) -> list[str]:
    return [
        move.id,
        str(move.kind),
        ",".join(move.pools),
        _names(move.names, wide),
        ", ".join(new_node(node) for node in move.new_nodes) or NONE,
        money(move.savings_per_hour),
        money(move.savings_per_hour * HOURS_PER_MONTH),
        str(move.disturbed),
        f"{move.disruption:.2f}",
        score_of(move),
    ]


def score_of(move: Move) -> str:
    """With what it must reach, where a policy scores."""
    scored = [pool.score for pool in move.verdict.pools if pool.score is not None]
    if not scored:
        return NONE
    worst = min(scored, key=lambda score: score.score - score.threshold)
    return f"{worst.score:.2f}/{worst.threshold:.2f}"


def new_node(node: ReplacementNode) -> str:
    chosen = node.chosen
    return f"{chosen.instance_type} ({chosen.capacity_type}, {chosen.zone}, {node.pool})"


def pod_table(moves: Sequence[Move]) -> Table:
    rows = [
        [move.id, pod.pod, f"{pod.cost:.2f}", pod.source, destination(move, pod)]
        for move in moves
        for pod in move.pods
    ]
    return ["MOVE", "POD", "COST", "FROM", "TO"], rows


def destination(move: Move, pod: MovedPod) -> str:
    if pod.node:
        return pod.node
    if pod.new_node is not None and pod.new_node < len(move.new_nodes):
        return f"new {move.new_nodes[pod.new_node].chosen.instance_type} #{pod.new_node + 1}"
    return "none needed: the cost is 0"


def rejected_table(rejected: Sequence[RejectedMove], *, wide: bool) -> Table:
    rows = []
    for move in rejected:
        why = "; ".join(str(reason) for reason in (move.why if wide else move.why[:1]))
        rows.append([*move_row(move.move, wide=wide), why])
    return [*move_table((), wide=wide)[0], "WHY"], rows


def held_table(held: Sequence[KeptNode]) -> Table:
    rows = [
        [
            kept_node.node,
            kept_node.pool or NONE,
            UNKNOWN if kept_node.price_per_hour is None else money(kept_node.price_per_hour),
            f"{kept_node.disruption:.2f}",
            "; ".join(str(reason) for reason in kept_node.why) or NONE,
        ]
        for kept_node in held
    ]
    return ["NODE", "POOL", "$/H", "DISRUPTION", "HELD BY"], rows


def held_by_reason(held: Sequence[KeptNode]) -> Table:
    """The most frequent first."""
    groups: dict[str, list[KeptNode]] = {}
    for kept_node in held:
        groups.setdefault(kept_node.why[0].reason if kept_node.why else NONE, []).append(kept_node)
    rows = [
        [str(len(members)), code, members[0].node, str(members[0].why[0]) if members[0].why else NONE]
        for code, members in sorted(groups.items(), key=lambda group: (-len(group[1]), group[0]))
    ]
    return ["NODES", "REASON", "FOR EXAMPLE", "HELD BY (-o wide shows every node)"], rows


def pool_table(plan: ConsolidationPlan) -> Table:
    rows = [
        [
            pool.name,
            pool.policy or NONE,
            str(pool.nodes),
            money(pool.cost_per_hour) + (f" + {pool.unpriced} unknown" if pool.unpriced else ""),
            f"{pool.disruption:.1f}",
            ", ".join(f"{reason} {amount(number)}" for reason, number in pool.allowed.items()) or NONE,
            "; ".join(str(reason) for reason in pool.why) or NONE,
        ]
        for pool in plan.pools
    ]
    return ["POOL", "POLICY", "NODES", "$/H", "DISRUPTION", "MAY GO", "CLOSED BY"], rows


def totals_table(plan: ConsolidationPlan) -> Table:
    rows = [_totals("before", plan.before), _totals("after", plan.after)]
    header = ["", "NODES", "PODS", "$/H", "$/MONTH", "CPU USED", "MEMORY USED"]
    if plan.before.list_price_per_hour is not None:  # then $/H is the bill under the contract
        header.append("LIST $/H")
        for row, totals in zip(rows, (plan.before, plan.after), strict=True):
            row.append(money(totals.list_price_per_hour or 0.0))
    return header, rows


def _totals(name: str, totals: ClusterTotals) -> list[str]:
    unknown = f" + {totals.unpriced} unknown" if totals.unpriced else ""
    return [
        name,
        str(totals.nodes),
        str(totals.pods),
        money(totals.price_per_hour) + unknown,
        money(totals.price_per_hour * HOURS_PER_MONTH),
        *(f"{totals.use.get(resource, 0.0):.0%}" for resource in ("cpu", "memory")),
    ]


def comparison_table(alternatives: Sequence[PlanAlternative]) -> Table:
    rows = [
        [
            alternative.label,
            str(len(alternative.plan.moves)),
            str(sum(len(move.nodes) for move in alternative.plan.moves)),
            str(sum(len(move.new_nodes) for move in alternative.plan.moves)),
            money(alternative.plan.savings_per_hour),
            money(alternative.plan.savings_per_hour * HOURS_PER_MONTH),
            share(alternative.plan),
            str(alternative.plan.disturbed),
            f"{alternative.plan.disruption:.1f}",
            str(len(alternative.plan.rejected)),
        ]
        for alternative in alternatives
    ]
    header = ["POLICY", "MOVES", "NODES GO", "COME", "SAVES $/H", "$/MONTH", "OF COST", "PODS", "DISRUPTION"]
    return [*header, "REJECTED"], rows


def share(plan: ConsolidationPlan) -> str:
    cost = plan.before.price_per_hour
    return f"{plan.savings_per_hour / cost:.1%}" if cost > 0 else NONE


def money(amount_: float) -> str:
    """Small amounts keep three places, so that a cheap node does not look free."""
    return f"{amount_:z,.3f}" if abs(amount_) < 100 else f"{amount_:,.0f}"


def amount(number: int) -> str:
    return "any" if number >= 2**31 - 1 else str(number)


def _names(names: Sequence[str], wide: bool) -> str:
    if wide or len(names) <= NAMES:
        return ",".join(names)
    return f"{','.join(names[:NAMES])} and {len(names) - NAMES} more"
