"""Patches that send only the difference.

`json_patch` (RFC 6902), `merge_patch` (RFC 7386) and `strategic_merge`; server-side apply is in `apply`. None
of them changes its input, and the result shares nothing with it. All raise `PatchError`, whose
`status_reason` names the Status.
"""

from typing import Any

from karpool_fleet.apiserver.patches.json_patch import PatchError, PatchTestFailed, json_patch
from karpool_fleet.apiserver.patches.strategic_merge import strategic_merge
from karpool_fleet.apiserver.patches.values import copied

__all__ = ["PatchError", "PatchTestFailed", "json_patch", "merge_patch", "strategic_merge"]


_SET = object()  # means "not removed": a null in the object itself stays


def merge_patch(doc: Any, patch: Any) -> Any:
    """`doc` with every member of `patch` set; null removes, maps merge, all else replaces."""
    try:
        return _merged(doc, patch)
    except RecursionError:
        raise PatchError("BadRequest", "the patch or the object nests too deeply") from None


def _merged(doc: Any, patch: Any) -> Any:
    if not isinstance(patch, dict):
        return copied(patch)
    old = doc if isinstance(doc, dict) else {}
    result = {name: copied(value) for name, value in old.items() if patch.get(name, _SET) is not None}
    for name, value in patch.items():
        if value is not None:
            result[name] = _merged(old.get(name), value)
    return result
