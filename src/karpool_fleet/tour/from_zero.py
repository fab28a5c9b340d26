"""Chapter: a cluster without nodes gets replicas, because nodes can be launched."""

from karpool.model import quantity
from karpool.model.kubernetes.api_resources import CLUSTERS
from karpool_fleet.tour.chapter import Chapter, Notes
from karpool_fleet.tour.manifests import BY_AVAILABILITY, deployment, namespace, policy
from karpool_fleet.tour.stage import TourStage, each_of

REPLICAS = 30
ZERO, FIXED = "oregon", "virginia"


async def play(stage: TourStage, notes: Notes) -> None:
    summary = await _summary_cores(stage)
    room = await stage.room(ZERO, cpu="1", memory="1Gi")
    nodes = len(await stage.nodes(ZERO))
    notes.tell(f"{ZERO} has {nodes} nodes; its estimator sees room for {room} replicas after scale-up")

    await stage.write(
        stage.karmada,
        namespace("shop"),
        policy("shop", ["web"], [FIXED, ZERO], BY_AVAILABILITY),
        deployment("shop", "web", REPLICAS),
    )
    if await stage.until(lambda: _decided(stage), within=60):
        notes.tell(f"{REPLICAS} replicas of shop/web are placed: {each_of(await _given(stage))}")
        await stage.until(lambda: _runs(stage), within=240)
    replicas = await _given(stage)
    ready = {name: await stage.ready(name, "shop", "web") for name in (FIXED, ZERO)}
    now = len(await stage.nodes(ZERO))

    notes.figure(f"nodes in {ZERO}", nodes, now)
    notes.figure(f"room in {ZERO}: summary, estimator", summary, f"{room} replicas")
    notes.figure("replicas of shop/web that run", 0, sum(ready.values()))
    notes.promise(
        "a cluster with no nodes is given replicas",
        nodes == 0 and replicas.get(ZERO, 0) > 0,
        f"{ZERO} had {nodes} nodes and was given {replicas.get(ZERO, 0)} of {REPLICAS} replicas",
    )
    notes.promise(
        "every replica runs where it was placed",
        ready == replicas and sum(ready.values()) == REPLICAS,
        f"ready: {each_of(ready)}",
    )


async def _summary_cores(stage: TourStage) -> str:
    cluster = await stage.karmada.get(CLUSTERS, ZERO)
    summary = (cluster.get("status") or {}).get("resourceSummary") or {}
    return f"{quantity.value((summary.get('allocatable') or {}).get('cpu', '0'))} CPUs"


async def _given(stage: TourStage) -> dict[str, int]:
    return await stage.placed("shop", "web")


async def _decided(stage: TourStage) -> bool:
    return bool(await _given(stage))


async def _runs(stage: TourStage) -> bool:
    return sum([await stage.ready(name, "shop", "web") for name in (FIXED, ZERO)]) == REPLICAS


CHAPTER = Chapter(
    "from-zero",
    "Scale from zero",
    "Replicas are placed by what could run, not only by what runs: a cluster with no nodes takes its share.",
    play,
)
