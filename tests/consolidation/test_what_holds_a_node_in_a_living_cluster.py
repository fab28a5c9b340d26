"""A consolidator at work among buffers, overlays and bad objects: nothing that they hold is deleted."""

import asyncio
from typing import Any

from karpool.consolidation.execution.record import MovePhase
from karpool.model.karpenter.objects import DO_NOT_DISRUPT
from karpool.model.kubernetes.api_resources import (
    CAPACITYBUFFERS_BETA,
    DEPLOYMENTS,
    NODEOVERLAYS,
    NODEPOOLS,
    NODES,
    PDBS,
    PODS,
    PODTEMPLATES,
)
from tests.consolidation.executing import FREELY, Play, play
from tests.fleet.living import deployment

QUIET_SECONDS = 400  # of nothing: as long as a move from its plan to its end, several times


async def spare_node(p: Play) -> None:
    """A node with a pod that fills it, and an empty one."""
    await p.stage.pool("general", types=("small",), disruption=FREELY)
    await p.deploy("web", 2, cpu="1500m")
    await p.running(2)
    assert len(await p.stage.nodes()) == 2
    await p.scale("web", 1)
    await p.running(1)


async def keep_room(p: Play, **spec: Any) -> None:
    container = {"name": "c", "image": "i", "resources": {"requests": {"cpu": "1"}}}
    template = {
        "metadata": {"name": "t", "namespace": "default"},
        "template": {"metadata": {"labels": {"app": "kept"}}, "spec": {"containers": [container]}},
    }
    await p.stage.admin.create(PODTEMPLATES, template)
    spec = {"podTemplateRef": {"name": "t"}, "replicas": 1, **spec}
    buffer = {"metadata": {"name": "headroom", "namespace": "default"}, "spec": spec}
    await p.stage.admin.create(CAPACITYBUFFERS_BETA, buffer)


async def overlay(p: Play, name: str, **spec: Any) -> None:
    large = [{"key": "node.kubernetes.io/instance-type", "operator": "In", "values": ["large"]}]
    raw = {"metadata": {"name": name}, "spec": {"requirements": large, **spec}}
    await p.stage.admin.create(NODEOVERLAYS, raw)


async def reasons(p: Play) -> set[str]:
    plan = p.made[-1].plan
    assert plan is not None
    return {str(why.reason) for kept in plan.held for why in kept.why}


def test_a_node_whose_room_a_buffer_keeps_stays_until_the_buffer_goes() -> None:
    async def story(p: Play) -> None:
        await spare_node(p)
        await keep_room(p)
        p.start()
        await asyncio.sleep(QUIET_SECONDS)
        assert len(await p.stage.nodes()) == 2
        assert await p.records() == []
        assert "buffer_pods" in await reasons(p)
        await p.stage.admin.delete(CAPACITYBUFFERS_BETA, "headroom", namespace="default")
        (record,) = await p.over()
        assert record.phase is MovePhase.DONE
        assert len(await p.stage.nodes()) == 1

    play(story)


def test_a_buffer_without_its_template_holds_until_it_goes() -> None:
    async def story(p: Play) -> None:
        await spare_node(p)
        await keep_room(p, podTemplateRef={"name": "gone"})
        p.start()
        await asyncio.sleep(QUIET_SECONDS)
        assert len(await p.stage.nodes()) == 2
        assert await p.records() == []
        assert "buffer_unreadable" in await reasons(p)
        await p.stage.admin.delete(CAPACITYBUFFERS_BETA, "headroom", namespace="default")
        (record,) = await p.over()
        assert record.phase is MovePhase.DONE

    play(story)


def test_a_node_at_a_hundredth_of_its_price_is_not_replaced_by_a_smaller_one() -> None:
    async def story(p: Play) -> None:
        await p.too_large()
        await overlay(p, "savings-plan", priceAdjustment="-99%")
        p.start()
        await asyncio.sleep(QUIET_SECONDS)
        assert await p.types() == ["large"]
        assert await p.records() == []
        await p.stage.admin.delete(NODEOVERLAYS, "savings-plan")
        (record,) = await p.over()
        assert record.phase is MovePhase.DONE
        assert await p.types() == ["small"]

    play(story)


def test_overlays_that_contradict_each_other_close_the_pool_and_nothing_is_deleted() -> None:
    async def story(p: Play) -> None:
        await p.too_large()
        await overlay(p, "one", price="1.0")
        await overlay(p, "two", price="2.0")
        p.start()
        await asyncio.sleep(QUIET_SECONDS)
        assert await p.types() == ["large"]
        assert await p.records() == []
        assert await reasons(p) == {"nodepool_unreadable"}
        (said,) = {event["message"] for event in await p.stage.events("DisruptionBlocked")}
        assert "NodeOverlays one and two have the same weight" in said

    play(story)


def test_a_threshold_that_cannot_be_used_closes_its_pool_and_nothing_is_deleted() -> None:
    async def story(p: Play) -> None:
        await spare_node(p)
        wrong = {"metadata": {"annotations": {"karpool.dev/consolidation-threshold": "7"}}}
        await p.stage.admin.patch(NODEPOOLS, "general", wrong)
        p.start()
        await asyncio.sleep(QUIET_SECONDS)
        assert len(await p.stage.nodes()) == 2
        assert await reasons(p) == {"nodepool_unreadable"}

    play(story)


def test_the_last_node_of_a_zone_is_not_drained_into_a_deadlock() -> None:
    """The pods fit on the other node once the zone is gone; but while its node drains, the zone counts, the
    first pod that goes finds no place, and its disruption budget keeps the second."""

    async def story(p: Play) -> None:
        spread = {
            "maxSkew": 1,
            "topologyKey": "topology.kubernetes.io/zone",
            "whenUnsatisfiable": "DoNotSchedule",
            "labelSelector": {"matchLabels": {"app": "web"}},
        }
        await p.stage.pool("general", types=("small",), disruption=FREELY)
        await p.deploy("web", 4, cpu="450m", topologySpreadConstraints=[spread])
        await p.running(4)
        assert len(await p.stage.nodes()) == 2
        await p.stage.budget("web", maxUnavailable=1)
        p.start()
        await asyncio.sleep(QUIET_SECONDS)
        assert await p.records() == []
        assert len(await p.stage.running()) == 4
        await p.stage.admin.delete(PDBS, "web", namespace="default")
        (record,) = await p.over()
        assert record.phase is MovePhase.DONE
        await p.running(4)
        assert len(await p.stage.nodes()) == 1

    play(story)


async def lonely_pod(p: Play, **template: Any) -> str:
    """A pod that would fit on the other node has one for itself; the name of its node."""
    await p.stage.pool("general", types=("small",), disruption=FREELY)
    await p.deploy("web", 2, cpu="1100m")
    await p.running(2)
    raw = deployment("lonely", 1, cpu="400m")
    raw["spec"]["template"]["metadata"] |= template
    await p.stage.admin.create(DEPLOYMENTS, raw)
    await p.running(3)
    (pod,) = [pod for pod in await p.stage.all_pods() if pod.labels["app"] == "lonely"]
    on_node = [other.name for other in await p.stage.all_pods() if other.spec.node_name == pod.spec.node_name]
    (web,) = [name for name in on_node if name != pod.name]
    cheap = {"metadata": {"annotations": {"controller.kubernetes.io/pod-deletion-cost": "-10"}}}
    await p.stage.admin.patch(PODS, web, cheap, namespace="default")
    await p.scale("web", 1)
    await p.running(2)
    return pod.spec.node_name


def test_a_pod_that_asks_for_time_has_it_and_no_more() -> None:
    async def story(p: Play) -> None:
        held = await lonely_pod(p, annotations={DO_NOT_DISRUPT: "20m"})
        p.start()
        await asyncio.sleep(QUIET_SECONDS)
        assert held in [node.name for node in await p.stage.nodes()]
        assert "pod_do_not_disrupt" in await reasons(p)
        await asyncio.sleep(1200)
        records = await p.over()
        assert [record.phase for record in records] == [MovePhase.DONE]
        await p.running(2)
        assert len(await p.stage.nodes()) == 1

    play(story)


def test_a_node_that_may_be_repaired_is_left_alone_until_it_is_well() -> None:
    async def story(p: Play) -> None:
        held = await lonely_pod(p)

        async def say(status: str) -> None:
            node = await p.stage.admin.get(NODES, held)
            conditions = [each for each in node["status"]["conditions"] if each["type"] != "KernelReady"]
            conditions.append({"type": "KernelReady", "status": status})
            patch = {"status": {"conditions": conditions}}
            await p.stage.admin.patch(NODES, held, patch, subresource="status")

        await say("False")
        p.start()
        await asyncio.sleep(QUIET_SECONDS)
        assert len(await p.stage.nodes()) == 2
        assert await p.records() == [], "neither goes: the sick one stays, and receives no pods"
        assert "unhealthy" in await reasons(p)
        await say("True")
        (record,) = await p.over()
        assert record.phase is MovePhase.DONE
        assert len(await p.stage.nodes()) == 1

    play(story)
