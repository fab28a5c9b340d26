"""`karpool get promises` shows what the bindings of a control plane say is on its way."""

import json
from contextlib import asynccontextmanager

import pytest

from karpool.cli.inspect import get_promises
from karpool.cli.main import run
from karpool.kube.clock import RealClock
from karpool.model.kubernetes.api_resources import CLUSTERS, RESOURCEBINDINGS
from karpool.scheduler.promises.promise_annotation import PROMISES, RecordedPromise, write
from karpool_fleet.apiserver.kinds.bundled_crds import KARMADA, bundled_crds
from karpool_fleet.clusters.embedded import EmbeddedCluster
from tests.scheduler.acting import binding


@pytest.fixture
def control_plane(monkeypatch):
    """What `connect` connects to: a control plane with three bindings, one of which cannot be read."""

    @asynccontextmanager
    async def connect(_):
        clock = RealClock()
        async with EmbeddedCluster("karmada", clock=clock, crds=bundled_crds(KARMADA)) as embedded:
            client = embedded.client("admin")
            for name in ("m1", "m2", "m3"):
                await client.create(CLUSTERS, {"metadata": {"name": name}, "spec": {"syncMode": "Push"}})
            for each in objects(clock.now()):
                await client.create(RESOURCEBINDINGS, each)
            yield client

    monkeypatch.setattr(get_promises, "connect", connect)


def objects(wall):
    ours = binding("web", 103, clusters=[{"name": "m1", "replicas": 103}])
    recorded = write({"m1": RecordedPromise((((3,), 100.0),))}, {"m1": (103,)}, wall)
    ours["metadata"]["annotations"] = {PROMISES: recorded}
    yield ours
    yield binding("foreign", 2, scheduler="default-scheduler", clusters=[{"name": "m2", "replicas": 2}])
    odd = binding("odd", 2)
    odd["spec"]["replicaRequirements"] = {"resourceRequest": {"cpu": "1"}, "nodeClaim": {"nodeSelector": {}}}
    odd["spec"]["placement"] = {"clusterTolerations": [{"key": "a", "operator": "Lt", "value": "1"}]}
    yield odd


def test_a_table_of_what_is_in_flight(control_plane, capsys):
    assert run(["get", "promises"], "karpool") == 0

    captured = capsys.readouterr()
    rows = [line.split() for line in captured.out.splitlines()]
    assert rows[0] == ["CLUSTER", "BINDING", "IN", "FLIGHT", "OF", "AGE", "EXPIRES", "IN"]
    assert [row[:4] for row in rows[1:3]] == [["m1", WEB, "3", "103"], ["m2", FOREIGN, "2", "2"]]
    assert rows[-1] == ["5", "replicas", "in", "2", "clusters,", "says", "karmada"]
    assert "skipped: default/odd-deployment: " in captured.err


def test_the_same_for_machines(control_plane, capsys):
    assert run(["get", "promises", "-o", "json", "--cluster-name", "m1"], "karpool") == 0

    document = json.loads(capsys.readouterr().out)
    assert document["kind"] == "PromiseList"
    (item,) = document["items"]
    assert item["binding"] == {
        "kind": "ResourceBinding",
        "namespace": "default",
        "name": WEB.partition("/")[2],
    }
    assert (item["cluster"], item["replicas"], item["desired"]) == ("m1", 3, 103)
    assert 100 <= item["ageSeconds"] <= 160
    assert item["ageSeconds"] + item["expiresInSeconds"] in (299, 300, 301)


def test_what_is_older_than_the_lifetime_is_gone(control_plane, capsys):
    assert run(["get", "promises", "--assumption-ttl", "90s", "--cluster-name", "m1"], "karpool") == 0

    assert capsys.readouterr().out == "nothing is promised, says karmada\n"


def test_a_cluster_without_promises_is_told_from_one_that_nobody_knows(control_plane, capsys):
    assert run(["get", "promises", "--cluster-name", "m3"], "karpool") == 0
    assert capsys.readouterr().out == "nothing is promised, says karmada\n"

    assert run(["get", "promises", "--cluster-name", "m4"], "karpool") == 1
    said = capsys.readouterr()
    assert "member cluster 'm4' does not exist; member clusters are m1, m2, m3" in said.err
    assert said.out == ""


WEB, FOREIGN = "default/web-deployment", "default/foreign-deployment"


def test_help_names_what_there_is_to_get(capsys):
    assert run(["get", "--help"], "karpool") == 0
    assert "promises" in capsys.readouterr().out
