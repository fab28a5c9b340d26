"""Chapter: a region is out of stock. Its replicas go elsewhere, and return when it has stock again."""

from karpool.model.kubernetes.api_resources import DEPLOYMENTS
from karpool.scheduler.cycle.cool_down import cooling
from karpool_fleet.tour.chapter import Chapter, Notes
from karpool_fleet.tour.manifests import BY_AVAILABILITY, deployment, namespace, policy
from karpool_fleet.tour.stage import TourStage, each_of

EMPTY, OTHER = "oregon", "ireland"
# Shares follow the room: of 18 more replicas, a node for 3 gets at least one next to ireland's 37.
FIRST, TRIED, LATER = 24, 42, 60


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
    """Show that one node is offered first, and the rest after its launch succeeded."""
    notes.tell(f"machines are sold in {EMPTY} again")
    began = stage.clock.monotonic()
    held = (await stage.placed("orders", "api")).get(EMPTY, 0)
    is_tried = await stage.until(lambda: _is_trusted(stage, 1), within=600)
    waited = stage.clock.monotonic() - began
    probe = await stage.room(EMPTY, cpu="1", memory="1Gi")
    notes.tell(f"{waited:.0f} s later {EMPTY} has room for {probe} replicas, to try it")
    tries = is_tried and await _grow(stage, TRIED)
    is_open = tries and await stage.until(lambda: _is_trusted(stage, LATER - TRIED), within=300)
    tried = (await stage.placed("orders", "api")).get(EMPTY, 0)
    rest = await stage.room(EMPTY, cpu="1", memory="1Gi")
    notes.tell(f"of {TRIED} replicas {EMPTY} has {tried}; room for {rest} more")
    all_run = is_open and await _grow(stage, LATER)
    now = await stage.placed("orders", "api")
    notes.figure(f"room in {EMPTY}, tried and then trusted", probe, rest)
    notes.figure(f"replicas of orders/api in {EMPTY}", held, now.get(EMPTY, 0))
    notes.promise(
        "a cluster that sells again is used again",
        all_run and 0 < probe < rest and held < tried < now.get(EMPTY, 0),
        f"room in {EMPTY} was {probe} after {waited:.0f} s, for a try, and {rest} later;"
        f" orders/api now: {each_of(now)}",
    )


async def _grow(stage: TourStage, replicas: int) -> bool:
    """Scale the Deployment; return whether so many replicas run within 300 s."""
    await stage.karmada.scale(DEPLOYMENTS, "api", replicas, namespace="orders")
    return await stage.until(lambda: _runs(stage, replicas), within=300)


async def _decided(stage: TourStage) -> bool:
    return bool(await stage.placed("orders", "api"))


async def _is_trusted(stage: TourStage, least: int) -> bool:
    """Whether the region has room again and its cool-down is over."""
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
