"""-o json and -o yaml: fields in camelCase, as Kubernetes writes them; older keys stand beside them."""

import json
from dataclasses import dataclass

import pytest
import yaml

from karpool.cli.main import run
from karpool.model.catalogue.files import load_shipped
from karpool.model.documents import check_old_keys, document_of, key_of
from karpool.model.errors import Invalid
from tests.cli.example_fleet import example_fleet

DEPLOYMENT = """\
apiVersion: apps/v1
kind: Deployment
metadata: {name: web}
spec:
  replicas: 40
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec: {containers: [{name: main, image: web, resources: {requests: {cpu: "2"}}}]}
"""


@pytest.fixture
def files(tmp_path):
    (tmp_path / "fleet.yaml").write_text(yaml.safe_dump_all(example_fleet(load_shipped("us-east-1"))))
    (tmp_path / "web.yaml").write_text(DEPLOYMENT)
    (tmp_path / "prices.csv").write_text("region,type,on_demand\nus-east-1,m5.large,0.001\n")
    return tmp_path


def only_old(value, path=""):
    """Fields that are there in the old case alone. Keys that are data (labels, resources) have a / or a -."""
    if isinstance(value, dict):
        for key, inner in value.items():
            if key == "flags":  # by the names of options
                continue
            if "_" in key and key_of(key) not in value:
                yield f"{path}.{key}"
            yield from only_old(inner, f"{path}.{key}")
    elif isinstance(value, list):
        for inner in value:
            yield from only_old(inner, f"{path}[]")


@pytest.mark.long
@pytest.mark.parametrize(
    "words",
    [
        "top nodes --snapshot FLEET",
        "top pools --snapshot FLEET",
        "top gpus --snapshot FLEET",
        "plan --snapshot FLEET",
        "plan --threshold 1 --threshold 3 --snapshot FLEET",
        "capacity -f WEB --snapshot FLEET",
        "explain node NODE --snapshot FLEET",
        "explain pod POD --snapshot FLEET",
        "catalogue regions",
        "catalogue list --region us-east-1 --family g5",
        "catalogue show g5.xlarge --region us-east-1",
        "catalogue show g5.xlarge",
        "catalogue refresh PRICES",
        "verify-policy",
        "version",
    ],
)
def test_every_field_is_in_camel_case(words, files, capsys):
    objects = list(yaml.safe_load_all((files / "fleet.yaml").read_text()))
    pod = next(obj for obj in objects if obj["kind"] == "Pod")["metadata"]
    names = {
        "FLEET": str(files / "fleet.yaml"),
        "WEB": str(files / "web.yaml"),
        "PRICES": str(files / "prices.csv"),
        "NODE": next(obj["metadata"]["name"] for obj in objects if obj["kind"] == "Node"),
        "POD": f"{pod['name']} -n {pod['namespace']}",
    }
    line = " ".join(names.get(word, word) for word in words.split())
    assert run([*line.split(), "-o", "json"], "karpool") in (0, 3)
    document = json.loads(capsys.readouterr().out)
    assert document["kind"]
    assert list(only_old(document)) == []


def test_keys_of_mappings_are_data():
    @dataclass
    class Usage:
        by_pool: dict[str, int]

    assert document_of(Usage({"my_pool": 1})) == {"byPool": {"my_pool": 1}}
    assert document_of(Usage({"a": 1}), old_keys=True) == {"byPool": {"a": 1}, "by_pool": {"a": 1}}


def test_a_plan_whose_two_keys_differ_is_not_carried_out(files, capsys):
    assert run(["plan", "--snapshot", str(files / "fleet.yaml"), "-o", "json"], "karpool") == 0
    plan = json.loads(capsys.readouterr().out)
    check_old_keys(plan, "plan")
    plan["after"]["pricePerHour"] = 0.0
    with pytest.raises(Invalid, match=r"plan.after.pricePerHour.*differs from price_per_hour"):
        check_old_keys(plan, "plan")
    (files / "plan.json").write_text(json.dumps(plan))
    assert run(["apply", str(files / "plan.json"), "--dry-run"], "karpool") != 0
    assert "differs from price_per_hour" in capsys.readouterr().err
