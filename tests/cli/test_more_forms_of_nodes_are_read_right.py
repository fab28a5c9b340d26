"""Nodes of many makers through `karpool top gpus`, and what is said of their cards."""

import json
from collections import Counter

import pytest

from karpool.cli.main import run
from karpool.model.devices.inventory import inventory_of
from tests.cli.more_node_forms import NODE_FORMS


@pytest.mark.parametrize("name", NODE_FORMS)
def test_each_form_is_read(name):
    form = NODE_FORMS[name]
    cards, groups = form["seen"]

    inventory = inventory_of(form["labels"], form["annotations"], form["offered"])

    assert inventory.problem == ""
    assert inventory.physical_devices == cards
    assert {
        group.resource: (group.devices, group.model, group.memory_mib, group.sharers_max, group.profile)
        for group in inventory.groups
    } == groups


def test_all_of_them_in_one_cluster(tmp_path, capsys):
    nodes = [
        {
            "apiVersion": "v1",
            "kind": "Node",
            "metadata": {"name": name, "labels": form["labels"], "annotations": form["annotations"]},
            "status": {
                "allocatable": {"cpu": "8", "memory": "64Gi", "pods": "110"}
                | {resource: str(units) for resource, units in form["offered"].items()},
                "conditions": [{"type": "Ready", "status": "True"}],
            },
        }
        for name, form in NODE_FORMS.items()
    ]
    path = tmp_path / "cluster.json"
    path.write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": nodes}))

    assert run(["top", "gpus", "--snapshot", str(path), "-o", "json"], "karpool") == 0

    shown = json.loads(capsys.readouterr().out)
    assert shown["problems"] == []
    seen = Counter(
        (item["node"], item["resource"], item["model"] or "", item["profile"] or "")
        for item in shown["items"]
    )
    assert seen == {
        (name, resource, model, profile): devices
        for name, form in NODE_FORMS.items()
        for resource, (devices, model, _, _, profile) in form["seen"][1].items()
    }
