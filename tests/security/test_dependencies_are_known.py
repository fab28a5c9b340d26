"""What we run on: pinned, installed as pinned, under licences that may be combined with ours, and listed."""

import hashlib
import io
import re
import subprocess
import sys
import tomllib
import zipfile
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from tools import sbom

# Permissive, or weak copyleft of packages that are used unchanged and only to build.
ALLOWED = {
    "0BSD",
    "Apache-2.0",
    "BSD-2-Clause",
    "BSD-3-Clause",
    "CC0-1.0",
    "MIT",
    "MIT-0",
    "PSF-2.0",
    "Zlib",
}
BUILD_ONLY = {"pathspec": "MPL-2.0"}


@pytest.fixture(scope="module")
def bill() -> dict:
    return sbom.bill()


def test_every_licence_is_stated_and_allowed(bill: dict) -> None:
    for each in bill["components"]:
        (licence,) = each.get("licenses") or [{"expression": f"{each['name']} states none"}]
        parts = set(re.split(r" AND | OR |[()]", licence["expression"])) - {""}
        assert parts <= ALLOWED or BUILD_ONLY.get(each["name"]) == licence["expression"], each["name"]


def test_every_component_is_pinned_by_version_and_hash(bill: dict) -> None:
    assert len(bill["components"]) > 20
    for each in bill["components"]:
        assert each["purl"] == f"pkg:pypi/{each['name']}@{metadata.version(each['name'])}"
        assert all(re.fullmatch(r"[0-9a-f]{64}", one["content"]) for one in each["hashes"]) and each["hashes"]


def test_the_graph_reaches_everything_that_running_needs_and_nothing_unknown(bill: dict) -> None:
    edges = {each["ref"]: each["dependsOn"] for each in bill["dependencies"]}
    assert set(edges) == {
        bill["metadata"]["component"]["bom-ref"],
        *(e["bom-ref"] for e in bill["components"]),
    }
    direct = {ref.partition("@")[0] for ref in edges[bill["metadata"]["component"]["bom-ref"]]}
    project = tomllib.loads((sbom.ROOT / "pyproject.toml").read_text())["project"]
    assert direct == {f"pkg:pypi/{Requirement(text).name}" for text in project["dependencies"]}


def test_the_same_packages_give_the_same_bytes(bill: dict) -> None:
    assert sbom.bill() == bill


def test_what_is_installed_must_be_what_is_locked(tmp_path: Path) -> None:
    lock = tmp_path / "lock.txt"
    lock.write_text("click==0.0.1 \\\n    --hash=sha256:" + "0" * 64 + "\n")
    with pytest.raises(sbom.Mismatch, match=r"click: locked 0\.0\.1, installed"):
        sbom.bill(lock)
    lock.write_text("no-such-package==1 \\\n    --hash=sha256:" + "0" * 64 + "\n")
    with pytest.raises(sbom.Mismatch, match="not installed"):
        sbom.bill(lock)
    lock.write_text(sbom.RUNTIME.read_text().replace("msgspec==", "# msgspec=="))
    with pytest.raises(sbom.Mismatch, match="karpool needs msgspec, which the lock does not have"):
        sbom.bill(lock)


def test_every_direct_dependency_says_why_it_is_there() -> None:
    text = (sbom.ROOT / "docs" / "dependencies.md").read_text()
    project = tomllib.loads((sbom.ROOT / "pyproject.toml").read_text())["project"]
    for requirement in project["dependencies"]:
        assert Requirement(requirement).name in text, requirement


def test_the_code_runs_no_shell_no_pickle_and_no_text_as_code() -> None:
    forbidden = re.compile(
        r"\b(?:eval|exec)\(|\bpickle\b|shell=True|os\.system|os\.popen|yaml\.load\((?!.*Loader)"
        r"|yaml\.(?:unsafe|full)_load"
    )
    found = [
        f"{path.relative_to(sbom.ROOT)}:{number}: {line.strip()}"
        for path in sorted((sbom.ROOT / "src").rglob("*.py"))
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if forbidden.search(line)
    ]
    assert found == []


def test_two_builds_are_the_same_bytes_and_hold_only_the_packages(tmp_path: Path) -> None:
    wheels = []
    for number in ("1", "2"):
        command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path / number)]
        subprocess.run(command, cwd=sbom.ROOT, check=True, capture_output=True, timeout=50)
        (wheel,) = (tmp_path / number).iterdir()
        wheels.append(wheel.read_bytes())

    assert hashlib.sha256(wheels[0]).hexdigest() == hashlib.sha256(wheels[1]).hexdigest()
    names = zipfile.ZipFile(io.BytesIO(wheels[0])).namelist()
    assert all(name.startswith(("karpool/", "karpool_fleet/", "karpool-")) for name in names)
    assert not [name for name in names if name.endswith((".pyc", ".key", ".pem", ".env"))]
