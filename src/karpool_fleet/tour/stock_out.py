"""A region sells no machines: its replicas go elsewhere, and come back when it does again."""

from karpool.model.kubernetes.api_resources import DEPLOYMENTS
from karpool.scheduler.descheduler.cool_down import cooling
from karpool_fleet.tour.chapter import Chapter, Notes
from karpool_fleet.tour.manifests import BY_AVAILABILITY, deployment, namespace, policy
from karpool_fleet.tour.stage import TourStage, each_of

EMPTY, OTHER = "oregon", "ireland"
FIRST, LATER = 24, 36


async def play(stage: TourStage, notes: Notes) -> None:
    before = await stage.room(EMPTY, cpu="1", memory="1Gi")
    stock_out = stage.fleet.clusters[EMPTY].cloud.stock_out()
    notes.tell(f"the cloud in {EMPTY} sells nothing any more; nobody knows it yet")
    try:
        await _move_away(stage, notes)
        during = await stage.room(EMPTY, cpu="1", memory="1Gi")
    finally:
        stock_out.end()
    notes.figure(f"room in {EMPTY}, then in stock-out", before, during)
    notes.promise(
        "what cannot be launched stops counting as room",
        during < before // 2,
        f"room in {EMPTY} went from {before} to {during}",
    )
    await _recover(stage, notes)


async def _move_away(stage: TourStage, notes: Notes) -> None:
    await stage.write(
        stage.karmada,
        namespace("orders"),
        policy("orders", ["api"], [EMPTY, OTHER], BY_AVAILABILITY),
        deployment("orders", "api", FIRST),
    )
    began = stage.clock.monotonic()
    decided = await stage.until(lambda: _decided(stage), within=60)
    first = await stage.placed("orders", "api")
    notes.tell(f"{FIRST} replicas of orders/api are placed: {each_of(first)}")
    all_run = decided and await stage.until(lambda: _runs(stage, FIRST), within=600)
    took = stage.clock.monotonic() - began
    now = await stage.placed("orders", "api")
    moved = first.get(EMPTY, 0) - now.get(EMPTY, 0)
    notes.tell(f"after {took:.0f} s they are: {each_of(now)}")
    notes.figure("replicas of orders/api", each_of(first), each_of(now))
    notes.promise(
        "replicas that cannot start in one cluster run in another",
        all_run and moved > 0,
        f"{moved} replicas moved from {EMPTY}; {FIRST if all_run else 'not all'} of {FIRST} run"
        f" {took:.0f} s after the stock-out began",
    )


async def _recover(stage: TourStage, notes: Notes) -> None:
    notes.tell(f"machines are sold in {EMPTY} again")
    began = stage.clock.monotonic()
    counts = await stage.until(lambda: _is_trusted(stage, LATER - FIRST), within=600)
    took = stage.clock.monotonic() - began
    held = (await stage.placed("orders", "api")).get(EMPTY, 0)
    await stage.karmada.scale(DEPLOYMENTS, "api", LATER, namespace="orders")
    all_run = counts and await stage.until(lambda: _runs(stage, LATER), within=300)
    now = await stage.placed("orders", "api")
    notes.figure(f"replicas of orders/api in {EMPTY}", held, now.get(EMPTY, 0))
    notes.promise(
        "a cluster that sells again is used again",
        counts and all_run and now.get(EMPTY, 0) > held,
        f"room in {EMPTY} counted again after {took:.0f} s; of {LATER} replicas now: {each_of(now)}",
    )


async def _decided(stage: TourStage) -> bool:
    return bool(await stage.placed("orders", "api"))


async def _is_trusted(stage: TourStage, least: int) -> bool:
    """There is room again, and what was taken from there may go back."""
    binding = (await stage.bindings("orders")).get("api", {})
    noted = binding.get("metadata", {}).get("annotations") or {}
    return not cooling(noted, stage.clock.now()) and await stage.room(EMPTY, cpu="1", memory="1Gi") >= least


async def _runs(stage: TourStage, wanted: int) -> bool:
    return sum([await stage.ready(name, "orders", "api") for name in (EMPTY, OTHER)]) == wanted


CHAPTER = Chapter(
    "stock-out",
    "A stock-out, and recovery",
    "A region that cannot deliver is noticed; its replicas move on, and it is tried again later.",
    play,
)
