"""One real fleet for the whole run: etcd, Karmada, and two members that are real clusters.

What a run leaves behind: nothing when all went well; the logs of every program, below the folder
that is named at the end, when something failed, or when `KARPOOL_E2E_LOGS` says where to keep them.
"""

import contextlib
import os
import shutil
import signal
import tempfile
import uuid
from collections.abc import Callable, Generator, Iterator
from functools import partial
from pathlib import Path
from types import FrameType

import pytest

from e2e import peers as peers_module
from e2e.components import EstimatorPki, estimator_pki
from e2e.fleet import NEEDED, Fleet, fleet, standing
from e2e.karmada import Karmada
from e2e.kubectl import wait_for
from e2e.member import Member
from e2e.peers import Built, NoPeers
from e2e.scene import Scene, clear

_TEST_SECONDS = 900  # the first of a run includes the start of the fleet, on a machine that may be busy
_LAST = "test_roles_are_exact.py"
_TAIL = 12  # lines of each log of a scenario that failed
_PLACE = pytest.StashKey[Path]()


def pytest_configure(config: pytest.Config) -> None:
    """A run that is asked to end ends what it started, as with Ctrl-C."""

    def end(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    signal.signal(signal.SIGTERM, end)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What looks back at all scenarios comes last."""
    items.sort(key=lambda item: item.path.name == _LAST)
    for item in items:
        item.add_marker(pytest.mark.timeout(_TEST_SECONDS))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    place = item.config.stash.get(_PLACE, None)
    if report.failed and place is not None:
        folder = place / _folder(item.name)
        report.sections.append(("logs of all programs", str(place)))
        for log in sorted(folder.glob("*.log")):
            report.sections.append((f"end of {log}", _end_of(log)))
    return report


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, exitstatus: int, config: pytest.Config
) -> None:
    place = config.stash.get(_PLACE, None)
    if place is not None and place.exists():
        terminalreporter.write_line(f"logs of all programs: {place}")


def _folder(test: str) -> str:
    return test.replace("/", "-")[:80]


def _end_of(log: Path) -> str:
    return "\n".join(line[:300] for line in log.read_text(errors="replace").splitlines()[-_TAIL:])


class _OnDemand(dict[str, Built]):
    """What not every run needs is built when it is asked for."""

    def __missing__(self, name: str) -> Built:
        self.update(peers_module.build_all((name,)))
        return self[name]


@pytest.fixture(scope="session")
def peers() -> dict[str, Built]:
    try:
        return _OnDemand(peers_module.build_all(NEEDED))
    except NoPeers as error:
        pytest.exit(f"e2e: {error}", returncode=1)


@pytest.fixture(scope="session")
def place(request: pytest.FixtureRequest) -> Iterator[Path]:
    """Where programs keep data and logs."""
    chosen = os.environ.get("KARPOOL_E2E_LOGS")
    if chosen:
        Path(chosen).mkdir(parents=True, exist_ok=True)
    path = Path(tempfile.mkdtemp(prefix="karpool-e2e-", dir=chosen))
    request.config.stash[_PLACE] = path
    yield path
    is_kept = chosen or request.session.testsfailed
    shutil.rmtree(path / "etcd" if is_kept else path, ignore_errors=True)


@pytest.fixture(scope="session")
def whole(peers: dict[str, Built], place: Path) -> Iterator[Fleet]:
    if stands := os.environ.get("KARPOOL_E2E_FLEET"):
        yield standing(peers, Path(stands))
        return
    with fleet(peers, place) as running:
        yield running


@pytest.fixture(scope="session")
def elastic(whole: Fleet) -> Member:
    """A member with real Karpenter and no node."""
    return whole.elastic


@pytest.fixture(scope="session")
def static(whole: Fleet) -> Member:
    """A member with three machines that stay."""
    return whole.static


@pytest.fixture(scope="session")
def control(whole: Fleet) -> Karmada:
    return whole.control


@pytest.fixture(scope="session")
def pki(place: Path) -> EstimatorPki:
    return estimator_pki(place / "estimator-pki")


@pytest.fixture
def running() -> Iterator[contextlib.ExitStack]:
    """What a test starts ends with it."""
    with contextlib.ExitStack() as stack:
        yield stack


@pytest.fixture
def namespace(control: Karmada, elastic: Member, static: Member) -> Iterator[Callable[[], str]]:
    """Makes namespaces of their own for a test, and takes away what was put there."""
    made: list[str] = []

    def make() -> str:
        name = f"e2e-{uuid.uuid4().hex[:8]}"
        control.kubectl.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
        made.append(name)
        for one in (elastic, static):  # a workload that overtakes its namespace is retried late
            wait_for(
                f"{name} in {one.server.name}",
                partial(_has_namespace, one, name),
            )
        return name

    yield make
    for name in made:
        clear(control, (elastic, static), name)
        control.kubectl("delete", "namespace", name, "--wait=false")
        for one in (elastic, static):
            one.kubectl("delete", "namespace", name, "--wait=false", "--ignore-not-found")


def _has_namespace(member: Member, name: str) -> bool:
    return member.kubectl.run("get", "namespace", name).returncode == 0


@pytest.fixture
def scene(
    request: pytest.FixtureRequest,
    whole: Fleet,
    peers: dict[str, Built],
    pki: EstimatorPki,
    place: Path,
    running: contextlib.ExitStack,
    namespace: Callable[[], str],
) -> Iterator[Scene]:
    logs = place / _folder(request.node.name)
    members = {"elastic": whole.elastic, "static": whole.static}
    scene = Scene(whole.control, members, peers, pki, logs, running, namespace)
    yield scene
    assert scene.complaints() == []
