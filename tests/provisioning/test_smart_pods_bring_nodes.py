"""Stories with the embedded Karpenter: an ask becomes a node, and nothing is left behind."""

import asyncio
from dataclasses import replace

import pytest

from karpool.cluster.market.launch_reasons import LaunchReason
from karpool.model.errors import Invalid
from karpool.model.karpenter.objects import CAPACITY_TYPE, NODEPOOL
from karpool.model.kubernetes.api_resources import NODECLAIMS, PODS, PRIORITYCLASSES
from karpool.model.kubernetes.node import INSTANCE_TYPE
from karpool.model.kubernetes.pod import Pod
from karpool.model.requirements import ValueSet
from karpool.provisioning.claims.claim_monitor import ClaimMonitor
from karpool.provisioning.claims.claim_progress import ClaimStage
from karpool.provisioning.claims.node_readiness import readiness
from karpool.provisioning.node_request import NodeCandidate, RequestPurpose, unit
from karpool.provisioning.placeholders.backend import RequestResult
from karpool.provisioning.placeholders.placeholder import Placeholder, PlaceholderState
from karpool.provisioning.placeholders.prerequisites import ensure_prerequisites
from karpool.provisioning.placeholders.smart_pod import SmartPodSettings
from karpool.provisioning.placeholders.smart_pod_backend import SmartPodBackend
from tests.fleet.karpenter.acting import GIB, Stage, pod
from tests.provisioning.acting import (
    ACCELERATED,
    GPU,
    SETTINGS,
    Desk,
    ask,
    followed,
    node_named,
    play,
    replacement,
    types_of,
)


def test_one_ask_brings_one_node_of_the_right_type_and_every_stage_is_told() -> None:
    async def story(stage: Stage, desk: Desk) -> None:
        await stage.pool("gpu", types=("accelerated",))
        start = stage.now
        assert await desk.pods.request(ask(), ACCELERATED) == RequestResult(created=(0,))

        await desk.reached(stage, PlaceholderState.THERE)
        found = desk.one()
        node = await node_named(stage, found.node)
        assert readiness(node, {"nvidia.com/gpu": 1}) is None
        assert types_of(await stage.nodes()) == ["accelerated"]
        progress = desk.monitor.progress(found.claim)
        assert progress is not None and progress.stage is ClaimStage.READY and progress.node == found.node
        # Launch 3 s, boot 20 s, ready 10 s, device plugin 15 s; objects carry whole seconds.
        assert progress.launched and progress.registered and progress.initialized
        assert progress.launched - progress.created == pytest.approx(3, abs=2)
        assert progress.registered - progress.launched == pytest.approx(20, abs=2)
        assert progress.initialized - progress.registered == pytest.approx(25, abs=2)
        assert progress.created - start < 5
        stages = [each.stage for each in desk.told if each.claim == found.claim]
        assert stages == [ClaimStage.CREATED, ClaimStage.REGISTERING, ClaimStage.READY]

    play(story)


def test_before_it_is_bound_the_claim_is_known_from_the_nomination() -> None:
    async def story(stage: Stage, desk: Desk) -> None:
        await stage.pool("gpu", types=("accelerated",))
        await desk.pods.request(ask(), ACCELERATED)

        await desk.reached(stage, PlaceholderState.COMING, seconds=20)
        assert desk.one().claim == (await stage.claims())[0].name
        assert desk.one().node == ""

    play(story)


def test_a_node_that_is_ready_without_its_devices_is_not_ready_for_us() -> None:
    async def story(stage: Stage, desk: Desk) -> None:
        stage.cloud.boot_badly(device_seconds=600)
        await stage.pool("gpu", types=("accelerated",))
        await desk.pods.request(ask(), ACCELERATED)

        async def kubelet_is_ready() -> bool:
            return any(node.is_ready for node in await stage.nodes())

        await stage.until(kubelet_is_ready, seconds=60)
        (node,) = await stage.nodes()
        assert readiness(node, {"nvidia.com/gpu": 1}).reason is LaunchReason.NODE_NOT_INITIALIZED
        assert desk.one().outlook is not PlaceholderState.THERE

    play(story)


def test_withdrawing_removes_the_pod_and_leaves_claim_and_node_alone() -> None:
    async def story(stage: Stage, desk: Desk) -> None:
        await stage.pool("gpu", types=("accelerated",), disruption={"consolidateAfter": "Never"})
        await desk.pods.request(ask(), ACCELERATED)

        await desk.reached(stage, PlaceholderState.THERE)
        found = desk.one()
        assert await desk.pods.withdraw(found) is False

        async def gone() -> bool:
            return not desk.pods.placeholders()

        await stage.until(gone, seconds=10)
        assert await desk.pods.withdraw(found) is True, "asking again finds nothing to do"
        assert len(await stage.claims()) == len(await stage.nodes()) == 1

    play(story)


def test_units_that_fit_together_share_a_node() -> None:
    """Four units of 1.5 CPU fit on one node of the pool; the autoscaler packs, we only say what is needed."""

    async def story(stage: Stage, desk: Desk) -> None:
        await stage.pool("general", types=("large",))
        wanted = replacement("large", units=4, resources={"cpu": 1500, "memory": GIB})
        await desk.pods.request(wanted, wanted.candidates[0])

        await desk.reached(stage, PlaceholderState.THERE, count=4)
        assert types_of(await stage.nodes()) == ["large"]
        assert {placeholder.index for placeholder in desk.pods.placeholders()} == {0, 1, 2, 3}

    play(story)


def test_a_replacement_brings_the_type_pool_and_capacity_type_that_were_asked_for() -> None:
    async def story(stage: Stage, desk: Desk) -> None:
        await stage.pool("general", kinds=("spot", "on-demand"))
        await stage.pool("other", weight=50)
        wanted = replacement("medium")
        await desk.pods.request(wanted, wanted.candidates[0])

        await desk.reached(stage, PlaceholderState.THERE)
        labels = (await node_named(stage, desk.one().node)).labels
        assert (labels[INSTANCE_TYPE], labels[NODEPOOL], labels[CAPACITY_TYPE]) == (
            "medium",
            "general",
            "on-demand",
        )

    play(story)


def test_units_that_must_not_meet_workers_get_a_node_of_their_own() -> None:
    async def story(stage: Stage, desk: Desk) -> None:
        await stage.pool("gpu", types=("accelerated",))
        await stage.admin.create(PODS, pod("worker", app="worker", cpu="100m"))
        await stage.all_run(1)
        await desk.pods.request(ask(avoid={"app": "worker"}), ACCELERATED)

        await desk.reached(stage, PlaceholderState.THERE)
        (worker,) = [each for each in await stage.all_pods() if each.name == "worker"]
        assert desk.one().node != worker.spec.node_name

    # The stage's simple scheduler and Karpenter ask the same kernel about affinity.
    play(story)


def test_only_the_units_asked_for_are_made_and_a_finished_one_does_not_come_back() -> None:
    async def story(stage: Stage, desk: Desk) -> None:
        wanted = ask(units=4)
        assert await desk.pods.request(wanted, ACCELERATED, (1, 3)) == RequestResult(created=(1, 3))
        assert await desk.pods.request(wanted, ACCELERATED, [3, 2]) == RequestResult(
            created=(2,), present=(3,)
        )
        names = sorted(placeholder.index for placeholder in await _placeholders(stage, desk, 3))
        assert names == [1, 2, 3]

    play(story)


async def _placeholders(stage: Stage, desk: Desk, count: int) -> list[Placeholder]:
    async def there() -> bool:
        return len(desk.pods.placeholders()) == count

    await stage.until(there, seconds=5)
    return list(desk.pods.placeholders())


def test_asking_twice_is_asking_once_even_when_two_ask_at_the_same_time() -> None:
    async def story(stage: Stage, desk: Desk) -> None:
        wanted = ask(units=20)
        results = await asyncio.gather(*(desk.pods.request(wanted, ACCELERATED) for _ in range(3)))
        assert sorted(index for each in results for index in each.created) == list(range(20))
        assert all(len(result.created) + len(result.present) == 20 for result in results)
        assert len(await stage.all_pods()) == 20

    play(story)


def test_another_epoch_has_other_names_so_that_old_and_new_never_mix() -> None:
    async def story(stage: Stage, desk: Desk) -> None:
        await desk.pods.request(ask(), ACCELERATED)
        await desk.pods.request(ask(epoch=2), ACCELERATED)
        found = await _placeholders(stage, desk, 2)
        assert sorted(each.epoch for each in found) == [1, 2]

    play(story)


def test_a_name_that_somebody_else_uses_is_refused_and_left_alone() -> None:
    async def story(stage: Stage, desk: Desk) -> None:
        await desk.pods.request(ask(), ACCELERATED)
        (mine,) = await _placeholders(stage, desk, 1)
        await desk.pods.withdraw(mine)
        theirs = pod(mine.key.name)
        theirs["metadata"]["namespace"] = SETTINGS.namespace
        await stage.admin.create(PODS, theirs)
        answer = await desk.pods.request(ask(units=2), ACCELERATED)
        assert answer.created == (1,)
        (refused,) = answer.refused.values()
        assert (
            0 in answer.refused and mine.key.name in refused.detail and "delete or rename" in refused.detail
        )
        assert await desk.pods.withdraw(mine) is True, "the uid is not theirs"
        assert mine.key.name in [each.name for each in await stage.all_pods()]

    play(story)


def test_a_refusal_of_the_api_server_is_an_answer_and_not_an_error() -> None:
    async def story(stage: Stage, desk: Desk) -> None:
        await stage.admin.delete(PRIORITYCLASSES, SETTINGS.priority_class)
        answer = await desk.pods.request(ask(units=2), ACCELERATED)
        assert list(answer.refused) == [0, 1]
        assert "PriorityClass" in answer.refused[0].detail
        assert await ensure_prerequisites(desk.client, SETTINGS) == []
        assert (await desk.pods.request(ask(units=2), ACCELERATED)).created == (0, 1)

    play(story)


def test_a_stock_out_is_told_from_other_ends_and_its_offerings_rest() -> None:
    async def story(stage: Stage, desk: Desk) -> None:
        rule = stage.cloud.stock_out()
        await stage.pool("gpu", types=("accelerated",))
        await desk.pods.request(ask(), ACCELERATED)

        async def failed() -> bool:
            return any(
                each.ending is LaunchReason.STOCK_OUT
                for each in map(desk.monitor.progress, _claims(desk))
                if each
            )

        await stage.until(failed, seconds=30)
        rule.end()
        out = desk.monitor.failures.stock_outs(stage.now)
        assert {each.instance_type for each in out} == {"accelerated"}
        await asyncio.sleep(181)
        assert desk.monitor.failures.stock_outs(stage.now) == ()

    play(story)


def _claims(desk: Desk) -> list[str]:
    return list(dict.fromkeys(each.claim for each in desk.told))


def test_who_starts_after_the_stock_out_learns_of_it_from_the_event_alone() -> None:
    async def story(stage: Stage, desk: Desk) -> None:
        stage.cloud.stock_out()
        await stage.pool("gpu", types=("accelerated",))
        await desk.pods.request(ask(), ACCELERATED)

        async def gone() -> bool:
            return bool(await stage.events("InsufficientCapacityError")) and not await stage.claims()

        await stage.until(gone, seconds=30)
        await asyncio.sleep(10)
        (claim, *_) = _claims(desk)
        late = ClaimMonitor(stage.cluster.clock)
        async with followed(stage.cluster.client("late"), late.watches):
            progress = late.progress(claim)
            assert progress is not None and progress.ending is LaunchReason.STOCK_OUT and progress.gone
            late.pools_seen(["gpu"])
            failing = late.failures.of_pool("gpu", stage.now)
            assert failing is not None, "without its claim the event is about the pool as a whole"

    play(story)


def test_a_claim_that_was_ready_and_is_deleted_is_no_failed_launch() -> None:
    async def story(stage: Stage, desk: Desk) -> None:
        await stage.pool("gpu", types=("accelerated",))
        await desk.pods.request(ask(), ACCELERATED)

        await desk.reached(stage, PlaceholderState.THERE)
        found = desk.one()
        await desk.pods.withdraw(found)
        await stage.admin.delete(NODECLAIMS, found.claim)

        async def gone() -> bool:
            progress = desk.monitor.progress(found.claim)
            return progress is not None and progress.gone

        await stage.until(gone, seconds=60)
        progress = desk.monitor.progress(found.claim)
        assert progress is not None and progress.ending is LaunchReason.REMOVED
        assert progress.stage is ClaimStage.READY, "as it was last seen"
        assert desk.monitor.failures.current(stage.now) == []

    play(story)


def test_a_machine_that_never_registers_ends_as_a_registration_timeout() -> None:
    async def story(stage: Stage, desk: Desk) -> None:
        stage.cloud.boot_badly(1, registers=False)
        await stage.pool("gpu", types=("accelerated",))
        await desk.pods.request(ask(), ACCELERATED)

        async def launched() -> bool:
            return bool(_claims(desk))

        await stage.until(launched, seconds=20)
        (claim,) = _claims(desk)

        async def ended() -> bool:
            progress = desk.monitor.progress(claim)
            return progress is not None and progress.gone

        await stage.until(ended, seconds=930)
        progress = desk.monitor.progress(claim)
        assert progress is not None and progress.ending is LaunchReason.REGISTRATION_TIMEOUT
        assert progress.stage is ClaimStage.FAILED
        assert desk.monitor.failures.of_pool("gpu", stage.now) is not None

    play(story)


def test_a_claim_deleted_by_hand_before_its_node_came_is_lost_and_says_so_after_a_moment() -> None:
    async def story(stage: Stage, desk: Desk) -> None:
        await stage.pool("gpu", types=("accelerated",))
        await desk.pods.request(ask(), ACCELERATED)

        async def launched() -> bool:
            return bool(await stage.claims())

        await stage.until(launched, seconds=20)
        (claim,) = await stage.claims()
        await desk.pods.withdraw((await _placeholders(stage, desk, 1))[0])
        await stage.admin.delete(NODECLAIMS, claim.name)
        await asyncio.sleep(1)
        progress = desk.monitor.progress(claim.name)
        assert progress is not None and progress.stage is ClaimStage.FAILED and progress.ending is None
        await asyncio.sleep(10)
        progress = desk.monitor.progress(claim.name)
        assert progress is not None and progress.ending is LaunchReason.CLAIM_LOST

    play(story)


def test_what_no_pool_can_serve_is_refused_in_the_autoscalers_own_words() -> None:
    async def story(stage: Stage, desk: Desk) -> None:
        await stage.pool("gpu", types=("accelerated",))
        greedy = ask(resources={**GPU, "nvidia.com/gpu": 8})
        await desk.pods.request(greedy, ACCELERATED)

        await desk.reached(stage, PlaceholderState.REFUSED, seconds=30)
        assert desk.one().message.startswith("Failed to schedule pod, ")
        assert await stage.claims() == []

    play(story)


def test_a_scheduler_that_says_nothing_is_spoken_for() -> None:
    silent = replace(SETTINGS, scheduler_name="nobody", marks_unschedulable=True)

    async def story(stage: Stage, desk: Desk) -> None:
        stage.cluster.components.kill("scheduler")
        await stage.pool("gpu", types=("accelerated",))
        await desk.pods.request(ask(), ACCELERATED)
        answer = await desk.pods.request(ask(), ACCELERATED)
        assert answer.present == (0,)

        async def claimed() -> bool:
            return len(await stage.claims()) == 1

        await stage.until(claimed, seconds=20)

    play(story, settings=silent)


def test_nothing_in_the_cluster_can_be_withdrawn_that_is_not_a_smart_pod() -> None:
    async def story(stage: Stage, desk: Desk) -> None:
        await desk.pods.request(ask(), ACCELERATED)
        (mine,) = await _placeholders(stage, desk, 1)
        for change in ({"resource": NODECLAIMS}, {"key": mine.key._replace(namespace="default")}):
            with pytest.raises(ValueError, match="is not a smart pod"):
                await desk.pods.withdraw(replace(mine, **change))

    play(story)


def test_the_groundwork_reports_what_it_must_not_change() -> None:
    async def story(stage: Stage, desk: Desk) -> None:
        other = SmartPodSettings(priority_class="eager", namespace="elsewhere")
        await stage.admin.create(
            PRIORITYCLASSES,
            {"metadata": {"name": "eager"}, "value": -5000, "preemptionPolicy": "PreemptLowerPriority"},
        )
        (problem,) = await ensure_prerequisites(desk.client, other)
        assert "eager" in problem and "Never" in problem
        assert await ensure_prerequisites(desk.client, SETTINGS) == []

    play(story)


def test_the_smart_pod_gives_way_to_everybody() -> None:
    async def story(stage: Stage, desk: Desk) -> None:
        await desk.pods.request(ask(), ACCELERATED)
        (found,) = (await stage.admin.list(PODS, into=Pod)).items
        assert found.spec.priority == SETTINGS.priority < -1000
        assert found.spec.preemption_policy == "Never"

    play(story)


def test_candidates_that_contradict_the_ask_make_nothing() -> None:
    async def story(stage: Stage, desk: Desk) -> None:
        wanted = ask(requirements={INSTANCE_TYPE: ValueSet(frozenset(("small",)))})
        with pytest.raises(Invalid, match="no value in common"):
            await desk.pods.request(wanted, ACCELERATED)
        assert await stage.all_pods() == []
        with pytest.raises(Invalid, match="negative"):
            unit({"cpu": -1})
        assert NodeCandidate().constraints == {}

    play(story)


def test_controllers_that_share_a_namespace_do_not_see_each_others_pods() -> None:
    async def story(stage: Stage, desk: Desk) -> None:
        move = replacement("small")
        await desk.pods.request(ask(), ACCELERATED)
        await desk.pods.request(move, move.candidates[0])
        await _placeholders(stage, desk, 2)
        scaler = SmartPodBackend(desk.client, SETTINGS, desk.monitor, RequestPurpose.SCALE_UP)
        async with followed(desk.client, scaler.watches):
            assert [placeholder.request for placeholder in scaler.placeholders()] == ["scaleup-1"]

    play(story)


def test_several_pods_of_one_claim_are_known_together() -> None:
    async def story(stage: Stage, desk: Desk) -> None:
        await stage.pool("general", types=("large",))
        wanted = replacement("large", units=3)
        await desk.pods.request(wanted, wanted.candidates[0])
        await desk.reached(stage, PlaceholderState.COMING, count=3, seconds=30)
        (claim,) = await stage.claims()
        assert {(each.index, each.claim) for each in desk.pods.placeholders()} == {
            (index, claim.name) for index in range(3)
        }
        assert [each.request for each in desk.pods.placeholders_of("move-1")] == ["move-1"] * 3

    play(story)
