"""`sharedIn` of a contract: commands read what the other clusters wrote, and count on nothing they cannot."""

import json
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest
import yaml

from karpool.cli.main import run
from karpool.kube.clock import RealClock
from karpool.model.contracts.shared_contract import SharedContract
from karpool.model.kubernetes.times import rfc3339
from karpool.provisioning.market_file import shared_contract
from tests.consolidation.cluster_objects import flat, node, pod, pool

LARGE = 0.096
NODES = (pool(types=("m5.large",)), node("a"), node("b"), pod("a-1", "a"), pod("b-1", "b"))
RESERVED = [{"name": "ri", "kind": "reservation", "types": ["m5.large"], "count": 3}]


def use(cluster, count, *, age=0.0, **more):
    """As a consolidator writes it."""
    place = {"provider": "aws", "region": "us-east-1", "zone": "us-east-1a"}
    machines = {"type": "m5.large", "family": "m5", **place, "count": count, "rate": LARGE, "cpus": 2}
    written = {
        "cluster": cluster,
        "renewed": rfc3339(RealClock().now() - age),
        "machines": [machines] if count else [],
        **more,
    }
    name = f"karpool-contract-use-{cluster}"
    return {
        "metadata": {"name": name, "namespace": "shared", "labels": {"contracts.karpool.dev/use": "true"}},
        "data": {"use": json.dumps(written)},
    }


@pytest.fixture
def place(tmp_path):
    """An API server with ConfigMaps, and nothing else."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            self.server.asked.append(self.path)
            self.send_response(self.server.status)
            self.send_header("Content-Type", "application/json")
            self.end_headers()
            listed = {"kind": "ConfigMapList", "apiVersion": "v1", "metadata": {"resourceVersion": "1"}}
            self.wfile.write(json.dumps({**listed, "items": self.server.items}).encode())

        def log_message(self, *words):
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    server.items, server.status, server.asked = [], 200, []
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    cluster = {"name": "c", "cluster": {"server": f"http://127.0.0.1:{server.server_port}"}}
    context = {"name": "karmada", "context": {"cluster": "c", "user": "u"}}
    config = {"clusters": [cluster], "users": [{"name": "u", "user": {}}], "contexts": [context]}
    (tmp_path / "karmada.yaml").write_text(
        yaml.safe_dump({"apiVersion": "v1", "kind": "Config", "current-context": "karmada", **config})
    )
    yield server
    server.shutdown()
    server.server_close()


@pytest.fixture
def contract(tmp_path):
    """The kubeconfig stands beside it."""
    path = tmp_path / "contract.yaml"
    meeting = {"namespace": "shared", "kubeconfig": "karmada.yaml"}
    document = {"sharedBy": ["north", "south"], "sharedIn": meeting, "commitments": RESERVED}
    path.write_text(yaml.safe_dump({"format": "karpool-contract/1", **document}))
    return path


@pytest.fixture
def answer(tmp_path, capsys, contract):
    def command(*words, name="north", file="prod.yaml", expect=0):
        cluster = tmp_path / file
        cluster.write_text(yaml.safe_dump_all(flat(*NODES)))
        named = ["--contract-cluster", name] if name else []
        code = run([*words, "--snapshot", str(cluster), "--contract", str(contract), *named], "karpool")
        shown = capsys.readouterr()
        assert code == expect, shown.err
        return shown.err if expect else shown.out

    return command


def prices(text):
    return [item["price_per_hour"] for item in json.loads(text)["items"]]


@pytest.mark.parametrize(
    ("theirs", "price"),
    [(0, LARGE / 10_000_000), (1, LARGE / 10_000_000), (2, LARGE), (3, LARGE)],
)
def test_what_others_have_uses_a_reservation_up(answer, place, theirs, price):
    """Three are reserved, two run here. Whether one of ours goes does not matter to what is paid, once the
    others can take its place."""
    place.items = [use("south", theirs)]

    assert prices(answer("top", "-o", "json")) == pytest.approx([price, price])
    assert "/namespaces/shared/configmaps" in place.asked[0]


def test_plan_and_capacity_hear_of_them_as_well(answer, place, tmp_path):
    file = tmp_path / "web.yaml"
    container = {"name": "c", "resources": {"requests": {"cpu": "1500m", "memory": "1Gi"}}}
    metadata = {"name": "web", "namespace": "team"}
    document = {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": {"containers": [container]}}
    file.write_text(yaml.safe_dump(document))
    words = ("capacity", "-f", str(file), "--replicas", "3", "-o", "json")

    place.items = [use("south", 0)]
    alone = json.loads(answer(*words))
    stays = json.loads(answer("plan", "-o", "json"))
    place.items = [use("south", 3)]
    shared = json.loads(answer(*words))
    goes = json.loads(answer("plan", "-o", "json"))

    assert alone["new_nodes"] == shared["new_nodes"] == 1
    assert alone["price_per_hour"] < 0.001
    assert shared["price_per_hour"] == pytest.approx(LARGE)
    assert (len(stays["moves"]), len(goes["moves"])) == (0, 1)


def test_its_own_words_do_not_count_twice(answer, place):
    """North has written of the two nodes that are looked at here."""
    place.items = [use("north", 2), use("south", 1)]

    assert max(prices(answer("top", "-o", "json"))) < 0.001


def test_a_cluster_that_is_called_as_in_the_contract_need_not_be_named(answer, place):
    place.items = [use("north", 2), use("south", 1)]

    assert max(prices(answer("top", "-o", "json", name="", file="north"))) < 0.001


@pytest.mark.parametrize(
    ("written", "status", "said"),
    [
        (None, 200, "not known: what south uses of the contract"),
        ({"age": 600}, 200, "not heard: what south wrote is 6"),
        ({"age": -600}, 200, "not heard: what south wrote is -"),
        ({}, 403, "not heard: shared namespace shared"),
        ({"machines": [{"type": "m5.large"}]}, 200, "not known: what south uses"),
    ],
)
def test_what_cannot_be_heard_counts_as_used_up_and_is_said(answer, place, written, status, said):
    # Written now: tests are collected minutes before they run.
    place.items, place.status = [] if written is None else [use("south", 0, **written)], status

    out = answer("top")

    assert said in out
    assert "its commitments count as used up" in out
    assert prices(answer("top", "-o", "json")) == [LARGE, LARGE]
    assert json.loads(answer("plan", "-o", "json"))["moves"] == []


@pytest.mark.long
def test_nobody_there_counts_as_used_up_and_is_said(answer, place, tmp_path):
    text = (tmp_path / "karmada.yaml").read_text()
    (tmp_path / "karmada.yaml").write_text(text.replace(str(place.server_port), "1"))

    out = answer("top")

    assert "not heard: shared namespace shared" in out
    assert prices(answer("top", "-o", "json")) == [LARGE, LARGE]


def test_a_cluster_that_nobody_knows_the_name_of_counts_on_nothing(answer, place):
    place.items = [use("north", 2), use("south", 0)]

    out = answer("top", name="")

    assert "not known: which of north, south this cluster is; --contract-cluster says it" in out
    assert prices(answer("top", "-o", "json", name="")) == [LARGE, LARGE]


def test_a_name_that_is_not_in_the_contract_is_refused(answer, place):
    assert "is none of those that share" in answer("top", name="east", expect=1)


def test_an_estimator_of_one_cluster_hears_of_the_others(place, contract):
    place.items = [use("south", 3)]

    shared = shared_contract(contract)

    assert isinstance(shared, SharedContract)
    member = shared.member("north")
    member.see_time(RealClock().now())
    assert sum(member.others.values()) == 3
    assert member.unheard == ()
    assert shared.member("somebody").unheard == ("north", "south")


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"sharedBy": []}, "sharedIn"),
        ({"sharedIn": {"namespace": "a b"}}, "sharedIn.namespace"),
        ({"sharedIn": {"place": "x"}}, "sharedIn"),
    ],
)
def test_a_place_that_cannot_be_is_named_with_its_line(answer, contract, change, field):
    written = yaml.safe_load(contract.read_text())
    contract.write_text(yaml.safe_dump({**written, **change}))

    err = answer("top", name="", expect=1)

    assert "line " in err
    assert field in err
