"""Look for hostile inputs: python -m tests.fuzz [--seconds 60] [--workers 2] [TARGET ...]

Every target gets inputs for so many seconds. An input that is refused at a place where no other was before
becomes an example that later ones are made of. What is found is printed, at most a few of each target, and
ends the command with 1: it belongs into FINDINGS of test_no_input_does_harm.py.
"""

import argparse
import os
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from random import Random, SystemRandom

from tests.fuzz.feeding import Answer, Finding, feed
from tests.fuzz.mutating import mutated
from tests.fuzz.targets import TARGETS

EXAMPLES_MAX = 2_000  # more would be tried too seldom each
FINDINGS_MAX = 5  # of one target: the sixth mostly has the cause of the first


@dataclass
class Outcome:
    name: str
    inputs: int = 0
    processor_seconds: float = 0.0  # less than was asked for where the machine has other work
    answers: set[Answer] = field(default_factory=set)
    findings: list[str] = field(default_factory=list)


def fuzzed(name: str, seconds: float) -> Outcome:
    [target] = [target for target in TARGETS if target.name == name]
    outcome = Outcome(name)
    examples = list(target.seeds)
    until = time.monotonic() + seconds
    started = time.process_time()
    while time.monotonic() < until and len(outcome.findings) < FINDINGS_MAX:
        seed = SystemRandom().getrandbits(64)
        data = mutated(examples, Random(seed))
        outcome.inputs += 1
        try:
            answer = feed(target, data, seed)
        except Finding as finding:
            outcome.findings.append(str(finding))
            continue
        if answer not in outcome.answers and len(examples) < EXAMPLES_MAX:
            examples.append(data)
        outcome.answers.add(answer)
    outcome.processor_seconds = time.process_time() - started
    return outcome


def main() -> int:
    names = [target.name for target in TARGETS]
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("targets", nargs="*", metavar="TARGET", help=f"all, or some of: {', '.join(names)}")
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 2)
    options = parser.parse_args()
    unknown = sorted(set(options.targets) - set(names))
    if unknown:
        parser.error(f"no target is called {', '.join(unknown)}; there are {', '.join(names)}")
    chosen = options.targets or names
    findings = 0
    with ProcessPoolExecutor(options.workers) as pool:
        for outcome in pool.map(fuzzed, chosen, [options.seconds] * len(chosen)):
            findings += len(outcome.findings)
            work = f"{outcome.inputs} inputs in {outcome.processor_seconds:.0f} s of processor time"
            ways, harm = len(outcome.answers), len(outcome.findings)
            sys.stdout.write(f"{outcome.name}: {work}, {ways} ways to an answer, {harm} findings\n")
            sys.stdout.writelines(f"  {finding}\n" for finding in outcome.findings)
            sys.stdout.flush()
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main())
