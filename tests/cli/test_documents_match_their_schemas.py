"""What `-o json` writes is what `karpool schema` and docs/schemas say, to the last key."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from karpool.cli.document_kinds import DOCUMENTS
from karpool.cli.embedded.tour_text import document as tour_document
from karpool.cli.inspect import explain_binding
from karpool.cli.inspect.get_moves import moves_listing
from karpool.cli.inspect.get_promises import PromisedBinding, PromiseLine, promises_listing
from karpool.cli.inspect.get_scale_ups import document as scale_up_document
from karpool.cli.inspect.get_scale_ups import scale_ups_listing, understood
from karpool.cli.main import run
from karpool.cli.output.listing import Listing, ListingForm, render_listing
from karpool.cli.output.text import machine
from karpool.cli.run import gpu_agent
from karpool.consolidation.execution.record import MOVE, RECORD, ConfigMap, from_object
from karpool.gpu.agent.machine import DeviceLink, Machine, MachineGpu, MachineInstance
from karpool.model.catalogue.files import load_shipped
from karpool.model.documents import key_of
from karpool.model.karmada.binding import binding_key
from karpool.model.kubernetes.meta import decode
from karpool.scheduler.cycle.settings import SchedulingSettings
from karpool.scheduler.cycle.what_if import what_if
from tests.cli.example_fleet import example_fleet
from tests.cli.test_documents_have_one_casing import DEPLOYMENT
from tests.dashboard.fleets import clusters_of, control_plane, gpu_nodes, move_records, scale_ups

SCHEMAS = Path(__file__).parents[2] / "docs" / "schemas"
NOW = 1_790_000_000.0
_TYPES: dict[str, Any] = {
    "object": dict,
    "array": list,
    "string": str,
    "boolean": bool,
    "integer": int,
    "number": (int, float),
    "null": type(None),
}
_OLD_KEY = re.compile(r"[a-z0-9]+(_[a-z0-9]+)+\Z")


def violations(value: Any, schema: dict[str, Any], root: dict[str, Any], path: str = "$") -> list[str]:
    """Of the part of JSON Schema that is used; a key that no schema names is a violation too."""
    if "$ref" in schema:
        return violations(value, root["$defs"][schema["$ref"].rpartition("/")[2]], root, path)
    if "anyOf" in schema:
        tried = [violations(value, one, root, path) for one in schema["anyOf"]]
        return [] if not all(tried) else min(tried, key=len)
    if "const" in schema:
        return [] if value == schema["const"] else [f"{path}: {value!r} is not {schema['const']!r}"]
    if "enum" in schema:
        return [] if value in schema["enum"] else [f"{path}: {value!r} is not one of {schema['enum']}"]
    kinds = schema.get("type", [])
    kinds = [kinds] if isinstance(kinds, str) else kinds
    if kinds and not any(
        isinstance(value, _TYPES[kind]) and (kind == "boolean" or not isinstance(value, bool))
        for kind in kinds
    ):
        return [f"{path}: {value!r} is not {' or '.join(kinds)}"]
    wrong: list[str] = []
    if isinstance(value, dict) and "properties" in schema:
        wrong += [f"{path}: lacks {key}" for key in schema["required"] if key not in value]
        for key, inner in value.items():
            if key in schema["properties"]:
                wrong += violations(inner, schema["properties"][key], root, f"{path}.{key}")
            elif not (_OLD_KEY.match(key) and key_of(key) in value):
                wrong.append(f"{path}: nobody describes {key}")
    elif isinstance(value, dict) and "additionalProperties" in schema:
        for key, inner in value.items():
            wrong += violations(inner, schema["additionalProperties"], root, f"{path}[{key}]")
    elif isinstance(value, list):
        places = schema.get("prefixItems", [])
        if places and len(value) != len(places):
            wrong.append(f"{path}: has {len(value)} places, not {len(places)}")
        for number, inner in enumerate(value):
            of_item = places[number] if number < len(places) else schema.get("items", {})
            wrong += violations(inner, of_item, root, f"{path}[{number}]")
    return wrong


def check(text: str, kind: str) -> None:
    document = json.loads(text)
    assert document["kind"] == kind
    schema = json.loads((SCHEMAS / f"{kind}.json").read_text())
    assert violations(document, schema, schema)[:5] == []


@pytest.fixture
def files(tmp_path: Path) -> dict[str, str]:
    objects = [*example_fleet(load_shipped("us-east-1")), *gpu_nodes()]
    pod = next(obj for obj in objects if obj["kind"] == "Pod")["metadata"]
    contents = {
        "FLEET": yaml.safe_dump_all(objects),
        "WEB": DEPLOYMENT,
        "TWO": f"{DEPLOYMENT}---\n{DEPLOYMENT.replace('name: web', 'name: other')}",
        "PRICES": "region,type,on_demand\nus-east-1,m5.large,0.001\n",
        "CONTRACT": "format: karpool-contract/1\ndiscounts:\n- {name: edp, families: [m5], percent: 10}\n",
    }
    names = {"NODE": next(obj["metadata"]["name"] for obj in objects if obj["kind"] == "Node")}
    names["POD"] = f"{pod['name']} -n {pod['namespace']}"
    for name, content in contents.items():
        suffix = ".csv" if name == "PRICES" else ".yaml"
        (tmp_path / f"{name}{suffix}").write_text(content)
        names[name] = str(tmp_path / f"{name}{suffix}")
    return names


@pytest.mark.long
@pytest.mark.parametrize(
    ("words", "kind"),
    [
        ("top nodes --snapshot FLEET", "NodeUsageList"),
        ("top nodes --snapshot FLEET --contract CONTRACT", "NodeUsageList"),
        ("top pools --snapshot FLEET", "PoolUsageList"),
        ("top gpus --snapshot FLEET", "GpuUsageList"),
        ("plan --snapshot FLEET", "ConsolidationPlan"),
        ("plan --threshold 1 --threshold 3 --snapshot FLEET", "ConsolidationComparison"),
        ("capacity -f WEB --snapshot FLEET", "Capacity"),
        ("capacity -f TWO --snapshot FLEET", "CapacityList"),
        ("explain node NODE --snapshot FLEET", "NodeExplanation"),
        ("explain pod POD --snapshot FLEET", "PodExplanation"),
        ("catalogue regions", "RegionList"),
        ("catalogue list --region us-east-1 --family g5", "InstanceTypeList"),
        ("catalogue show g5.xlarge --region us-east-1", "InstanceType"),
        ("catalogue show g5.xlarge", "InstanceTypePrices"),
        ("catalogue refresh PRICES", "PriceChangeList"),
        ("contract check CONTRACT", "ContractCheck"),
        ("verify-policy", "PolicyVerification"),
        ("simulate --list", "ScenarioList"),
        ("simulate pool-limits", "SimulationReport"),
        ("schema", "SchemaList"),
        ("version", "Version"),
    ],
)
def test_what_a_command_writes_is_what_its_schema_says(
    words: str, kind: str, files: dict[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    line = " ".join(files.get(word, word) for word in words.split())
    assert run([*line.split(), "-o", "json"], "karpool") in (0, 3)

    check(capsys.readouterr().out, kind)


@pytest.mark.long
def test_two_plans_compared(
    files: dict[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, threshold in (("one", "1"), ("two", "3")):
        words = ["plan", "--snapshot", files["FLEET"], "--threshold", threshold, "-o", "json"]
        assert run(words, "karpool") == 0
        (tmp_path / f"{name}.json").write_text(capsys.readouterr().out)
    words = ["plan", "diff", str(tmp_path / "one.json"), str(tmp_path / "two.json"), "-o", "json"]
    assert run(words, "karpool") == 0

    check(capsys.readouterr().out, "ConsolidationPlanDiff")


def shown(listing: Listing) -> str:
    assert listing.items
    return render_listing(listing, ListingForm("json"))


def test_moves() -> None:
    made = [obj for obj in move_records(NOW) if obj["metadata"].get("labels", {}).get(RECORD) == MOVE]
    records = [from_object(decode(obj, ConfigMap)) for obj in made if obj["metadata"]["name"] != "edited"]

    check(shown(moves_listing(records, NOW, "east")), "MoveList")


def test_promises() -> None:
    line = PromiseLine(PromisedBinding("ResourceBinding", "shop", "web"), "east", 3, 4, 5, {"a": 3}, 10, 20)

    check(shown(promises_listing([line], "karmada")), "PromiseList")


def test_scale_ups() -> None:
    listed = understood([obj for obj in scale_ups(NOW) if obj["kind"] == "ScaleUp"], NOW)

    check(shown(scale_ups_listing(listed, listed.records)), "ScaleUpList")
    for record in listed.records:
        document = scale_up_document(listed, record)
        check(machine("ScaleUpExplanation", document, "json"), "ScaleUpExplanation")


async def test_why_a_binding_is_where_it_is() -> None:
    async with clusters_of({"karmada": control_plane(NOW)}) as clusters:
        client, key = clusters["karmada"].client("user"), binding_key("default", "search-deployment")
        found = await what_if(client, key, SchedulingSettings(), fresh=True)

    check(explain_binding._shown(found, "json"), "BindingExplanation")


def test_the_devices_of_a_machine() -> None:
    part = MachineInstance("MIG-1", "1g.10gb", 2**33, start=0, size=1)
    whole = MachineGpu(
        0,
        "GPU-1",
        "NVIDIA H100",
        "H100",
        memory_bytes=2**36,
        mig_enabled=True,
        instances=(part,),
        free_profiles={"1g.10gb": 6},
        links=(DeviceLink("GPU-2", "NV18"),),
    )
    odd = MachineGpu(1, "", "", "", healthy=False, problems=("its memory is not told",))
    gpus = whole, odd

    check(gpu_agent._shown(Machine("550.1", gpus), "json"), "MachineGpuList")


def test_the_tour() -> None:
    check(tour_document([], 1.25, "json"), "Tour")


def test_no_schema_is_left_of_a_kind_that_went() -> None:
    assert {path.stem for path in SCHEMAS.glob("*.json")} == set(DOCUMENTS)


def test_every_document_of_the_product_has_a_schema() -> None:
    source = Path(__file__).parents[2] / "src" / "karpool" / "cli"
    text = "\n".join(path.read_text() for path in source.rglob("*.py"))
    named = set(re.findall(r"(?:machine|document|Listing)\(\s*\"([A-Z][A-Za-z]+)\"", text))

    assert named
    assert named <= set(DOCUMENTS)


@pytest.mark.parametrize(("words", "says"), [(["Nothing"], "lists them"), (["-o", "svg"], "must be one of")])
def test_wrong_input_is_said(words: list[str], says: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["schema", *words], "karpool") == 2
    assert says in capsys.readouterr().err
