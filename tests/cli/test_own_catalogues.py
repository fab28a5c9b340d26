"""A catalogue of one's own takes the place of the shipped one, wherever prices and types are read."""

import json
from pathlib import Path

import pytest
import yaml

from karpool.cli.main import run
from karpool.dashboard import process as dashboard_process
from karpool.dashboard.pages.collector import CollectorSettings, FleetCollector
from karpool.estimator.plugins.node_autoscaler import NodeAutoscalerEstimator
from karpool.estimator.plugins.registry import PROVIDERS, PluginSettings
from karpool.kube.api.client import Client
from karpool.kube.clock import RealClock
from karpool.provisioning.market_file import market_of
from karpool_fleet.apiserver.serve.inprocess import InProcessTransport
from karpool_fleet.apiserver.serve.server import ApiServer
from karpool_fleet.clusters.fleet_file import ClusterSpec
from karpool_fleet.clusters.live import catalogue_of

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "catalogue.md").read_text()
EXAMPLE = next(
    part.removeprefix("yaml\n")
    for part in PAGE.split("```")
    if part.startswith("yaml\nformat: karpool-catalogue")
)
LABELS = {
    "node.kubernetes.io/instance-type": "standard-4",
    "topology.kubernetes.io/region": "north",
    "topology.kubernetes.io/zone": "north-1",
    "karpenter.sh/capacity-type": "on-demand",
    "karpenter.sh/nodepool": "general",
    "kubernetes.io/arch": "amd64",
    "kubernetes.io/os": "linux",
}


@pytest.fixture
def files(tmp_path: Path) -> tuple[str, str, str]:
    """A catalogue, a cluster of that cloud, and a workload that its only node does not hold."""
    amounts = {"cpu": "4", "memory": "16Gi", "pods": "110"}
    ready = [{"type": "Ready", "status": "True"}]
    ref = {"group": "example.com", "kind": "Class", "name": "default"}
    requirement = {"key": "example.com/family", "operator": "In", "values": ["standard"]}
    pool = {
        "template": {"spec": {"nodeClassRef": ref, "requirements": [requirement]}},
        "limits": {"cpu": "40"},
    }
    objects = [
        {
            "apiVersion": "v1",
            "kind": "Node",
            "metadata": {"name": "n1", "labels": LABELS},
            "status": {"allocatable": amounts, "capacity": amounts, "conditions": ready},
        },
        {
            "apiVersion": "karpenter.sh/v1",
            "kind": "NodePool",
            "metadata": {"name": "general"},
            "spec": pool,
            "status": {"conditions": ready},
        },
    ]
    container = {"name": "c", "image": "i", "resources": {"requests": {"cpu": "3"}}}
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"}, "spec": {"containers": [container]}}
    written = {
        "catalogue.yaml": EXAMPLE,
        "cluster.yaml": yaml.safe_dump_all(objects),
        "pod.yaml": yaml.safe_dump(pod),
    }
    for name, text in written.items():
        (tmp_path / name).write_text(text)
    catalogue, cluster, workload = (str(tmp_path / name) for name in written)
    return catalogue, cluster, workload


def said(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict:
    code = run([*arguments, "-o", "json"], "karpool")
    told = capsys.readouterr()
    assert code in (0, 3), told.err
    found: dict = json.loads(told.out)
    return found


def test_nodes_have_its_prices(files: tuple[str, str, str], capsys: pytest.CaptureFixture[str]) -> None:
    catalogue, cluster, _ = files
    (unknown,) = said(capsys, "top", "--snapshot", cluster)["items"]
    (known,) = said(capsys, "top", "--snapshot", cluster, "--catalogue", catalogue)["items"]
    assert (unknown["price_per_hour"], known["price_per_hour"]) == (None, 0.21)


def test_its_types_can_be_launched(files: tuple[str, str, str], capsys: pytest.CaptureFixture[str]) -> None:
    catalogue, cluster, workload = files
    asked = ("capacity", "-f", workload, "--replicas", "3", "--snapshot", cluster)
    found = said(capsys, *asked, "--catalogue", catalogue, "--region", "north")
    assert (found["new_nodes"], found["price_per_hour"]) == (2, 0.14)  # of spot, the cheapest offering


def test_plans_count_with_it(files: tuple[str, str, str], capsys: pytest.CaptureFixture[str]) -> None:
    catalogue, cluster, _ = files
    for arguments, price in (((), "null"), (("--catalogue", catalogue), "0.21")):
        found = json.dumps(said(capsys, "plan", "--snapshot", cluster, *arguments))
        assert ("0.21" in found) is (price == "0.21")


def test_estimators_take_it(files: tuple[str, str, str]) -> None:
    settings = PluginSettings(catalogue=Path(files[0]))
    made = [make(settings) for (_, model), make in PROVIDERS.items() if model == settings.autoscaler_model]
    regions = [settings.cluster_of([NodeAutoscalerEstimator([each])]).market.region for each in made]
    assert regions == ["north"] * 2


SIMULATED = """\
kind: Scenario
duration: 10m
clusters:
  - name: mine
    region: north
    objects:
      - apiVersion: karpenter.sh/v1
        kind: NodePool
        metadata: {name: general}
        spec:
          template:
            spec:
              nodeClassRef: {group: karpenter.kwok.sh, kind: KWOKNodeClass, name: default}
              requirements: [{key: karpenter.sh/capacity-type, operator: In, values: [on-demand]}]
karmada: {}
controllers:
  scheduler: {}
  estimator: {node-capacity-providers: [karpenter]}
objects:
  - apiVersion: policy.karmada.io/v1alpha1
    kind: ClusterPropagationPolicy
    metadata: {name: by-room}
    spec:
      schedulerName: karpool-scheduler
      resourceSelectors: [{apiVersion: apps/v1, kind: Deployment}]
      placement:
        replicaScheduling:
          replicaSchedulingType: Divided
          replicaDivisionPreference: Weighted
          weightPreference: {dynamicWeight: AvailableReplicas}
workloads:
  - {name: web, count: 1, replicas: 3, requests: {cpu: "3"}}
"""


@pytest.mark.long
def test_simulated_clouds_sell_what_is_in_it_and_estimators_know(
    files: tuple[str, str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "s.yaml").write_text(SIMULATED)
    asked = ("simulate", str(tmp_path / "s.yaml"), "--decisions", str(tmp_path / "log"))
    [played] = said(capsys, *asked, "--catalogue", files[0])["items"]
    assert played["figures"]["podsBound"] == played["figures"]["launched"] == 3
    assert played["figures"]["cost"] == pytest.approx(3 * 0.21 / 6, rel=0.1)
    lines = [json.loads(line) for line in (tmp_path / "log").read_text().splitlines()]
    nodes = [line for line in lines if line["decision"] == "node"]
    assert {(node["type"], node["zone"]) for node in nodes} <= {
        ("standard-4", "north-1"),
        ("standard-4", "north-2"),
    }


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("region: north", "region: south", "cluster mine: region: 'south': "),
        ("region: north", "region: north\n    zones: [south-1]", "there are north-1, north-2"),
    ],
)
def test_a_simulated_cluster_must_be_where_the_catalogue_is(
    files: tuple[str, str, str],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    old: str,
    new: str,
    says: str,
) -> None:
    (tmp_path / "s.yaml").write_text(SIMULATED.replace(old, new))
    assert run(["simulate", str(tmp_path / "s.yaml"), "--catalogue", files[0]], "karpool") == 1
    assert says in capsys.readouterr().err


def test_zones_that_a_cluster_has_not_are_not_sold_there(files: tuple[str, str, str]) -> None:
    spec = ClusterSpec(name="mine", region="north", zones=["north-2"])
    found = catalogue_of(spec, Path(files[0]))
    assert tuple(found.zones) == ("north-2",)
    sold = [offering for type_ in found.types.values() for offering in type_.offerings]
    assert {each.zone for each in sold} == {"north-2"}


async def test_the_dashboard_counts_with_it(files: tuple[str, str, str]) -> None:
    wishes = CollectorSettings(catalogue=Path(files[0]))
    clients = {name: Client(InProcessTransport(ApiServer(RealClock()))) for name in ("a", "b")}
    markets = [watch.cluster.market for watch in FleetCollector(clients, wishes).watches.values()]
    assert [market.region for market in markets] == ["north", "north"]
    assert markets[0] is not markets[1]  # each learns from the nodes of its own cluster


def test_the_dashboard_says_what_is_wrong_with_it_before_it_listens(
    files: tuple[str, str, str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    Path(files[0]).write_text(EXAMPLE.replace("0.21", "-1"))
    monkeypatch.setattr(dashboard_process, "cluster_configs", lambda options: pytest.fail("it went on"))
    assert run(["dashboard", "--catalogue", files[0]], "karpool") == 1
    assert "types[0].offerings[0].pricePerHour" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("change", "said"),
    [
        pytest.param(
            ("pricePerHour: 0.21", "pricePerHour: -1"), "types[0].offerings[0].pricePerHour", id="price"
        ),
        pytest.param(("memory: 16Gi", "memory: 16 GB"), "types[0].capacity.memory", id="quantity"),
        pytest.param(("provider: example-cloud", "provider: [example"), "line", id="no YAML"),
        pytest.param(("karpool-catalogue/1", "karpool-catalogue/9"), "format", id="another format"),
        pytest.param(("region: north", "region: south"), "is of south", id="another region"),
    ],
)
def test_what_is_wrong_is_named_with_its_place(
    files: tuple[str, str, str], change: tuple[str, str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    catalogue, cluster, workload = files
    assert change[0] in EXAMPLE
    Path(catalogue).write_text(EXAMPLE.replace(*change))
    code = run(
        ["capacity", "-f", workload, "--snapshot", cluster, "--catalogue", catalogue, "--region", "north"],
        "karpool",
    )
    told = capsys.readouterr().err
    assert code in (1, 2) and said in told and "catalogue.yaml" in told and "Traceback" not in told


def test_without_a_file_only_shipped_regions_are_known(
    files: tuple[str, str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["capacity", "-f", files[2], "--snapshot", files[1], "--region", "north"], "karpool") == 2
    assert "no catalogue is shipped for it" in capsys.readouterr().err
    assert market_of(None, "us-east-1").region == "us-east-1"
