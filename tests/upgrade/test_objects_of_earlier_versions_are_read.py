"""What any version left behind keeps its meaning: an upgrade loses nothing.

The files beside were written by the version they are named after; they are never written again.
"""

import json
import re
from typing import Any

import pytest

from karpool.gpu.records import scale_up_object
from tests.kubectl.serving import RunningServer
from tests.upgrade.written_objects import FOLDER, READERS, objects

VERSIONS = sorted(FOLDER.glob("v*.json"))
WRITTEN = {path.stem: json.loads(path.read_text()) for path in VERSIONS}
CASES = [(version, name) for version, content in WRITTEN.items() for name in content["objects"]]


def lost(before: Any, now: Any, path: str = "") -> list[str]:
    """Where something that was there is not, or is something else; what is new is no loss."""
    if isinstance(before, dict) and isinstance(now, dict):
        return [line for key in before for line in lost(before[key], now.get(key), f"{path}.{key}")]
    if isinstance(before, list) and isinstance(now, list) and len(before) == len(now):
        return [
            line
            for at, pair in enumerate(zip(before, now, strict=True))
            for line in lost(*pair, f"{path}[{at}]")
        ]
    return [] if before == now else [f"{path}: {before!r} became {now!r}"]


@pytest.mark.parametrize(("version", "name"), CASES)
def test_an_object_means_what_it_meant(version, name):
    written = WRITTEN[version]["objects"][name]
    means = READERS[name](written["object"])
    assert means
    assert lost(written["means"], means) == []


def test_the_first_version_is_there_with_every_kind_of_object():
    assert "v0.1.0" in WRITTEN
    assert set(WRITTEN["v0.1.0"]["objects"]) == set(READERS)


def test_objects_of_today_are_read_as_well():
    for name, found in objects().items():
        assert READERS[name](found)


@pytest.fixture
def server(tmp_path):
    running = RunningServer(tmp_path)
    yield running
    running.stop()


@pytest.mark.parametrize("version", WRITTEN)
def test_a_new_definition_accepts_old_objects_and_keeps_their_fields(version, server):
    """As a cluster does it: the old definition and its objects, then the new one over them."""
    (old,) = WRITTEN[version]["definitions"]
    found = WRITTEN[version]["objects"]["scale-up"]["object"]
    definitions = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
    server.send("POST", definitions, old)
    space = found["metadata"]["namespace"]
    server.send("POST", "/api/v1/namespaces", {"metadata": {"name": space}})
    group, served = old["spec"]["group"], old["spec"]["versions"][0]["name"]
    path = f"/apis/{group}/{served}/namespaces/{space}/{old['spec']['names']['plural']}"
    server.send("POST", path, {key: value for key, value in found.items() if key != "status"})
    name = found["metadata"]["name"]
    merge = "application/merge-patch+json"
    server.send("PATCH", f"{path}/{name}/status", {"status": found["status"]}, merge)
    new = scale_up_object.definition()
    server.send("PATCH", f"{definitions}/{new['metadata']['name']}", {"spec": new["spec"]}, merge)
    stored = server.send("GET", f"{path}/{name}")
    server.send("PATCH", f"{path}/{name}", {"metadata": {"labels": {"touched": "true"}}}, merge)
    assert lost(found["spec"], stored["spec"]) == []
    assert lost(found["status"], stored["status"]) == []
    before = WRITTEN[version]["objects"]["scale-up"]["means"]
    kept = READERS["scale-up"](stored)
    assert [line for line in lost(before, kept) if not re.match(r"\.(uid|version):", line)] == []


def test_a_lost_field_would_be_noticed():
    assert lost({"a": [{"b": 1}]}, {"a": [{"b": 1, "c": 2}], "d": 3}) == []
    assert lost({"a": [{"b": 1}]}, {"a": [{}]}) == [".a[0].b: 1 became None"]
    assert lost({"a": [1, 2]}, {"a": [1]})
