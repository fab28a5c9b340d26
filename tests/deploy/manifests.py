"""The manifests of deploy/kustomize, read as kubectl would read them."""

from functools import cache
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parents[2]
DEPLOY = ROOT / "deploy"
KUSTOMIZE = DEPLOY / "kustomize"
Object = dict[str, Any]


def folders() -> list[str]:
    return sorted(path.parent.name for path in KUSTOMIZE.glob("*/kustomization.yaml"))


@cache
def _read(path: Path) -> list[Object]:
    return [each for each in yaml.load_all(path.read_text(), yaml.CSafeLoader) if each]


def objects(folder: str) -> list[Object]:
    """Everything that a kustomization lists, in order. Nothing but resources is understood."""
    place = (KUSTOMIZE / folder).resolve()
    (listed,) = _read(place / "kustomization.yaml")
    assert set(listed) == {"apiVersion", "kind", "resources"}, f"{folder}: {set(listed)}"
    found: list[Object] = []
    for name in listed["resources"]:
        if (place / name).is_dir():
            found += objects(str((place / name).resolve().relative_to(KUSTOMIZE)))
        else:
            found += _read(place / name)
    return found


def of_kind(folder: str, *kinds: str) -> list[Object]:
    return [each for each in objects(folder) if each["kind"] in kinds]


def identity(obj: Object) -> tuple[str, str, str]:
    return obj["kind"], obj["metadata"].get("namespace", ""), obj["metadata"]["name"]
