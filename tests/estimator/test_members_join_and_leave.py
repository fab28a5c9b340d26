"""An estimator that follows the Cluster objects of a control plane, without a restart."""

import base64
from contextlib import asynccontextmanager

import pytest
from prometheus_client import CollectorRegistry

from karpool.estimator.process import FleetEstimator
from karpool.estimator.serving.options import EstimatorOptions
from karpool.kube.api.client import Client
from karpool.kube.clock import RealClock
from karpool.kube.config.karmada_members import member_config, secret_of
from karpool.kube.errors import ConfigError
from karpool.kube.event_recorder import EventRecorder
from karpool.manager.controller import Environment
from karpool.manager.manager import Manager
from karpool.manager.options import InvalidOptions, read_options
from karpool.model.kubernetes.api_resources import CLUSTERS, CRDS, NAMESPACES, SECRETS
from karpool.wire import server_protocol
from karpool_fleet.apiserver.kinds.bundled_crds import KARMADA, bundled_crds
from tests.estimator.serving import World, asks, eventually, node

FLAGS = {"fleet": True, "karmada-kubeconfig": "karmada.yaml"}


def secret(name, token="t"):
    data = {"token": base64.b64encode(token.encode()).decode()}
    return {"metadata": {"name": name, "namespace": "karmada-cluster"}, "data": data}


def cluster(name):
    reference = {"namespace": "karmada-cluster", "name": name}
    spec = {"syncMode": "Push", "apiEndpoint": f"https://{name}.example/", "secretRef": reference}
    return {"metadata": {"name": name}, "spec": spec}


class Fleet:
    """A control plane, members by their address, and the estimator that follows."""

    def __init__(self):
        self.control = World()
        self.members = {}
        self.tokens = []
        self.estimator = None

    async def start(self):
        for definition in bundled_crds(KARMADA):
            await self.control.client.create(CRDS, definition)
        await self.control.client.create(NAMESPACES, {"metadata": {"name": "karmada-cluster"}})

    async def join(self, name, nodes=1):
        self.members[name] = World()
        for number in range(nodes):
            await self.members[name].add(node(f"n{number}"))
        await self.control.client.create(SECRETS, secret(name))
        await self.control.client.create(CLUSTERS, cluster(name))

    def connect(self, config):
        self.tokens.append((config.name, config.user.token))
        if config.name not in self.members:
            raise OSError("no route to host")
        return Client(self.members[config.name].transport, RealClock(), name=config.name, qps=None)

    async def replicas(self, name):
        request = server_protocol.read_replicas(asks(name).SerializeToString())
        return (await self.estimator.service._estimate(request))[0]


@asynccontextmanager
async def followed():
    fleet = Fleet()
    await fleet.start()
    control = Client(fleet.control.transport, RealClock(), name="karmada", qps=None)
    environment = Environment({"karmada": control}, EventRecorder(control, "t"), CollectorRegistry())
    options = read_options(EstimatorOptions, FLAGS)
    fleet.estimator = FleetEstimator(environment, options, serves=False, connecting=fleet.connect)
    async with Manager(fleet.estimator, environment).running():
        yield fleet


def counted(fleet, *names):
    served = fleet.estimator.members
    return set(served) == set(names) and all(member.synced for member in served.values())


async def test_who_joins_is_counted_and_who_leaves_is_gone():
    async with followed() as fleet:
        await fleet.join("a", nodes=2)
        await eventually(lambda: counted(fleet, "a"))
        assert await fleet.replicas("a") == 8
        await fleet.join("b")
        await eventually(lambda: counted(fleet, "a", "b"))
        assert await fleet.replicas("b") == 4
        before = fleet.estimator.members["b"]
        await fleet.control.client.delete(CLUSTERS, "a")
        await eventually(lambda: counted(fleet, "b"))
        assert fleet.estimator.members["b"] is before  # the others are left alone
        with pytest.raises(Exception, match="a"):
            await fleet.replicas("a")
        # The control plane's, and that of the one member that is left.
        await eventually(lambda: len(fleet.estimator._environment.status.informers) == 2)


async def test_one_that_cannot_be_reached_holds_nobody_up():
    async with followed() as fleet:
        await fleet.control.client.create(SECRETS, secret("lost"))
        for broken in (cluster("lost"), cluster("closed"), {**cluster("pull"), "spec": {"syncMode": "Pull"}}):
            await fleet.control.client.create(CLUSTERS, broken)
        await fleet.join("a")
        await eventually(lambda: counted(fleet, "a"))
        assert await fleet.replicas("a") == 4
        assert fleet.estimator._environment.status.not_ready() is None


async def test_another_address_is_another_connection():
    async with followed() as fleet:
        await fleet.join("a")
        await eventually(lambda: counted(fleet, "a"))
        before = fleet.estimator.members["a"]
        patch = {"spec": {"apiEndpoint": "https://elsewhere.example"}}
        await fleet.control.client.patch(CLUSTERS, "a", patch)
        await eventually(lambda: counted(fleet, "a") and fleet.estimator.members["a"] is not before)
        # What is no part of the connection changes nothing.
        held, connections = fleet.estimator.members["a"], len(fleet.tokens)
        await fleet.control.client.patch(CLUSTERS, "a", {"metadata": {"labels": {"x": "y"}}})
        await fleet.join("b")
        await eventually(lambda: counted(fleet, "a", "b"))
        assert fleet.estimator.members["a"] is held
        assert len(fleet.tokens) == connections + 1


async def test_a_region_that_karmada_names_later_is_believed():
    async with followed() as fleet:
        await fleet.join("a")
        await eventually(lambda: counted(fleet, "a"))
        assert fleet.estimator.members["a"].cluster.market.region == ""
        await fleet.control.client.patch(CLUSTERS, "a", {"spec": {"region": "eu-west-1"}})
        await eventually(
            lambda: counted(fleet, "a") and fleet.estimator.members["a"].cluster.market.region == "eu-west-1"
        )


def test_a_member_is_reached_as_its_secret_says():
    config = member_config(cluster("a"), secret("a", token="abc\n"))
    assert (config.name, config.server, config.user.token) == ("a", "https://a.example", "abc")
    assert "abc" not in repr(config)
    assert secret_of(cluster("a")) == ("karmada-cluster", "a")


@pytest.mark.parametrize(
    ("data", "why"),
    [({}, "data.token"), ({"token": "%%"}, "not base64"), ({"token": "dA==", "caBundle": "ä"}, "not base64")],
)
def test_a_secret_that_cannot_be_read_is_named(data, why):
    with pytest.raises(ConfigError, match=why):
        member_config(cluster("a"), {"data": data})


def test_following_needs_a_fleet():
    with pytest.raises(InvalidOptions, match="needs --fleet"):
        read_options(EstimatorOptions, {**FLAGS, "fleet": False, "cluster-name": "a"})
