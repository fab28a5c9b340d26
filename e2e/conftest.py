"""One real fleet for the whole run: etcd, Karmada, and two members that are real clusters."""

import contextlib
import os
import shutil
import tempfile
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from e2e import peers as peers_module
from e2e.components import EstimatorPki, estimator_pki
from e2e.fleet import Fleet, fleet, standing
from e2e.karmada import Karmada
from e2e.kubectl import wait_for
from e2e.member import Member
from e2e.peers import Built, NoPeers
from e2e.scene import Scene, clear


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What looks back at all scenarios comes last."""
    items.sort(key=lambda item: item.path.name == "test_roles_are_exact.py")


@pytest.fixture(scope="session")
def peers() -> dict[str, Built]:
    try:
        return peers_module.build_all()
    except NoPeers as error:
        pytest.exit(f"e2e: {error}", returncode=1)


@pytest.fixture(scope="session")
def place() -> Iterator[Path]:
    """Where programs keep data and logs; the logs stay."""
    path = Path(tempfile.mkdtemp(prefix="karpool-e2e-"))
    yield path
    shutil.rmtree(path / "etcd", ignore_errors=True)


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
                lambda kubectl=one.kubectl: kubectl.run("get", "namespace", name).returncode == 0,
            )
        return name

    yield make
    for name in made:
        clear(control, (elastic, static), name)
        control.kubectl("delete", "namespace", name, "--wait=false")
        for one in (elastic, static):
            one.kubectl("delete", "namespace", name, "--wait=false", "--ignore-not-found")


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
    logs = place / request.node.name.replace("/", "-")[:80]
    members = {"elastic": whole.elastic, "static": whole.static}
    scene = Scene(whole.control, members, peers, pki, logs, running, namespace)
    yield scene
    assert scene.complaints() == []
