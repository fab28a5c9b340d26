"""Commands about a live cluster, of which one kind is denied, fails or is answered with nonsense.

Never "none": the command ends with an error, or says which kind is missing; and it promises nothing that it
would not promise when it sees everything.
"""

import json
from contextlib import asynccontextmanager

import pytest

from karpool.cli import cluster_source
from karpool.cli.main import run
from karpool.kube.transport.rest import RetryPolicy
from karpool.kube.transport_interface import HttpResponse
from tests.cli.test_devices_that_may_not_be_looked_at import served
from tests.cli.test_plans_know_resource_claims import removed, two_nodes
from tests.consolidation.cluster_objects import pod
from tests.kube.tiny_server import JSON, Fault, answer, status
from tests.kube.virtual import client_of

CUT = b'{"kind": "List", "metadata": {"resourceVersion": "5"}, "items": [{"me'
ANSWERS = {
    "denied": status(403, "Forbidden", "cannot list this"),
    "unavailable": status(503, "ServiceUnavailable", "try later"),
    "not JSON": HttpResponse(200, JSON, b"<html>log in</html>"),
    "no list": answer(200, ["this is no list"]),
    "half a list": HttpResponse(200, JSON, CUT),
}
COMMANDS = {
    "plan": ("plan",),
    "capacity": ("capacity", "pod/waits", "-n", "team"),
    "explain": ("explain", "pod", "team/waits"),
    "top nodes": ("top", "nodes"),
    "top pools": ("top", "pools"),
    "top gpus": ("top", "gpus"),
}
WITHOUT_WHICH_NOTHING_IS_KNOWN = {"nodes", "pods"}


def world():
    waiting = pod("waits", "", cpu="900m")
    waiting["spec"].pop("nodeName", None)
    waiting["metadata"]["namespace"] = "team"
    waiting["status"] = {"phase": "Pending"}
    return served(*two_nodes(waiting))


@pytest.fixture
def ask(monkeypatch, capsys):
    def command(server, *words):
        @asynccontextmanager
        async def connect(options, report=None):
            async with client_of(server, retry=RetryPolicy(attempts=1)) as client:
                yield client

        monkeypatch.setattr(cluster_source, "connect", connect)
        monkeypatch.setattr(cluster_source, "own_namespace", lambda options: "default")
        code = run([*words, "-o", "json"], "karpool")
        shown = capsys.readouterr()
        return code, json.loads(shown.out) if shown.out else None, shown.err

    return command


def lists(server):
    """Paths of collections, without objects that were read one by one and discovery."""
    read = {request.path for request in server.requests if request.method == "GET"}
    return sorted(path for path in read - set(server.objects) if path not in ("/version", "/apis"))


def promised(name, document):
    """What must not be more than when everything is seen."""
    if name == "plan":
        return set(removed(document))
    return {document["verdict"]} if "verdict" in document else {item["name"] for item in document["items"]}


@pytest.mark.long
@pytest.mark.parametrize("response", ANSWERS)
@pytest.mark.parametrize("name", COMMANDS)
def test_one_kind_at_a_time(ask, name, response):
    server = world()
    code, seen, _ = ask(server, *COMMANDS[name])
    assert code == 0 and (promised(name, seen) or name == "top gpus")
    paths = lists(server)
    assert len(paths) > 5
    for path in paths:
        broken, plural = world(), path.rpartition("/")[2]
        broken.fault = lambda request, path=path: (
            Fault(response=ANSWERS[response]) if request.path == path else None
        )
        code, document, said = ask(broken, *COMMANDS[name])
        assert plural in said or (document and plural in str(document["problems"])), (path, said)
        if plural in WITHOUT_WHICH_NOTHING_IS_KNOWN:
            assert code != 0 and document is None, path
        if document is not None:
            assert promised(name, document) <= promised(name, seen), path
