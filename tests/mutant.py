"""A pytest plugin of `tools/mutate.py`: one module comes from another file (`KARPOOL_MUTANT=module=file`).

Under coverage it says which test runs, and writes how long each took (`KARPOOL_SECONDS=file`).
"""

import importlib.abc
import importlib.machinery
import importlib.util
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType

import pytest
from hypothesis import settings


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

_seconds: dict[str, float] = {}
_failed: set[str] = set()
_shortened: dict[str, float] = {}  # how many times as many examples a property has
# Which lines a property reaches is seen in its first examples, and tracing makes each of them slow.
_RECORDED_EXAMPLES = 15


def pytest_collection_modifyitems(items: Sequence[pytest.Item]) -> None:
    if "KARPOOL_SECONDS" not in os.environ:
        return
    limits_of = {item.nodeid: _limits(item) for item in items}
    for item in items:
        limits = limits_of[item.nodeid]
        if limits is not None:
            examples = min(limits.max_examples, _RECORDED_EXAMPLES)
            _shortened[item.nodeid] = limits.max_examples / examples
            item.obj._hypothesis_internal_use_settings = settings(limits, max_examples=examples)  # type: ignore[attr-defined]


def _limits(item: pytest.Item) -> settings | None:
    return getattr(getattr(item, "obj", None), "_hypothesis_internal_use_settings", None)


def pytest_runtest_setup(item: pytest.Item) -> None:
    if "KARPOOL_SECONDS" in os.environ:
        from coverage import Coverage

        recording = Coverage.current()
        if recording is not None:
            recording.switch_context(item.nodeid)


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    _seconds[report.nodeid] = _seconds.get(report.nodeid, 0.0) + report.duration
    if report.failed:
        _failed.add(report.nodeid)


def pytest_sessionfinish() -> None:
    if "KARPOOL_SECONDS" in os.environ:
        seconds = {test: spent * _shortened.get(test, 1.0) for test, spent in _seconds.items()}
        seconds |= dict.fromkeys(_failed, -1.0)
        Path(os.environ["KARPOOL_SECONDS"]).write_text(json.dumps(seconds))
