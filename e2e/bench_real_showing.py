"""The side-by-side benchmark as a page of Markdown: what was compared, and how many times better which is."""

from collections.abc import Iterator, Mapping
from typing import Any

Document = Mapping[str, Any]

_ESTIMATORS = {
    "start_seconds": "start to the first right answer, s",
    "memory_after_start_mib": "memory after start, MiB",
    "p50_ms": "one question after the other, p50, ms",
    "p99_ms": "the same, p99, ms",
    "large_component_sets_ms": "component sets of four large parts, ms",
    "large_component_sets_found": "the same: sets found",
    "component_sets_ms": "component sets of one medium and three small parts, ms",
    "component_sets_found": "the same: sets found",
    "memory_after_load_mib": "memory after all of it, MiB",
}
_LOAD = {
    "per_second": "questions/s",
    "p50_ms": "p50, ms",
    "p99_ms": "p99, ms",
    "processor_ms": "processor time per question, ms",
}
_SCHEDULERS = {
    "bindings_per_second": "bindings/s",
    "start_to_first_binding_seconds": "start to the first binding placed, s",
    "start_to_last_binding_seconds": "start to the last binding placed, s",
    "processor_ms_per_binding": "processor time per binding, start included, ms",
    "memory_mib": "memory, MiB",
}


def page(document: Document) -> str:
    return "\n".join(
        [
            *_head(document),
            *_estimators(document),
            *_schedulers(document, "schedulers", "DynamicWeight by summaries"),
            *_schedulers(document, "asking", "every binding different, both ask the same Go estimators"),
            *_packing(document),
            "",
        ]
    )


def _head(document: Document) -> Iterator[str]:
    machine, peers = document["machine"], document["peers"]
    versions = ", ".join(f"{name} {version}" for name, version in sorted(peers.items()))
    yield (
        f"Taken {document['taken'][:10]} on {machine['cores']} cores, {machine['memory_gib']} GiB,"
        f" {machine['system']}, Python {machine['python']}; load average before:"
        f" {machine['load_before']:.1f}."
    )
    yield f"Against {versions}. Servers, clients, API server and etcd share the machine."
    yield '"Better by": how many times better Karpool is, whichever direction is better; below 1 it is worse.'


def _estimators(document: Document) -> Iterator[str]:
    if not (found := document.get("estimators")):
        return
    size = document["input"]["estimators"]
    yield f"\n### Estimators: {size['nodes']:,} nodes, {size['pods']:,} pods\n"
    if "error" in found:
        yield found["error"]
        return
    loads = [key.removesuffix("_per_second") for key in found["go"] if key.endswith("_per_second")]
    names = dict(_ESTIMATORS)
    for load in loads:
        words = load.split("_")
        title = f"{words[1]} client{'' if words[1] == '1' else 's'}{', churn' * ('churn' in words)}"
        names |= {f"{load}_{key}": f"{title}: {text}" for key, text in _LOAD.items()}
    yield from _table(names, found["go"], found["karpool"])


def _schedulers(document: Document, part: str, how: str) -> Iterator[str]:
    if not (found := document.get(part)):
        return
    size = document["input"][part]
    yield f"\n### Schedulers: {size['bindings']:,} bindings, {size['clusters']:,} clusters, {how}\n"
    if "error" in found:
        yield found["error"]
        return
    yield from _table(_SCHEDULERS, found["go"], found["karpool"])


def _table(names: Mapping[str, str], theirs: Mapping[str, float], ours: Mapping[str, float]) -> Iterator[str]:
    yield "| what | Go | Karpool | better by |"
    yield "|---|---|---|---|"
    for key, title in names.items():
        if key in theirs:
            more_is_better = key.endswith(("per_second", "_found"))
            better, worse = (ours[key], theirs[key]) if more_is_better else (theirs[key], ours[key])
            ratio = _number(better / worse) if worse else "-"
            yield f"| {title} | {_number(theirs[key])} | {_number(ours[key])} | {ratio} |"


def _packing(document: Document) -> Iterator[str]:
    if not (found := document.get("packing")):
        return
    yield "\n### Packing: Karpenter and ours, the same pods, pool and machines\n"
    if "error" in found:
        yield found["error"]
        return
    yield (
        "| mix | pods | nodes: Karpenter | ours | $/h: Karpenter | ours "
        "| planning: Karpenter | ours | better by | last pod to last claim: Karpenter |"
    )
    yield "|---" * 10 + "|"
    for title, both in found.items():
        theirs, ours = both["karpenter"], both["karpool"]
        cells = (
            title,
            f"{theirs['pods']:,.0f}",
            f"{theirs['nodes']:,.0f}",
            f"{ours['nodes']:,.0f}",
            f"{theirs['dollars_per_hour']:,.3f}",
            f"{ours['dollars_per_hour']:,.3f}",
            f"{_number(theirs['planning_seconds'] * 1e3)} ms",
            f"{_number(ours['planning_seconds'] * 1e3)} ms",
            _number(theirs["planning_seconds"] / ours["planning_seconds"]),
            f"{theirs['last_pod_to_last_claim_seconds']:.1f} s",
        )
        yield f"| {' | '.join(cells)} |"


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"
