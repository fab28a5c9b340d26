"""Writes a bill of materials (CycloneDX 1.6, JSON): python tools/sbom.py [LOCK] > sbom.json

What is installed is compared with the lock file: another version than the pinned one, or a package that is
needed and not locked, is an error. The same lock and packages give the same bytes.
"""

import json
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any
from uuid import NAMESPACE_URL, uuid5

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parent.parent
RUNTIME = ROOT / "requirements" / "runtime.txt"
# For packages that state their licence as prose or as a classifier only.
_PROSE = {
    "3-clause bsd license": "BSD-3-Clause",
    "apache 2.0": "Apache-2.0",
    "mit license": "MIT",
    "license :: osi approved :: apache software license": "Apache-2.0",
    "license :: osi approved :: bsd license": "BSD-3-Clause",
    "license :: osi approved :: mit license": "MIT",
    "license :: osi approved :: mozilla public license 2.0 (mpl 2.0)": "MPL-2.0",
    "license :: osi approved :: python software foundation license": "PSF-2.0",
}


class Mismatch(Exception):
    """The lock and what is installed do not agree."""


@dataclass(frozen=True)
class Pinned:
    requirement: Requirement
    hashes: tuple[str, ...]

    @property
    def name(self) -> str:
        return canonicalize_name(self.requirement.name)

    @property
    def version(self) -> str:
        (pin,) = self.requirement.specifier
        return pin.version


def pinned(lock: Path) -> Iterator[Pinned]:
    """Entries that apply to this interpreter and platform."""
    for entry in re.sub(r"\\\n\s*", " ", lock.read_text()).splitlines():
        text, *options = entry.split(" --hash=sha256:")
        if not text.strip() or text.lstrip().startswith("#"):
            continue
        requirement = Requirement(text.strip())
        if requirement.marker is None or requirement.marker.evaluate():
            yield Pinned(requirement, tuple(sorted(option.split()[0] for option in options)))


def licence(found: metadata.PackageMetadata) -> str:
    """An SPDX expression, or "" where the package does not say."""
    if expression := found.get("License-Expression"):
        return str(expression)
    stated = str(found.get("License") or "").strip()
    classifiers = [each for each in found.get_all("Classifier") or () if each.startswith("License ::")]
    for text in (stated, *classifiers):
        if known := _PROSE.get(text.lower()):
            return known
    return stated if re.fullmatch(r"[A-Za-z0-9.-]+", stated) else ""


def component(package: Pinned) -> dict[str, Any]:
    try:
        found = metadata.metadata(package.name)
    except metadata.PackageNotFoundError:
        raise Mismatch(f"{package.name}=={package.version} is locked and not installed; make setup") from None
    if found["Version"] != package.version:
        raise Mismatch(f"{package.name}: locked {package.version}, installed {found['Version']}; make setup")
    purl = f"pkg:pypi/{package.name}@{package.version}"
    stated = licence(found)
    return {
        "type": "library",
        "bom-ref": purl,
        "name": package.name,
        "version": package.version,
        "purl": purl,
        "hashes": [{"alg": "SHA-256", "content": each} for each in package.hashes],
        **({"licenses": [{"expression": stated}]} if stated else {}),
    }


def _needs(name: str, known: dict[str, str]) -> list[str]:
    """The locked packages that one asks for, on this platform and without extras."""
    found = set()
    for text in metadata.requires(name) or ():
        requirement = Requirement(text)
        if requirement.marker is None or requirement.marker.evaluate({"extra": ""}):
            found.add(canonicalize_name(requirement.name))
    if missing := sorted(found - known.keys()):
        raise Mismatch(f"{name} needs {', '.join(missing)}, which the lock does not have; make lock")
    return sorted(known[each] for each in found)


def bill(lock: Path = RUNTIME) -> dict[str, Any]:
    """Raises Mismatch."""
    packages = sorted(pinned(lock), key=lambda package: package.name)
    components = [component(package) for package in packages]
    refs = {package.name: each["bom-ref"] for package, each in zip(packages, components, strict=True)}
    own = metadata.version("karpool")
    main = {
        "type": "application",
        "bom-ref": f"pkg:pypi/karpool@{own}",
        "name": "karpool",
        "version": own,
        "licenses": [{"expression": "Apache-2.0"}],
    }
    edges = [
        {"ref": main["bom-ref"], "dependsOn": _needs("karpool", refs)},
        *({"ref": ref, "dependsOn": _needs(name, refs)} for name, ref in refs.items()),
    ]
    content = {"metadata": {"component": main}, "components": components, "dependencies": edges}
    identity = uuid5(NAMESPACE_URL, json.dumps(content, sort_keys=True))
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "serialNumber": f"urn:uuid:{identity}",
        "version": 1,
        **content,
    }


def main() -> int:
    try:
        found = bill(Path(sys.argv[1]) if len(sys.argv) > 1 else RUNTIME)
    except (Mismatch, OSError) as error:
        sys.stderr.write(f"error: {error}\n")
        return 1
    json.dump(found, sys.stdout, indent=1)
    sys.stdout.write("\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
