"""Whatever a step gives out fits: counted anew by somebody who knows neither ledger nor kernel."""

from collections import Counter
from dataclasses import dataclass, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from karpool.cluster.cluster_room import ClusterRoom
from karpool.gpu.controller.allocator_state import AllocatorState, GpuNodeFacts, GpuWorker, View
from karpool.gpu.scale_up.demand import WaitingWorker
from karpool.gpu.scale_up.settings import ScaleUpSettings
from karpool.model.devices.device import POOL_LABEL
from karpool.model.devices.node_devices import labelled_devices
from karpool.model.devices.tensor_fusion import GPU_IDS
from karpool.model.kubernetes.meta import decode
from karpool.model.kubernetes.node import HOSTNAME
from karpool.model.kubernetes.pod import Pod
from karpool.model.kubernetes.pod_shape import AffinityTerm, PodShape, TopologySpread
from karpool.model.labels import LabelMatcher, LabelRequirement
from karpool.model.requirements import NodeTerm, ValueSet
from karpool.packing.tables.node_table import NodeRow
from tests.gpu.devices import GIB, POOL, ask

NODES = ("node-0", "node-1", "node-2")
DEVICES, VRAM = 3, 80
OFFERS = {"cpu": 4000, "memory": 2**33, "pods": 5, "ephemeral-storage": 1000, "nvidia.com/gpu": DEVICES}
APP = LabelMatcher((LabelRequirement("app", "In", frozenset(("web",))),))
SPREAD = TopologySpread(1, HOSTNAME, required=True, selector=APP)


@dataclass(frozen=True)
class Asked:
    """What a waiting pod asks for, in words that a plain count understands."""

    vram: int
    count: int = 1
    disk: int = 0
    port: int = 0
    volume_on: str = ""
    apart: bool = False
    spread: bool = False

    def worker(self, uid: str) -> GpuWorker:
        request = ask(uid, tflops=1, vram=self.vram, count=self.count)
        terms = ((NodeTerm(((HOSTNAME, ValueSet(frozenset((self.volume_on,)))),)),),)
        shape = PodShape(
            requests=(("ephemeral-storage", self.disk),) if self.disk else (),
            namespace="n",
            labels=(("app", "web"),) if self.apart or self.spread else (),
            host_ports=frozenset((("0.0.0.0", "TCP", self.port),)) if self.port else frozenset(),
            volume_terms=terms if self.volume_on else (),
            anti_affinity=(AffinityTerm(APP, HOSTNAME, frozenset(("n",))),) if self.apart else (),
            spreads=(SPREAD,) if self.spread else (),
            devices=request.demand,
        )
        return GpuWorker(WaitingWorker(request, 0.0, shape=shape))


asked = st.builds(
    Asked,
    vram=st.sampled_from([10, 30, 60]),
    count=st.sampled_from([1, 1, 2]),
    disk=st.sampled_from([0, 400]),
    port=st.sampled_from([0, 0, 8080]),
    volume_on=st.sampled_from(["", "", *NODES[:2]]),
    apart=st.booleans(),
    spread=st.booleans(),
)
# Pods that are there already: of other schedulers, with whole devices of the plugin or shares of some.
there = st.tuples(
    st.sampled_from(NODES),
    st.one_of(
        st.tuples(st.just("whole"), st.integers(1, 2)),
        st.tuples(st.just("share"), st.tuples(st.integers(0, DEVICES - 1), st.sampled_from([20, 50]))),
        st.tuples(st.just("untold"), st.just(20)),
        st.tuples(st.just("plain"), st.just(0)),
    ),
)


def pod_of(name, node, kind, amount):
    annotations, units = {}, {}
    if kind == "whole":
        units = {"nvidia.com/gpu": str(amount)}
    elif kind == "share":
        annotations = {"tensor-fusion.ai/vram-request": f"{amount[1]}Gi", GPU_IDS: f"{node}-gpu-{amount[0]}"}
    elif kind == "untold":
        annotations = {"tensor-fusion.ai/vram-request": f"{amount}Gi"}
    return decode(
        {
            "metadata": {"name": name, "namespace": "n", "uid": name, "annotations": annotations},
            "spec": {"nodeName": node, "containers": [{"name": "c", "resources": {"requests": units}}]},
        },
        Pod,
    )


@pytest.mark.long
@settings(deadline=None, max_examples=150)
@given(st.lists(there, max_size=6), st.lists(asked, min_size=1, max_size=6))
def test_pods_that_are_given_devices_fit_on_their_nodes(pods, waiting):
    cluster = ClusterRoom()
    facts = []
    for name in NODES:
        labels = {HOSTNAME: name, POOL_LABEL: POOL, "nvidia.com/gpu.product": "NVIDIA-A100-SXM4-80GB"}
        labels["nvidia.com/gpu.memory"] = str(VRAM * 1024)
        cluster.put_node(NodeRow(name, labels, allocatable=OFFERS))
        devices = labelled_devices(name, labels, OFFERS)
        facts.append(
            GpuNodeFacts(name, ready=True, devices=devices, labels=labels, cpu_milli=4000, memory_bytes=2**33)
        )
    for number, (node, (kind, amount)) in enumerate(pods):
        cluster.upsert_pod(pod_of(f"there-{number}", node, kind, amount))
    state = AllocatorState(ScaleUpSettings())
    workers = tuple(ask.worker(f"u{number}") for number, ask in enumerate(waiting))

    result, _ = state.refresh(
        View(0.0, workers, nodes=tuple(facts), room=cluster.snapshot()), lambda item: ()
    )

    given_to = {item.uid: allocation for item, allocation in result.served}
    for node in NODES:
        served = [(waiting[int(uid[1:])], got) for uid, got in given_to.items() if got.node == node]
        if served:
            check(node, served, [what for where, what in pods if where == node])
    spread = [waiting[int(uid[1:])] for uid in given_to]
    on_node = Counter(got.node for uid, got in given_to.items() if is_web(waiting[int(uid[1:])]))
    if spread and all(each.spread for each in spread):
        assert max(on_node[node] for node in NODES) - min(on_node[node] for node in NODES) <= 1


def is_web(pod):
    return pod.apart or pod.spread


def check(node, served, there):
    assert len(served) + len(there) <= OFFERS["pods"]
    assert sum(pod.disk for pod, _ in served) <= OFFERS["ephemeral-storage"]
    assert max(Counter(pod.port for pod, _ in served if pod.port).values(), default=0) <= 1
    assert all(pod.volume_on in ("", node) for pod, _ in served)
    if any(pod.apart for pod, _ in served):
        assert sum(is_web(pod) for pod, _ in served) == 1
    assert not any(kind == "untold" for kind, _ in there), "nobody can tell what that pod holds"
    memory: Counter[str] = Counter()
    for pod, got in served:
        assert len(set(got.devices)) == pod.count
        memory.update(dict.fromkeys(got.devices, pod.vram))
    for kind, amount in there:
        if kind == "share":
            memory[f"{node}-gpu-{amount[0]}"] += amount[1]
    assert all(used <= VRAM for name, used in memory.items() if any(name in got.devices for _, got in served))
    whole = sum(amount for kind, amount in there if kind == "whole")
    assert len(memory) + whole <= DEVICES, "a device that the plugin gave away is shared"


def test_a_device_that_another_scheduler_filled_is_passed_over():
    """Our ledger knows nothing of that pod, and prefers the device that it takes for idle."""
    waiting = Asked(vram=60).worker("u0")
    cluster = ClusterRoom()
    labels = {HOSTNAME: "node-0", POOL_LABEL: POOL, "nvidia.com/gpu.product": "NVIDIA-A100-SXM4-80GB"}
    cluster.put_node(NodeRow("node-0", labels, allocatable=OFFERS))
    cluster.upsert_pod(pod_of("stranger", "node-0", "share", (0, 50)))
    facts = GpuNodeFacts(
        "node-0", ready=True, devices=labelled_devices("node-0", labels, OFFERS), labels=labels
    )

    view = View(0.0, (waiting,), nodes=(facts,), room=cluster.snapshot())
    result, _ = AllocatorState(ScaleUpSettings()).refresh(view, lambda item: ())

    assert [got.devices for _, got in result.served] == [("node-0-gpu-1",)]
    crowded = replace(view, workers=tuple(Asked(vram=60).worker(f"u{number}") for number in range(4)))
    result, _ = AllocatorState(ScaleUpSettings()).refresh(crowded, lambda item: ())
    assert sorted(got.devices for _, got in result.served) == [("node-0-gpu-1",), ("node-0-gpu-2",)]
    assert GIB * 60 > GIB * (VRAM - 50)
