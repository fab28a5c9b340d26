"""Errors about the content of objects.

ModelError
└── Invalid      a field holds a value that cannot be used
"""

_SHOWN_MAX = 120
_TEXT_MAX = 1000


class ModelError(Exception):
    pass


class Invalid(ModelError):
    """One field, its value, and what would be right.

    `path` is relative to where it was raised; callers add their part with `at`.
    """

    def __init__(self, path: str, value: object, reason: str) -> None:
        self.path = path
        self.value = value
        self.reason = reason
        place = f"{path[:_TEXT_MAX]}: " if path else ""  # a path may contain names that users chose
        super().__init__(f"{place}{_shown(value)}: {reason[:_TEXT_MAX]}")

    def at(self, prefix: str) -> "Invalid":
        """Return the error with an outer path: `at("pod default/web")`."""
        joined = self.path if not prefix else f"{prefix}.{self.path}" if self.path else prefix
        return Invalid(joined, self.value, self.reason)


def _shown(value: object) -> str:
    """Return the value for a message: bounded, and safe for hostile input."""
    try:
        shown = repr(value[: _SHOWN_MAX + 1] if isinstance(value, str | bytes) else value)
    except (RecursionError, ValueError):  # nested too deeply, or an integer of thousands of digits
        return f"<{type(value).__name__}>"
    return shown if len(shown) <= _SHOWN_MAX else shown[: _SHOWN_MAX - 3] + "..."
