"""`python -m tests.vectors DIR [--kinds a,b]`: run every vector file of a folder."""

import argparse
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from tests.vectors import capabilities  # noqa: F401 - registers the handlers
from tests.vectors.registry import KNOWN
from tests.vectors.running import Report, run


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.vectors", description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--kinds", default="", help="comma-separated; default: every kind in the files")
    options = parser.parse_args(arguments)
    wanted = [name.strip() for name in options.kinds.split(",") if name.strip()]
    report = run(options.folder, wanted)
    sys.stdout.write("\n".join(lines(report)) + "\n")
    return 1 if report.total_failed else 0


def lines(report: Report) -> Iterator[str]:
    failed = Counter(failure.kind for failure in report.failures)
    for name in report.kinds():
        note = "  (not built yet)" if name in report.not_built else ""
        yield f"{name:30} {report.passed.get(name, 0):5} passed {failed[name]:5} failed{note}"
    mismatches = [failure for failure in report.failures if failure.kind not in report.not_built]
    if mismatches:
        yield "\nfailures:"
        yield from (f"  {failure}" for failure in mismatches)
    if report.not_built:
        yield "\nnot built yet; leave them out with KINDS:"
        for name, cases in sorted(report.not_built.items()):
            yield f"  {name}: {cases} cases of the {KNOWN[name]}"
    yield f"{report.total_passed} passed, {report.total_failed} failed"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
