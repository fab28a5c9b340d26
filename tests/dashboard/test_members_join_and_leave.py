"""A dashboard that follows the Cluster objects of a control plane, without a restart."""

from prometheus_client import generate_latest

from karpool.dashboard.server.app import Dashboard
from karpool.kube.api.client import Client
from karpool.kube.clock import RealClock
from karpool.kube.event_recorder import EventRecorder
from karpool.manager.controller import Environment
from karpool.manager.manager import Manager
from karpool.model.kubernetes.api_resources import CLUSTERS
from tests.estimator.serving import eventually
from tests.estimator.test_members_join_and_leave import Fleet


async def test_members_are_shown_as_they_join_and_leave():
    fleet = Fleet()
    await fleet.start()
    control = Client(fleet.control.transport, RealClock(), name="karmada", qps=None)
    environment = Environment({"karmada": control}, EventRecorder(control, "t"))
    dashboard = Dashboard(environment, connecting=fleet.connect)
    collector = dashboard.collector

    def shows(*names):
        watches = collector.watches
        return set(watches) == set(names) and all(watch.not_ready() is None for watch in watches.values())

    def measured():
        return generate_latest(environment.registry).decode()

    async with Manager(dashboard, environment).running():
        await fleet.join("east", nodes=2)
        await eventually(lambda: shows("karmada", "east"))
        assert len(collector.nodes("east").items) == 2
        assert 'cluster="east"' in measured()
        await fleet.join("west")
        await eventually(lambda: shows("karmada", "east", "west"))
        await fleet.control.client.delete(CLUSTERS, "east")
        await eventually(lambda: shows("karmada", "west"))
        assert collector.nodes("east") is None
        assert {one.name for one in collector.fleet().clusters} >= {"karmada", "west"}
        assert 'cluster="east"' not in measured()
