"""Chapter: many workloads arrive at the same moment, with room for some of them."""

from collections.abc import Mapping

from karpool.model.kubernetes.api_resources import DEPLOYMENTS
from karpool.model.kubernetes.node import Node, allocatable
from karpool.model.kubernetes.pod import Pod, effective_requests
from karpool_fleet.tour.chapter import Chapter, Notes
from karpool_fleet.tour.manifests import ALL_OR_NOTHING, deployment, namespace, policy
from karpool_fleet.tour.stage import Object, TourStage, placed_by, refusal_of

WHERE = "virginia"
EACH = 5
JOBS = tuple(f"job-{number}" for number in range(1, 11))


async def play(stage: TourStage, notes: Notes) -> None:
    room = await stage.room(WHERE, cpu="1", memory="1Gi")
    asked = EACH * len(JOBS)
    notes.tell(f"{WHERE} has room for {room} replicas; {len(JOBS)} workloads ask for {asked} at once")

    await stage.write(stage.karmada, namespace("burst"), policy("burst", JOBS, [WHERE], ALL_OR_NOTHING))
    await stage.write(stage.karmada, *(deployment("burst", name, EACH) for name in JOBS))
    await stage.until(lambda: _all_decided(stage), within=120)
    placed = _placed(await stage.bindings("burst"))
    waiting = [name for name in JOBS if name not in placed]
    promised = EACH * len(placed)
    notes.tell(f"{len(placed)} workloads are placed ({promised} replicas), {len(waiting)} wait for room")
    if placed:
        await stage.until(lambda: _run(stage, placed), within=120)
    homeless, overfull = await _over_commitment(stage)

    notes.figure("replicas asked for, and given", asked, promised)
    notes.figure(f"room for replicas in {WHERE}", room, room - promised)
    notes.promise(
        "a burst is given exactly the room there is",
        promised == room // EACH * EACH and asked > room,
        f"room for {room}, {asked} asked for in lots of {EACH}, {promised} given",
    )
    notes.promise(
        "no pod of the burst is without a node, and no node has more than it can hold",
        homeless == 0 and overfull == 0,
        f"{homeless} pods without a node, {overfull} nodes over-committed",
    )
    await _make_room(stage, notes, placed, waiting)


async def _make_room(stage: TourStage, notes: Notes, placed: list[str], waiting: list[str]) -> None:
    """Delete one workload; a pending one takes its place."""
    if not placed or not waiting:
        seen = "nobody had to wait" if placed else "nobody was placed"
        notes.promise("who waits is told why, and gets the room that comes", False, seen)
        return
    reason = refusal_of((await stage.bindings("burst"))[waiting[0]])
    await stage.karmada.delete(DEPLOYMENTS, placed[0], namespace="burst")
    notes.tell(f"burst/{placed[0]} is deleted; somebody who waits should get its room")
    began = stage.clock.monotonic()
    came = await stage.until(lambda: _count_running(stage, len(placed)), within=240)
    took = stage.clock.monotonic() - began
    notes.promise(
        "who waits is told why, and gets the room that comes",
        came and bool(reason),
        f'told "{reason}"; runs {took:.0f} s after room came' if came else f'told "{reason}"; never runs',
    )


def _placed(bindings: Mapping[str, Object]) -> list[str]:
    return [name for name in JOBS if placed_by(bindings.get(name, {}))]


async def _all_decided(stage: TourStage) -> bool:
    bindings = await stage.bindings("burst")
    return all(placed_by(bindings.get(name, {})) or refusal_of(bindings.get(name, {})) for name in JOBS)


async def _count_running(stage: TourStage, wanted: int) -> bool:
    """Whether enough placed workloads run; the deleted one no longer counts."""
    ready = await stage.all_ready(WHERE, "burst")
    return sum(ready.get(name) == EACH for name in _placed(await stage.bindings("burst"))) >= wanted


async def _run(stage: TourStage, names: list[str]) -> bool:
    ready = await stage.all_ready(WHERE, "burst")
    return all(ready.get(name) == EACH for name in names)


async def _over_commitment(stage: TourStage) -> tuple[int, int]:
    """Return the number of pods without a node, and of nodes whose pods request more CPU than they have."""
    pods = [pod for namespace in ("burst", "shop") for pod in await stage.pods(WHERE, namespace)]
    nodes = {node.name: node for node in await stage.nodes(WHERE)}
    homeless = sum(not pod.spec.node_name for pod in pods)
    return homeless, sum(_is_overfull(node, pods) for node in nodes.values())


def _is_overfull(node: Node, pods: list[Pod]) -> bool:
    asked = sum(effective_requests(pod).get("cpu", 0) for pod in pods if pod.spec.node_name == node.name)
    return asked > allocatable(node).get("cpu", 0)


CHAPTER = Chapter(
    "burst",
    "A burst that does not over-commit",
    "What was decided and has not landed yet is promised: the next decision does not give it away again.",
    play,
)
