"""`python -m bench [NAMES]`: measure, print a table, write bench/results/latest.json.

Every module of this folder with a `benchmarks()` takes part. It gives results, or
functions without arguments that measure one thing and return a result: a dict of
`name`, `unit`, `values`, `target` (or None), and optionally `better` ("lower" or
"higher"; by default rates are to be high, the rest low). NAMES are modules, or
functions of one. Nothing is asserted: a target that is missed is shown, and that is all.
"""

import importlib
import json
import os
import platform
import statistics
import sys
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from types import ModuleType
from typing import Any

HERE = Path(__file__).parent
Measure = Callable[[], dict[str, Any]]


def main(names: list[str]) -> int:
    chosen = [module for module in known() if not names or names_part_of(module, names)]
    if not chosen:
        print(f"no benchmark is called {', '.join(names)}; known: {', '.join(known())}", file=sys.stderr)
        return 2
    results = []
    print(f"{'benchmark':58} {'median':>12} {'spread':>23} {'target':>12}")
    for module in chosen:
        for result in measured(module, names):
            results.append(result)
            print(row(result), flush=True)
    write(results)
    return 0


def known() -> list[str]:
    stems = sorted(path.stem for path in HERE.glob("*.py") if not path.stem.startswith("_"))
    return [stem for stem in stems if hasattr(imported(stem), "benchmarks")]


def imported(module: str) -> ModuleType:
    return importlib.import_module(f"bench.{module}")


def names_part_of(module: str, names: list[str]) -> bool:
    return module in names or any(_is_own(imported(module), name) for name in names)


def _is_own(module: ModuleType, name: str) -> bool:
    """Not what it merely imports: `list_pods` is a module, and used by others."""
    return getattr(getattr(module, name, None), "__module__", None) == module.__name__


def measured(module: str, names: list[str]) -> Iterator[dict[str, Any]]:
    """One summary per benchmark; one that cannot run does not keep the others from it."""
    try:
        for benchmark in imported(module).benchmarks():
            if not callable(benchmark):
                yield summed_up(module, benchmark)
            elif not names or module in names or benchmark.__name__ in names:
                yield attempted(module, benchmark)
    except Exception as error:
        yield failed(module, module, error)


def attempted(module: str, measure: Measure) -> dict[str, Any]:
    try:
        return summed_up(module, measure())
    except Exception as error:
        return failed(module, measure.__name__, error)


def failed(module: str, name: str, error: Exception) -> dict[str, Any]:
    return {"module": module, "name": name, "error": f"{type(error).__name__}: {error}"}


def summed_up(module: str, result: dict[str, Any]) -> dict[str, Any]:
    values = result["values"]
    median = statistics.median(values)
    target = result.get("target")
    better = result.get("better", "higher" if result["unit"].endswith("/s") else "lower")
    met = None if target is None else median <= target if better == "lower" else median >= target
    return {
        "module": module,
        **result,
        "better": better,
        "median": median,
        "min": min(values),
        "max": max(values),
        "met": met,
    }


def row(result: dict[str, Any]) -> str:
    if "error" in result:
        return f"{result['name']:58} could not run: {result['error']}"
    unit = result["unit"]
    spread = f"{shown(result['min'])} .. {shown(result['max'])}"
    if result["met"] is None:
        target, verdict = "", ""
    else:
        sign = "≤" if result["better"] == "lower" else "≥"
        target, verdict = f"{sign} {shown(result['target'])}", "ok" if result["met"] else "miss"
    return f"{result['name']:58} {shown(result['median']):>8} {unit:3} {spread:>23} {target:>12} {verdict}"


def shown(value: float) -> str:
    if value >= 1000:
        return f"{value:,.0f}"
    return f"{value:.3g}"


def write(results: list[dict[str, Any]]) -> None:
    folder = HERE / "results"
    folder.mkdir(exist_ok=True)
    document = {
        "taken": datetime.now(UTC).isoformat(timespec="seconds"),
        "python": platform.python_version(),
        "machine": platform.machine(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "results": results,
    }
    (folder / "latest.json").write_text(json.dumps(document, indent=1, ensure_ascii=False) + "\n")
    print(f"written to {(folder / 'latest.json').relative_to(HERE.parent)}")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
