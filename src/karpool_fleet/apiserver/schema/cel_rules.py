"""Validation rules of CustomResourceDefinitions (`x-kubernetes-validations`).

A rule is compiled once, over `self` and `oldSelf`. A rule that needs an unsupported feature raises
CelCompileError, so that it can be listed; an error inside a rule refuses the object, as upstream.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from karpool.model.cel.program import CelEnvironment, CelProgram, compile_program
from karpool.model.cel.syntax import CelCompileError
from karpool.model.cel.types import DYN
from karpool.model.cel.values import CelCostError, CelError


@dataclass(frozen=True, slots=True)
class Rule:
    """One compiled rule; `transition` rules only run where an old value exists."""

    text: str
    transition: bool
    reason: str
    field_path: str
    _message: str
    _program: CelProgram
    _message_program: CelProgram | None

    def broken(self, value: Any, old: Any = None) -> str | None:
        """Return why `value` breaks the rule, or None."""
        variables = {"self": value, "oldSelf": old}
        try:
            if self._program.evaluate(variables) is True:
                return None
        except (CelError, CelCostError) as error:
            return f"rule {self.text!r} {error}"
        return self._explain(variables)

    def _explain(self, variables: Mapping[str, Any]) -> str:
        if self._message_program is not None:
            try:
                message = self._message_program.evaluate(variables)
            except (CelError, CelCostError):
                message = ""
            if isinstance(message, str) and message:
                return message
        return self._message or f"failed rule: {self.text}"


_REASONS = {
    "FieldValueInvalid",
    "FieldValueForbidden",
    "FieldValueRequired",
    "FieldValueDuplicate",
}


def compile_rule(entry: Mapping[str, Any]) -> Rule:
    """The rule of one `x-kubernetes-validations` entry; raises CelCompileError."""
    if entry.get("optionalOldSelf"):
        raise CelCompileError("uses optionalOldSelf")
    program = compile_program(entry["rule"], _ENVIRONMENT)
    message = entry.get("messageExpression")
    reason = entry.get("reason") or "FieldValueInvalid"
    return Rule(
        text=entry["rule"].strip(),
        transition="oldSelf" in program.used,
        reason=reason if reason in _REASONS else "FieldValueInvalid",
        field_path=str(entry.get("fieldPath") or ""),
        _message=str(entry.get("message") or ""),
        _program=program,
        _message_program=compile_program(str(message), _ENVIRONMENT) if message else None,
    )


def unescape_field(name: str) -> str:
    """Return the property name of an escaped CEL identifier (`__dash__`)."""
    if "__" not in name:
        return name
    for escape, text in (("__dot__", "."), ("__dash__", "-"), ("__slash__", "/"), ("__underscores__", "__")):
        name = name.replace(escape, text)
    if name.startswith("__") and name.endswith("__") and len(name) > 4:
        return name[2:-2]
    return name


_ENVIRONMENT = CelEnvironment({"self": DYN, "oldSelf": DYN}, field_name=unescape_field, untyped=True)
