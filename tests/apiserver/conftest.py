import pytest

from karpool_fleet.apiserver.serve.server import ApiServer
from tests.apiserver.serving import Client, StillClock, counted


@pytest.fixture
def clock() -> StillClock:
    return StillClock()


@pytest.fixture
def client(clock: StillClock) -> Client:
    return Client(ApiServer(clock, ids=counted()))
