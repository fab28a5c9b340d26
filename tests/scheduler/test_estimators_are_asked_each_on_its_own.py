"""A dead, slow or lying estimator costs its own cluster the answer, and nobody else anything."""

import asyncio

import grpc
import pytest

from karpool.kube.clock import RealClock
from karpool.model.errors import Invalid
from karpool.model.karmada.replica_requirements import Component, requirements
from karpool.model.kubernetes.api_resources import NAMESPACES, SERVICES
from karpool.scheduler.estimates.estimator_client import EstimatorClient, EstimatorSettings, service_resolver
from karpool.wire.channels import ClientTls
from karpool.wire.client_protocol import ask_component_sets, ask_replicas
from karpool.wire.proto import estimator_pb2 as pb
from karpool.wire.requests import ArrivedReplicas, WorkloadReference
from tests.estimator.serving import World
from tests.kube.pki import Authority
from tests.scheduler.estimators import Server, asking, hangs, member, says

ONE_CORE = ask_replicas(requirements({"cpu": "1"}))
OURS, OTHERS = Authority("ours"), Authority("somebody else's")
SERVER = OURS.issue("estimator", hosts=["localhost", "127.0.0.1"])
CLIENT = OURS.issue("scheduler")


class StillClock(RealClock):
    """Time that stands until it is moved."""

    def __init__(self):
        self.at = 1000.0

    def monotonic(self):
        return self.at


async def test_every_cluster_gets_its_own_answer():
    refuses = Server(lambda _: grpc.StatusCode.UNKNOWN)
    servers = {"good": Server(says(7)), "dead": None, "slow": Server(hangs), "refuses": refuses}
    async with asking(servers, timeout_seconds=1.5) as clients:
        names = list(servers)
        found = await asyncio.gather(*(clients.ask(member(name), ONE_CORE) for name in names))

    replies = dict(zip(names, found, strict=True))
    assert replies["good"].value == 7
    assert [replies[name].value for name in ("dead", "slow", "refuses")] == [None] * 3
    assert "UNAVAILABLE" in replies["dead"].note
    assert "no answer within 1.5 s" in replies["slow"].note
    assert replies["refuses"].note == "refused: UNKNOWN: no  answer"
    assert replies["refuses"].lost_since is None, "somebody is there"
    assert replies["dead"].lost_since is not None


@pytest.mark.parametrize(
    ("answer", "value", "note"),
    [
        (says(0), 0, ""),
        (says(2**31 - 1), 2**31 - 1, ""),
        (says(-1), None, "says that it cannot tell"),
        (says(-7), None, "returned an invalid answer: -7"),
        (says(-(2**31)), None, "returned an invalid answer: -2147483648"),
        (lambda _: b"\xff\xff", None, "cannot be read"),
        (lambda _: b"", 0, ""),
    ],
)
async def test_only_a_number_that_can_be_true_is_an_answer(answer, value, note):
    async with asking({"m1": Server(answer)}) as clients:
        reply = await clients.ask(member(), ONE_CORE)

    assert reply.value == value
    assert note in reply.note


async def test_a_black_hole_slows_down_one_call_not_every_one():
    clock, hole = StillClock(), Server(hangs)
    async with asking({"m1": hole}, clock=clock, timeout_seconds=1.0) as clients:
        await clients.ask(member(), ONE_CORE)
        replies = [await clients.ask(member(), ONE_CORE) for _ in range(5)]
        assert len(hole.requests) == 1
        assert all(reply.value is None and reply.lost_since == 1000.0 for reply in replies)

        hole.behave = says(3)
        clock.at += 10.0

        assert (await clients.ask(member(), ONE_CORE)).value == 3
        assert clients.lost() == {}


async def test_one_call_finds_out_for_all_whether_it_is_back():
    clock, hole = StillClock(), Server(hangs)
    async with asking({"m1": hole}, clock=clock, timeout_seconds=1.0) as clients:
        await clients.ask(member(), ONE_CORE)
        clock.at += 10.0

        await asyncio.gather(*(clients.ask(member(), ONE_CORE) for _ in range(5)))

        assert len(hole.requests) == 2


async def test_it_says_how_long_nobody_was_there():
    clock = StillClock()
    async with asking({"m1": None}, clock=clock) as clients:
        await clients.ask(member(), ONE_CORE)
        clock.at += 42.0
        reply = await clients.ask(member(), ONE_CORE)

        assert reply.note.startswith("unreachable for 42 s: UNAVAILABLE")
        assert clients.lost() == {"m1": 1000.0}
        clients.keep([])
        assert clients.lost() == {}


async def test_the_second_address_is_tried_when_the_first_is_dead():
    server = Server(says(4))

    async def resolver(cluster):
        return ["127.0.0.1:1", f"127.0.0.1:{server.port}"]

    async with asking({"m1": server}, resolver=resolver) as clients:
        assert (await clients.ask(member(), ONE_CORE)).value == 4
        assert (await clients.ask(member(), ONE_CORE)).value == 4


async def test_an_estimator_that_moved_is_found_again():
    clock, here, there = StillClock(), Server(says(1)), Server(says(2))
    places = [here, there]

    async def resolver(cluster):
        return [f"127.0.0.1:{places[0].port}"]

    async with asking({"here": here, "there": there}, resolver=resolver, clock=clock) as clients:
        assert (await clients.ask(member(), ONE_CORE)).value == 1
        places.reverse()
        await here.stop()
        assert (await clients.ask(member(), ONE_CORE)).value is None
        clock.at += 10.0
        assert (await clients.ask(member(), ONE_CORE)).value == 2


async def test_pull_clusters_can_be_left_out():
    server = Server(says(1))
    async with asking({"m1": server}, asks_pull_clusters=False) as clients:
        reply = await clients.ask(member(sync_mode="Pull"), ONE_CORE)

    assert (reply.value, reply.note, server.requests) == (
        None,
        "not asked, because the cluster is in Pull mode",
        [],
    )


async def test_sets_promises_and_what_arrived_travel():
    def answer(data):
        request = pb.MaxAvailableComponentSetsRequest.FromString(data)
        assert (request.cluster, len(request.assumed_workloads)) == ("m1", 1)
        arrived = [pb.Arrived(bound=[2], waiting=1)]
        return pb.MaxAvailableComponentSetsResponse(max_sets=5, arrived=arrived).SerializeToString()

    server = Server(answer)
    promise = pb.AssumedWorkload(namespace="default").SerializeToString()
    async with asking({"m1": server}) as clients:
        asked = ask_component_sets([Component("a", 1)])
        reply = await clients.ask(member(), asked, [promise], "kind=Deployment, name=default/web")

    assert (reply.value, reply.arrived) == (5, (ArrivedReplicas((2,), 1),))
    assert server.metadata[0]["object"] == "kind=Deployment, name=default/web"


async def test_the_descheduler_asks_for_unschedulable_replicas():
    server = Server(lambda _: pb.UnschedulableReplicasResponse(unschedulable_replicas=3).SerializeToString())
    async with asking({"m1": server}) as clients:
        reference = WorkloadReference("apps/v1", "Deployment", "default", "web")
        reply = await clients.unschedulable("m1", reference, 300.0)

    assert reply.value == 3
    request = pb.UnschedulableReplicasRequest.FromString(server.requests[0])
    assert request.unschedulable_threshold == 300 * 10**9


async def test_addresses_come_from_the_karmada_api_server():
    server, settings = Server(says(9)), EstimatorSettings(timeout_seconds=5.0)
    world = World()
    resolver = service_resolver(world.client, settings)
    assert await resolver("m1") == [
        "karmada-scheduler-estimator-m1.karmada-system.svc.cluster.local:10352",
        "karmada-scheduler-estimator-m1.karmada-system.svc:10352",
    ]
    async with asking({"m1": server}):
        service = {
            "metadata": {"name": "karmada-scheduler-estimator-m1", "namespace": "karmada-system"},
            "spec": {
                "type": "ExternalName",
                "externalName": "localhost",
                "ports": [{"port": 10352, "targetPort": server.port}],
            },
        }
        await world.client.create(NAMESPACES, {"metadata": {"name": "karmada-system"}})
        await world.client.create(SERVICES, service)
        clients = EstimatorClient(resolver, settings, RealClock())
        assert (await clients.ask(member(), ONE_CORE)).value == 9
        await clients.close()


def write(folder, pair, authority):
    for name, data in (("tls.crt", pair.certificate), ("tls.key", pair.key), ("ca.crt", authority.pem)):
        (folder / name).write_bytes(data)
    return ClientTls(folder / "ca.crt", folder / "tls.crt", folder / "tls.key")


def credentials(pair=SERVER, client_authority=OURS):
    return grpc.ssl_server_credentials(
        [(pair.key, pair.certificate)], client_authority.pem, require_client_auth=True
    )


async def test_mutual_tls(tmp_path):
    files = write(tmp_path, CLIENT, OURS)
    async with asking({"m1": Server(says(5))}, credentials=credentials(), tls=files) as clients:
        assert (await clients.ask(member(), ONE_CORE)).value == 5


@pytest.mark.parametrize(
    ("pair", "authority"),
    [
        pytest.param(OTHERS.issue("intruder"), OURS, id="a client of another authority"),
        pytest.param(CLIENT, OTHERS, id="a server that we do not trust"),
    ],
)
async def test_who_is_not_trusted_gets_nothing(tmp_path, pair, authority):
    files, server = write(tmp_path, pair, authority), Server(says(5))
    async with asking({"m1": server}, credentials=credentials(), tls=files) as clients:
        assert (await clients.ask(member(), ONE_CORE)).value is None
        assert server.requests == []


async def test_renewed_certificates_are_used_without_a_restart(tmp_path):
    clock, server = StillClock(), Server(says(5))
    files = write(tmp_path, OTHERS.issue("old"), OURS)
    async with asking({"m1": server}, credentials=credentials(), tls=files, clock=clock) as clients:
        assert (await clients.ask(member(), ONE_CORE)).value is None

        write(tmp_path, CLIENT, OURS)
        clock.at += 10.0
        assert (await clients.ask(member(), ONE_CORE)).value == 5

        (tmp_path / "tls.key").write_bytes(b"half writ")
        assert (await clients.ask(member(), ONE_CORE)).value == 5


async def test_verification_can_be_skipped(tmp_path):
    nobody = OTHERS.issue("a name that nobody asks for", hosts=["elsewhere.example"])
    files = ClientTls(None, *_pair(tmp_path), skip_verify=True)
    async with asking({"m1": Server(says(5))}, credentials=credentials(nobody), tls=files) as clients:
        assert (await clients.ask(member(), ONE_CORE)).value == 5


def _pair(folder):
    write(folder, CLIENT, OURS)
    return folder / "tls.crt", folder / "tls.key"


async def test_files_that_cannot_be_used_at_the_start_are_named(tmp_path):
    files = write(tmp_path, CLIENT, OURS)
    (tmp_path / "ca.crt").write_bytes(b"nothing")
    with pytest.raises(Invalid, match="--scheduler-estimator-ca-file"):
        EstimatorClient(None, EstimatorSettings(tls=files), RealClock())
    files = write(tmp_path, OURS.issue("other"), OURS)
    (tmp_path / "tls.key").write_bytes(CLIENT.key)
    with pytest.raises(Invalid, match="is not the key of"):
        EstimatorClient(None, EstimatorSettings(tls=files), RealClock())
