"""Errors about the content of objects.

ModelError
└── Invalid      a field holds a value that cannot be used
"""


class ModelError(Exception):
    pass


class Invalid(ModelError):
    """One field, its value, and what would be right.

    `path` is relative to where it was raised; whoever knows the surroundings
    adds them with `at`.
    """

    def __init__(self, path: str, value: object, reason: str) -> None:
        self.path = path
        self.value = value
        self.reason = reason
        shown = repr(value)
        if len(shown) > 120:  # hostile input must not flood a log line
            shown = shown[:117] + "..."
        super().__init__(f"{path}: {shown}: {reason}" if path else f"{shown}: {reason}")

    def at(self, prefix: str) -> "Invalid":
        """The same error seen from further out: `at("pod default/web")`."""
        joined = self.path if not prefix else f"{prefix}.{self.path}" if self.path else prefix
        return Invalid(joined, self.value, self.reason)
