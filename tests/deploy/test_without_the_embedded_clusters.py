"""The image holds the product without `karpool_fleet`: all commands but the embedded ones work in it."""

import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from zipfile import ZipFile

import pytest
import yaml

from karpool import __version__
from tests.consolidation.cluster_objects import flat, node, pod, pool
from tests.deploy.manifests import DEPLOY, ROOT

# An installation without the package: this interpreter may have it from elsewhere.
COMMAND = """
import sys
sys.modules["karpool_fleet"] = None
sys.path.insert(0, sys.argv.pop(1))
sys.argv[0] = "karpool"
from karpool.cli.main import karpool
karpool()
"""


def wheel(checkout: Path, target: Path) -> Path:
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(target)],
        cwd=checkout,
        check=True,
        capture_output=True,
    )
    (made,) = target.glob("*.whl")
    return made


def packages(path: Path) -> set[str]:
    with ZipFile(path) as archive:
        return {name.split("/")[0] for name in archive.namelist()} - {f"karpool-{__version__}.dist-info"}


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What building in the image's checkout installs."""
    checkout, target = tmp_path_factory.mktemp("checkout"), tmp_path_factory.mktemp("image")
    for line in re.findall(r"^COPY (?!--from)(.+)$", (DEPLOY / "Containerfile").read_text(), re.MULTILINE):
        *sources, place = line.split()
        for source in sources:
            if (ROOT / source).is_dir():
                shutil.copytree(ROOT / source, checkout / place.removeprefix("/checkout/"))
            else:
                folder = checkout / place.removeprefix("/checkout/")
                folder.mkdir(parents=True, exist_ok=True)
                shutil.copy(ROOT / source, folder)
    made = wheel(checkout, target)
    assert packages(made) == {"karpool"}
    with ZipFile(made) as archive:
        archive.extractall(target / "lib")
    return target / "lib"


@pytest.fixture
def karpool(installed: Path, tmp_path: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-I", "-c", COMMAND, str(installed), *arguments],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=False,
        )

    return run


@pytest.mark.long
def test_the_wheel_of_the_whole_checkout_has_both_packages(tmp_path: Path) -> None:
    assert packages(wheel(ROOT, tmp_path)) == {"karpool", "karpool_fleet"}


def test_help_names_every_command(karpool) -> None:
    done = karpool("--help")
    assert (done.returncode, done.stderr) == (0, "")
    assert "plan" in done.stdout and "simulate" in done.stdout


@pytest.mark.long
def test_planning_and_capacity_work(karpool, tmp_path: Path) -> None:
    objects = flat(pool(), node("a"), node("b"), pod("a-1", "a"), pod("b-1", "b"))
    (tmp_path / "cluster.yaml").write_text(yaml.safe_dump_all(objects))
    workload = {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "web"},
        "spec": {
            "replicas": 1,
            "template": {
                "spec": {"containers": [{"name": "c", "resources": {"requests": {"cpu": "100m"}}}]},
            },
        },
    }
    (tmp_path / "web.yaml").write_text(yaml.safe_dump(workload))
    plan = karpool("plan", "--snapshot", "cluster.yaml", "-o", "json")
    assert plan.returncode == 0, plan.stderr
    (move,) = yaml.safe_load(plan.stdout)["moves"]
    assert [gone["name"] for gone in move["nodes"]] == ["a"]
    capacity = karpool("capacity", "-f", "web.yaml", "--snapshot", "cluster.yaml")
    assert capacity.returncode == 0, capacity.stderr


@pytest.mark.long
@pytest.mark.parametrize(
    "command", ["estimator", "scheduler", "descheduler", "cluster-summary", "consolidator", "gpu-scaler"]
)
def test_controllers_start_as_far_as_their_help(karpool, command: str) -> None:
    done = karpool(command, "--help")
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.long
@pytest.mark.parametrize(
    "arguments", [("up",), ("cluster", "start"), ("apiserver", "--help"), ("simulate", "day.yaml")]
)
def test_embedded_commands_say_what_is_missing(karpool, arguments: tuple[str, ...]) -> None:
    done = karpool(*arguments)
    assert (done.returncode, done.stdout) == (1, "")
    (line,) = done.stderr.splitlines()
    assert line.startswith("error: the embedded clusters") and "are not installed here" in line
    assert "karpool_fleet" in line and "from a checkout or from Karpool's wheel" in line
