"""What reads bytes of others, with good examples of each and the refusals it may answer with.

A target takes any bytes. It returns, or raises one of its refusals; anything else, or taking
longer than a few seconds, is a finding.
"""

from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import msgspec

from karpool.cluster.pools import node_group_status
from karpool.consolidation.execution.record import KEY as RECORD_KEY
from karpool.consolidation.execution.record import from_object, to_object
from karpool.consolidation.planning import plan_file
from karpool.consolidation.policy import settings
from karpool.estimator.serving import explain
from karpool.kube.config import kubeconfig
from karpool.kube.errors import ConfigError, KubeError, SnapshotError
from karpool.kube.snapshots.reader import FORMAT, ObjectFile
from karpool.model import cron, durations, labels, quantity
from karpool.model.catalogue.files import read_catalogue
from karpool.model.catalogue.refresh import read_prices
from karpool.model.contracts.contract_file import read_contract
from karpool.model.devices.pod_requests import gpu_request_of
from karpool.model.devices.tensor_fusion import BadGpuRequest
from karpool.model.dra.device import AttributeValue, DeviceId, DraCapacity, DraDevice
from karpool.model.dra.selector import SelectorError, compile_selector
from karpool.model.errors import Invalid, ModelError
from karpool.model.kubernetes.configmap import ConfigMap
from karpool.model.kubernetes.meta import ObjectMeta, decode
from karpool.model.kubernetes.pod import Pod
from karpool.wire import server_protocol
from karpool.wire.proto import estimator_pb2 as pb
from karpool.wire.proto import explain_pb2
from karpool_fleet.apiserver.storage import journal_file
from karpool_fleet.clusters.fleet_file import parse_fleet
from karpool_fleet.clusters.strict_file import FleetError
from karpool_fleet.simulation.ready_scenarios import FOLDER
from karpool_fleet.simulation.scenario_file import parse_scenario
from karpool_fleet.simulation.traces import read_traces
from tests.consolidation.plans import plan
from tests.consolidation.test_steps_of_a_move import record_of

ROOT = Path(__file__).resolve().parents[2]
FIXTURES = ROOT / "tests" / "model" / "fixtures"
Reads = Callable[[bytes], object]


@dataclass(frozen=True)
class Target:
    name: str
    reads: Reads
    refusals: tuple[type[Exception], ...]
    seeds: tuple[bytes, ...]


_MOVE = record_of()
_RECORD = to_object(_MOVE, "n")["data"][RECORD_KEY].encode()


def _text(read: Callable[[str], object]) -> Reads:
    """As annotations, flags and fields arrive: text, without what JSON cannot carry."""
    return lambda data: read(data.decode("utf-8", "replace"))


def _file(read: Callable[[Path], object]) -> Reads:
    def reads(data: bytes) -> object:
        with TemporaryDirectory() as folder:
            path = Path(folder) / "input"
            path.write_bytes(data)
            return read(path)

    return reads


def _kubeconfig(path: Path) -> object:
    return [kubeconfig.load(path, context=name, env={}) for name in ("", *kubeconfig.contexts(path, env={}))]


def _journal(path: Path) -> object:
    with closing(journal_file.JournalFile.open(path, fsync=False)) as opened:
        return list(opened.records())


def _trace(path: Path) -> object:
    return read_traces(_TRACED, path.parent)


def _device_selector(text: str) -> object:
    return compile_selector.__wrapped__(text).matches(_DEVICE)


def _selector(text: str) -> object:
    return labels.parse_selector(text).matches({"app": "web", "tier": ""})


def _cron(text: str) -> object:
    return cron.parse_schedule(text).next_after(1_700_000_000.0)


def _gpu_pod(data: bytes) -> object:
    return gpu_request_of(decode(msgspec.json.decode(data), Pod))


def _record(text: str) -> object:
    return from_object(ConfigMap(metadata=ObjectMeta(name=_MOVE.name), data={RECORD_KEY: text}))


def _explain(data: bytes) -> object:
    return explain.read(server_protocol.parse(explain_pb2.ExplainRequest, data))


def _request() -> bytes:
    claim = pb.NodeClaim(
        node_affinity=pb.NodeSelector(
            node_selector_terms=[
                pb.NodeSelectorTerm(
                    match_expressions=[pb.NodeSelectorRequirement(key="zone", operator="In", values=["a"])]
                )
            ]
        ),
        tolerations=[pb.Toleration(key="gpu", operator="Exists")],
    )
    wanted = pb.ReplicaRequirements(
        node_claim=claim,
        resource_request={"cpu": pb.Quantity(string="500m")},
        resource_request_bytes={"memory": pb.Quantity(string="1Gi").SerializeToString()},
    )
    return pb.MaxAvailableReplicasRequest(cluster="member1", replica_requirements=wanted).SerializeToString()


def _sets() -> bytes:
    needs = pb.ComponentReplicaRequirements(resource_request={"cpu": pb.Quantity(string="1")})
    part = pb.Component(name="worker", replicas=3, replica_requirements=needs)
    return pb.MaxAvailableComponentSetsRequest(cluster="member1", components=[part]).SerializeToString()


_DEVICE = DraDevice(
    DeviceId("gpu.example.com", "node", "gpu-0"),
    attributes=(
        ("model", AttributeValue("string", ("H100",))),
        ("index", AttributeValue("int", (3,))),
        ("driverVersion", AttributeValue("version", ("1.2.3",))),
    ),
    capacity=(("memory", DraCapacity(80 * 2**30 * 10**9)),),
)
_CEL = (
    b'device.attributes["gpu.example.com"].model.startsWith("H") && '
    b'device.attributes["gpu.example.com"].index in [1, 2, 3]',
    b'device.capacity["gpu.example.com"].memory.isGreaterThan(quantity("40Gi")) || device.driver == "x"',
    b'[1, 2, 3].exists(x, x > 2) && "a-b".split("-").map(p, p + "c").size() == 2',
)
_TRACED = parse_scenario(b"clusters: [{name: a}]\ntraces: [{file: input}]\n")[0].scenario
_KUBECONFIG = b"""apiVersion: v1
kind: Config
current-context: a
clusters: [{name: c, cluster: {server: "https://127.0.0.1:6443", insecure-skip-tls-verify: true}}]
users:
- {name: u, user: {token: t}}
- {name: x, user: {exec: {apiVersion: client.authentication.k8s.io/v1, command: aws, args: [eks]}}}
contexts: [{name: a, context: {cluster: c, user: u}}, {name: b, context: {cluster: c, user: x, namespace: n}}]
"""
_POD = b"""{"kind": "Pod", "metadata": {"name": "p", "annotations": {"tensor-fusion.ai/gpupool": "shared",
"tensor-fusion.ai/vram-request": "8Gi", "tensor-fusion.ai/tflops-request": "30" }},
"spec": {"containers": [{"name": "c", "resources": {"limits": {"cpu": "1"}}}]}}"""
_HAMI = b"""{"metadata": {"name": "p"}, "spec": {"containers": [{"name": "c", "resources":
{"limits": {"nvidia.com/gpu": "1", "nvidia.com/gpumem": "3000", "nvidia.com/gpucores": "50"}}}]}}"""
_STATUS = b"""time: 2026-01-01
autoscalerStatus: Running
nodeGroups:
- name: gpu
  health:
    nodeCounts: {registered: {total: 1, ready: 1}}
    status: Healthy
    cloudProviderTarget: 1
    minSize: 0
    maxSize: 9
  scaleUp: {status: NoActivity}
"""
_CONTRACT = b"""\
format: karpool-contract/1
discounts: [{name: d, families: [m5], regions: [eu-central-1], percent: 12}]
commitments:
  - {name: p, kind: savings-plan, perHour: 10, percent: 27, usedElsewhere: 1}
  - {name: r, kind: reservation, types: [m5.large], count: 4, zones: [eu-central-1a]}
  - {name: c, kind: committed-use, families: [n2], cpus: 3}
"""
_PLAN = msgspec.json.encode({"kind": plan_file.KIND, **plan_file.to_document(plan_file.SavedPlan(plan()))})
_SNAPSHOT = b"""{"format": "%s", "version": 1, "cluster": "c", "takenAt": "2026-01-01T00:00:00Z"}
{"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n"}}
{"end": true, "objects": 1, "counts": {"nodes": 1}, "skipped": [{"resource": "pods", "reason": "forbidden"}]}
""" % FORMAT.encode()
_WINDOW = b"0 22 * * mon-fri 6h Europe/Paris"
_NO_JSON = (msgspec.DecodeError, RecursionError, UnicodeDecodeError)
_PROTOBUF = (server_protocol.MalformedMessage, server_protocol.MessageTooLarge, Invalid)

TARGETS = (
    Target("replicas request", server_protocol.read_replicas, _PROTOBUF, (_request(),)),
    Target("component sets request", server_protocol.read_component_sets, _PROTOBUF, (_sets(),)),
    Target(
        "unschedulable request",
        server_protocol.read_unschedulable,
        _PROTOBUF,
        (b"\n\x01c\x12\x05\n\x01v\x12\x00",),
    ),
    Target("explain request", _explain, _PROTOBUF, (b"\n\x01c",)),
    Target("manifest of explain", lambda data: explain.of_manifest("c", data), (Invalid,), (_POD,)),
    Target("quantity", _text(quantity.milli_value), (Invalid,), (b"1.5Gi", b"100m", b"12e6", b"-0.1k")),
    Target(
        "label selector", _text(_selector), (Invalid,), (b"app=web,tier in (a, b),!old", b"x.io/y notin (z)")
    ),
    Target("cron", _text(_cron), (Invalid,), (b"0 9 * * mon-fri", b"*/5 0-6/2 29 feb ?", b"@daily")),
    Target("duration", _text(durations.seconds_or_never), (Invalid,), (b"1h30m", b"1.5s", b"Never", b"1us")),
    Target(
        "maintenance window", _text(settings.parse_windows), (Invalid,), (_WINDOW, b"@daily 1h; @hourly 5m")
    ),
    Target("rate", _text(settings.parse_rate), (Invalid,), (b"5/1h",)),
    Target(
        "budgets", _text(settings.parse_budgets), (Invalid,), (b'[{"nodes": "10%", "schedule": "@daily"}]',)
    ),
    Target("kubeconfig", _file(_kubeconfig), (ConfigError,), (_KUBECONFIG,)),
    Target(
        "manifests and snapshots",
        _file(lambda path: list(ObjectFile(path, report=lambda bad: None).objects())),
        (SnapshotError,),
        (_SNAPSHOT, *((FIXTURES / name).read_bytes() for name in ("pools.yaml", "rich.yaml"))),
    ),
    Target(
        "fleet file", parse_fleet, (FleetError,), ((ROOT / "src/karpool_fleet/tour/fleet.yaml").read_bytes(),)
    ),
    Target("scenario", parse_scenario, (FleetError,), ((FOLDER / "pool-limits.yaml").read_bytes(),)),
    Target("catalogue", read_catalogue, (Invalid,), ((FIXTURES / "catalogue.yaml").read_bytes(),)),
    Target("contract", read_contract, (Invalid,), (_CONTRACT,)),
    Target("price table", read_prices, (Invalid,), (b"region,type,spot\neu-west-1,m5.large,0.1\n",)),
    Target(
        "trace",
        _file(_trace),
        (FleetError,),
        (
            b"".join((FOLDER / "example-pods.csv").read_bytes().splitlines(keepends=True)[:6]),
            b"cpu_request,memory_request,creation_time\n4,16,0\n",
            b"t_s,pod,gpu_duty_pct,gpu_mem_mib\n0,a,50,1000\n30,a,0,0\n",
            b"sn,cpu_milli,memory_mib,gpu,model\nn0,64000,262144,2,P100\n",
        ),
    ),
    Target("device selector", _text(_device_selector), (SelectorError,), _CEL),
    Target("plan", plan_file.parse_plan, (Invalid,), (_PLAN,)),
    Target("record of a move", _text(_record), (Invalid,), (_RECORD,)),
    Target(
        "GPU request",
        _gpu_pod,
        (Invalid, BadGpuRequest, msgspec.DecodeError, RecursionError, UnicodeDecodeError),
        (_POD, _HAMI),
    ),
    Target("autoscaler status", _text(node_group_status.parse), (Invalid, ModelError), (_STATUS,)),
    Target(
        "journal",
        _file(_journal),
        (KubeError,),
        (journal_file.header() + journal_file.frame([b"{}", b"[1]"]),),
    ),
)
