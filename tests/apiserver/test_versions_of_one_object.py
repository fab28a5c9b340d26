"""Events and autoscalers are one object in every version they are served in."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from karpool_fleet.apiserver.kinds.conversion import converted
from tests.apiserver.serving import Client

CORE = "/api/v1/namespaces/default/events"
NEW = "/apis/events.k8s.io/v1/namespaces/default/events"
OLD_SCALERS = "/apis/autoscaling/v1/namespaces/default/horizontalpodautoscalers"
NEW_SCALERS = "/apis/autoscaling/v2/namespaces/default/horizontalpodautoscalers"


def new_event(name: str, **more: Any) -> dict[str, Any]:
    return {
        "apiVersion": "events.k8s.io/v1",
        "kind": "Event",
        "metadata": {"name": name, "namespace": "default"},
        "eventTime": "2026-01-01T00:00:00.000000Z",
        "reportingController": "tests",
        "reportingInstance": "one",
        "action": "Testing",
        "reason": "Tested",
        "regarding": {"kind": "Pod", "namespace": "default", "name": "web"},
        "note": "it was tested",
        "type": "Normal",
        **more,
    }


async def test_an_event_written_in_one_group_is_read_in_the_other(client: Client) -> None:
    await client.create(NEW, new_event("a"))

    seen = await client.get(f"{CORE}/a")
    same = await client.get(f"{NEW}/a")

    assert seen["apiVersion"] == "v1"
    assert (seen["message"], seen["involvedObject"]["name"]) == ("it was tested", "web")
    assert seen["reportingComponent"] == "tests"
    assert same["note"] == "it was tested"
    assert same["apiVersion"] == "events.k8s.io/v1"


async def test_fields_are_selected_by_the_names_of_either_group(client: Client) -> None:
    await client.create(NEW, new_event("a"))
    await client.create(NEW, new_event("b", regarding={"kind": "Node", "name": "n1"}))

    old = await client.get(CORE, fieldSelector="involvedObject.name=web")
    new = await client.get(NEW, fieldSelector="regarding.kind=Node,reportingController=tests")

    assert [item["metadata"]["name"] for item in old["items"]] == ["a"]
    assert [item["regarding"]["name"] for item in new["items"]] == ["n1"]


async def test_a_patch_speaks_the_words_of_its_group(client: Client) -> None:
    await client.create(NEW, new_event("a"))

    await client.merge(f"{NEW}/a", {"note": "again"})
    await client.merge(f"{CORE}/a", {"count": 2})

    seen = await client.get(f"{NEW}/a")
    assert (seen["note"], seen["deprecatedCount"]) == ("again", 2)


def scaler(**spec: Any) -> dict[str, Any]:
    target = {"apiVersion": "apps/v1", "kind": "Deployment", "name": "web"}
    return {"metadata": {"name": "web"}, "spec": {"scaleTargetRef": target, "maxReplicas": 3, **spec}}


def metric(name: str, percent: int) -> dict[str, Any]:
    target = {"type": "Utilization", "averageUtilization": percent}
    return {"type": "Resource", "resource": {"name": name, "target": target}}


async def test_an_old_autoscaler_is_shown_with_metrics(client: Client) -> None:
    await client.create(OLD_SCALERS, scaler(targetCPUUtilizationPercentage=70))

    seen = await client.get(f"{NEW_SCALERS}/web")

    assert seen["spec"]["metrics"] == [metric("cpu", 70)]
    assert "targetCPUUtilizationPercentage" not in seen["spec"]


async def test_reading_the_old_version_and_writing_it_back_loses_nothing(client: Client) -> None:
    metrics = [metric("memory", 50), metric("cpu", 80)]
    behavior = {"scaleDown": {"stabilizationWindowSeconds": 60}}
    await client.create(NEW_SCALERS, scaler(metrics=metrics, behavior=behavior))

    old = await client.get(f"{OLD_SCALERS}/web")
    assert old["spec"]["targetCPUUtilizationPercentage"] == 80
    old["spec"]["maxReplicas"] = 9
    await client.update(f"{OLD_SCALERS}/web", old)

    seen = await client.get(f"{NEW_SCALERS}/web")
    assert seen["spec"]["maxReplicas"] == 9
    assert seen["spec"]["behavior"] == behavior
    assert sorted(item["resource"]["name"] for item in seen["spec"]["metrics"]) == ["cpu", "memory"]


@pytest.mark.parametrize("text", ["", "{", "[1", '"x"', "[" * 100_000])
def test_an_annotation_somebody_else_wrote_does_no_harm(text: str) -> None:
    obj = {
        "apiVersion": "autoscaling/v1",
        "kind": "HorizontalPodAutoscaler",
        "metadata": {"annotations": {"autoscaling.alpha.kubernetes.io/metrics": text}},
        "spec": {"maxReplicas": 1},
    }

    assert converted(obj, "autoscaling/v2")["spec"] == {"maxReplicas": 1}


@given(
    st.dictionaries(
        st.sampled_from(
            ["regarding", "note", "reportingController", "deprecatedCount", "series", "reason", "type"]
        ),
        st.integers() | st.text(max_size=3),
    )
)
def test_events_survive_there_and_back(fields: dict[str, Any]) -> None:
    event = {"apiVersion": "events.k8s.io/v1", "kind": "Event", "metadata": {}, **fields}

    there = converted(dict(event), "v1")

    assert converted(there, "events.k8s.io/v1") == event
