"""The layers of docs/architecture.md hold: imports go downwards only, capabilities do not know each other."""

import tomllib
from pathlib import Path

from importlinter.cli import EXIT_STATUS_SUCCESS, lint_imports

ROOT = Path(__file__).resolve().parent.parent


def test_imports_go_downwards_only() -> None:
    assert lint_imports(config_filename=str(ROOT / "pyproject.toml"), no_cache=True) == EXIT_STATUS_SUCCESS


def test_every_package_has_its_layer() -> None:
    contract = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"][0]
    named = {name.strip(" ()") for layer in contract["layers"] for name in layer.split("|")}
    present = {path.parent.name for path in (ROOT / "src/karpool").glob("*/__init__.py")}

    assert present <= named
