"""The shipped catalogue, hand-written ones, and the tool that packs them."""

import gzip
import json
import math
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import yaml

from karpool.model.catalogue import files
from karpool.model.catalogue.catalogue import Catalogue, InstanceType, TypeGpu
from karpool.model.catalogue.files import (
    PACKED,
    load_shipped,
    read_catalogue,
    shipped_provider,
    shipped_regions,
    shipped_zones,
)
from karpool.model.devices.node_devices import type_yield
from karpool.model.errors import Invalid
from karpool.model.requirements import conflict, value_set
from tests.model.build import node

FIXTURES = Path(__file__).parent / "fixtures"
TOOL = Path(__file__).parents[2] / "tools" / "build_catalogue.py"
AWS = "karpenter.k8s.aws/instance-"
MIB = 2**20


@pytest.fixture(scope="module")
def shipped() -> Catalogue:
    return load_shipped("us-east-1")


def test_every_region_is_shipped_in_less_than_one_megabyte() -> None:
    import karpool.model as package

    sizes = [path.stat().st_size for path in (Path(package.__path__[0]) / "data").iterdir()]
    counts = Counter(shipped_provider(region) for region in shipped_regions())

    assert counts == {"aws": 24, "azure": 57, "gcp": 43}
    assert sum(sizes) < 1_000_000


@pytest.mark.long
@pytest.mark.parametrize("region", shipped_regions())
def test_every_shipped_type_can_be_used(region: str) -> None:
    found = load_shipped(region)

    assert len(found.types) > 50
    assert set(shipped_zones(region)) == set(found.zones)
    for each in found.types.values():
        assert each.offerings, each.name
        assert {"cpu", "memory", "pods", "ephemeral-storage"} <= each.allocatable.keys()
        assert all(0 < each.allocatable[name] <= each.capacity[name] for name in each.allocatable)
        assert each.requirements.keys() <= found.label_keys
        for offering in each.offerings:
            price = offering.price_per_hour
            assert price is None or 0 < price < 1000


def test_only_the_types_that_are_asked_for_are_made(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[str] = []
    sold = Catalogue._sold

    def counted(self: Catalogue, name: str) -> InstanceType:
        made.append(name)
        return sold(self, name)

    monkeypatch.setattr(Catalogue, "_sold", counted)
    found = load_shipped("eu-central-1")

    assert found.price("m5.large", "eu-central-1a", "on-demand") == 0.115
    assert "m5.xlarge" in found.types
    assert made == ["m5.large"]


def test_an_azure_type_in_full() -> None:
    """Figures of karpenter-provider-azure: 7.5 % for the machine, AKS's brackets, 750 MiB for eviction."""
    found = load_shipped("westeurope").types["Standard_D4s_v5"]
    gib = 2**30

    assert found.capacity["cpu"] == 4000
    assert found.capacity["memory"] == 16 * gib - math.ceil(16 * gib * 0.075)
    assert found.allocatable["cpu"] == 4000 - 140
    assert found.allocatable["memory"] == found.capacity["memory"] - 2662 * MIB - 750 * MIB
    assert (found.allocatable["pods"], found.allocatable["ephemeral-storage"]) == (250, 128 * 10**9)
    assert found.requirements["karpenter.azure.com/sku-series"] == value_set("In", ["Ds_v5"])
    assert found.requirements["karpenter.azure.com/sku-family"] == value_set("In", ["D"])
    assert found.requirements["karpenter.azure.com/sku-version"] == value_set("In", ["5"])
    assert found.requirements["karpenter.azure.com/sku-gpu-name"] == value_set("DoesNotExist")
    assert found.requirements["topology.kubernetes.io/zone"] == value_set(
        "In", ["westeurope-1", "westeurope-2", "westeurope-3"]
    )
    assert found.price("westeurope-2", "on-demand") == 0.23


def test_a_constrained_azure_size_has_the_cpus_it_is_constrained_to() -> None:
    found = load_shipped("westeurope").types["Standard_E32-8s_v5"]

    assert found.capacity["cpu"] == 8000
    assert found.requirements["karpenter.azure.com/sku-cpu"] == value_set("In", ["8"])


def test_a_gcp_type_in_full() -> None:
    """Figures of karpenter-provider-gcp: 7 % for the machine, GKE's brackets, 100 MiB for eviction."""
    found = load_shipped("europe-west1").types["n2-standard-4"]
    memory = 16 * 2**30

    assert found.capacity["memory"] == memory - int(memory * 0.07)
    assert found.allocatable["cpu"] == 4000 - 80
    assert found.allocatable["memory"] == found.capacity["memory"] - (1024 + 819 + 819 + 100) * MIB
    assert found.allocatable["ephemeral-storage"] == (100 - 10 - 41) * 2**30
    assert found.requirements["karpenter.k8s.gcp/instance-family"] == value_set("In", ["n2"])
    assert found.requirements["karpenter.k8s.gcp/instance-shape"] == value_set("In", ["standard"])
    assert found.requirements["cloud.google.com/machine-family"] == value_set("In", ["n2"])
    assert found.price("europe-west1-b", "on-demand") == 0.213668
    assert load_shipped("us-central1").types["e2-medium"].allocatable["cpu"] == 940


def test_devices_of_all_clouds_are_resources_with_their_memory() -> None:
    azure = load_shipped("eastus").types
    gcp = load_shipped("us-central1").types

    assert azure["Standard_NC24ads_A100_v4"].allocatable["nvidia.com/gpu"] == 1
    amd = load_shipped("canadacentral").types["Standard_ND96isr_MI300X_v5"]
    assert amd.allocatable["amd.com/gpu"] == 8
    assert azure["Standard_NC24ads_A100_v4"].gpu == TypeGpu("a100-80gb", 81920, 1.0)
    assert azure["Standard_NC24ads_A100_v4"].requirements["karpenter.azure.com/sku-gpu-name"] == value_set(
        "In", ["A100"]
    )
    assert gcp["g2-standard-24"].allocatable["nvidia.com/gpu"] == 2
    assert gcp["g4-standard-12"].gpu == TypeGpu("rtx-pro-6000", 24576, 0.25)


def test_a_slice_of_a_device_has_a_slice_of_its_compute() -> None:
    types = load_shipped("eastus").types
    whole = type_yield(types["Standard_NV36ads_A10_v5"], "nvidia.com/gpu")
    third = type_yield(types["Standard_NV12ads_A10_v5"], "nvidia.com/gpu")

    assert (whole.tflops_milli, whole.vram_bytes) == (125_000, 24576 * MIB)
    assert third.tflops_milli == pytest.approx(125_000 / 3, rel=0.001)
    assert third.vram_bytes == 8192 * MIB


@pytest.mark.long
def test_a_type_whose_size_nobody_publishes_is_priced_and_learnt() -> None:
    found = load_shipped("eastus")
    unsized = next(
        name
        for name in found._prices.on_demand
        if name not in found.types  # type: ignore[union-attr]
    )

    assert found.price(unsized, "eastus-1", "on-demand")
    assert found.knows_price_of(unsized)
    labels = {
        "node.kubernetes.io/instance-type": unsized,
        "topology.kubernetes.io/zone": "eastus-1",
        "karpenter.sh/capacity-type": "on-demand",
    }
    assert found.learn(node(labels=labels, cpu="4"))
    assert found.types[unsized].price("eastus-1", "on-demand") == found.price(
        unsized, "eastus-1", "on-demand"
    )


def test_a_type_that_is_not_sold_any_more_is_priced_and_never_launched() -> None:
    found = load_shipped("us-east-1").types["p3.2xlarge"]

    assert found.price("us-east-1a", "on-demand") == 3.06
    assert not any(offering.available for offering in found.offerings)


@pytest.mark.parametrize(
    ("region", "name", "zone", "priced"),
    [
        ("us-west-1", "m5.large", "us-west-1b", True),  # an account sees any two of three letters
        ("us-east-1", "m5.large", "us-east-1-bos-1a", False),  # a local zone has prices of its own
        ("westus", "Standard_D4s_v3", "0", True),  # no zones: the node shows its fault domain
        ("eastus", "Standard_D4s_v3", "0", True),
        ("eastus", "Standard_D4s_v3", "westus2-1", False),
        ("us-central1", "n2-standard-4", "us-central1-c", True),
        ("us-central1", "n2-standard-4", "us-east1-b", False),
    ],
)
def test_on_demand_is_priced_in_every_zone_of_the_region(
    region: str, name: str, zone: str, priced: bool
) -> None:
    assert (load_shipped(region).price(name, zone, "on-demand") is not None) == priced


def test_one_type_in_full(shipped: Catalogue) -> None:
    found = shipped.types["m5.large"]

    assert found.capacity["cpu"] == 2000
    assert found.capacity["memory"] == 7577 * MIB
    assert found.allocatable["cpu"] == 1930
    assert found.allocatable["memory"] == 6903 * MIB
    assert found.allocatable["pods"] == 29
    assert found.requirements[AWS + "family"] == value_set("In", ["m5"])
    assert found.requirements[AWS + "category"] == value_set("In", ["m"])
    assert found.requirements[AWS + "generation"] == value_set("In", ["5"])
    assert found.requirements["kubernetes.io/arch"] == value_set("In", ["amd64"])
    assert found.requirements["topology.kubernetes.io/region"] == value_set("In", ["us-east-1"])
    assert found.price("us-east-1c", "on-demand") == 0.096
    assert found.price("us-east-1c", "spot") == 0.0447


def test_the_allocatable_memory_is_what_karpenters_overhead_leaves(shipped: Catalogue) -> None:
    for each in shipped.types.values():
        reserved = (11 * each.capacity["pods"] + 255 + 100) * MIB
        assert each.capacity["memory"] - reserved == each.allocatable["memory"]


def test_devices_are_resources_and_labels(shipped: Catalogue) -> None:
    found = shipped.types["p5.48xlarge"]

    assert found.allocatable["nvidia.com/gpu"] == 8
    assert found.requirements[AWS + "gpu-name"] == value_set("In", ["h100"])
    assert found.requirements[AWS + "gpu-count"] == value_set("In", ["8"])
    assert shipped.types["inf2.xlarge"].allocatable["aws.amazon.com/neuron"] == 1
    assert "nvidia.com/gpu" not in shipped.types["m5.large"].allocatable


def test_a_label_that_a_type_does_not_have_is_absent_and_not_open(shipped: Catalogue) -> None:
    wanted = {AWS + "gpu-count": value_set("Gt", ["0"])}

    assert conflict(shipped.types["m5.large"].requirements, wanted, shipped.label_keys) == AWS + "gpu-count"
    assert conflict(shipped.types["g5.xlarge"].requirements, wanted, shipped.label_keys) is None


def test_zone_names_may_be_given_with_their_ids() -> None:
    found = load_shipped("us-east-1", zones={"us-east-1a": "use1-az5", "us-east-1b": "use1-az2"})

    assert found.price("m5.large", "us-east-1a", "spot") == 0.0514
    assert found.price("m5.large", "us-east-1b", "spot") == 0.043
    assert found.price("m5.large", "us-east-1c", "on-demand") is None


def test_auto_mode_has_its_own_label_domain() -> None:
    found = load_shipped("eu-west-1", auto_mode=True).types["m5.large"]

    assert found.requirements["eks.amazonaws.com/instance-family"] == value_set("In", ["m5"])
    assert not any(key.startswith("karpenter.k8s.aws/") for key in found.requirements)


def test_mixed_dates_are_shown(shipped: Catalogue) -> None:
    assert shipped.as_of == "on-demand 2026-07-20, spot 2026-08-22"


def test_an_unknown_region_says_which_ones_are_spelt_alike() -> None:
    with pytest.raises(
        Invalid, match=r"'us-east-9': no catalogue is shipped for it; did you mean us-east-2 .*--catalogue"
    ):
        load_shipped("us-east-9")


def test_a_region_in_another_currency_is_not_shipped() -> None:
    assert not shipped_provider("cn-north-1")


def custom() -> Any:
    return yaml.safe_load((FIXTURES / "catalogue.yaml").read_text())


def as_json(raw: Any) -> bytes:
    return json.dumps(raw).encode()


@pytest.mark.parametrize(
    "written",
    [
        lambda raw: yaml.safe_dump(raw).encode(),
        as_json,
        lambda raw: gzip.compress(as_json(raw)),
    ],
    ids=["yaml", "json", "gzipped json"],
)
def test_a_catalogue_written_by_hand(written: Any) -> None:
    found = read_catalogue(written(custom()))

    assert (found.provider, found.region, found.as_of) == ("example-cloud", "north", "2026-08-01")
    assert list(found.types) == ["standard-4", "gpu-8"]
    assert list(found.zones) == ["north-1", "north-2"]
    assert found.types["standard-4"].allocatable == {"cpu": 3900, "memory": 14 * 2**30, "pods": 110}
    assert found.types["gpu-8"].allocatable == found.types["gpu-8"].capacity
    assert found.price("standard-4", "north-2", "on-demand") == 0.21
    assert found.price("standard-4", "north-2", "spot") is None
    assert not found.types["gpu-8"].offerings[0].available
    assert found.types["standard-4"].requirements["example.com/gpu"] == value_set("DoesNotExist")
    assert found.types["gpu-8"].requirements["node.kubernetes.io/instance-type"] == value_set("In", ["gpu-8"])


def changed(path: str, value: Any) -> Any:
    raw = custom()
    holder = raw
    *steps, last = (int(step) if step.isdigit() else step for step in path.split("."))
    for step in steps:
        holder = holder[step]
    holder[last] = value
    return raw


@pytest.mark.parametrize(
    ("path", "value", "error"),
    [
        (
            "types.0.offerings.1.pricePerHour",
            -1,
            r"types\[0\]\.offerings\[1\]\.pricePerHour: -1.0: must be a finite",
        ),
        (
            "types.0.offerings.0.pricePerHour",
            math.nan,
            r"types\[0\]\.offerings\[0\]\.pricePerHour: nan: must be a finite",
        ),
        (
            "types.0.offerings.0.pricePerHour",
            math.inf,
            r"types\[0\]\.offerings\[0\]\.pricePerHour: inf: must be a finite",
        ),
        ("types.0.offerings.0.pricePerHour", "free", r"types\[0\]\.offerings\[0\]\.pricePerHour: 'free'"),
        ("types.1.capacity.memory", "64GB", r"types\[1\]\.capacity\.memory: '64GB'"),
        ("types.1.capacity.memory", "-1", r"types\[1\]\.capacity\.memory: '-1': must not be negative"),
        ("types.1.name", "standard-4", r"types\[1\]\.name: 'standard-4': occurs twice"),
        ("types.1.labels", {"a b": "c"}, r"types\[1\]\.labels\.a b\.key: 'a b'"),
        ("types.1.labels", {"a": "v" * 64}, r"types\[1\]\.labels\.a\.value: 'v+'"),
        ("format", "mine/1", "format: 'mine/1': must be karpool-catalogue/1"),
    ],
)
def test_a_mistake_in_a_catalogue_is_named(path: str, value: Any, error: str) -> None:
    with pytest.raises(Invalid, match=error):
        read_catalogue(yaml.safe_dump(changed(path, value)).encode())


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"[]",
        b"3",
        b"{",
        b"\x1f\x8bnot gzip",
        gzip.compress(b"{}", mtime=0)[:-6],
        b"a: [",
        b"\xff\xfe",
        b"&a [*a]",
    ],
)
def test_what_is_no_catalogue_is_refused(data: bytes) -> None:
    with pytest.raises(Invalid):
        read_catalogue(data)


def test_a_file_that_unpacks_without_end_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "_FILE_MAX", 1000)

    with pytest.raises(Invalid, match="larger than 64 MiB when unpacked"):
        read_catalogue(gzip.compress(b" " * 1001))
    with pytest.raises(Invalid, match="is larger than 64 MiB"):
        read_catalogue(b" " * 1001)


def test_the_tool_derives_the_same_file_that_can_be_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kind = {
        "provider": "gcp",
        "name": "n2-standard-2",
        "arch": "amd64",
        "vcpu": 2,
        "memory_mib": 8192,
        "pods_max": 110,
        "gpu": None,
        "local_nvme_gb": None,
        "spec_source": "x",
    }
    unsized = kind | {"name": "n9-standard-2", "vcpu": None}
    head = "provider,region,zone,type,on_demand,on_demand_asof,spot,spot_asof,zones"
    prices = [
        "gcp,here-west1,,n2-standard-2,0.1,2026-01-01,0.02,2026-02-02,here-west1-b here-west1-c",
        "gcp,here-west1,,n9-standard-2,0.3,2026-01-01,,,",
    ]
    (tmp_path / "types.json.gz").write_bytes(gzip.compress(json.dumps([kind, unsized]).encode()))
    (tmp_path / "prices.csv.gz").write_bytes(gzip.compress("\n".join([head, *prices]).encode()))
    (tmp_path / "aws_karpenter_labels.json.gz").write_bytes(gzip.compress(b"{}"))
    command = [sys.executable, str(TOOL), str(tmp_path), str(tmp_path)]

    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=50)
    first = (tmp_path / "gcp.catalogue").read_bytes()
    subprocess.run(command, capture_output=True, check=True, timeout=50)

    assert done.returncode == 0, done.stderr
    assert (tmp_path / "gcp.catalogue").read_bytes() == first
    monkeypatch.setattr(files, "PROVIDERS", ("gcp",))
    monkeypatch.setattr(files, "_shipped_file", lambda provider: tmp_path / f"{provider}.catalogue")
    caches = (files._providers_by_region, files._index, files._shipped_types)
    for cached in caches:
        cached.cache_clear()
    try:
        found = load_shipped("here-west1")
        assert list(found.types) == ["n2-standard-2"]
        assert found.price("n2-standard-2", "here-west1-b", "spot") == 0.02
        assert found.price("n9-standard-2", "here-west1-b", "on-demand") == 0.3
        assert found.as_of == "on-demand 2026-01-01, spot 2026-02-02"
    finally:
        for cached in caches:
            cached.cache_clear()


def test_the_tool_refuses_a_price_that_is_none() -> None:
    sys.path.insert(0, str(TOOL.parent))
    try:
        from build_catalogue import price  # type: ignore[import-not-found]
    finally:
        sys.path.remove(str(TOOL.parent))

    with pytest.raises(SystemExit, match=r"r-1 m5\.large: price '-1'"):
        price("-1", {"region": "r-1", "type": "m5.large"})


def packed(**changes: Any) -> bytes:
    raw: dict[str, Any] = {
        "format": PACKED,
        "provider": "aws",
        "names": ["a"],
        "labels": {"k": {"values": ["v"], "of": [0]}},
        "capacity": {"cpu": [1000]},
        "allocatable": {"cpu": [900]},
        "regions": {
            "r": {
                "types": [0],
                "zoneIds": ["z1"],
                "zoneNames": ["ra"],
                "onDemand": [0.1],
                "spot": {"z1": [0.01]},
                "spotMedian": [0.01],
            }
        },
    }
    region = {key: value for key, value in changes.items() if key in raw["regions"]["r"]}
    raw["regions"]["r"].update(region)
    return as_json(raw | {key: value for key, value in changes.items() if key not in region})


def test_a_packed_file_with_one_region_needs_no_choice() -> None:
    assert read_catalogue(packed()).price("a", "ra", "spot") == 0.01


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({"onDemand": []}, r"regions\.r\.onDemand: 0: must have one entry per type, that is 1"),
        ({"spot": {"z1": [1, 2]}}, r"regions\.r\.spot\.z1: 2"),
        ({"types": [7]}, r"regions\.r\.types: 7"),
        ({"types": [-1]}, r"regions\.r\.types"),
        ({"labels": {"k": {"values": ["v"], "of": [1]}}}, r"labels\.k\.of: 1"),
        ({"capacity": {"cpu": []}}, r"capacity\.cpu: 0"),
        ({"onDemand": [-1]}, r"a\.pricePerHour: -1"),
        ({"spot": {"z1": [-2]}}, r"a\.z1\.pricePerHour: -2"),
    ],
)
def test_a_broken_packed_file_is_named(changes: dict[str, Any], error: str) -> None:
    with pytest.raises(Invalid, match=error):
        read_catalogue(packed(**changes))
