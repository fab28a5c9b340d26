"""Three clusters under one contract tell each other what they use; what is not known moves no machine."""

import asyncio
import json
from dataclasses import replace
from types import SimpleNamespace

import pytest

from karpool.cluster.cluster import Cluster
from karpool.cluster.market.fleet_bill import FleetBill
from karpool.cluster.market.market import Market
from karpool.consolidation.execution.contract_exchange import ContractExchange
from karpool.consolidation.execution.record import MovePhase, MoveRecord
from karpool.consolidation.planning.planner import plan_consolidation
from karpool.consolidation.policy.policy import PolicyOverride
from karpool.consolidation.policy.settings import PlanSettings
from karpool.consolidation.state import move_objections
from karpool.consolidation.view import ASPECTS, view_of
from karpool.kube.api.client import Client
from karpool.kube.errors import ApiUnreachable
from karpool.model.contracts.contract import BilledKind
from karpool.model.contracts.contract_file import contract_from
from karpool.model.contracts.contracted_prices import ClusterUse, ContractedPrices
from karpool.model.errors import Invalid
from karpool.model.kubernetes.api_resources import CONFIGMAPS, NAMESPACES
from karpool.model.kubernetes.configmap import ConfigMap
from karpool.model.kubernetes.meta import decode
from karpool.provisioning.contract_uses import FRESH_SECONDS, read_use
from karpool_fleet.apiserver.serve.inprocess import InProcessTransport
from karpool_fleet.apiserver.serve.server import ApiServer
from tests.consolidation.cluster_objects import flat, node, pod, pool

NAMES = ("north", "middle", "south")
LARGE = 0.096


class Clock:
    def __init__(self):
        self.seconds = 1_800_000_000.0

    def now(self):
        return self.seconds

    def monotonic(self):
        return self.seconds

    async def sleep(self, seconds):
        await asyncio.sleep(0)


class Member:
    """A cluster with some nodes, its picture, and its half of the exchange."""

    def __init__(self, name, server, clock, reserved, nodes=2, cpu="500m"):
        commitments = [{"name": "ri", "kind": "reservation", "types": ["m5.large"], "count": reserved}]
        contract = {"format": "karpool-contract/1", "commitments": commitments, "sharedBy": list(NAMES)}
        prices = ContractedPrices(contract_from(contract), name=name)
        self.cluster = Cluster(ASPECTS, market=Market(contract=prices))
        self.clock = clock
        objects = [pool(types=("m5.large",))]
        for number in range(nodes):
            objects += [node(f"{name}-{number}"), pod(f"{name}-{number}", f"{name}-{number}", cpu)]
        self.cluster.load(flat(*objects), clock.now())
        self.client = Client(InProcessTransport(server), clock)
        self.exchange = ContractExchange(self.client, name, "shared")

    async def tell(self, *records):
        self.cluster.snapshot(self.clock.now())
        await self.exchange.exchange(self.cluster.market, records)

    def view(self):
        now = self.clock.now()
        return view_of(self.cluster.snapshot(now), now)

    def plan(self):
        return plan_consolidation(self.view(), PlanSettings(override=PolicyOverride()), self.clock.now())

    def price(self):
        return max(machine.price_per_hour for machine in self.view().machines)


def played(story):
    async def whole():
        clock = Clock()
        server = ApiServer(clock)
        await Client(InProcessTransport(server), clock).create(NAMESPACES, {"metadata": {"name": "shared"}})
        await story(server, clock)
        await server.close()

    asyncio.run(whole())


def objections(plan):
    return [str(why) for held in (*plan.held, *plan.rejected) for why in held.why]


@pytest.mark.long
def test_what_others_have_uses_a_reservation_up():
    async def story(server, clock):
        members = [Member(name, server, clock, reserved=5) for name in NAMES]
        for _ in range(2):
            for member in members:
                await member.tell()
        # Six machines, five places: whichever goes, its rate is saved; each cluster alone would not think so.
        assert [member.price() for member in members] == [pytest.approx(LARGE)] * 3
        assert all(len(member.plan().moves) == 1 for member in members)

        roomy = [Member(name, server, clock, reserved=6) for name in NAMES]
        for _ in range(2):
            for member in roomy:
                await member.tell()
        assert max(member.price() for member in roomy) < 1e-6
        assert all(not member.plan().moves for member in roomy)

    played(story)


def test_until_all_were_heard_of_commitments_count_as_used_up_and_nothing_under_them_moves():
    async def story(server, clock):
        north, middle, south = (Member(name, server, clock, reserved=6) for name in NAMES)
        await north.tell()
        await middle.tell()
        await north.tell()

        assert north.cluster.market.contracted.unheard == ("south",)
        assert north.price() == pytest.approx(LARGE)
        plan = north.plan()
        assert not plan.moves
        assert any("use of the contract by south is unknown" in message for message in objections(plan))
        assert any("what south uses of the contract" in gap for gap in north.cluster.market.gaps())
        await south.tell()
        await north.tell()
        assert north.cluster.market.contracted.unheard == ()
        assert north.price() < 1e-6

    played(story)


def test_what_was_written_long_ago_or_by_a_wrong_clock_is_not_known():
    async def story(server, clock):
        members = north, _, _ = [Member(name, server, clock, reserved=5) for name in NAMES]
        for _ in range(2):
            for member in members:
                await member.tell()
        assert north.plan().moves
        clock.seconds += FRESH_SECONDS + 1
        await north.tell()
        assert north.cluster.market.contracted.unheard == ("middle", "south")
        assert not north.plan().moves
        clock.seconds -= 2 * FRESH_SECONDS
        await north.tell()
        assert north.cluster.market.contracted.unheard == ("middle", "south")

    played(story)


def test_what_stays_the_same_is_written_again_every_minute():
    async def story(server, clock):
        north = Member("north", server, clock, reserved=5)
        versions = []
        for _ in range(13):
            await north.tell()
            page = await north.client.list(CONFIGMAPS, into=ConfigMap)
            versions.append(page.items[0].metadata.resource_version)
            clock.seconds += 10
        assert len(set(versions)) == 3

    played(story)


def test_a_cluster_that_cannot_be_heard_of_moves_nothing_under_the_contract():
    async def story(server, clock):
        members = north, middle, south = [Member(name, server, clock, reserved=5) for name in NAMES]
        for _ in range(2):
            for member in members:
                await member.tell()
        assert north.plan().moves

        async def down(*words, **more):
            raise ApiUnreachable("down")

        north.client.create = north.client.update = down
        clock.seconds += 61
        await middle.tell()
        await south.tell()
        await north.tell()
        assert north.cluster.market.contracted.unheard == ("north",)
        assert not north.plan().moves

    played(story)


def test_a_move_that_is_about_to_take_the_last_place_is_seen_before_another_takes_it():
    """Five machines under six places. With the two that middle is about to bring, one of north's would cost
    its rate; without them none does: its bill must fall in both cases."""

    async def story(server, clock):
        north, south = (Member(name, server, clock, reserved=6) for name in ("north", "south"))
        small = Member("middle", server, clock, reserved=6, nodes=1)
        for member in (small, south, north):
            await member.tell()
        assert not north.plan().moves  # five machines, six places
        (kind,) = small.cluster.market.contracted.own
        market = small.cluster.market

        class Bill:
            def kind_of(self, pool, option):
                return kind

        class NewNode:
            pool, chosen = "general", None

        class Deciding:
            new_nodes = (NewNode, NewNode)

        market.bill = Bill
        await small.exchange.exchange(market, [MoveRecord(Deciding, MovePhase.WAITING, 0.0, 0.0)])
        await north.tell()
        intents = north.cluster.market.contracted.intents
        assert sum(intents.values()) == 2
        plan = north.plan()
        assert not plan.moves
        assert any("the bill does not fall" in message for message in objections(plan))

    played(story)


@pytest.mark.parametrize(
    ("name", "use"),
    [
        ("karpool-contract-use-a", "{"),
        ("karpool-contract-use-a", "[]"),
        ("karpool-contract-use-a", ""),
        ("karpool-contract-use-a", json.dumps({"cluster": "b", "renewed": "2026-01-01T00:00:00Z"})),
        ("karpool-contract-use-a", json.dumps({"cluster": "a", "renewed": "yesterday"})),
        ("karpool-contract-use-a", json.dumps({"cluster": "a", "renewed": 3})),
        ("karpool-contract-use-a", "[" * 100_000),
        ("karpool-contract-use-a", " " * 900_001),
        (
            "karpool-contract-use-a",
            json.dumps({"cluster": "a", "renewed": "2026-01-01T00:00:00Z", "machines": [{"type": "x"}]}),
        ),
    ],
)
def test_what_another_cluster_wrote_is_checked_like_any_input(name, use):
    config_map = decode({"metadata": {"name": name}, "data": {"use": use}}, ConfigMap)
    with pytest.raises(Invalid):
        read_use(config_map)


def test_one_that_cannot_be_read_does_not_hide_the_others():
    async def story(server, clock):
        north, middle, south = (Member(name, server, clock, reserved=5) for name in NAMES)
        await middle.tell()
        await south.tell()
        patch = {"data": {"use": "{"}}
        await south.client.patch(CONFIGMAPS, "karpool-contract-use-south", patch, namespace="shared")
        await north.tell()
        assert north.cluster.market.contracted.unheard == ("south",)

    played(story)


def test_what_a_cluster_says_itself_counts_before_what_was_written_of_it():
    large = {
        "type": "m5.large",
        "family": "m5",
        "provider": "aws",
        "region": "us-east-1",
        "zone": "us-east-1a",
    }
    machines = {**large, "count": 3, "rate": LARGE, "cpus": 2}
    contract = contract_from({"format": "karpool-contract/1", "elsewhere": {"south": [machines]}})
    prices = ContractedPrices(contract, name="north")
    assert sum(prices.others.values()) == 3

    (kind,) = prices.others
    prices.see_uses({"south": ClusterUse({kind: 1}, {})})

    assert sum(prices.others.values()) == 1


@pytest.mark.parametrize(("intends", "is_refused"), [(0, False), (1, True)])
def test_a_place_that_another_is_about_to_take_is_not_moved_onto(monkeypatch, intends, is_refused):
    """A machine at $0.05 would give way to one at $0.096, for which one place is paid and empty."""
    reserved = {"name": "ri", "kind": "reservation", "types": ["m5.large"], "count": 1}
    contract = contract_from({"format": "karpool-contract/1", "commitments": [reserved]})
    large = BilledKind(2, "m5.large", "m5", "aws", "us-east-1", "us-east-1a", "on-demand", LARGE)
    small = replace(large, type="t3.medium", family="t3", rate=0.05)
    intents = {large: intends} if intends else {}
    bill = FleetBill(contract, {small: 1}, {}, None, None, intents)
    view = SimpleNamespace(bill=bill, machines=[SimpleNamespace(billed=small)])
    draft = SimpleNamespace(rows=[0], new=[(None, ())])
    monkeypatch.setattr(move_objections, "_may_be_billed_as", lambda state, fitting: {large})

    state = SimpleNamespace(view=view, fleet={small: 1})
    refusals = list(move_objections.raises_the_bill(state, draft))

    assert bool(refusals) is is_refused
