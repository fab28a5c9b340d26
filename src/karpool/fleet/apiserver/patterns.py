"""Match RE2 regular expressions in time linear in the input, whatever the pattern.

CustomResourceDefinitions bring their own patterns and clients bring the text, so a
backtracking matcher would let either of them stop the server. `matches` walks a lazily built
automaton (one dictionary look-up per character once warm); `find` keeps the leftmost match in
RE2's order of preference. Parsing is in `pattern_syntax`.
"""

from functools import lru_cache
from typing import Literal

from karpool.fleet.apiserver.pattern_syntax import BadPattern, Expression, Member, parse

PROGRAM_MAX = 20_000  # instructions after x{n,m} is written out
STATES_MAX = 2000  # automaton states kept before starting over
STEPS_MAX = 512  # remembered characters per state

_CHAR, _SPLIT, _JUMP, _ASSERT, _MATCH = range(5)
_BEGIN, _WORD, _OTHER, _NEWLINE = range(4)  # what stood before the current position
_END = ""


class _Program:
    """Instructions as parallel lists: operation, two targets, what a char or an assertion asks."""

    def __init__(self, expression: Expression) -> None:
        self.operations: list[int] = []
        self.first: list[int] = []
        self.second: list[int] = []
        self.members: list[Member] = []
        self.asserts: list[str] = []
        self._emit(expression)
        self._add(_MATCH)

    def _add(
        self, operation: int, first: int = 0, second: int = 0, member: Member | None = None, what: str = ""
    ) -> int:
        if len(self.operations) >= PROGRAM_MAX:
            raise BadPattern("is too large once its repetitions are written out")
        self.operations.append(operation)
        self.first.append(first)
        self.second.append(second)
        self.members.append(member or _nothing)
        self.asserts.append(what)
        return len(self.operations) - 1

    def _emit(self, node: Expression) -> None:
        match node.kind:
            case "char":
                self._add(_CHAR, member=node.member)
            case "assert":
                self._add(_ASSERT, what=node.what)
            case "cat":
                for part in node.parts:
                    self._emit(part)
            case "alt":
                self._emit_alternatives(node.parts)
            case "repeat":
                self._emit_repeat(node)

    def _emit_alternatives(self, parts: tuple[Expression, ...]) -> None:
        ends: list[int] = []
        for part in parts[:-1]:
            split = self._add(_SPLIT)
            self.first[split] = split + 1
            self._emit(part)
            ends.append(self._add(_JUMP))
            self.second[split] = len(self.operations)
        self._emit(parts[-1])
        for end in ends:
            self.first[end] = len(self.operations)

    def _emit_repeat(self, node: Expression) -> None:
        (part,) = node.parts
        for _ in range(node.low):
            before = len(self.operations)
            self._emit(part)
            if len(self.operations) == before:  # an empty part: repeating it changes nothing
                return
        if node.high is None:
            split = self._add(_SPLIT)
            self._emit(part)
            self._add(_JUMP, split)
            self._aim([split], node.greedy)
            return
        splits = []
        for _ in range(node.high - node.low):
            splits.append(self._add(_SPLIT))
            self._emit(part)
        self._aim(splits, node.greedy)

    def _aim(self, splits: list[int], greedy: bool) -> None:
        """Each split enters the part that follows it, or leaves for what comes next."""
        leave = len(self.operations)
        for split in splits:
            enter = split + 1
            self.first[split], self.second[split] = (enter, leave) if greedy else (leave, enter)

    def closure(self, pc: int, previous: int, character: str, seen: set[int]) -> list[int]:
        """Reachable char and match instructions, most preferred first, without those already seen."""
        leaves: list[int] = []
        stack = [pc]
        while stack:
            pc = stack.pop()
            if pc in seen:
                continue
            seen.add(pc)
            operation = self.operations[pc]
            if operation == _SPLIT:
                stack.append(self.second[pc])
                stack.append(self.first[pc])
            elif operation == _JUMP:
                stack.append(self.first[pc])
            elif operation == _ASSERT:
                if _holds(self.asserts[pc], previous, character):
                    stack.append(pc + 1)
            else:
                leaves.append(pc)
        return leaves

    def match_in(self, leaves: list[int]) -> int | None:
        """The position of the match instruction among `leaves`."""
        return next((i for i, leaf in enumerate(leaves) if self.operations[leaf] == _MATCH), None)


class _State:
    """The threads alive between two characters; what follows from them is worked out once."""

    __slots__ = ("accepts", "pcs", "previous", "steps")

    def __init__(self, pcs: frozenset[int], previous: int) -> None:
        self.pcs = pcs
        self.previous = previous
        self.steps: dict[str, _State | Literal[True]] = {}
        self.accepts: bool | None = None  # whether the text may end here


class Pattern:
    """One compiled pattern; safe to share."""

    __slots__ = ("_initial", "_program", "_states", "text")

    def __init__(self, text: str) -> None:
        self.text = text
        self._program = _Program(parse(text))
        self._states: dict[tuple[frozenset[int], int], _State] = {}
        self._initial = self._state(frozenset((0,)), _BEGIN)

    def matches(self, text: str) -> bool:
        """Whether the pattern occurs anywhere in `text`, as Go's MatchString."""
        state = self._initial
        for character in text:
            step = state.steps.get(character) or self._step(state, character)
            if step is True:
                return True
            state = step
        return self._accepts_end(state)

    def find(self, text: str) -> str | None:
        """The leftmost match, or None."""
        program, previous = self._program, _BEGIN
        found: tuple[int, int] | None = None
        threads: list[tuple[int, int]] = []
        for position in range(len(text) + 1):
            character = text[position] if position < len(text) else _END
            if found is None:
                threads.append((0, position))
            elif not threads:
                break
            following: list[tuple[int, int]] = []
            seen: set[int] = set()
            for pc, start in threads:
                leaves = program.closure(pc, previous, character, seen)
                matched = program.match_in(leaves)
                following.extend(
                    (leaf + 1, start)
                    for leaf in leaves[:matched]
                    if character and program.members[leaf](character)
                )
                if matched is not None:  # threads after this one are less preferred
                    found = (start, position)
                    break
            threads = following
            previous = _kind(character)
        return None if found is None else text[found[0] : found[1]]

    def _state(self, pcs: frozenset[int], previous: int) -> _State:
        key = (pcs, previous)
        state = self._states.get(key)
        if state is None:
            if len(self._states) >= STATES_MAX:
                self._states.clear()
            state = self._states[key] = _State(pcs, previous)
        return state

    def _leaves(self, state: _State, character: str) -> list[int]:
        seen: set[int] = set()
        return [
            leaf for pc in state.pcs for leaf in self._program.closure(pc, state.previous, character, seen)
        ]

    def _step(self, state: _State, character: str) -> _State | Literal[True]:
        program = self._program
        leaves = self._leaves(state, character)
        step: _State | Literal[True]
        if program.match_in(leaves) is not None:
            step = True
        else:
            after = {leaf + 1 for leaf in leaves if program.members[leaf](character)}
            after.add(0)  # a match may begin anywhere
            step = self._state(frozenset(after), _kind(character))
        if len(state.steps) < STEPS_MAX:
            state.steps[character] = step
        return step

    def _accepts_end(self, state: _State) -> bool:
        if state.accepts is None:
            state.accepts = self._program.match_in(self._leaves(state, _END)) is not None
        return state.accepts


@lru_cache(maxsize=2048)
def compile_pattern(text: str) -> Pattern:
    """The compiled pattern; raises BadPattern."""
    return Pattern(text)


def _nothing(_character: str) -> bool:
    return False


def _kind(character: str) -> int:
    if character == "\n":
        return _NEWLINE
    return _WORD if _is_word(character) else _OTHER


def _is_word(character: str) -> bool:
    return character.isascii() and (character.isalnum() or character == "_")


def _holds(what: str, previous: int, character: str) -> bool:
    match what:
        case "^":
            return previous == _BEGIN
        case "$":
            return character == _END
        case "m^":
            return previous in (_BEGIN, _NEWLINE)
        case "m$":
            return character in (_END, "\n")
    boundary = (previous == _WORD) != (character != _END and _is_word(character))
    return boundary if what == "b" else not boundary
