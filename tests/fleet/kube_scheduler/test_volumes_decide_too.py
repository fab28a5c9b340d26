"""Pods go where their volumes are, and volumes that wait for a pod are made where it goes."""

from typing import Any

import pytest

from karpool.model.kubernetes.api_resources import NODES, PVCS, PVS, STORAGECLASSES
from karpool.model.kubernetes.volumes import SELECTED_NODE
from karpool_fleet.kube_controllers.volumes import VolumeController
from tests.fleet.kube_scheduler.acting import Stage, play, settle

LATER = "WaitForFirstConsumer"


async def storage_class(stage: Stage, name: str, *, mode: str = LATER, provisioner: str = "csi.test") -> None:
    body = {"metadata": {"name": name}, "provisioner": provisioner, "volumeBindingMode": mode}
    await stage.client.create(STORAGECLASSES, body)


async def claim(stage: Stage, name: str, storage: str) -> None:
    spec = {
        "storageClassName": storage,
        "accessModes": ["ReadWriteOnce"],
        "resources": {"requests": {"storage": "10Gi"}},
    }
    await stage.client.create(PVCS, {"metadata": {"name": name, "namespace": "default"}, "spec": spec})


async def volume(stage: Stage, name: str, storage: str, zone: str) -> None:
    expression = {"key": "topology.kubernetes.io/zone", "operator": "In", "values": [zone]}
    spec = {
        "storageClassName": storage,
        "accessModes": ["ReadWriteOnce"],
        "capacity": {"storage": "10Gi"},
        "csi": {"driver": "csi.test", "volumeHandle": name},
        "nodeAffinity": {"required": {"nodeSelectorTerms": [{"matchExpressions": [expression]}]}},
    }
    await stage.client.create(PVS, {"metadata": {"name": name}, "spec": spec})


def mounts(name: str) -> dict[str, Any]:
    return {"volumes": [{"name": "data", "persistentVolumeClaim": {"claimName": name}}]}


async def read_claim(stage: Stage, name: str) -> dict[str, Any]:
    return await stage.client.get(PVCS, name, namespace="default")


def test_a_claim_that_waits_gets_its_volume_in_the_zone_of_the_chosen_node() -> None:
    async def story(stage: Stage) -> None:
        stage.cluster.add("volumes", VolumeController)
        for zone in "ab":
            await stage.node(f"n-{zone}", zone=zone)
        await storage_class(stage, "later")
        await claim(stage, "data", "later")
        await settle(30)
        assert (await read_claim(stage, "data"))["status"].get("phase") != "Bound"

        await stage.pod("db", cpu="3", **mounts("data"))
        await settle(30)
        node = (await stage.where())["db"]
        bound = await read_claim(stage, "data")
        assert bound["metadata"]["annotations"][SELECTED_NODE] == node
        assert bound["status"]["phase"] == "Bound"
        made = await stage.client.get(PVS, bound["spec"]["volumeName"])
        terms = made["spec"]["nodeAffinity"]["required"]["nodeSelectorTerms"]
        assert terms[0]["matchExpressions"][0]["values"] == [node[-1]]

        # Wherever there is more room, its next pod has to go back to its volume.
        await stage.delete("db")
        await stage.node(f"large-{'ba'['ab'.index(node[-1])]}", zone="ba"["ab".index(node[-1])], cpu="64")
        await stage.pod("db", **mounts("data"))
        await settle(30)
        assert (await stage.where())["db"] == node

    play(story)


def test_a_pod_waits_for_claims_and_says_so() -> None:
    async def story(stage: Stage) -> list[str]:
        await stage.node("n1")
        await stage.pod("db", **mounts("data"))
        await settle()
        seen = [(await stage.scheduled("db")).message or ""]
        await storage_class(stage, "now", mode="Immediate")
        await claim(stage, "data", "now")
        await settle()
        seen.append((await stage.scheduled("db")).message or "")
        stage.cluster.add("volumes", VolumeController)
        await settle(30)
        assert await stage.where() == {"db": "n1"}
        return seen

    missing, unbound = play(story, preemption=False)
    assert missing == '0/1 nodes are available: persistentvolumeclaim "data" not found.'
    assert unbound == "0/1 nodes are available: pod has unbound immediate PersistentVolumeClaims."


def test_a_volume_that_exists_is_used_where_it_is() -> None:
    async def story(stage: Stage) -> tuple[dict[str, str], str]:
        stage.cluster.add("volumes", VolumeController)
        for zone in "abc":
            await stage.node(f"n-{zone}", zone=zone)
        await storage_class(stage, "local", provisioner="kubernetes.io/no-provisioner")
        await volume(stage, "disk-b", "local", "b")
        await claim(stage, "data", "local")
        await stage.pod("db", **mounts("data"))
        await settle(30)
        return await stage.where(), (await read_claim(stage, "data"))["spec"]["volumeName"]

    assert play(story) == ({"db": "n-b"}, "disk-b")


def test_a_volume_elsewhere_keeps_the_pod_off_and_is_named_as_the_reason() -> None:
    async def story(stage: Stage) -> str:
        stage.cluster.add("volumes", VolumeController)
        await stage.node("n-a", zone="a")
        await storage_class(stage, "now", mode="Immediate", provisioner="kubernetes.io/no-provisioner")
        await volume(stage, "disk-b", "now", "b")
        await claim(stage, "data", "now")
        await settle(5)
        await stage.pod("db", **mounts("data"))
        await settle(5)
        return (await stage.scheduled("db")).message or ""

    wanted = "0/1 nodes are available: 1 node(s) had volume node affinity conflict."
    assert play(story, preemption=False) == wanted


def test_a_claim_and_its_volume_go_with_an_ephemeral_volumes_pod() -> None:
    async def story(stage: Stage) -> tuple[str, list[Any], list[Any]]:
        stage.cluster.add("volumes", VolumeController)
        await stage.node("n1")
        await storage_class(stage, "later")
        spec = {
            "storageClassName": "later",
            "accessModes": ["ReadWriteOnce"],
            "resources": {"requests": {"storage": "1Gi"}},
        }
        scratch = {"name": "scratch", "ephemeral": {"volumeClaimTemplate": {"spec": spec}}}
        await stage.pod("job", volumes=[scratch])
        await settle(30)
        phase = (await read_claim(stage, "job-scratch"))["status"]["phase"]
        assert await stage.where() == {"job": "n1"}
        await stage.delete("job")
        await settle(60)
        return phase, (await stage.client.list(PVCS)).items, (await stage.client.list(PVS)).items

    assert play(story) == ("Bound", [], [])


@pytest.mark.parametrize("component", ["volumes", "kube-scheduler"])
@pytest.mark.parametrize("number", range(1, 6))
def test_killed_at_any_write_the_pod_ends_with_one_volume(component: str, number: int) -> None:
    async def story(stage: Stage) -> tuple[str, int]:
        stage.cluster.add("volumes", VolumeController)
        stage.cluster.faults.crash_at_write(component, number, when="after")
        await stage.node("n1")
        await storage_class(stage, "later")
        await claim(stage, "data", "later")
        await stage.pod("db", **mounts("data"))
        await settle(60)
        if not stage.cluster.components.is_running(component):
            stage.cluster.components.start(component)
        await settle(60)
        assert (await read_claim(stage, "data"))["status"]["phase"] == "Bound"
        return (await stage.where())["db"], len((await stage.client.list(PVS)).items)

    assert play(story) == ("n1", 1)


def test_a_pod_whose_volume_never_comes_lets_go_of_its_room() -> None:
    async def story(stage: Stage) -> dict[str, str]:
        await stage.node("n1", cpu="1")
        await storage_class(stage, "later")
        await claim(stage, "data", "later")
        await stage.pod("db", **mounts("data"))
        await settle(5)
        await stage.pod("web")
        await settle(60)
        assert (await stage.where())["web"] == ""
        await settle(700)
        return await stage.where()

    assert set(play(story, volume_seconds=100.0).values()) == {"", "n1"}


def test_a_node_that_goes_before_the_volume_is_made_is_chosen_no_more() -> None:
    async def story(stage: Stage) -> dict[str, str]:
        await stage.node("n1", zone="a")
        await storage_class(stage, "later")
        await claim(stage, "data", "later")
        await stage.pod("db", **mounts("data"))
        await settle(5)
        assert (await read_claim(stage, "data"))["metadata"]["annotations"][SELECTED_NODE] == "n1"
        await stage.client.delete(NODES, "n1")
        stage.cluster.add("volumes", VolumeController)
        await settle(30)
        assert SELECTED_NODE not in (await read_claim(stage, "data"))["metadata"].get("annotations", {})
        await stage.node("n2", zone="b")
        await settle(60)
        return await stage.where()

    assert play(story) == {"db": "n2"}
