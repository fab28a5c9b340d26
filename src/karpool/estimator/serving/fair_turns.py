"""One question at a time, and whose is next: the caller who has had the least work done.

Questions are answered by one thread, so whoever sends many, or large ones, would keep all others waiting in
the order of arrival. Here every caller has a line of its own, and work is metered in units (`cost_of`): the
caller comes next who will have used least once it is answered, however many questions others have waiting.
What a question will cost is taken from its size and from what the caller's last one did. Who was away is not
owed anything. A caller is known by its certificate, else by its connection.
"""

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from karpool.model.karmada.replica_requirements import ReplicaRequirements
from karpool.wire.requests import ComponentSetsRequest, EstimateRequest

BYTES_PER_UNIT = 64  # reading a request costs about as much as looking at one node for every so many bytes
_CALLERS_KEPT = 1_000


class TooManyQuestions(Exception):
    """One caller has enough of them waiting."""


class FairTurns:
    """`waiting_max`: questions of one caller that may wait."""

    def __init__(self, waiting_max: int = 250) -> None:
        self._waiting_max = waiting_max
        self._lines: dict[str, deque[_Waiting]] = {}
        self._used: dict[str, int] = {}  # work done for each caller, on a common scale
        self._last: dict[str, int] = {}  # what each caller's last question cost
        self._scale = 0  # where the caller that was served last began
        self._is_taken = False

    @asynccontextmanager
    async def turn(self, caller: str, units: int = 1) -> AsyncIterator["Meter"]:
        """`units`: what it costs at least. Raises TooManyQuestions."""
        await self._wait(caller, units)
        meter = Meter(units)
        try:
            yield meter
        finally:
            self._pay(caller, meter.units)
            # Once others who came meanwhile stand in their lines: work itself never waits.
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
                self._next()  # it was given the turn and does not want it any more
            else:
                self._leave(caller, turn)
            raise

    def _begin(self, caller: str) -> int:
        """A caller that has nothing waiting begins where the others are."""
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
        if len(self._used) > _CALLERS_KEPT:  # those behind the scale begin there anyway
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
            if not turn.done():  # who asked may have gone
                turn.set_result(None)
                return
        self._is_taken = False

    def _used_when_answered(self, caller: str) -> int:
        _, units = self._lines[caller][0]
        return self._used[caller] + max(units, self._last.get(caller, 0))


_Waiting = tuple["asyncio.Future[None]", int]  # its turn, and what it costs at least


class Meter:
    """What one turn cost."""

    def __init__(self, units: int) -> None:
        self.units = units

    def charge(self, units: int) -> None:
        self.units += units


def cost_of(request: EstimateRequest, nodes: int) -> int:
    """In looks at a node: every condition of every template is held against every node."""
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
