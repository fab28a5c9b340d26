"""Chapter: a fraction of a GPU is requested, and there is no GPU yet."""

from karpool.gpu.records.scale_up_object import SCALEUPS
from karpool.model.kubernetes.api_resources import NODECLAIMS, PODS, ListOptions
from karpool.model.kubernetes.node import INSTANCE_TYPE
from karpool.model.kubernetes.pod import Pod
from karpool.provisioning.placeholders.smart_pod import SELECTOR
from karpool_fleet.tour.chapter import Chapter, Notes
from karpool_fleet.tour.manifests import fraction, namespace
from karpool_fleet.tour.stage import TourStage

WHERE, POOL = "tokyo", "gpu"
DEVICE = "tensor-fusion.ai/gpu-ids"


async def play(stage: TourStage, notes: Notes) -> None:
    client = stage.members[WHERE]
    before = len(await stage.nodes(WHERE, POOL))
    await stage.write(client, namespace("ml"))
    notes.tell(f"ml/chat asks for 8 GiB of a GPU; {WHERE} has {before} GPU nodes")
    notes.tell(
        "embedded kubelets run nothing, so shares are accepted unenforced; on real nodes that is refused"
    )
    began = stage.clock.monotonic()
    await client.create(PODS, fraction("ml", "chat", vram="8Gi", tflops="30"))
    asked = await stage.until(lambda: _has_smart_pods(stage), within=60)
    if asked:
        notes.tell("no device fits: a smart pod asks Karpenter for a node")
    served = asked and await stage.until(lambda: _runs(stage, "chat"), within=600)
    took = stage.clock.monotonic() - began
    pod = await client.get(PODS, "chat", namespace="ml", into=Pod)
    nodes = await stage.nodes(WHERE, POOL)
    kind = nodes[0].labels.get(INSTANCE_TYPE, "") if nodes else "no node"
    notes.tell(f"after {took:.0f} s ml/chat runs on {pod.spec.node_name or 'nothing'} ({kind})")
    claims = len((await client.list(NODECLAIMS)).items)
    notes.promise(
        "one request brings one node, through a smart pod",
        asked and served and len(nodes) == before + 1 and claims == before + 1,
        f"{claims} NodeClaim, {len(nodes)} node ({kind}), device {pod.annotations.get(DEVICE, 'none')},"
        f" {took:.0f} s from request to running",
    )
    await _share(stage, notes, len(nodes))
    notes.figure("GPU nodes", before, len(await stage.nodes(WHERE, POOL)))
    clean = await stage.until(lambda: _is_clean(stage), within=120)
    left = len(await _smart_pods(stage))
    notes.figure("smart pods left behind", 0, left)
    notes.promise(
        "nothing is left behind", clean, f"{left} smart pods, {await _records(stage)} scale-ups open"
    )


async def _share(stage: TourStage, notes: Notes, nodes: int) -> None:
    """Use the rest of the device for the next request."""
    await stage.members[WHERE].create(PODS, fraction("ml", "search", vram="8Gi", tflops="30"))
    began = stage.clock.monotonic()
    served = await stage.until(lambda: _runs(stage, "search"), within=120)
    took = stage.clock.monotonic() - began
    now = len(await stage.nodes(WHERE, POOL))
    notes.promise(
        "the next fraction shares the device",
        served and now == nodes,
        f"ml/search runs after {took:.0f} s; {now} GPU node" if served else "ml/search does not run",
    )


async def _runs(stage: TourStage, name: str) -> bool:
    pod = await stage.members[WHERE].get(PODS, name, namespace="ml", into=Pod)
    return pod.status.phase == "Running"


async def _smart_pods(stage: TourStage) -> list[Pod]:
    return (await stage.members[WHERE].list(PODS, ListOptions(label_selector=SELECTOR), into=Pod)).items


async def _has_smart_pods(stage: TourStage) -> bool:
    return bool(await _smart_pods(stage))


async def _records(stage: TourStage) -> int:
    return len((await stage.members[WHERE].list(SCALEUPS)).items)


async def _is_clean(stage: TourStage) -> bool:
    return not await _smart_pods(stage) and not await _records(stage)


CHAPTER = Chapter(
    "gpu-fraction",
    "A fraction of a GPU brings its node",
    "A request that finds no device becomes a smart pod; a node comes, and the request is served.",
    play,
)
