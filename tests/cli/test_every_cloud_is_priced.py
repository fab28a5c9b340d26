"""Clusters of three clouds, nodes labelled as real ones are: `top`, `plan` and `capacity` price them."""

import csv
import json
from io import StringIO
from typing import Any

import pytest
import yaml

from karpool.cli.main import run
from karpool.cluster.market.market import Market
from karpool.model.catalogue.files import load_shipped, shipped_regions, shipped_zones
from tests.consolidation.cluster_objects import flat, node, pod
from tests.consolidation.cluster_objects import pool as pool_of_one_zone

TYPE, REGION, ZONE = (
    "node.kubernetes.io/instance-type",
    "topology.kubernetes.io/region",
    "topology.kubernetes.io/zone",
)
CAPACITY_TYPE, NODEPOOL = "karpenter.sh/capacity-type", "karpenter.sh/nodepool"

# Facts of the published lists, so that a wrong column is noticed: region, zone, type, on-demand, spot.
PUBLISHED = """
af-south-1,af-south-1a,c5.12xlarge,2.736,0.3252
ap-northeast-1,ap-northeast-1c,m5.large,0.124,
ap-southeast-2,ap-southeast-2b,m5.large,0.12,
ca-central-1,ca-central-1d,m5.large,0.107,
eu-central-1,eu-central-1a,m5.large,0.115,
eu-north-1,eu-north-1b,m5.large,0.102,
eu-west-3,eu-west-3c,m5.large,0.112,
us-east-1,us-east-1f,m5.large,0.096,0.0447
us-gov-west-1,us-gov-west-1a,m5.large,0.121,
us-west-1,us-west-1b,m5.large,0.112,
eastus,eastus-2,Standard_D4s_v5,0.192,
westeurope,westeurope-1,Standard_D4s_v5,0.23,
brazilsouth,brazilsouth-3,Standard_D4s_v5,0.306,
japaneast,japaneast-1,Standard_D4s_v5,0.248,
northeurope,northeurope-2,Standard_D4s_v5,0.214,
uksouth,uksouth-1,Standard_D4s_v5,0.222,
westus,0,Standard_D4s_v5,0.224,
us-central1,us-central1-a,n2-standard-4,0.194236,
europe-west1,europe-west1-b,n2-standard-4,0.213668,0.046888
asia-northeast1,asia-northeast1-c,n2-standard-4,,
africa-south1,africa-south1-a,c2d-highcpu-112,4.622128,0.90608
southamerica-east1,southamerica-east1-b,e2-standard-4,,
australia-southeast1,australia-southeast1-a,e2-standard-4,,
"""
CASES = list(csv.reader(StringIO(PUBLISHED.strip())))


def labels_of(region: str, manager: str = "karpenter", spot: bool = False) -> dict[str, str]:
    """What nodes of each kind carry besides type, region and zone."""
    if manager == "karpenter":
        return {CAPACITY_TYPE: "spot" if spot else "on-demand", NODEPOOL: "general"}
    if manager == "eks":
        return {
            "eks.amazonaws.com/nodegroup": "ng",
            "eks.amazonaws.com/capacityType": "SPOT" if spot else "ON_DEMAND",
        }
    if manager == "gke":
        given = {"cloud.google.com/gke-nodepool": "default-pool"}
        kind = {"cloud.google.com/gke-spot": "true", "cloud.google.com/gke-provisioning": "spot"}
        return given | (kind if spot else {"cloud.google.com/gke-provisioning": "standard"})
    assert manager == "aks"
    given = {"kubernetes.azure.com/agentpool": "nodepool1", "agentpool": "nodepool1"}
    return given | ({"kubernetes.azure.com/scalesetpriority": "spot"} if spot else {})


def machine(name: str, region: str, zone: str, kind: str, more: dict[str, str]) -> list[dict[str, Any]]:
    """A node as its cloud labels it, and its claim where Karpenter made it."""
    objects = flat(node(name))
    for each in objects:
        own = each["metadata"]["labels"]
        for key in (CAPACITY_TYPE, NODEPOOL):
            own.pop(key, None)
        own |= {TYPE: kind, REGION: region, ZONE: zone, **more}
        if "allocatable" in each.get("status", {}):
            room = {"cpu": "3", "memory": "12Gi", "pods": "110"}
            each["status"] |= {"allocatable": room, "capacity": room}
    return [each for each in objects if each["kind"] == "Node" or NODEPOOL in more]


def pool() -> dict[str, Any]:
    """Any type and zone, on demand."""
    pool = pool_of_one_zone()
    pool["spec"]["template"]["spec"]["requirements"] = [
        {"key": CAPACITY_TYPE, "operator": "In", "values": ["on-demand"]},
        {"key": "kubernetes.io/arch", "operator": "In", "values": ["amd64"]},
    ]
    return pool


@pytest.fixture
def answer(tmp_path, capsys):
    def command(objects, *words, expect=(0,)):
        path = tmp_path / "cluster.yaml"
        path.write_text(yaml.safe_dump_all(objects))
        code = run([*words, "--snapshot", str(path)], "karpool")
        shown = capsys.readouterr()
        assert code in expect, shown.err
        return shown.out

    return command


@pytest.mark.long
@pytest.mark.parametrize(("region", "zone", "kind", "on_demand", "spot"), CASES)
def test_top_shows_what_nodes_of_each_cloud_cost(answer, region, zone, kind, on_demand, spot):
    objects = [
        *machine("fixed", region, zone, kind, labels_of(region)),
        *machine("brief", region, zone, kind, labels_of(region, spot=True)),
    ]

    prices = {
        each["name"]: each["price_per_hour"]
        for each in json.loads(answer(objects, "top", "-o", "json"))["items"]
    }

    assert prices["fixed"] == (pytest.approx(float(on_demand)) if on_demand else prices["fixed"])
    assert prices["fixed"] and 0.01 < prices["fixed"] < 10
    if spot:
        assert prices["brief"] == pytest.approx(float(spot))
    listed = load_shipped(region).price(kind, zone, "spot")
    assert prices["brief"] == listed


@pytest.mark.long
@pytest.mark.parametrize(("region", "zone", "kind", "on_demand", "spot"), CASES)
def test_plan_prices_its_moves_in_every_region(answer, region, zone, kind, on_demand, spot):
    objects = [
        *flat(pool(), pod("a-1", "a"), pod("b-1", "b")),
        *machine("a", region, zone, kind, labels_of(region)),
        *machine("b", region, zone, kind, labels_of(region)),
    ]

    plan = json.loads(answer(objects, "plan", "--policy", "WhenEmptyOrUnderutilized", "-o", "json"))

    price = load_shipped(region).price(kind, zone, "on-demand")
    assert plan["before"]["price_per_hour"] == pytest.approx(2 * price)
    assert plan["moves"]
    assert 0 < plan["moves"][0]["savings_per_hour"] <= 2 * price


@pytest.mark.parametrize(("region", "zone", "kind", "on_demand", "spot"), CASES)
def test_capacity_prices_new_nodes_in_every_region(answer, tmp_path, region, zone, kind, on_demand, spot):
    deployment = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "web", "namespace": "team"},
        "spec": {"containers": [{"name": "c", "resources": {"requests": {"cpu": "2500m", "memory": "1Gi"}}}]},
    }
    file = tmp_path / "web.yaml"
    file.write_text(yaml.safe_dump(deployment))
    objects = [
        *flat(pool()),
        *machine("a", region, zone, kind, labels_of(region)),
    ]

    found = json.loads(answer(objects, "capacity", "-f", str(file), "--replicas", "4", "-o", "json"))

    assert found["verdict"] == "fits after scale-up"
    assert found["new_nodes"] > 0
    assert 0.005 < found["price_per_hour"] < 20
    assert found["price_gaps"] == []


@pytest.mark.parametrize(
    ("region", "zone", "kind", "manager"),
    [
        ("eu-central-1", "eu-central-1b", "m5.large", "eks"),
        ("europe-west4", "europe-west4-a", "n2-standard-4", "gke"),
        ("westus2", "westus2-1", "Standard_D4s_v3", "aks"),
        ("westus", "0", "Standard_D4s_v3", "aks"),
    ],
)
def test_nodes_of_managed_groups_are_priced_by_the_labels_of_their_cloud(answer, region, zone, kind, manager):
    objects = [
        *machine("fixed", region, zone, kind, labels_of(region, manager)),
        *machine("brief", region, zone, kind, labels_of(region, manager, spot=True)),
    ]

    items = {each["name"]: each for each in json.loads(answer(objects, "top", "-o", "json"))["items"]}

    catalogue = load_shipped(region)
    assert items["fixed"]["capacity_type"] == "on-demand"
    assert items["brief"]["capacity_type"] == "spot"
    assert items["fixed"]["price_per_hour"] == catalogue.price(kind, zone, "on-demand")
    assert items["brief"]["price_per_hour"] == catalogue.price(kind, zone, "spot") != None  # noqa: E711


def test_a_node_without_region_and_zone_labels_is_placed_by_its_address(answer):
    for address, kind in (
        ("aws:///eu-west-2a/i-0abc", "m5.large"),
        ("gce://project/us-west1-b/vm", "e2-standard-4"),
    ):
        objects = machine("a", "", "", kind, {})
        for each in objects:
            del each["metadata"]["labels"][REGION], each["metadata"]["labels"][ZONE]
            each["spec"]["providerID"] = address

        (item,) = json.loads(answer(objects, "top", "-o", "json"))["items"]

        assert item["price_per_hour"], address


def test_clusters_of_two_regions_are_priced_region_by_region(answer):
    objects = [
        *machine("here", "eu-central-1", "eu-central-1a", "m5.large", labels_of("eu-central-1")),
        *machine("there", "us-east-1", "us-east-1a", "m5.large", labels_of("us-east-1")),
    ]

    items = json.loads(answer(objects, "top", "-o", "json"))["items"]

    assert {each["name"]: each["price_per_hour"] for each in items} == {"here": 0.115, "there": 0.096}


@pytest.mark.parametrize("first", ["usgovvirginia", "westus"])
def test_a_region_without_prices_takes_none_of_another(answer, first):
    """Zone 0 of Azure says nothing of the region; whichever node comes first, its own label does."""
    regions = [first, *({"usgovvirginia", "westus"} - {first})]
    objects = [
        part
        for region in regions
        for part in machine(region, region, "0", "Standard_D4s_v5", labels_of(region, "aks"))
    ]

    items = json.loads(answer(objects, "top", "-o", "json"))["items"]

    prices = {item["name"]: item["pricePerHour"] for item in items}
    assert prices["westus"] == 0.224
    assert prices["usgovvirginia"] is None
    assert "no price: region: 'usgovvirginia': no catalogue is shipped for it" in answer(objects, "top")


def test_a_region_that_is_given_is_believed():
    labels = {TYPE: "Standard_D4s_v5", REGION: "usgovvirginia", ZONE: "0"}
    assert Market(region="westus").list_price(labels) == 0.224


@pytest.mark.parametrize("command", [("top",), ("plan",)])
def test_a_region_without_prices_is_said_with_the_next_step(answer, command):
    objects = machine("a", "sa-east-1", "sa-east-1a", "m5.large", labels_of("sa-east-1"))

    out = answer([*objects, *flat(pool())], *command)

    assert "no price: region: 'sa-east-1': no catalogue is shipped for it" in out
    assert "`karpool catalogue regions`" in out
    assert "--catalogue" in out
    assert "make a pool for each region" not in out  # there is but one


def test_a_plan_does_not_take_an_unknown_price_for_nothing(answer):
    objects = machine("a", "sa-east-1", "sa-east-1a", "m5.large", labels_of("sa-east-1"))

    out = answer([*objects, *flat(pool(), pod("a-1", "a"))], "plan")

    assert "cheaper is possible, leaving out 1 node of unknown price" in out
    assert "its price is unknown, so no cheaper new node is known" in out
    assert "$0.0000" not in out


@pytest.mark.parametrize("command", [("top",), ("plan",)])
def test_a_type_without_a_price_is_said_with_the_next_step(answer, command):
    objects = machine("a", "eu-central-1", "eu-central-1a", "z9.large", labels_of("eu-central-1"))

    out = answer([*objects, *flat(pool())], *command)

    assert "no price: type 'z9.large' is not in the catalogue of eu-central-1" in out
    assert "`karpool catalogue show z9.large`" in out


def test_spot_that_nobody_publishes_is_said(answer):
    objects = machine(
        "a", "westeurope", "westeurope-1", "Standard_D4s_v5", labels_of("westeurope", "aks", spot=True)
    )

    assert "type 'Standard_D4s_v5' has no known price as spot in zone westeurope-1" in answer(objects, "top")


@pytest.mark.long
def test_every_region_that_is_shipped_prices_a_node(answer):
    """All 124: one node of each region in one file, its type the first that is sold."""
    objects = []
    for region in shipped_regions():
        kind = next(iter(load_shipped(region).types))
        objects += machine(f"n-{region}", region, shipped_zones(region)[0], kind, labels_of(region))

    found = json.loads(answer(objects, "top", "-o", "json"))

    assert len(found["items"]) == len(shipped_regions())
    assert [each["name"] for each in found["items"] if not each["price_per_hour"]] == []
    assert found["price_gaps"] == []


def test_where_nodes_of_a_pool_run_in_two_regions_new_ones_are_said_to_come_in_one(answer):
    objects = [
        *flat(pool()),
        *machine("a", "eu-central-1", "eu-central-1a", "m5.large", labels_of("eu-central-1")),
        *machine("b", "us-east-1", "us-east-1a", "m5.large", labels_of("us-east-1")),
    ]

    said = "of new nodes of pool 'general' in us-east-1: a Karpenter launches in one region"
    assert said in answer(objects, "top", "pools")
    assert said in answer(objects, "plan")


def web(tmp_path):
    container = {"name": "c", "resources": {"requests": {"cpu": "1500m", "memory": "1Gi"}}}
    metadata = {"name": "web", "namespace": "team"}
    document = {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": {"containers": [container]}}
    path = tmp_path / "web.yaml"
    path.write_text(yaml.safe_dump(document))
    return str(path)


def selling(name, kind, *zones):
    """A pool of one type, in zones that it names, or does not."""
    pool = pool_of_one_zone(name, types=(kind,))
    requirements = pool["spec"]["template"]["spec"]["requirements"]
    place = [{"key": ZONE, "operator": "In", "values": list(zones)}] if zones else []
    pool["spec"]["template"]["spec"]["requirements"] = [*requirements[:2], *place]
    return pool


@pytest.mark.long
@pytest.mark.parametrize(
    ("kind", "region", "zone"),
    [("m5.large", "us-east-1", "us-east-1b"), ("n2-standard-2", "europe-west1", "europe-west1-c")],
)
def test_a_pool_of_another_region_launches_at_the_prices_there(answer, tmp_path, kind, region, zone):
    """Of another Karpenter: the nodes of the cluster are in eu-central-1."""
    objects = [
        selling("far", kind, zone),
        *machine("a", "eu-central-1", "eu-central-1a", "m5.large", labels_of("eu-central-1")),
    ]
    price = load_shipped(region).price(kind, zone, "on-demand")
    words = ("capacity", "-f", web(tmp_path), "--replicas", "9", "-o", "json")

    capacity = json.loads(answer(objects, *words))
    home = json.loads(answer(objects, *words, "--region", "eu-central-1", expect=(3,)))

    assert capacity["verdict"] == "fits after scale-up"
    assert capacity["price_per_hour"] == pytest.approx(price * capacity["new_nodes"])
    assert capacity["price_gaps"] == []
    assert home["new_nodes"] == 0  # that region was meant, and has no such zone


def test_pools_launch_where_their_nodes_are(answer, tmp_path):
    """Two Karpenters in one cluster: no pool says where; their nodes do."""
    near, far = labels_of("eu-central-1"), labels_of("us-east-1")
    objects = [
        selling("near", "m5.large"),
        selling("far", "c5.large"),
        *machine("a", "eu-central-1", "eu-central-1a", "m5.large", {**near, NODEPOOL: "near"}),
        *machine("b", "us-east-1", "us-east-1a", "m5.large", {**far, NODEPOOL: "far"}),
    ]
    words = ("capacity", "-f", web(tmp_path), "--replicas", "9", "-o", "json", "--max-potential-nodes", "1")

    capacity = json.loads(answer(objects, *words, expect=(0, 3)))
    top = json.loads(answer(objects, "top", "-o", "json"))

    costs = {place["name"]: place["price_per_hour"] for place in capacity["places"] if place["nodes"]}
    assert costs == {"karpenter/near": 0.115, "karpenter/far": 0.085}  # c5.large is 0.097 in eu-central-1
    assert {item["name"]: item["price_per_hour"] for item in top["items"]} == {"a": 0.115, "b": 0.096}
    assert capacity["price_gaps"] == top["price_gaps"] == []
