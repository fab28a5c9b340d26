"""Go's regular expressions, in time linear in the input for any pattern.

CustomResourceDefinitions bring patterns and clients bring text, so a backtracking matcher would let either of
them stall the server. RE2 is the engine whose syntax and guarantee Go's regexp package adopted.
"""

from functools import lru_cache

import re2

PATTERN_MAX = 4096
MEMORY_MAX = 8 << 20  # bytes for one compiled pattern; RE2's own default

_OPTIONS = re2.Options()
_OPTIONS.log_errors = False
_OPTIONS.max_mem = MEMORY_MAX


class BadPattern(ValueError):
    """The pattern is not RE2 syntax, or too large."""


class Pattern:
    def __init__(self, text: str) -> None:
        """Raises BadPattern."""
        self.text = text
        if len(text) > PATTERN_MAX:
            raise BadPattern(f"is longer than {PATTERN_MAX} characters")
        try:
            self._compiled = re2.compile(text, _OPTIONS)
        except (re2.error, UnicodeEncodeError) as error:
            raise BadPattern(_reason(error)) from None

    def matches(self, text: str) -> bool:
        """Whether the pattern occurs anywhere in the text."""
        return self.find(text) is not None

    def find(self, text: str) -> str | None:
        """Return the leftmost match."""
        try:
            match = self._compiled.search(text)
        except UnicodeEncodeError:  # half a surrogate pair is not a character that a pattern can match
            return None
        return None if match is None else str(match.group(0))

    def find_all(self, text: str) -> list[str]:
        try:
            return [str(match.group(0)) for match in self._compiled.finditer(text)]
        except UnicodeEncodeError:
            return []


def _reason(error: Exception) -> str:
    reason = error.args[0] if error.args and isinstance(error, re2.error) else str(error)
    return reason.decode("utf-8", "replace") if isinstance(reason, bytes) else str(reason)


@lru_cache(maxsize=4096)
def compile_pattern(text: str) -> Pattern:
    """Return the compiled pattern; raises BadPattern."""
    return Pattern(text)
