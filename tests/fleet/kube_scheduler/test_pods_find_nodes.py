"""Pods that fit are bound, in order of priority, to the node that suits them best."""

import pytest

from karpool.model.kubernetes.api_resources import PODS
from karpool.model.kubernetes.node import HOSTNAME, ZONE
from karpool_fleet.kube_scheduler.settings import LEAST_ALLOCATED, MOST_ALLOCATED
from tests.fleet.kube_scheduler.acting import Stage, near, play, settle, spread


def test_a_pod_is_bound_and_says_so() -> None:
    async def story(stage: Stage) -> None:
        await stage.node("n1")
        await stage.pod("web")
        await settle()

        assert await stage.where() == {"web": "n1"}
        assert (await stage.scheduled("web")).status == "True"
        (event,) = await stage.events("Scheduled")
        assert event["message"] == "Successfully assigned default/web to n1"
        assert event["type"] == "Normal"

    play(story)


@pytest.mark.parametrize(("strategy", "nodes"), [(LEAST_ALLOCATED, 4), (MOST_ALLOCATED, 1)])
def test_pods_spread_or_pile_up_as_the_strategy_says(strategy: str, nodes: int) -> None:
    async def story(stage: Stage) -> int:
        for name in ("n1", "n2", "n3", "n4"):
            await stage.node(name)
        for number in range(4):
            await stage.pod(f"web-{number}", memory="4Gi")
        await settle()
        return len(set((await stage.where()).values()))

    assert play(story, strategy=strategy) == nodes


def test_the_more_important_pod_gets_the_room_although_it_came_later() -> None:
    async def story(stage: Stage) -> dict[str, str]:
        await stage.priorities(high=1000)
        for number in range(4):
            await stage.pod(f"low-{number}", cpu="3")
        await stage.pod("high", cpu="3", priorityClassName="high")
        await settle(60)
        await stage.node("n1")
        await settle(60)
        return {name: node for name, node in (await stage.where()).items() if node}

    assert play(story) == {"high": "n1"}


def test_of_equals_the_older_goes_first() -> None:
    async def story(stage: Stage) -> dict[str, str]:
        for name in ("zebra", "ape", "mule"):
            await stage.pod(name, cpu="3")
            await settle(5)
        await stage.node("n1")
        await settle()
        return {name: node for name, node in (await stage.where()).items() if node}

    assert play(story) == {"zebra": "n1"}


def test_other_schedulers_pods_and_gated_pods_are_left_alone() -> None:
    async def story(stage: Stage) -> None:
        await stage.node("n1")
        await stage.pod("theirs", schedulerName="another")
        await stage.pod("gated", schedulingGates=[{"name": "wait"}])
        await settle(30)

        assert await stage.where() == {"theirs": "", "gated": ""}
        assert (await stage.read("theirs")).status.conditions is None
        told = await stage.scheduled("gated")
        assert (told.status, told.reason) == ("False", "SchedulingGated")
        assert await stage.events("FailedScheduling") == []

        await stage.client.patch(PODS, "gated", {"spec": {"schedulingGates": None}}, namespace="default")
        await settle()
        assert (await stage.where())["gated"] == "n1"

    play(story)


def test_a_scheduler_of_another_name_takes_the_pods_that_ask_for_it() -> None:
    async def story(stage: Stage) -> dict[str, str]:
        await stage.node("n1")
        await stage.pod("mine", schedulerName="another")
        await stage.pod("theirs")
        await settle()
        return await stage.where()

    assert play(story, name="another") == {"mine": "n1", "theirs": ""}


def test_taints_cordons_and_selectors_keep_pods_away() -> None:
    async def story(stage: Stage) -> dict[str, str]:
        await stage.node("tainted", taints=[{"key": "gpu", "value": "yes", "effect": "NoSchedule"}])
        await stage.node("cordoned", unschedulable=True)
        await stage.node("open", labels={"disk": "ssd"})
        tolerates = [{"key": "gpu", "operator": "Exists"}]
        await stage.pod("plain")
        await stage.pod("picky", nodeSelector={"disk": "ssd"})
        await stage.pod("gpu", tolerations=tolerates, nodeSelector={HOSTNAME: "tainted"})
        await settle()
        return await stage.where()

    assert play(story) == {"plain": "open", "picky": "open", "gpu": "tainted"}


def test_preferred_nodes_and_soft_taints_decide_among_nodes_that_fit() -> None:
    async def story(stage: Stage) -> dict[str, str]:
        await stage.node("avoided", taints=[{"key": "old", "effect": "PreferNoSchedule"}])
        await stage.node("plain", cpu="8")
        await stage.node("preferred", labels={"disk": "ssd"}, cpu="3")
        term = {"matchExpressions": [{"key": "disk", "operator": "In", "values": ["ssd"]}]}
        wish = [{"weight": 50, "preference": term}]
        affinity = {"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": wish}}
        await stage.pod("wishing", affinity=affinity)
        await stage.pod("large", cpu="3500m")
        await stage.pod("larger", cpu="3900m")
        await settle()
        return await stage.where()

    # The avoided node would be emptier for the last one, and is taken only when nothing else is left.
    assert play(story) == {"wishing": "preferred", "large": "plain", "larger": "plain"}


def test_three_zones_are_kept_even() -> None:
    async def story(stage: Stage) -> dict[str, int]:
        for zone, nodes in (("a", 4), ("b", 2), ("c", 1)):
            for number in range(nodes):
                await stage.node(f"{zone}{number}", zone=zone, cpu="8")
        for number in range(18):
            rules = [spread(ZONE, "web")]
            await stage.pod(f"web-{number}", labels={"app": "web"}, topologySpreadConstraints=rules)
        await settle()
        return dict(await stage.zones())

    assert play(story) == {"a": 6, "b": 6, "c": 6}


def test_a_full_zone_holds_the_others_back() -> None:
    async def story(stage: Stage) -> tuple[dict[str, int], str]:
        for zone, cpu in (("a", "8"), ("b", "8"), ("c", "2")):
            await stage.node(f"n-{zone}", zone=zone, cpu=cpu)
        for number in range(12):
            rules = [spread(ZONE, "web")]
            await stage.pod(f"web-{number:02}", labels={"app": "web"}, topologySpreadConstraints=rules)
        await settle(60)
        return dict(await stage.zones()), (await stage.scheduled("web-11")).message or ""

    zones, message = play(story)
    assert zones == {"a": 3, "b": 3, "c": 2}
    assert message.startswith(
        "0/3 nodes are available: 1 Insufficient cpu, "
        "2 node(s) didn't match pod topology spread constraints. preemption:"
    )


def test_soft_spread_and_preferred_anti_affinity_even_out_without_forcing() -> None:
    async def story(stage: Stage) -> tuple[dict[str, int], int]:
        for zone in "abc":
            await stage.node(f"n-{zone}", zone=zone, cpu="40", pods="12")
        for number in range(9):
            rules = [spread(ZONE, "web", soft=True)]
            await stage.pod(f"web-{number}", labels={"app": "web"}, topologySpreadConstraints=rules, cpu="1m")
        await settle()
        even = dict(await stage.zones())
        wish = [{"weight": 100, "podAffinityTerm": near("lone")}]
        apart = {"podAntiAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": wish}}
        for number in range(4):
            await stage.pod(f"lone-{number}", labels={"app": "lone"}, affinity=apart, cpu="1m")
        await settle()
        where = await stage.where()
        return even, len({where[f"lone-{number}"] for number in range(4)})

    assert play(story, strategy=MOST_ALLOCATED) == ({"a": 3, "b": 3, "c": 3}, 3)


def test_affinity_brings_together_and_anti_affinity_keeps_apart() -> None:
    async def story(stage: Stage) -> tuple[set[str], int, list[str]]:
        for number in range(4):
            await stage.node(f"n{number}", zone="ab"[number % 2], cpu="20")
        together = {"podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [near("db", ZONE)]}}
        apart = {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [near("db")]}}
        for number in range(3):
            await stage.pod(f"web-{number}", labels={"app": "web"}, affinity=together)
        await settle()
        assert set((await stage.where()).values()) == {""}
        for number in range(5):
            await stage.pod(f"db-{number}", labels={"app": "db"}, affinity=apart | together)
        await settle()
        where = await stage.where()
        zone = {node: "ab"[int(node[1]) % 2] if node else "" for node in where.values()}
        dbs = [where[f"db-{number}"] for number in range(5)]
        webs = {zone[where[f"web-{number}"]] for number in range(3)}
        return webs, len({node for node in dbs if node}), sorted({zone[node] for node in dbs if node})

    webs, nodes, zones = play(story)
    assert nodes == 2  # the zone of the first has two nodes, one pod each
    assert webs == set(zones)


def test_host_ports_are_given_out_once_per_node() -> None:
    async def story(stage: Stage) -> list[str]:
        await stage.node("n1")
        await stage.node("n2")
        ports = {"ports": [{"containerPort": 80, "hostPort": 80}]}
        for number in range(3):
            await stage.pod(f"edge-{number}", container=ports, cpu="100m")
        await settle()
        return sorted((await stage.where()).values())

    assert play(story) == ["", "n1", "n2"]


def test_the_same_seed_gives_the_same_places() -> None:
    async def story(stage: Stage) -> dict[str, str]:
        for number in range(5):
            await stage.node(f"n{number}")
        for number in range(15):
            await stage.pod(f"web-{number}", cpu="100m")
        await settle()
        return await stage.where()

    assert play(story, seed=1) == play(story, seed=1)
    assert play(story, seed=1) != play(story, seed=2)
