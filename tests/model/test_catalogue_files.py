"""The shipped catalogue, hand-written ones, and the tool that packs them."""

import gzip
import json
import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from karpool.model.catalogue import files
from karpool.model.catalogue.catalogue import Catalogue
from karpool.model.catalogue.files import PACKED, load_shipped, read_catalogue, shipped_regions
from karpool.model.errors import Invalid
from karpool.model.requirements import conflict, value_set

FIXTURES = Path(__file__).parent / "fixtures"
TOOL = Path(__file__).parents[2] / "tools" / "build_catalogue.py"
AWS = "karpenter.k8s.aws/instance-"
MIB = 2**20


@pytest.fixture(scope="module")
def shipped() -> Catalogue:
    return load_shipped("us-east-1")


def test_four_regions_are_shipped_in_less_than_200_kb() -> None:
    import karpool.model as package

    size = (Path(package.__path__[0]) / "data" / "aws.json.gz").stat().st_size

    assert shipped_regions() == ("ap-northeast-1", "eu-west-1", "us-east-1", "us-west-2")
    assert size < 200_000


@pytest.mark.parametrize("region", ["ap-northeast-1", "eu-west-1", "us-east-1", "us-west-2"])
def test_every_shipped_type_can_be_used(region: str) -> None:
    found = load_shipped(region)

    assert len(found.types) > 1000
    for each in found.types.values():
        assert each.offerings
        assert {"cpu", "memory", "pods", "ephemeral-storage"} <= each.allocatable.keys()
        assert all(0 < each.allocatable[name] <= each.capacity[name] for name in each.allocatable)
        for offering in each.offerings:
            price = offering.price_per_hour
            assert price is None or 0 < price < 1000


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


def test_an_unknown_region_says_which_ones_there_are() -> None:
    with pytest.raises(
        Invalid, match=r"'us-east-9': is not in the catalogue, which has ap-northeast-1, .*--catalogue"
    ):
        load_shipped("us-east-9")


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
        ("types.1.name", "standard-4", r"types\[1\]\.name: 'standard-4': is listed twice"),
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


def row(name: str, region: str = "r-1", **more: Any) -> dict[str, Any]:
    return {
        "provider": "aws",
        "region": region,
        "name": name,
        "arch": "amd64",
        "vcpu": 2,
        "memory_mib": 8192,
        "pods_max": 29,
        "allocatable": {"cpu_milli": 1930, "memory_mib": 6903},
        "on_demand_usd_per_hour": 0.1,
        "on_demand_asof": "2026-01-01",
        "spot_by_zone": {"r1-az1": 0.02, "r1-az2": 0.04},
        "spot_asof": "2026-02-02",
        **more,
    }


def pack(folder: Path, rows: list[dict[str, Any]], *more: str) -> subprocess.CompletedProcess[str]:
    (folder / "in.json").write_text(json.dumps(rows))
    command = [sys.executable, str(TOOL), str(folder / "in.json"), str(folder / "out.json.gz"), *more]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=50)


def test_what_the_tool_packs_can_be_read(tmp_path: Path) -> None:
    gpu = {"manufacturer": "nvidia", "model": "l4", "count": 1, "memory_mib": 24576, "schedulable": 1}
    rows = [row("m5.large"), row("g6.xlarge", gpu=gpu, spot_by_zone=None), row("x", provider="gcp")]

    done = pack(tmp_path, rows, "--source", "us")

    assert done.returncode == 0, done.stderr
    found = read_catalogue((tmp_path / "out.json.gz").read_bytes())
    assert (found.provider, found.region) == ("aws", "r-1")
    assert sorted(found.types) == ["g6.xlarge", "m5.large"]
    assert list(found.zones) == ["r-1a", "r-1b"]
    assert found.price("m5.large", "r-1a", "spot") == pytest.approx(0.03)
    assert found.types["g6.xlarge"].allocatable["nvidia.com/gpu"] == 1
    assert found.types["g6.xlarge"].requirements[AWS + "gpu-name"] == value_set("In", ["l4"])
    assert found.types["m5.large"].requirements[AWS + "gpu-name"] == value_set("DoesNotExist")
    assert found.types["m5.large"].requirements[AWS + "size"] == value_set("In", ["large"])


def test_documented_labels_and_resources_take_precedence(tmp_path: Path) -> None:
    documented = {
        "m5.large": {
            "labels": {" Label ": " Value ", AWS + "family": "m5-documented"},
            "allocatable": {"cpu": "1930m", "vpc.amazonaws.com/efa": "2"},
        }
    }
    (tmp_path / "labels.json").write_text(json.dumps(documented))

    done = pack(tmp_path, [row("m5.large")], "--labels", str(tmp_path / "labels.json"))

    assert done.returncode == 0, done.stderr
    found = read_catalogue((tmp_path / "out.json.gz").read_bytes()).types["m5.large"]
    assert found.requirements[AWS + "family"] == value_set("In", ["m5-documented"])
    assert found.allocatable["vpc.amazonaws.com/efa"] == 2


def test_the_tool_refuses_a_price_that_is_none(tmp_path: Path) -> None:
    done = pack(tmp_path, [row("m5.large", on_demand_usd_per_hour=-1)])

    assert done.returncode == 1
    assert "r-1 m5.large: price -1" in done.stderr


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
