"""The day that every fault is tried on: all capabilities have something to do, at the same time.

A burst that wants more than `fixed` has, GPU requests that need a node, a cluster that empties
and is consolidated, a stock-out while somebody grows. At its end everybody has what they asked for.
"""

import asyncio

from tests.chaos.company import BY_ROOM, Company

CALM_WITHIN = 2400.0
QUIET_TRIES = 8  # a node may become old enough for a move only now
MATTERS = r"^(?!.*/(events|leases)(/|$))"  # paths of writes that change anything


async def day(at: Company) -> None:
    await at.install("local", 8)
    await at.place("web", 9)
    await asyncio.sleep(5)  # nodes that exist are filled first: all of web is in `fixed` before api is placed
    await at.place("api", 6, BY_ROOM)
    await at.ask_for_gpu("infer")
    await asyncio.sleep(120)
    await at.resize("local", 3)  # leaves nodes half empty
    await at.ask_for_gpu("train", "20Gi")
    await asyncio.sleep(150)
    out = at.fleet.clusters["grows"].cloud.stock_out()
    await at.scale("api", 12)  # some of them wait in `grows` for nodes that do not come
    await at.give_back_gpu("infer")
    await asyncio.sleep(90)
    await at.scale("web", 3)  # now there is room in `fixed`
    await asyncio.sleep(240)
    out.end()
    await asyncio.sleep(60)


async def calm(at: Company, *, within: float = CALM_WITHIN) -> None:
    """Everything settles; then nobody who looks again finds anything to write."""
    reached = await at.until(at.is_calm, within=within, every=15)
    assert reached, report(at)
    for _ in range(QUIET_TRIES):
        written = await writes_during(at, 240)
        if not written and await at.is_calm():
            return
    raise AssertionError(f"never at rest: {written}\n{report(at)}")


async def writes_during(at: Company, seconds: float) -> dict[tuple[str, str], int]:
    """By controllers; events and leases do not count."""
    counted = {
        (cluster, name): at.cluster(cluster).faults.delay(name, seconds=0, method="WRITE", path=MATTERS)
        for cluster, name in at.controllers
    }
    await asyncio.sleep(seconds)
    for fault in counted.values():
        fault.end()
    return {who: fault.hits for who, fault in counted.items() if fault.hits}


async def end_of_business(at: Company) -> None:
    """Everything goes, and so does every node that was bought."""
    for name in ("web", "api"):
        await at.withdraw(name)
    await at.uninstall("local")
    for name in ("infer", "train"):
        await at.give_back_gpu(name)


def report(at: Company) -> str:
    return "\n".join([*at.told, "", "VIOLATIONS", *at.jury.when_calm()])
