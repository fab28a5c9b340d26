"""A pytest plugin of `tools/mutate.py`: one module comes from another file (`KARPOOL_MUTANT=module=file`)."""

import importlib.abc
import importlib.machinery
import importlib.util
import os
import sys
from collections.abc import Sequence
from types import ModuleType


class _Changed(importlib.abc.MetaPathFinder):
    def __init__(self, module: str, file: str) -> None:
        self._module, self._file = module, file

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname != self._module:
            return None
        real = importlib.machinery.PathFinder.find_spec(fullname, path)
        locations = real.submodule_search_locations if real is not None else None
        return importlib.util.spec_from_file_location(
            fullname, self._file, submodule_search_locations=locations
        )


_module, _, _file = os.environ.get("KARPOOL_MUTANT", "").partition("=")
if _module:
    assert _module not in sys.modules, f"{_module} was imported before it could be changed"
    sys.meta_path.insert(0, _Changed(_module, _file))
