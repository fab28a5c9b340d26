"""One real fleet for the whole run: etcd, Karmada, and two members that are real clusters."""

import contextlib
import shutil
import tempfile
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from e2e import peers as peers_module
from e2e.components import EstimatorPki, estimator_pki
from e2e.control_plane import etcd
from e2e.karmada import Karmada, karmada
from e2e.member import Member, instance_type, member
from e2e.peers import Built, NoPeers
from e2e.workloads import node

SOLD = (
    instance_type("small", 2, "8Gi", 0.10, capacity_types={"on-demand": 1.0, "spot": 0.4}),
    instance_type("medium", 4, "16Gi", 0.20, capacity_types={"on-demand": 1.0, "spot": 0.4}),
    instance_type("big", 16, "64Gi", 0.80, capacity_types={"on-demand": 1.0, "spot": 0.4}),
    instance_type("gpu", 8, "32Gi", 3.00, extra={"nvidia.com/gpu": "4"}),
)


@pytest.fixture(scope="session")
def peers() -> dict[str, Built]:
    try:
        return peers_module.build_all()
    except NoPeers as error:
        pytest.exit(f"e2e: {error}", returncode=1)


@pytest.fixture(scope="session")
def place() -> Iterator[Path]:
    """Where programs keep data and logs; kept when something failed."""
    path = Path(tempfile.mkdtemp(prefix="karpool-e2e-"))
    yield path
    shutil.rmtree(path / "etcd", ignore_errors=True)


@pytest.fixture(scope="session")
def etcd_url(peers: dict[str, Built], place: Path) -> Iterator[str]:
    with etcd(peers["etcd"], place) as url:
        yield url


@pytest.fixture(scope="session")
def elastic(peers: dict[str, Built], place: Path, etcd_url: str) -> Iterator[Member]:
    """A member with real Karpenter and no node."""
    with member(peers, place, etcd_url, "elastic", instance_types=SOLD) as running:
        yield running


@pytest.fixture(scope="session")
def static(peers: dict[str, Built], place: Path, etcd_url: str) -> Iterator[Member]:
    """A member with three machines that stay."""
    with member(peers, place, etcd_url, "static") as running:
        running.kubectl.apply(*(node(f"static-{i}", "4") for i in range(3)))
        yield running


@pytest.fixture(scope="session")
def control(
    peers: dict[str, Built], place: Path, etcd_url: str, elastic: Member, static: Member
) -> Iterator[Karmada]:
    with karmada(peers, place, etcd_url) as running:
        for one in (elastic, static):
            running.join(one)
        yield running


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
        return name

    yield make
    for name in made:
        control.kubectl("delete", "propagationpolicy,deployment", "--all", "-n", name, "--timeout=30s")
        control.kubectl("delete", "namespace", name, "--wait=false")
        for one in (elastic, static):
            one.kubectl("delete", "namespace", name, "--wait=false", "--ignore-not-found")
