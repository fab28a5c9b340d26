"""Plant plausible mistakes in decision code, and see whether a test notices.

    python tools/mutate.py [PATH ...] [--sample 150] [--seed 1] [--workers 2] [--refresh]

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
import ast
import hashlib
import json
import os
import random
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
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
TEST_SECONDS = 20  # of one mutant, as they were recorded: a run without tracing takes about half of that
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
LIMIT_FROM = 10  # a named number of a module from here on is a limit or a weight: one more is no mistake
WAITING_SECONDS = 1800  # then nobody knows

_PYTEST = (
    *("-p", "tests.mutant", "-q", "-m", "not long"),
    *("-p", "no:randomly", "-p", "no:cacheprovider", "-p", "no:xdist"),
)
_COMPARISONS = {
    ast.Lt: "<=", ast.LtE: "<", ast.Gt: ">=", ast.GtE: ">", ast.Eq: "!=", ast.NotEq: "==",
    ast.Is: "is not", ast.IsNot: "is", ast.In: "not in", ast.NotIn: "in",
}  # fmt: skip
_ARITHMETIC = {ast.Add: "-", ast.Sub: "+", ast.Mult: "//", ast.FloorDiv: "*", ast.Div: "*", ast.BitAnd: "|"}
_CALLS = {"min": "max", "max": "min", "any": "all", "all": "any", "minimum": "maximum", "maximum": "minimum"}


Change = tuple[str, ast.expr | ast.stmt, tuple[int, int], str]  # scope, node, what is replaced, by what


@dataclass(frozen=True)
class Mutant:
    """`id` names the place by function and order, so that it survives changes elsewhere in the file."""

    id: str
    file: str
    line: int
    start: int  # offsets in the text
    end: int
    text: str

    def applied(self, source: str) -> str:
        return source[: self.start] + self.text + source[self.end :]


def mutants_of(path: Path) -> list[Mutant]:
    source = path.read_text()
    tree = ast.parse(source)
    name = str(path.relative_to(ROOT))
    offsets = [0]
    for line in source.splitlines(keepends=True):
        offsets.append(offsets[-1] + len(line))
    lines = source.splitlines(keepends=True)
    found: list[Mutant] = []
    seen: dict[str, int] = {}

    def offset(line: int, column: int) -> int:
        return offsets[line - 1] + len(lines[line - 1].encode()[:column].decode())

    for scope, node, span, text in _changes(tree, source, offset):
        start, end = span
        before = " ".join(source[start:end].split())
        key = f"{name}:{scope}:{before} -> {' '.join(text.split())}"
        seen[key] = seen.get(key, 0) + 1
        found.append(Mutant(f"{key} #{seen[key]}", name, node.lineno, start, end, text))
    return found


def _is_generated(file: Path) -> bool:
    return file.stem.endswith(("_pb2", "_pb2_grpc"))


def _changes(tree: ast.Module, source: str, offset: Callable[[int, int], int]) -> Iterator[Change]:
    def span(node: ast.expr | ast.stmt) -> tuple[int, int]:
        return offset(node.lineno, node.col_offset), offset(node.end_lineno or 0, node.end_col_offset or 0)

    def between(left: ast.expr, right: ast.expr) -> tuple[int, int]:
        return span(left)[1], span(right)[0]

    def visit(node: ast.AST, scope: str) -> Iterator[Change]:
        inner = scope
        described: list[ast.expr] = []
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            inner = f"{scope}.{node.name}"
            described = node.decorator_list
        match node:
            case ast.Compare(ops=[operator]) if type(operator) in _COMPARISONS:
                gap = between(node.left, node.comparators[0])
                if "(" not in source[slice(*gap)] and ")" not in source[slice(*gap)]:
                    yield scope, node, gap, f" {_COMPARISONS[type(operator)]} "
            case ast.BoolOp():
                word, other = ("and", "or") if isinstance(node.op, ast.And) else ("or", "and")
                gap = between(node.values[0], node.values[1])
                text = source[slice(*gap)]
                if text.count(word) == 1:
                    yield scope, node, gap, text.replace(word, other)
            case ast.UnaryOp(op=ast.Not()):
                yield scope, node, span(node), source[slice(*span(node.operand))]
            case ast.BinOp() if type(node.op) in _ARITHMETIC and not _is_text(node):
                gap = between(node.left, node.right)
                if "(" not in source[slice(*gap)] and ")" not in source[slice(*gap)]:
                    yield scope, node, gap, f" {_ARITHMETIC[type(node.op)]} "
            case ast.Constant(value=bool() as value):
                yield scope, node, span(node), str(not value)
            case ast.Constant(value=int() as value) if abs(value) < (2**31 if scope else LIMIT_FROM):
                yield scope, node, span(node), str(value + 1)
            case ast.Call(func=ast.Name(id=called)) if called in _CALLS:
                yield scope, node, span(node.func), _CALLS[called]
            case ast.If() if node.orelse == [] or not isinstance(node.orelse[0], ast.If):
                yield scope, node, span(node.test), "False"
            case ast.Continue():
                yield scope, node, span(node), "break"
            case ast.Break():
                yield scope, node, span(node), "continue"
            case ast.Return(value=ast.expr() as value) if not isinstance(value, ast.Constant):
                yield scope, node, span(value), "None"
        for child in ast.iter_child_nodes(node):
            if child in described or (isinstance(child, ast.AnnAssign) and child.value is None):
                continue
            if isinstance(child, ast.Expr) and isinstance(child.value, ast.Constant):
                continue  # a docstring
            if isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test):
                continue
            yield from visit(child, inner)

    yield from visit(tree, "")


def _is_text(node: ast.BinOp) -> bool:
    """Joining texts and types is no arithmetic."""
    sides = (node.left, node.right)
    return isinstance(node.op, ast.BitOr) or any(
        isinstance(side, ast.JoinedStr) or (isinstance(side, ast.Constant) and isinstance(side.value, str))
        for side in sides
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


def judged(mutant: Mutant, tests: Sequence[str], digest: str, of_tests: str) -> Result:
    started = time.monotonic()
    if not tests:
        return Result(mutant.id, "unreached", 0.0, digest, of_tests)
    changed = STATE / f"mutant.{hashlib.sha256(mutant.id.encode()).hexdigest()[:16]}.py"
    changed.write_text(mutant.applied((ROOT / mutant.file).read_text()))
    module = mutant.file.removeprefix("src/").removesuffix(".py").removesuffix("/__init__").replace("/", ".")
    command = [
        sys.executable,
        "-m",
        "pytest",
        *_PYTEST,
        "-x",
        "--timeout",
        str(WAITING_SECONDS // 6),
        *tests,
    ]
    environment = _environment() | {"KARPOOL_MUTANT": f"{module}={changed}"}
    try:
        done = subprocess.run(  # noqa: S603 - our own tests
            command,
            cwd=ROOT,
            env=environment,
            capture_output=True,
            timeout=WAITING_SECONDS,
            check=False,
            preexec_fn=_limit_work,
        )
        verdict = _VERDICTS.get(done.returncode, "broken")
    except subprocess.TimeoutExpired:
        verdict = "broken"
    finally:
        changed.unlink(missing_ok=True)
    return Result(mutant.id, verdict, round(time.monotonic() - started, 1), digest, of_tests)


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
    mutants = [mutant for file in files if not _is_generated(file) for mutant in mutants_of(file)]
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

    def judge(mutant: Mutant) -> Result:
        tests, digest = reach.tests_of(mutant), digests[mutant.file]
        of_tests = reach.digest_of(tests)
        before = earlier.get(mutant.id)
        if before is not None and before.digest == digest and (before.killed or before.tests == of_tests):
            return before
        result = judged(mutant, tests, digest, of_tests)
        with log.open("a") as file:
            file.write(json.dumps(asdict(result)) + "\n")
        where, change = f"{mutant.file}:{mutant.line}", mutant.id.rpartition(":")[2]
        say(f"{result.verdict:9} {result.seconds:5.1f} s  {where}  {change}")
        return result

    with ThreadPoolExecutor(workers) as pool:
        return list(pool.map(judge, mutants))


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
