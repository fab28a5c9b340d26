"""Bindings that nobody can place as written are told so, and the others go on."""

import pytest

from karpool.model.kubernetes.api_resources import CLUSTERS, CRDS
from tests.scheduler.acting import DYNAMIC, binding, play


def weights(*values):
    rules = [{"targetCluster": {"clusterNames": ["m1"]}, "weight": value} for value in values]
    return {
        "replicaSchedulingType": "Divided",
        "replicaDivisionPreference": "Weighted",
        "weightPreference": {"staticWeightList": rules},
    }


@pytest.mark.parametrize(
    ("bad", "said"),
    [
        pytest.param(
            binding(
                "bad",
                placement={
                    "clusterAffinity": {
                        "labelSelector": {"matchExpressions": [{"key": "a", "operator": "Near"}]}
                    }
                },
            ),
            "spec.placement.clusterAffinity.labelSelector",
            id="malformed selector",
        ),
        pytest.param(binding("bad", -3), "spec.replicas: -3: must not be negative", id="negative replicas"),
        pytest.param(binding("bad", how=weights(0, 0)), "staticWeightList[0].weight", id="weights of zero"),
        pytest.param(
            binding("bad", cpu="many"), "spec.replicaRequirements.resourceRequest", id="no quantity"
        ),
        pytest.param(
            binding(
                "bad",
                placement={
                    "spreadConstraints": [{"spreadByField": "cluster", "minGroups": 3, "maxGroups": 2}]
                },
            ),
            "spreadConstraints[0].maxGroups: 2: is less than minGroups 3",
            id="impossible spread",
        ),
        pytest.param(binding("bad", 2**31 - 1), "are not enough to schedule", id="huge replicas"),
        pytest.param(
            binding("bad", placement={"clusterAffinity": {"clusterNames": ["atlantis"]}}),
            "cluster(s) did not match the placement cluster affinity constraint",
            id="unknown cluster",
        ),
        pytest.param(
            binding("bad", how={"replicaSchedulingType": "Divided", "replicaDivisionPreference": "Sideways"}),
            "unsupported replica scheduling strategy",
            id="unknown strategy",
        ),
    ],
)
def test_a_condition_and_an_event_say_what_is_wrong_and_others_are_placed(bad, said):
    async def story(stage):
        # An API server with a wider schema than ours, or without one, lets all of it through.
        await _loosen(stage)
        await stage.join("m1", 10)
        async with stage.scheduling():
            await stage.create(bad, binding("good", 2))
            await stage.until_placed("good")
            await stage.until(lambda: _is_told(stage))
            return await stage.get("bad"), await stage.events("ScheduleBindingFailed")

    found, events = play(story)
    (told,) = [each for each in found["status"]["conditions"] if each["type"] == "Scheduled"]
    assert told["status"] == "False"
    assert said in told["message"]
    assert any(said in event for event in events)
    assert "clusters" not in found["spec"]
    assert "schedulerObservedGeneration" not in found["status"]


async def _is_told(stage):
    return (await stage.condition("bad"))[0] == "False"


async def _loosen(stage):
    name = "resourcebindings.work.karmada.io"
    found = await stage.admin.get(CRDS, name)
    loose = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    for version in found["spec"]["versions"]:
        version["schema"] = {"openAPIV3Schema": loose}
    await stage.admin.update(CRDS, found)


def test_a_binding_that_is_mended_is_placed():
    async def story(stage):
        await _loosen(stage)
        await stage.join("m1", 10)
        async with stage.scheduling():
            await stage.create(binding("bad", -3))
            await stage.until(lambda: _is_told(stage))
            await stage.patch("bad", {"spec": {"replicas": 3}})
            await stage.until_placed("bad")
            return await stage.result("bad")

    assert play(story) == {"m1": 3}


def test_a_cluster_that_makes_no_sense_takes_nothing_and_spoils_nobody():
    async def story(stage):
        await stage.join("m1", 10)
        await stage.join("m2", 10)
        nonsense = {"allocatable": {"cpu": "-5", "pods": "lots"}, "allocated": {"cpu": "9" * 40}}
        await stage.admin.patch(
            CLUSTERS, "m2", {"status": {"resourceSummary": nonsense}}, subresource="status"
        )
        async with stage.scheduling():
            await stage.create(binding("web", 4, how=DYNAMIC))
            await stage.until_placed("web")
            return await stage.result("web")

    assert play(story) == {"m1": 4}
