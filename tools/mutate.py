"""Plant plausible mistakes in decision code, and see whether a test notices.

    python -m tools.mutate [PATH ...] [--sample 150] [--seed 1] [--workers 2] [--refresh]

A mutant is one small change: another comparison, `and` for `or`, a bound off by one, a branch that is never
taken. Decorators and named limits of a module decide nothing and stay as they are. Only tests that reach the
changed line run, one of each kind first, until one fails or a fixed amount of work is done. Which tests reach
which line is recorded once by coverage (`.mutation/`): again for test files that are new or changed, and for
all with --refresh, which is due when the product's lines have moved. Results are kept there too, so that a
run that was ended goes on, and survivors are tried again when their tests have changed. Tests marked long do
not take part. Survivors that change nothing anybody could see are listed with their reason in
`tests/equivalent_mutants.json`; all others are holes in the tests, and end the command with 1 when fewer than
the goal are killed.
"""

import argparse
import contextlib
import gc
import hashlib
import importlib
import json
import os
import random
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from types import FrameType, FunctionType
from typing import Any

import pytest
from tools.mutants import ROOT, Mutant, changed_functions, is_generated, mutants_of

STATE = ROOT / ".mutation"
EQUIVALENT = ROOT / "tests/equivalent_mutants.json"
DEFAULT_PATHS = tuple(
    f"src/karpool/{part}"
    for part in [
        "packing",
        "cluster",
        "estimator",
        "scheduler",
        "consolidation",
        "gpu",
        "provisioning",
        "kube",
        "wire",
    ]
)
# Which folders of tests can reach a package: running all for each would take hours.
TESTS_OF = {
    "packing": "packing vectors estimator consolidation cli",
    "cluster": "cluster packing estimator consolidation cli",
    "estimator": "estimator vectors cli docs",
    "scheduler": "scheduler rooms vectors docs",
    "consolidation": "consolidation vectors cli docs",
    "gpu": "gpu vectors docs",
    "provisioning": "provisioning gpu consolidation contracts",
    "kube": "kube manager security cli",
    "wire": "wire vectors estimator scheduler",
    "model": "model vectors packing",
}
GOAL = 0.9
FAILED = -1.0  # instead of seconds: a test that fails without a mistake notices none
TEST_SECONDS = 12  # of one mutant, as they were recorded: a run without tracing takes about half of that
# Exit codes of pytest: all passed, some failed, a module could not even be imported.
# And killed by the limit of processor time: a mutant that makes its tests run on is noticed.
_VERDICTS = {
    0: "survived",
    1: "killed",
    2: "killed",
    -signal.SIGXCPU: "killed",
    128 + signal.SIGXCPU: "killed",
}
PROCESSOR_SECONDS = 120  # several times what its tests take, and a busy machine kills no mutant
WAITING_SECONDS = 300  # for one test: it hangs, on a busy machine too

_TIMEOUT = ("--timeout", str(WAITING_SECONDS))
_PYTEST = (
    *("-p", "tests.mutant", "-q", "-m", "not long"),
    *("-p", "no:randomly", "-p", "no:cacheprovider", "-p", "no:xdist"),
)

# Which tests reach a line


@dataclass(frozen=True)
class Reach:
    """By product file and line: tests; no test where a line runs when its module is imported."""

    lines: dict[str, dict[int, list[str]]]
    seconds: dict[str, float]
    digests: dict[str, str]  # of test files

    def tests_of(self, mutant: Mutant) -> list[str]:
        by_line = self.lines.get(mutant.file, {})
        if mutant.line not in by_line:
            return []
        return self._within_limit(by_line[mutant.line] or sorted(set().union(*by_line.values())))

    def _within_limit(self, tests: Sequence[str]) -> list[str]:
        """One of each test function, the quickest first; then the second of each."""
        cases: dict[str, int] = {}
        ordered: list[tuple[int, float, str]] = []
        for seconds, test in sorted((self.seconds.get(test, 1.0), test) for test in tests):
            if seconds == FAILED:
                continue
            function = test.partition("[")[0]
            cases[function] = cases.get(function, 0) + 1
            ordered.append((cases[function], seconds, test))
        chosen: list[str] = []
        work = 0.0
        for _, seconds, test in sorted(ordered):
            work += seconds
            if chosen and work > TEST_SECONDS:
                break
            chosen.append(test)
        return chosen

    def digest_of(self, tests: Sequence[str]) -> str:
        files = sorted({test.partition("::")[0] for test in tests})
        return _digest("".join(self.digests.get(file, "") for file in files).encode())


def reached(paths: Sequence[Path], *, refresh: bool, workers: int) -> Reach:
    folders = sorted({folder for path in paths for folder in TESTS_OF.get(_package(path), "").split()})
    STATE.mkdir(exist_ok=True)
    with ThreadPoolExecutor(workers) as pool:
        list(pool.map(lambda folder: _record(folder, refresh=refresh), folders))
    reach = Reach({}, {}, {})
    for folder in folders:
        recorded = json.loads((STATE / f"reach.{folder}.json").read_text())
        reach.seconds.update(recorded["seconds"])
        reach.digests.update(recorded["digests"])
        for file, by_line in recorded["lines"].items():
            of_file = reach.lines.setdefault(file, {})
            for line, tests in by_line.items():
                of_file.setdefault(int(line), []).extend(recorded["tests"][test] for test in tests)
    return reach


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:16]


def _package(path: Path) -> str:
    parts = path.resolve().relative_to(ROOT / "src/karpool").parts
    return parts[0] if parts else ""


def _record(folder: str, *, refresh: bool) -> None:
    """Run what is new or changed since the last recording; a helper that all tests share counts as a test."""
    state = STATE / f"reach.{folder}.json"
    earlier: dict[str, Any] = json.loads(state.read_text()) if state.exists() and not refresh else {}
    digests = {
        str(file.relative_to(ROOT)): _digest(file.read_bytes())
        for file in sorted((ROOT / "tests" / folder).rglob("test_*.py"))
    }
    recorded = earlier.get("digests", {})
    stale = [file for file, digest in digests.items() if recorded.get(file) != digest]
    dropped = (set(recorded) - set(digests)) | set(stale)
    if not dropped:
        return
    say(f"recording which lines {len(stale)} files of tests/{folder} reach")
    reach, seconds = _traced(folder, stale) if stale else ({}, {})
    names = earlier.get("tests", [])
    kept = {number for number, test in enumerate(names) if test.partition("::")[0] not in dropped}
    for file, by_line in earlier.get("lines", {}).items():
        for line, tests in by_line.items():
            of_line = reach.setdefault(file, {}).setdefault(line, [])
            of_line.extend(names[number] for number in tests if number in kept)
    numbers: dict[str, int] = {}
    lines = {
        file: {
            line: [numbers.setdefault(test, len(numbers)) for test in tests]
            for line, tests in by_line.items()
        }
        for file, by_line in reach.items()
    }
    seconds = earlier.get("seconds", {}) | seconds
    content = {"digests": digests, "tests": list(numbers), "lines": lines, "seconds": seconds}
    state.write_text(json.dumps(content))


def _traced(folder: str, files: Sequence[str]) -> tuple[dict[str, dict[str, list[str]]], dict[str, float]]:
    """By product file and line: tests; and how long each of them took."""
    import coverage

    data, seconds, settings = (STATE / f"{kind}.{folder}" for kind in ("coverage", "seconds", "settings"))
    settings.write_text(f"[run]\nsource = {ROOT / 'src/karpool'}\ndata_file = {data}\n")
    command = [sys.executable, "-m", "coverage", "run", f"--rcfile={settings}", "-m", "pytest", *_PYTEST]
    environment = _environment() | {"KARPOOL_SECONDS": str(seconds)}
    log = STATE / f"log.{folder}"
    with log.open("w") as output:
        subprocess.run(  # noqa: S603 - our own tests
            [*command, "--timeout", "600", *files], cwd=ROOT, env=environment, stdout=output, check=False
        )
    loaded = coverage.CoverageData(str(data))
    loaded.read()
    reach: dict[str, dict[str, list[str]]] = {}
    for file in loaded.measured_files():
        contexts_of = loaded.contexts_by_lineno(file)
        by_line = {str(line): sorted(filter(None, set(contexts))) for line, contexts in contexts_of.items()}
        reach[str(Path(file).relative_to(ROOT))] = by_line
    return reach, json.loads(seconds.read_text())


# Running


@dataclass(frozen=True)
class Result:
    id: str
    verdict: str  # killed, survived, unreached; broken: its tests could not be run
    seconds: float
    digest: str  # of the file
    tests: str = ""  # digest of those that were run

    @property
    def killed(self) -> bool:
        return self.verdict == "killed"

    @property
    def file(self) -> str:
        return self.id.partition(":")[0]

    def still_holds(self, now: "Result") -> bool:
        """A survivor is tried again when its tests have changed, and what was broken always."""
        noticed = self.killed or (self.verdict == "survived" and self.tests == now.tests)
        return noticed and self.digest == now.digest


class PreparedProcess:
    """Everything is imported once; each mutant is planted in a copy of the process.

    A mistake that matters when modules are imported is planted in a new process."""

    def __init__(self, tests: Iterable[str]) -> None:
        sys.path[:0] = [str(ROOT / "src"), str(ROOT)]
        sys.dont_write_bytecode = True
        os.chdir(ROOT)
        self._ran_on_import: set[tuple[str, str, int]] = set()
        sys.setprofile(self._note)
        for module in ["tests.conftest", *sorted({test.partition(".py::")[0] for test in tests})]:
            with contextlib.suppress(Exception):  # its tests then fail to be collected, mutant or not
                importlib.import_module(module.replace("/", "."))
        sys.setprofile(None)
        gc.collect()
        gc.freeze()

    def _note(self, frame: FrameType, event: str, _: object) -> None:
        if event == "call":
            code = frame.f_code
            self._ran_on_import.add((code.co_filename, code.co_qualname, code.co_firstlineno))

    def run(
        self, arguments: Sequence[str], mutant: Mutant | None, witness: Path, *, anew: bool = False
    ) -> int:
        """The number of the copy; `witness` is where it writes which test failed."""
        pid = os.fork()
        if pid:
            return pid
        code = 3
        try:
            silence = os.open(os.devnull, os.O_RDWR)
            for stream in (0, 1, 2):
                os.dup2(silence, stream)
            _limit_work()
            if mutant is not None and (anew or not self._planted(mutant)):
                _run_anew(arguments, mutant)
            code = int(pytest.main(["--assert=plain", *arguments], plugins=[Witness(witness)]))
        finally:
            os._exit(code)

    def _planted(self, mutant: Mutant) -> bool:
        functions = changed_functions(mutant, (ROOT / mutant.file).read_text())
        file = str(ROOT / mutant.file)
        if functions is None or any((file, *place) in self._ran_on_import for place in functions):
            return False
        gc.unfreeze()
        for function in gc.get_objects():
            if isinstance(function, FunctionType) and function.__code__.co_filename == file:
                place = function.__code__.co_qualname, function.__code__.co_firstlineno
                if place in functions:
                    function.__code__ = functions[place]
        return True


class Witness:
    def __init__(self, path: Path) -> None:
        self._path = path

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            with self._path.open("a") as file:
                file.write(report.nodeid + "\n")


def _run_anew(arguments: Sequence[str], mutant: Mutant) -> None:
    changed = _changed_file(mutant)
    changed.write_text(mutant.applied((ROOT / mutant.file).read_text()))
    module = mutant.file.removeprefix("src/").removesuffix(".py").removesuffix("/__init__").replace("/", ".")
    environment = _environment() | {"KARPOOL_MUTANT": f"{module}={changed}"}
    os.execve(sys.executable, [sys.executable, "-m", "pytest", *arguments], environment)  # noqa: S606


def _changed_file(mutant: Mutant) -> Path:
    return STATE / f"mutant.{_digest(mutant.id.encode())}.py"


def _limit_work() -> None:
    resource.setrlimit(resource.RLIMIT_CPU, (PROCESSOR_SECONDS, PROCESSOR_SECONDS + 10))


def _environment() -> dict[str, str]:
    return dict(os.environ) | {"PYTHONPATH": f"{ROOT / 'src'}:{ROOT}", "PYTHONDONTWRITEBYTECODE": "1"}


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("paths", nargs="*", type=Path, default=[ROOT / path for path in DEFAULT_PATHS])
    parser.add_argument("--sample", type=int, default=150, help="mutants to try; 0 is all")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 2)
    parser.add_argument("--refresh", action="store_true", help="record anew which tests reach which line")
    options = parser.parse_args()
    paths = [path.resolve() for path in options.paths]
    files = sorted(file for path in paths for file in ([path] if path.is_file() else path.rglob("*.py")))
    reach = reached(paths, refresh=options.refresh, workers=options.workers)
    mutants = [mutant for file in files if not is_generated(file) for mutant in mutants_of(file)]
    if options.sample and options.sample < len(mutants):
        mutants = random.Random(options.seed).sample(mutants, options.sample)  # noqa: S311
    equivalent = json.loads(EQUIVALENT.read_text()) if EQUIVALENT.exists() else {}
    STATE.mkdir(exist_ok=True)
    results = _judge_all(
        [mutant for mutant in mutants if mutant.id not in equivalent], reach, options.workers
    )
    return _report(results, skipped=len(mutants) - len(results))


def _judge_all(mutants: Sequence[Mutant], reach: Reach, workers: int) -> list[Result]:
    log = STATE / "results.jsonl"
    lines = log.read_text().splitlines() if log.exists() else []
    earlier = {result.id: result for result in (Result(**json.loads(line)) for line in lines)}
    digests = {file: _digest((ROOT / file).read_bytes()) for file in {mutant.file for mutant in mutants}}
    results: dict[str, Result] = {}
    waiting: dict[str, tuple[Mutant, list[str]]] = {}
    for mutant in mutants:
        tests = reach.tests_of(mutant)
        fresh = Result(mutant.id, "unreached", 0.0, digests[mutant.file], reach.digest_of(tests))
        before = earlier.get(mutant.id)
        if before is not None and before.still_holds(fresh):
            results[mutant.id] = before
        else:
            results[mutant.id] = fresh
            if tests:
                waiting[mutant.id] = mutant, tests
    if not waiting:
        return list(results.values())
    prepared = PreparedProcess(test for _, tests in waiting.values() for test in tests)
    for mutant, verdict, seconds in _verdicts(prepared, waiting.values(), workers):
        result = replace(results[mutant.id], verdict=verdict, seconds=seconds)
        results[mutant.id] = result
        with log.open("a") as file:
            file.write(json.dumps(asdict(result)) + "\n")
        where, change = f"{mutant.file}:{mutant.line}", mutant.id.rpartition(":")[2]
        say(f"{result.verdict:9} {result.seconds:5.1f} s  {where}  {change}")
    return list(results.values())


def _verdicts(
    prepared: PreparedProcess, work: Iterable[tuple[Mutant, list[str]]], workers: int
) -> Iterator[tuple[Mutant, str, float]]:
    """Some copies at a time. A test that fails in a copy without the mistake, too, is no witness of it: such
    a mutant is judged in a new process."""
    todo = [(mutant, tests, False) for mutant, tests in reversed(list(work))]
    running: dict[int, tuple[Mutant, list[str], bool, float, Path]] = {}
    sound: dict[str, bool] = {}
    while todo or running:
        while todo and len(running) < workers:
            mutant, tests, anew = todo.pop()
            witness = STATE / f"witness.{_digest(mutant.id.encode())}"
            witness.unlink(missing_ok=True)
            pid = prepared.run([*_PYTEST, "-x", *_TIMEOUT, *tests], mutant, witness, anew=anew)
            running[pid] = mutant, tests, anew, time.monotonic(), witness
        pid, status = os.wait()
        if pid not in running:
            continue
        mutant, tests, anew, started, witness = running.pop(pid)
        failed = witness.read_text().splitlines()[:1] if witness.exists() else []
        for leftover in (witness, _changed_file(mutant)):
            leftover.unlink(missing_ok=True)
        for test in failed:
            if test not in sound:
                sound[test] = _passes(prepared, test)
        if all(map(sound.__getitem__, failed)):
            verdict = _VERDICTS.get(os.waitstatus_to_exitcode(status), "broken")
            yield mutant, verdict, round(time.monotonic() - started, 1)
        else:
            todo.append((mutant, tests, True))


def _passes(prepared: PreparedProcess, test: str) -> bool:
    pid = prepared.run([*_PYTEST, *_TIMEOUT, test], None, STATE / "witness.none")
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


def _report(results: Sequence[Result], *, skipped: int) -> int:
    for result in results:
        if not result.killed:
            say(f"{result.verdict}: {result.id}")
    packages = sorted({_package(ROOT / result.file) for result in results})
    for package in packages:
        of_package = [result for result in results if _package(ROOT / result.file) == package]
        say(f"{package:14} {sum(result.killed for result in of_package)} of {len(of_package)} killed")
    killed = sum(result.killed for result in results)
    share = killed / len(results) if results else 1.0
    low, high = _interval(killed, len(results))
    say(f"{killed} of {len(results)} mutants killed ({share:.1%}; 95 % interval {low:.1%} to {high:.1%})")
    say(f"{skipped} are known to change nothing")
    return 0 if share >= GOAL else 1


def _interval(hits: int, tries: int) -> tuple[float, float]:
    """Wilson's, of the share among all mutants when these are a sample."""
    if not tries:
        return 0.0, 1.0
    share, z = hits / tries, 1.96
    middle = (share + z * z / (2 * tries)) / (1 + z * z / tries)
    half = z / (1 + z * z / tries) * (share * (1 - share) / tries + z * z / (4 * tries * tries)) ** 0.5
    return middle - half, middle + half


def say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
