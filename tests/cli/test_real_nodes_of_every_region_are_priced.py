"""Files with nodes as each provider labels them, of all regions: `top`, `plan` and `capacity` price them."""

import json
import math

import pytest
import yaml

from karpool.cli.main import run
from karpool.model.catalogue.files import load_shipped, shipped_provider, shipped_regions, shipped_zones
from karpool.model.resources import CPU, MEMORY, PODS
from tests.cli.real_nodes import MAKERS, TYPES, autoscaler, node, pod

MAKER = {maker.name: maker for maker in MAKERS}
# Every maker in regions of all continents, some without zones, some without spot; all 124 are asked below.
PLACES = [
    (maker.name, region)
    for maker in MAKERS
    for region in {
        "aws": ("ap-south-1", "ca-central-1", "eu-west-3", "me-central-1", "us-gov-east-1"),
        "azure": ("australiacentral", "eastus2", "germanywestcentral", "southindia", "westus"),
        "gcp": ("africa-south1", "europe-west10", "me-west1", "southamerica-west1", "us-south1"),
    }[maker.cloud]
]


def sold(cloud: str, region: str) -> str:
    """A common type, or the first that the region has."""
    types = load_shipped(region).types
    return next((kind for kind, _, _ in TYPES[cloud] if kind in types), next(iter(types)))


@pytest.fixture
def answer(tmp_path, capsys):
    def command(objects, *words, expect=0):
        path = tmp_path / "cluster.yaml"
        path.write_text(yaml.safe_dump_all(objects))
        code = run([*words, "--snapshot", str(path)], "karpool")
        shown = capsys.readouterr()
        assert code == expect, shown.err
        return shown.out

    return command


def cluster(name, region):
    maker, zone, kind = MAKER[name], shipped_zones(region)[0], sold(MAKER[name].cloud, region)
    return kind, [
        *autoscaler(maker, region, zone),
        *node(maker, "a", kind, region, zone),
        *node(maker, "b", kind, region, zone),
        pod("a-1", "a"),
        pod("b-1", "b"),
    ]


@pytest.mark.long
@pytest.mark.parametrize(("maker", "region"), PLACES)
def test_top_plan_and_capacity_are_priced(answer, tmp_path, maker, region):
    kind, objects = cluster(maker, region)
    price = load_shipped(region).price(kind, shipped_zones(region)[0], "on-demand")
    container = {"name": "c", "resources": {"requests": {"cpu": "2500m", "memory": "1Gi"}}}
    metadata = {"name": "web", "namespace": "team"}
    workload = {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": {"containers": [container]}}
    (tmp_path / "web.yaml").write_text(yaml.safe_dump(workload))

    top = json.loads(answer(objects, "top", "-o", "json"))
    plan = json.loads(answer(objects, "plan", "--policy", "WhenEmptyOrUnderutilized", "-o", "json"))
    capacity = json.loads(
        answer(objects, "capacity", "-f", str(tmp_path / "web.yaml"), "--replicas", "4", "-o", "json")
    )

    assert [item["price_per_hour"] for item in top["items"]] == [price, price]
    assert top["price_gaps"] == capacity["price_gaps"] == []
    assert plan["before"]["price_per_hour"] == pytest.approx(2 * price)
    if MAKER[maker].is_karpenter:
        assert 0 < plan["moves"][0]["savings_per_hour"] < 2 * price
    assert capacity["verdict"] == "fits after scale-up"
    assert 0 < capacity["price_per_hour"] <= 3 * price * capacity["new_nodes"]


@pytest.mark.long
@pytest.mark.parametrize("maker", MAKERS, ids=lambda maker: maker.name)
def test_nodes_of_every_region_have_a_price_on_demand_and_spot_where_that_is_published(answer, maker):
    """All regions of the cloud in one file: each node by its own region."""
    objects, expected = [], {}
    for region in shipped_regions():
        if shipped_provider(region) != maker.cloud:
            continue
        catalogue, zone, kind = load_shipped(region), shipped_zones(region)[0], sold(maker.cloud, region)
        for spot in (False, True):
            name = f"{region}-{spot}".lower()
            objects += node(maker, name, kind, region, zone, spot=spot)
            expected[name] = catalogue.price(kind, zone, "spot" if spot else "on-demand")

    found = json.loads(answer(objects, "top", "-o", "json"))["items"]

    assert {item["name"]: item["price_per_hour"] for item in found} == expected
    assert None not in [price for name, price in expected.items() if name.endswith("false")]


def kept_by_aks(cores: float, gib: float) -> tuple[int, int]:
    """Milli-CPU and MiB, bracket by bracket, as Karpenter's provider for Azure keeps them."""
    cpu = sum(1000 * share * max(0.0, min(cores, top) - low) for low, top, share in AKS_CPU)
    memory = sum(1024 * share * max(0.0, min(gib, top) - low) for low, top, share in MEMORY_SHARES)
    return int(cpu + 1e-6), int(memory + 1e-6)


AKS_CPU = ((0, 1, 0.06), (1, 2, 0.04), (2, 4, 0.02), (4, math.inf, 0.01))
GKE_CPU = ((0, 1, 0.06), (1, 2, 0.01), (2, 4, 0.005), (4, math.inf, 0.0025))
MEMORY_SHARES = ((0, 4, 0.25), (4, 8, 0.2), (8, 16, 0.1), (16, 128, 0.06), (128, math.inf, 0.02))


@pytest.mark.parametrize(
    ("kind", "cores", "gib"), [("Standard_D4s_v5", 4, 16), ("Standard_E16s_v5", 16, 128)]
)
def test_what_aks_leaves_for_pods(kind, cores, gib):
    allocatable = load_shipped("westeurope").types[kind].allocatable
    cpu, memory = kept_by_aks(cores, gib)

    assert allocatable[CPU] == cores * 1000 - cpu
    assert allocatable[MEMORY] == gib * 2**30 - math.ceil(gib * 2**30 * 0.075) - (memory + 750) * 2**20
    assert allocatable[PODS] == 250


@pytest.mark.parametrize(("kind", "cores", "gib"), [("n2-standard-4", 4, 16), ("n2-highmem-32", 32, 256)])
def test_what_gke_leaves_for_pods(kind, cores, gib):
    allocatable = load_shipped("europe-west1").types[kind].allocatable
    cpu = sum(int(1000 * share * max(0.0, min(cores, top) - low)) for low, top, share in GKE_CPU)
    memory = sum(int(1024 * share * max(0.0, min(gib, top) - low)) for low, top, share in MEMORY_SHARES)

    assert allocatable[CPU] == cores * 1000 - cpu
    assert allocatable[MEMORY] == gib * 2**30 - int(gib * 2**30 * 0.07) - (memory + 100) * 2**20
    assert allocatable[PODS] == 110


def test_what_eks_leaves_for_pods_is_as_karpenter_documents_it():
    """m5.large: 2 CPUs and 8 GiB; the page of instance types says 1930m, 6903Mi and 29 pods."""
    allocatable = load_shipped("eu-central-1").types["m5.large"].allocatable

    assert (allocatable[CPU], allocatable[MEMORY], allocatable[PODS]) == (1930, 6903 * 2**20, 29)


def test_a_regional_pool_of_gke_has_a_group_per_zone(answer, tmp_path):
    """All three carry the pool's name; each grows in its own zone."""
    maker, kind = MAKER["gke"], "n2-standard-4"
    zones = [f"us-central1-{letter}" for letter in "abc"]
    groups = [autoscaler(maker, "us-central1", zone)[0] for zone in zones]
    status = groups[0]["data"]["status"] + "".join(
        group["data"]["status"].partition("nodeGroups:\n")[2] for group in groups[1:]
    )
    groups[0]["data"]["status"] = status
    objects = [groups[0]]
    for zone in zones:
        objects += node(maker, f"in-{zone}", kind, "us-central1", zone)
    container = {"name": "c", "resources": {"requests": {"cpu": "3500m"}}}
    workload = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "web"}}
    (tmp_path / "web.yaml").write_text(yaml.safe_dump({**workload, "spec": {"containers": [container]}}))

    words = ("capacity", "-f", str(tmp_path / "web.yaml"), "--replicas", "20", "-o", "json")
    found = json.loads(answer(objects, *words))

    assert found["verdict"] == "fits after scale-up"
    assert sum(place["nodes"] > 0 for place in found["places"]) == 3


@pytest.mark.parametrize(("maker", "region"), [("karpenter-aws", "mars-north-1"), ("gke", "mars-north1")])
@pytest.mark.parametrize("command", ["top", "plan", "capacity"])
def test_an_unknown_region_is_said_where_the_answer_is(answer, tmp_path, maker, region, command):
    zone = f"{region}a" if maker == "karpenter-aws" else f"{region}-a"
    kind = TYPES[MAKER[maker].cloud][0][0]
    objects = [*autoscaler(MAKER[maker], region, zone), *node(MAKER[maker], "a", kind, region, zone)]
    container = {"name": "c", "resources": {"requests": {"cpu": "100m"}}}
    workload = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "web"}}
    (tmp_path / "web.yaml").write_text(yaml.safe_dump({**workload, "spec": {"containers": [container]}}))
    words = ["-f", str(tmp_path / "web.yaml")] if command == "capacity" else []

    out = answer(objects, command, *words)

    assert f"no price: region: '{region}': no catalogue is shipped for it" in out
    assert "--catalogue" in out
