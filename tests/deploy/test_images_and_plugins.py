"""The recipes of the image and of the kubectl plugin promise what they keep, as far as it shows unbuilt."""

import os
import re
import shutil
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement

from karpool import __version__
from tests.deploy.manifests import DEPLOY, ROOT

RECIPE = (DEPLOY / "Containerfile").read_text()
ASSEMBLE = DEPLOY / "image" / "assemble"
KREW = DEPLOY / "krew"
SCRIPTS = (ASSEMBLE, DEPLOY / "image" / "try", KREW / "build", KREW / "kubectl-karpool")


def steps(word: str) -> list[str]:
    return re.findall(rf"^{word} (.+)$", RECIPE, re.MULTILINE)


def test_the_image_is_made_from_nothing_and_runs_as_nobody() -> None:
    last = RECIPE[RECIPE.rindex("\nFROM ") :]
    assert last.startswith("\nFROM scratch\n")
    (user,) = re.findall(r"^USER (\d+):(\d+)$", last, re.MULTILINE)
    values = yaml.safe_load((DEPLOY / "helm" / "karpool" / "values.yaml").read_text())
    security = values["podSecurityContext"]
    assert user == (str(security["runAsUser"]), str(security["runAsGroup"]))
    assert f":x:{user[0]}:{user[1]}:" in ASSEMBLE.read_text()
    assert f'image.version="{__version__}"' in last and f"karpool:{__version__}" in RECIPE


def test_the_image_needs_nothing_that_is_not_copied_into_its_build() -> None:
    copied = [word for line in steps("COPY") if "--from" not in line for word in line.split()[:-1]]
    assert all((ROOT / each).exists() for each in copied)
    read = set(re.findall(r'"\$checkout/([^"]+)"', ASSEMBLE.read_text()))
    assert read == {"requirements/runtime.txt"} and read <= set(copied)
    # What building the package reads.
    project = (ROOT / "pyproject.toml").read_text()
    assert {
        "pyproject.toml",
        "src/karpool",
        *re.findall(r'^readme = "(.+)"', project, re.MULTILINE),
        "LICENSE",
    } <= set(copied)


def _name(text: str) -> str:
    return re.sub(r"[-_.]+", "-", text).lower()


def _needed(name: str, found: set[str]) -> None:
    if name in found:
        return
    found.add(name)
    for text in metadata.requires(name) or ():
        requirement = Requirement(text)
        if requirement.marker is None or requirement.marker.evaluate({"extra": ""}):
            _needed(_name(requirement.name), found)


@pytest.mark.parametrize("script", [ASSEMBLE, KREW / "build"], ids=lambda path: path.name)
def test_what_only_building_takes_is_taken_out_and_nothing_else(script: Path) -> None:
    locked = {
        _name(each)
        for each in re.findall(
            r"^([A-Za-z0-9._-]+)==", (ROOT / "requirements" / "runtime.txt").read_text(), re.MULTILINE
        )
    }
    needed: set[str] = set()
    _needed("karpool", needed)
    (removed,) = re.findall(r"uninstall --yes (.+)$", script.read_text(), re.MULTILINE)
    assert set(removed.split()) - {"setuptools"} == locked - needed


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.name)
def test_scripts_are_executable_and_read_by_any_shell(script: Path) -> None:
    assert os.access(script, os.X_OK)
    done = subprocess.run(["sh", "-n", str(script)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert script.read_text().startswith("#!/bin/sh\n")


def test_the_plugin_starts_from_wherever_it_was_unpacked(tmp_path: Path) -> None:
    place = tmp_path / "store" / "karpool"
    place.mkdir(parents=True)
    shutil.copy(KREW / "kubectl-karpool", place)
    (place / "lib").symlink_to(ROOT / "src")
    link = tmp_path / "kubectl-karpool"
    link.symlink_to(place / "kubectl-karpool")
    environment = {**os.environ, "KARPOOL_PYTHON": sys.executable}
    done = subprocess.run(
        [str(link), "version"], env=environment, capture_output=True, text=True, check=False
    )
    if sys.version_info[:2] == (3, 11):
        assert (done.returncode, done.stdout.split()[-1]) == (0, __version__), done.stderr
    else:
        assert done.returncode == 1 and "Python 3.11" in done.stderr


def test_the_manifest_of_the_plugin_is_complete_once_a_release_fills_it_in() -> None:
    text = (KREW / "karpool.yaml").read_text()
    build = (KREW / "build").read_text()
    words = {"VERSION", "HOMEPAGE", "ARCH", "URI", "SHA256"}
    assert set(re.findall(r"@([A-Z0-9]+)@", text)) == words == set(re.findall(r"s\|@([A-Z0-9]+)@\|", build))
    for word in words:
        text = text.replace(f"@{word}@", {"SHA256": "0" * 64, "VERSION": __version__}.get(word, "x"))
    manifest = yaml.safe_load(text)
    spec = manifest["spec"]
    assert manifest["apiVersion"] == "krew.googlecontainertools.github.com/v1alpha2"
    assert manifest["metadata"]["name"] == "karpool" and re.fullmatch(r"v\d+\.\d+\.\d+", spec["version"])
    assert len(spec["shortDescription"]) <= 50
    (platform,) = spec["platforms"]
    assert platform["bin"] == (KREW / "kubectl-karpool").name
    assert re.fullmatch("[0-9a-f]{64}", platform["sha256"])
