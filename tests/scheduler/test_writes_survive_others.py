"""What the scheduler does when the API server says no, says nothing, or others write at the same time."""

import asyncio

import pytest

from karpool.kube.errors import (
    ApiUnreachable,
    Conflict,
    Denied,
    NotFound,
    Rejected,
    ServerFault,
    Throttled,
)
from karpool.model.karmada.binding import read_binding
from karpool.model.kubernetes.api_resources import NAMESPACES, RESOURCEBINDINGS
from karpool.scheduler.controller.binding_writer import (
    STATUS_TRIES,
    BindingWriter,
    ScheduledCondition,
    WriteOutcome,
)
from karpool.scheduler.cycle.decision import ScheduleReason
from tests.scheduler.acting import binding, condition, play, targets


@pytest.mark.parametrize("status", [409, 500, 503, 429, 0], ids=["conflict", "500", "503", "429", "silence"])
def test_a_write_that_fails_is_made_good(status):
    async def story(stage):
        await stage.join("m1", 10)
        stage.control.faults.fail("scheduler", status=status, method="PATCH", times=3)
        async with stage.scheduling():
            await stage.create(binding("web", 4), binding("other", 6))
            await stage.until_placed("web", "other", seconds=120)
            found = await stage.get("web")
            return found, await stage.bindings()

    found, bindings = play(story)
    assert found["status"]["schedulerObservedGeneration"] == found["metadata"]["generation"]
    assert sum(sum(targets(each).values()) for each in bindings) == 10


RESULT, STATUS = r"bindings/[^/]+$", r"bindings/[^/]+/status$"


@pytest.mark.parametrize("write", [RESULT, STATUS], ids=["result", "status"])
@pytest.mark.parametrize("failure", [403, 409, 422, 500, 503, "no answer", "answer lost", "hangs"])
def test_whichever_write_fails_everybody_is_placed_once_and_nothing_stays_promised(write, failure):
    """Before it took effect, after, or nobody knows: ten replicas where there is room for ten."""

    async def story(stage):
        await stage.join("m1", 10)
        faults, which = stage.control.faults, {"method": "PATCH", "path": write, "times": 3}
        match failure:
            case "answer lost":
                faults.lose_answers("scheduler", **which)
            case "hangs":
                hanging = faults.hang("scheduler", **which)
                asyncio.get_running_loop().call_later(60, hanging.end)
            case _:
                faults.fail("scheduler", status=0 if failure == "no answer" else failure, **which)
        async with stage.scheduling() as scheduler:
            await stage.create(binding("web", 4), binding("other", 6))
            await stage.until_placed("web", "other", seconds=300)
            placed = [targets(placed) for placed in await stage.bindings()]
            promised = sum(promise.replicas for promise in scheduler.view.ledger.promises())
            return placed, promised, condition(await stage.get("web"))

    placed, promised, said = play(story)
    assert sorted(sum(target.values()) for target in placed) == [4, 6]
    assert promised <= 10 and said[:2] == ("True", "Success")


def test_what_others_write_at_the_same_time_is_kept():
    async def story(stage):
        await stage.join("m1", 10)
        # Long enough between reading and writing for somebody else to come in.
        stage.control.faults.delay("scheduler", method="PATCH", seconds=2.0, times=2)
        async with stage.scheduling():
            await stage.create(binding("web", 4))
            await asyncio.sleep(1)
            fully = {
                "type": "FullyApplied",
                "status": "False",
                "reason": "x",
                "message": "",
                "lastTransitionTime": "2026-01-01T00:00:00Z",
            }
            await stage.patch("web", {"status": {"conditions": [fully]}}, subresource="status")
            await stage.patch("web", {"spec": {"replicas": 6}})
            await stage.until_placed("web", seconds=120)
            return await stage.get("web")

    found = play(story)
    assert targets(found) == {"m1": 6}
    assert {each["type"] for each in found["status"]["conditions"]} == {"FullyApplied", "Scheduled"}


def test_an_evicted_cluster_is_not_put_back_by_a_stale_decision():
    async def story(stage):
        await stage.join("m1", 10)
        await stage.join("m2", 10)
        async with stage.scheduling():
            await stage.create(binding("web", 4))
            await stage.until_placed("web")
            stage.control.faults.delay("scheduler", method="PATCH", seconds=3.0, times=1)
            await stage.patch("web", {"spec": {"replicas": 6}})
            await asyncio.sleep(1)
            gone = [{"name": "m2", "replicas": 2}]
            task = [{"fromCluster": "m1", "reason": "TaintUntolerated", "producer": "test"}]
            await stage.patch("web", {"spec": {"clusters": gone, "gracefulEvictionTasks": task}})
            await stage.until(lambda: _all_in(stage, "web", {"m2": 6}), seconds=60)

    play(story)


async def _all_in(stage, name, wanted):
    return await stage.result(name) == wanted


def test_a_quota_that_refuses_is_said_and_tried_again():
    class Refusing(BindingWriter):
        left = 2

        async def _sorted(self, what, key, patch, *, subresource=""):
            if not subresource and Refusing.left:
                Refusing.left -= 1
                error = Denied("PATCH", 403, reason="QuotaExceeded", message="exceeded quota: team-a")
                return self._denied(what, error)
            return await super()._sorted(what, key, patch, subresource=subresource)

    async def story(stage):
        await stage.join("m1", 10)
        client = stage.control.client("scheduler")
        async with stage.scheduling() as scheduler:
            scheduler._placer._writer = Refusing(client)
            await stage.create(binding("web", 4))
            await stage.until_said("web", "QuotaExceeded")
            said = condition(await stage.get("web"))
            promised = list(scheduler.view.ledger.promises())
            await stage.until_placed("web", seconds=30)
            return said, promised

    said, promised = play(story)
    assert said == ("False", "QuotaExceeded", "exceeded quota: team-a")
    assert promised == []


@pytest.mark.parametrize(
    ("error", "fate"),
    [
        pytest.param(
            Denied("PATCH", 403, message="namespace x is being terminated"),
            WriteOutcome.GONE,
            id="terminating",
        ),
        pytest.param(Denied("PATCH", 403, reason="QuotaExceeded"), WriteOutcome.REFUSED, id="quota"),
        pytest.param(Denied("PATCH", 403, reason="Forbidden"), WriteOutcome.FAILED, id="forbidden"),
        pytest.param(NotFound("PATCH", 404), WriteOutcome.GONE, id="gone"),
        pytest.param(Rejected("PATCH", 422, reason="Invalid"), WriteOutcome.FAILED, id="invalid"),
        pytest.param(Throttled("PATCH", 429), WriteOutcome.UNKNOWN, id="throttled"),
        pytest.param(ServerFault("PATCH", 500), WriteOutcome.UNKNOWN, id="500"),
        pytest.param(ApiUnreachable("reset", sent=False), WriteOutcome.FAILED, id="reset before"),
        pytest.param(ApiUnreachable("no answer", sent=True), WriteOutcome.UNKNOWN, id="no answer"),
        pytest.param(Conflict("PATCH", 409), WriteOutcome.CONFLICT, id="conflict"),
    ],
)
def test_every_answer_says_what_to_do_next(error, fate):
    async def story(stage):
        await stage.create(binding("web"))
        found = read_binding(await stage.get("web"))
        client = stage.control.client("scheduler")

        async def refuse(*args, **kwargs):
            raise error

        client.patch = refuse
        patch = {"metadata": {"resourceVersion": found.resource_version}}
        return (await BindingWriter(client).result(found, patch)).outcome

    assert play(story) is fate


def test_a_namespace_that_goes_takes_its_bindings_along():
    async def story(stage):
        await stage.join("m1", 4)
        await stage.admin.create(NAMESPACES, {"metadata": {"name": "team"}})
        async with stage.scheduling() as scheduler:
            await stage.create(binding("web", 4, namespace="team"))
            await stage.until(lambda: _is_placed(stage, "web", "team"))
            await stage.admin.delete(NAMESPACES, "team")
            await stage.admin.delete(RESOURCEBINDINGS, "web-deployment", namespace="team")
            await asyncio.sleep(5)
            return list(scheduler.view.ledger.promises()), scheduler.queue.sizes()

    promised, sizes = play(story)
    assert promised == []
    assert sizes == {"active": 0, "backoff": 0, "unschedulable": 0}


async def _is_placed(stage, name, namespace):
    return condition(await stage.get(name, namespace))[0] == "True"


@pytest.mark.parametrize("conflicts", [1, STATUS_TRIES - 1, STATUS_TRIES])
def test_a_status_is_written_over_the_version_that_came_in_between(conflicts):
    """Within one write: the second try names the version that the first one lost to."""
    said = ScheduledCondition(ScheduleReason.SUCCESS, "all placed")

    async def story(stage):
        await stage.create(binding("web"))
        found = read_binding(await stage.get("web"))
        client = stage.control.client("scheduler")
        patch, tries = client.patch, 0

        async def overtaken(*args, **kwargs):
            nonlocal tries
            tries += 1
            if tries <= conflicts:
                note = {"metadata": {"annotations": {"note": str(tries)}}}
                await stage.patch("web", note)
            return await patch(*args, **kwargs)

        client.patch = overtaken
        return await BindingWriter(client).status(found, said), tries, await stage.get("web")

    written, tries, after = play(story)
    assert after["metadata"]["annotations"]["note"] == str(conflicts)
    if conflicts < STATUS_TRIES:
        assert (written.outcome, tries) == (WriteOutcome.WRITTEN, conflicts + 1)
        assert condition(after) == ("True", "Success", "all placed")
    else:
        assert (written.outcome, tries) == (WriteOutcome.CONFLICT, STATUS_TRIES)
