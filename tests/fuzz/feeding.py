"""Feeding one target: an answer or a refusal, soon; anything else is a finding."""

import signal
import traceback
from collections.abc import Iterator
from contextlib import contextmanager

from tests.fuzz.targets import Target

HANGS_AFTER_SECONDS = 10
LONGEST_REFUSAL = 4000
DEEPEST_WAY = 25  # of parsers that call themselves, deeper is no other way
Answer = tuple[int, ...]  # lines on the way to the refusal; none: it was read


class Hangs(BaseException):
    """No Exception: a parser that swallows those must not swallow this."""


class Finding(AssertionError):
    pass


@contextmanager
def soon(seconds: int = HANGS_AFTER_SECONDS) -> Iterator[None]:
    def ring(*_: object) -> None:
        raise Hangs

    before = signal.signal(signal.SIGALRM, ring)
    left = signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(left)
        signal.signal(signal.SIGALRM, before)


def feed(target: Target, data: bytes, seed: object) -> Answer:
    try:
        with soon():
            return _answer(target, data)
    except (Exception, Hangs) as error:
        raise Finding(f"{target.name}, seed {seed}: {error!r} for {data[:2000]!r}") from error


def _answer(target: Target, data: bytes) -> Answer:
    try:
        target.reads(data)
    except target.refusals as refusal:
        if len(str(refusal)) > LONGEST_REFUSAL:
            raise Finding("the refusal repeats what it was given") from None
        return tuple(_way(refusal))[:DEEPEST_WAY]
    return ()


def _way(error: BaseException | None) -> Iterator[int]:
    """Of a refusal, then of the error that it was made of."""
    while error is not None:
        yield from (line for _, line in traceback.walk_tb(error.__traceback__))
        error = error.__context__
