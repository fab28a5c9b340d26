"""Schedules questions fairly: the caller with the least work done is next.

One thread answers questions, so in order of arrival a caller with many or large ones would delay all others.
Here every caller has its own queue, and work is measured in units (`cost_of`): next is the caller that will
have used least after its answer, however many questions others have queued. The cost of a question is
estimated from its size and from the caller's last one. An idle caller earns no credit. A caller is identified
by its certificate, else by its connection.
"""

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from karpool.model.karmada.replica_requirements import ReplicaRequirements
from karpool.wire.requests import ComponentSetsRequest, EstimateRequest

BYTES_PER_UNIT = 64  # reading so many bytes costs about as much as checking one node
_CALLERS_KEPT = 1_000


class TooManyQuestions(Exception):
    """One caller has too many questions queued."""


class FairTurns:
    """`waiting_max`: maximum number of queued questions per caller."""

    def __init__(self, waiting_max: int = 250) -> None:
        self._waiting_max = waiting_max
        self._lines: dict[str, deque[_Waiting]] = {}
        self._used: dict[str, int] = {}  # work done for each caller, on a common scale
        self._last: dict[str, int] = {}  # cost of each caller's last question
        self._scale = 0  # start of the caller that was served last
        self._is_taken = False

    @asynccontextmanager
    async def turn(self, caller: str, units: int = 1) -> AsyncIterator["Meter"]:
        """`units`: minimum cost. Raises TooManyQuestions."""
        await self._wait(caller, units)
        meter = Meter(units)
        try:
            yield meter
        finally:
            self._pay(caller, meter.units)
            # Let callers that arrived meanwhile queue: the work itself never awaits.
            asyncio.get_running_loop().call_soon(self._next)

    async def _wait(self, caller: str, units: int) -> None:
        if not self._is_taken:
            self._is_taken = True
            self._scale = self._begin(caller)
            return
        if caller not in self._lines:
            self._begin(caller)
        line = self._lines.setdefault(caller, deque())
        if len(line) >= self._waiting_max:
            raise TooManyQuestions(
                f"{len(line)} requests of this caller are already waiting; try again later"
            )
        turn = asyncio.get_running_loop().create_future()
        line.append((turn, units))
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self._next()  # it was given the turn, and passes it on
            else:
                self._leave(caller, turn)
            raise

    def _begin(self, caller: str) -> int:
        """A caller without queued questions starts at the common scale."""
        self._used[caller] = max(self._used.get(caller, 0), self._scale)
        return self._used[caller]

    def _leave(self, caller: str, turn: "asyncio.Future[None]") -> None:
        line = self._lines.get(caller)
        if line is not None:
            self._lines[caller] = line = deque(entry for entry in line if entry[0] is not turn)
            if not line:
                del self._lines[caller]

    def _pay(self, caller: str, units: int) -> None:
        self._used[caller] += units
        self._last[caller] = units
        if len(self._used) > _CALLERS_KEPT:  # callers behind the scale start there anyway
            self._used = {
                name: used
                for name, used in self._used.items()
                if used > self._scale or name in self._lines or name == caller
            }
            self._last = {name: cost for name, cost in self._last.items() if name in self._used}

    def _next(self) -> None:
        while self._lines:
            caller = min(self._lines, key=self._used_when_answered)
            self._scale = max(self._used[caller], self._scale)
            line = self._lines[caller]
            turn, _ = line.popleft()
            if not line:
                del self._lines[caller]
            if not turn.done():  # the caller may be gone
                turn.set_result(None)
                return
        self._is_taken = False

    def _used_when_answered(self, caller: str) -> int:
        _, units = self._lines[caller][0]
        return self._used[caller] + max(units, self._last.get(caller, 0))


_Waiting = tuple["asyncio.Future[None]", int]  # its turn, and its minimum cost


class Meter:
    """The cost of one turn."""

    def __init__(self, units: int) -> None:
        self.units = units

    def charge(self, units: int) -> None:
        self.units += units


def cost_of(request: EstimateRequest, nodes: int) -> int:
    """The cost in node checks: every condition of every template is checked on every node."""
    if isinstance(request, ComponentSetsRequest):
        templates = [component.requirements for component in request.components]
    else:
        templates = [request.requirements]
    templates += (component.requirements for workload in request.assumed for component in workload.components)
    return sum(_conditions(template) for template in templates) * nodes


def _conditions(template: ReplicaRequirements | None) -> int:
    if template is None:
        return 1
    shape = template.shape
    terms = sum(1 + len(term.labels) + len(term.fields) for term in shape.node_terms or ())
    return 1 + len(shape.requests) + len(shape.node_selector) + len(shape.tolerations) + terms
