"""Log lines are JSON objects that say when, how bad, where, what, and which decision they belong to."""

import asyncio
import json
from collections.abc import Iterator

import grpc
import pytest
import structlog

from karpool.cli import logging
from karpool.kube.decision_id import HEADER, current, decision_scope
from karpool.wire.requests import ESTIMATOR
from tests.estimator.serving import World, serving
from tests.scheduler.acting import Stage, binding, play

log = structlog.get_logger("karpool.somewhere")


@pytest.fixture(autouse=True)
def everything_as_json() -> Iterator[None]:
    before = structlog.get_config()
    logging.configure(4, as_json=True)
    yield
    structlog.configure(**before)


def lines(capsys: pytest.CaptureFixture[str]) -> list[dict[str, object]]:
    return [json.loads(line) for line in capsys.readouterr().err.splitlines()]


def test_a_line_has_the_keys_that_people_search_for(capsys: pytest.CaptureFixture[str]) -> None:
    log.warning("two\nlines", object="default/web", reason='"quoted"')

    (line,) = lines(capsys)
    assert line.pop("ts", "").endswith("Z")  # type: ignore[union-attr]
    assert line == {
        "level": "warning",
        "logger": "karpool.somewhere",
        "msg": "two\nlines",
        "object": "default/web",
        "reason": '"quoted"',
    }


def test_an_error_is_one_line_too(capsys: pytest.CaptureFixture[str]) -> None:
    try:
        raise ValueError("broken")
    except ValueError:
        log.exception("it raised")

    (line,) = lines(capsys)
    assert line["exception"][0]["exc_value"] == "broken"  # type: ignore[index]


async def test_tasks_of_a_decision_carry_its_id_and_others_do_not(capsys: pytest.CaptureFixture[str]) -> None:
    async def said(what: str) -> None:
        await asyncio.sleep(0)
        log.info(what)

    with decision_scope() as first:
        inside = asyncio.create_task(said("inside"))
        with decision_scope("move-7"):
            await said("another")
        await inside
    await said("outside")

    assert {line["msg"]: line.get("decision") for line in lines(capsys)} == {
        "inside": first,
        "another": "move-7",
        "outside": None,
    }
    assert current() == ""


def test_every_line_of_a_placement_carries_one_id_and_every_placement_its_own(
    capsys: pytest.CaptureFixture[str],
) -> None:
    async def story(stage: Stage) -> None:
        await stage.join("member", cpu=10)
        await stage.create(binding("web"), binding("shop"), binding("far", replicas=100))
        async with stage.scheduling():
            await stage.until_placed("web", "shop")
            await stage.until_said("far", "Unschedulable")

    play(story)

    said = [
        line for line in lines(capsys) if str(line["logger"]) == "karpool.scheduler.controller.reconciler"
    ]
    ids: dict[object, set[object]] = {}
    for line in said:
        ids.setdefault(line["binding"], set()).add(line["decision"])
    assert len(ids) == 3 and all(found for found in ids.values())
    assert len(set.union(*ids.values())) == sum(map(len, ids.values())), "an id of two bindings"


async def test_an_estimator_names_the_decision_that_a_question_belongs_to(
    capsys: pytest.CaptureFixture[str],
) -> None:
    async with serving(World().transport) as estimator:
        call = estimator.channel.unary_unary(f"/{ESTIMATOR}/MaxAvailableReplicas")
        about = (("object", "Deployment/web"), (HEADER, "7f-3"), ("authorization", "canary"))
        with pytest.raises(grpc.RpcError):
            await call(b"\xff\xff", timeout=10, metadata=about)

    (line,) = (line for line in lines(capsys) if line["msg"] == "request refused")
    assert (line["object"], line["decision"]) == ("Deployment/web", "7f-3")
    assert "canary" not in str(line)
