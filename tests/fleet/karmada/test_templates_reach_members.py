"""A template with a policy gets a binding, its result becomes works, and works become true in members."""

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from karpool.kube.api.decoding import Object
from karpool.kube.errors import NotFound
from karpool.model.kubernetes.api_resources import (
    CLUSTERPROPAGATIONPOLICIES,
    CLUSTERRESOURCEBINDINGS,
    CONFIGMAPS,
    CRDS,
    DEPLOYMENTS,
    JOBS,
    NAMESPACES,
    PODS,
    PRIORITYCLASSES,
    PROPAGATIONPOLICIES,
    RESOURCEBINDINGS,
    SERVICES,
    STATEFULSETS,
    WORKS,
    ApiResource,
)
from karpool_fleet.clusters.clock import run_manual
from karpool_fleet.karmada.propagation.names import (
    CLUSTEROVERRIDEPOLICIES,
    MANAGED,
    OVERRIDEPOLICIES,
    WORK_ID,
)
from tests.fleet.karmada.acting import Fleet, condition, deploy, deployment, fleet, policy, until
from tests.fleet.workloads.acting import template


def test_a_deployment_is_divided_and_runs_in_its_members() -> None:
    async def story() -> None:
        async with fleet("east", "west") as world:
            await deploy(world, 5)
            await asyncio.sleep(10)

            assert await world.replicas() == {"east": 3, "west": 2}
            pods = [len((await world.at(name).list(PODS)).items) for name in ("east", "west")]
            assert pods == [3, 2]

    run_manual(story())


def test_a_binding_says_what_a_scheduler_needs() -> None:
    async def story() -> Object:
        async with fleet("east") as world:
            await world.admin.create(PRIORITYCLASSES, {"metadata": {"name": "gold"}, "value": 70})
            spec: Any = deployment(replicas=3)
            pod = spec["spec"]["template"]["spec"]
            pod["nodeSelector"] = {"disk": "ssd"}
            pod["priorityClassName"] = "gold"
            pod["tolerations"] = [{"key": "gpu", "operator": "Exists"}]
            pod["containers"][0]["resources"] = {
                "requests": {"cpu": "1500m"},
                "limits": {"nvidia.com/gpu": "1"},
            }
            await world.admin.create(
                PROPAGATIONPOLICIES,
                policy(
                    schedulerName="karpool-scheduler",
                    schedulePriority={
                        "priorityClassName": "gold",
                        "priorityClassSource": "KubePriorityClass",
                    },
                    conflictResolution="Overwrite",
                    failover={"cluster": {"purgeMode": "Directly"}},
                    suspension={"dispatching": True},
                ),
            )
            await world.admin.create(DEPLOYMENTS, spec)
            await asyncio.sleep(2)
            return await world.binding("web-deployment")

    spec = run_manual(story())["spec"]
    assert spec["replicas"] == 3
    assert spec["replicaRequirements"] == {
        "nodeClaim": {
            "nodeSelector": {"disk": "ssd"},
            "tolerations": [{"key": "gpu", "operator": "Exists"}],
        },
        "resourceRequest": {"cpu": "1500m", "nvidia.com/gpu": "1"},
        "namespace": "default",
        "priorityClassName": "gold",
    }
    assert spec["placement"] == {
        "replicaScheduling": {
            "replicaSchedulingType": "Divided",
            "replicaDivisionPreference": "Weighted",
        }
    }
    assert spec["schedulerName"] == "karpool-scheduler"
    assert spec["schedulePriority"] == {"priority": 70}
    assert spec["conflictResolution"] == "Overwrite"
    assert spec["failover"]["cluster"]["purgeMode"] == "Directly"
    assert spec["suspension"] == {"dispatching": True}
    assert spec["resource"]["uid"] and spec["resource"]["resourceVersion"]


def test_scaling_a_template_scales_its_members() -> None:
    async def story() -> list[dict[str, int]]:
        seen = []
        async with fleet("east", "west") as world:
            await deploy(world, 2)
            for size in (2, 9, 1, 0):
                await world.admin.scale(DEPLOYMENTS, "web", size, namespace="default")
                await asyncio.sleep(5)
                seen.append(await world.replicas())
        return seen

    assert run_manual(story()) == [
        {"east": 1, "west": 1},
        {"east": 5, "west": 4},
        {"east": 1},
        {"east": 0, "west": 0},
    ]


def test_a_duplicated_deployment_has_its_whole_count_everywhere() -> None:
    async def story() -> dict[str, int]:
        async with fleet("east", "west") as world:
            await deploy(world, 3, placement={"clusterAffinity": {"clusterNames": ["east", "west"]}})
            await asyncio.sleep(5)
            return await world.replicas()

    assert run_manual(story()) == {"east": 3, "west": 3}


def test_a_target_without_replicas_gets_none() -> None:
    def one(spec: Object, clusters: Sequence[str]) -> list[Object]:
        return [{"name": "east", "replicas": 2}, {"name": "west"}]

    async def story() -> dict[str, int]:
        async with fleet("east", "west", decide=one) as world:
            await deploy(world, 2)
            await asyncio.sleep(5)
            return await world.replicas()

    assert run_manual(story()) == {"east": 2, "west": 0}


def test_a_change_of_the_template_reaches_the_members() -> None:
    async def story() -> list[str]:
        async with fleet("east", "west") as world:
            await deploy(world, 2)
            await asyncio.sleep(5)
            images = {"spec": {"template": {"spec": {"containers": [{"name": "main", "image": "web:2"}]}}}}
            await world.admin.patch(DEPLOYMENTS, "web", images, how="strategic", namespace="default")
            await asyncio.sleep(10)
            found = [
                await world.at(each).get(DEPLOYMENTS, "web", namespace="default") for each in ("east", "west")
            ]
            return [each["spec"]["template"]["spec"]["containers"][0]["image"] for each in found]

    assert run_manual(story()) == ["web:2", "web:2"]


CRD = {
    "metadata": {"name": "widgets.example.com"},
    "spec": {
        "group": "example.com",
        "scope": "Namespaced",
        "names": {"kind": "Widget", "plural": "widgets", "singular": "widget", "listKind": "WidgetList"},
        "versions": [
            {
                "name": "v1",
                "served": True,
                "storage": True,
                "schema": {
                    "openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
                },
            }
        ],
    },
}
WIDGETS = ApiResource("example.com", "v1", "widgets", "Widget")


@pytest.mark.parametrize(
    ("resource", "spec", "shares"),
    [
        pytest.param(
            STATEFULSETS,
            {"spec": {"replicas": 3, "selector": {"matchLabels": {"app": "web"}}, "template": template()}},
            [{"replicas": 2}, {"replicas": 1}],
            id="StatefulSet",
        ),
        pytest.param(
            JOBS,
            {
                "spec": {
                    "parallelism": 3,
                    "completions": 6,
                    "template": {"spec": {**template()["spec"], "restartPolicy": "Never"}},
                }
            },
            [{"parallelism": 2, "completions": 4}, {"parallelism": 1, "completions": 2}],
            id="Job",
        ),
        pytest.param(
            WIDGETS,
            {"spec": {"replicas": 3, "colour": "red"}},
            [{"replicas": 2}, {"replicas": 1}],
            id="custom",
        ),
    ],
)
def test_other_workloads_are_divided_too(
    resource: ApiResource, spec: Object, shares: list[dict[str, int]]
) -> None:
    async def story() -> list[Object]:
        async with fleet("east", "west", crds=[CRD], lively=False) as world:
            chosen = {"apiVersion": resource.api_version, "kind": resource.kind, "name": "web"}
            await world.admin.create(PROPAGATIONPOLICIES, policy(resourceSelectors=[chosen]))
            await world.admin.create(resource, {"metadata": {"name": "web", "namespace": "default"}, **spec})
            await asyncio.sleep(5)
            found = [
                await world.at(each).get(resource, "web", namespace="default") for each in ("east", "west")
            ]
            return [
                {key: each["spec"][key] for key in share} for each, share in zip(found, shares, strict=True)
            ]

    assert run_manual(story()) == shares


def test_what_has_no_replicas_is_copied_and_keeps_what_the_member_adds() -> None:
    async def story() -> tuple[Object, Object, Object]:
        async with fleet("east", lively=False) as world:
            kinds = [{"apiVersion": "v1", "kind": kind} for kind in ("ConfigMap", "Service")]
            await world.admin.create(PROPAGATIONPOLICIES, policy(resourceSelectors=kinds))
            meta = {"name": "web", "namespace": "default"}
            await world.admin.create(CONFIGMAPS, {"metadata": meta, "data": {"a": "1"}})
            await world.admin.create(SERVICES, {"metadata": meta, "spec": {"ports": [{"port": 80}]}})
            await asyncio.sleep(3)
            there = world.at("east")
            notes = {"metadata": {"annotations": {"member": "own"}}}
            before = await there.patch(SERVICES, "web", notes, namespace="default")
            change = {"metadata": {"labels": {"tier": "front"}}}
            await world.admin.patch(SERVICES, "web", change, namespace="default")
            await asyncio.sleep(3)
            return (
                await there.get(CONFIGMAPS, "web", namespace="default"),
                before,
                await there.get(SERVICES, "web", namespace="default"),
            )

    config, before, service = run_manual(story())
    assert config["data"] == {"a": "1"}
    assert service["metadata"]["labels"]["tier"] == "front"
    assert service["metadata"]["annotations"]["member"] == "own"
    assert before["spec"] == service["spec"]
    assert service["spec"]["clusterIP"]


def test_cluster_scoped_templates_have_cluster_bindings() -> None:
    async def story() -> tuple[list[str], int]:
        async with fleet("east", lively=False) as world:
            kind = {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "name": "gold"}
            await world.admin.create(
                CLUSTERPROPAGATIONPOLICIES,
                {"metadata": {"name": "gold"}, "spec": {"resourceSelectors": [kind]}},
            )
            await world.admin.create(PRIORITYCLASSES, {"metadata": {"name": "gold"}, "value": 7})
            await asyncio.sleep(3)
            bindings = (await world.admin.list(CLUSTERRESOURCEBINDINGS)).items
            there = await world.at("east").get(PRIORITYCLASSES, "gold")
            return [binding["metadata"]["name"] for binding in bindings], there["value"]

    assert run_manual(story()) == (["gold-priorityclass"], 7)


def test_members_get_the_namespaces_of_templates() -> None:
    async def story() -> tuple[bool, bool]:
        async with fleet("east", lively=False) as world:
            await world.admin.create(NAMESPACES, {"metadata": {"name": "shop"}})
            rules: Any = policy("settings", resourceSelectors=[{"apiVersion": "v1", "kind": "ConfigMap"}])
            rules["metadata"]["namespace"] = "shop"
            await world.admin.create(PROPAGATIONPOLICIES, rules)
            await world.admin.create(CONFIGMAPS, {"metadata": {"name": "a", "namespace": "shop"}})
            await asyncio.sleep(3)
            there = world.at("east")
            copied = (await there.get(CONFIGMAPS, "a", namespace="shop"))["metadata"]["name"] == "a"
            await world.admin.delete(NAMESPACES, "shop")
            await asyncio.sleep(10)
            names = [each["metadata"]["name"] for each in (await there.list(NAMESPACES)).items]
            return copied, "shop" in names

    assert run_manual(story()) == (True, False)


def test_a_deleted_template_leaves_nothing_behind() -> None:
    async def story() -> tuple[dict[str, int], list[Object], list[Object], int]:
        async with fleet("east", "west") as world:
            await deploy(world, 4)
            await asyncio.sleep(5)
            await world.admin.delete(DEPLOYMENTS, "web", namespace="default")
            await asyncio.sleep(10)
            works = (await world.admin.list(WORKS)).items
            bindings = (await world.admin.list(RESOURCEBINDINGS)).items
            pods = sum([len((await world.at(name).list(PODS)).items) for name in ("east", "west")])
            return await world.replicas(), works, bindings, pods

    assert run_manual(story()) == ({}, [], [], 0)


def test_a_template_made_again_at_once_is_propagated_again() -> None:
    async def story() -> tuple[dict[str, int], str, str]:
        async with fleet("east", "west") as world:
            await deploy(world, 4)
            await asyncio.sleep(5)
            await world.admin.delete(DEPLOYMENTS, "web", namespace="default")
            again = await world.admin.create(DEPLOYMENTS, deployment(replicas=6))
            await asyncio.sleep(20)
            bound = (await world.binding("web-deployment"))["spec"]["resource"]["uid"]
            return await world.replicas(), bound, again["metadata"]["uid"]

    replicas, bound, uid = run_manual(story())
    assert replicas == {"east": 3, "west": 3}
    assert bound == uid


def test_preserved_resources_stay_without_our_marks() -> None:
    async def story() -> Object:
        async with fleet("east") as world:
            await deploy(world, 2, preserveResourcesOnDeletion=True)
            await asyncio.sleep(5)
            await world.admin.delete(DEPLOYMENTS, "web", namespace="default")
            await asyncio.sleep(10)
            assert not (await world.admin.list(WORKS)).items
            return await world.at("east").get(DEPLOYMENTS, "web", namespace="default")

    kept = run_manual(story())
    assert MANAGED not in (kept["metadata"].get("labels") or {})
    assert kept["spec"]["replicas"] == 2


@pytest.mark.parametrize(("resolution", "taken"), [("Abort", False), ("Overwrite", True)])
def test_an_object_that_was_there_first_is_taken_over_only_on_request(resolution: str, taken: bool) -> None:
    async def story() -> tuple[Object, Object]:
        async with fleet("east", lively=False) as world:
            await world.at("east").create(DEPLOYMENTS, deployment(replicas=1))
            await deploy(world, 2, conflictResolution=resolution)
            await asyncio.sleep(5)
            found = await world.at("east").get(DEPLOYMENTS, "web", namespace="default")
            return found, await world.binding("web-deployment")

    found, binding = run_manual(story())
    item = binding["status"]["aggregatedStatus"][0]
    assert (WORK_ID in (found["metadata"].get("labels") or {})) is taken
    assert found["spec"]["replicas"] == (2 if taken else 1)
    assert item.get("applied", False) is taken
    assert ("already exists in cluster east" in item.get("appliedMessage", "")) is not taken
    assert condition(binding, "FullyApplied")[0] == str(taken)


def test_an_object_that_was_not_taken_over_outlives_the_template() -> None:
    async def story() -> dict[str, int]:
        async with fleet("east", lively=False) as world:
            await world.at("east").create(DEPLOYMENTS, deployment(replicas=1))
            await deploy(world, 2)
            await asyncio.sleep(5)
            await world.admin.delete(DEPLOYMENTS, "web", namespace="default")
            await asyncio.sleep(10)
            assert not (await world.admin.list(WORKS)).items
            return await world.replicas()

    assert run_manual(story()) == {"east": 1}


def test_what_is_changed_or_deleted_in_a_member_is_put_right() -> None:
    async def story() -> list[dict[str, int]]:
        seen = []
        async with fleet("east", lively=False) as world:
            await deploy(world, 2)
            await asyncio.sleep(3)
            await world.at("east").scale(DEPLOYMENTS, "web", 7, namespace="default")
            await asyncio.sleep(3)
            seen.append(await world.replicas())
            await world.at("east").delete(DEPLOYMENTS, "web", namespace="default")
            await asyncio.sleep(3)
            seen.append(await world.replicas())
        return seen

    assert run_manual(story()) == [{"east": 2}, {"east": 2}]


def test_a_kind_a_member_does_not_serve_is_reported_and_comes_when_it_does() -> None:
    async def story() -> tuple[str, int]:
        async with fleet("east", lively=False) as world:
            await world.admin.create(CRDS, CRD)
            chosen = {"apiVersion": "example.com/v1", "kind": "Widget"}
            await world.admin.create(PROPAGATIONPOLICIES, policy(resourceSelectors=[chosen]))
            await world.admin.create(
                WIDGETS, {"metadata": {"name": "web", "namespace": "default"}, "spec": {"replicas": 3}}
            )
            await asyncio.sleep(5)
            message = (await world.binding("web-widget"))["status"]["aggregatedStatus"][0]["appliedMessage"]
            await world.at("east").create(CRDS, CRD)
            await asyncio.sleep(100)
            there = await world.at("east").get(WIDGETS, "web", namespace="default")
            return message, there["spec"]["replicas"]

    message, replicas = run_manual(story())
    assert "cluster east does not serve this kind" in message
    assert replicas == 3


def test_suspended_dispatching_holds_works_back() -> None:
    async def story() -> list[dict[str, int]]:
        seen = []
        async with fleet("east", "west") as world:
            await deploy(world, 4, suspension={"dispatchingOnClusters": {"clusterNames": ["west"]}})
            await asyncio.sleep(5)
            seen.append(await world.replicas())
            work = (await world.works("west"))[0]
            assert condition(work, "Dispatching") == ("False", "SuspendDispatching")
            await world.admin.patch(
                PROPAGATIONPOLICIES, "web", {"spec": {"suspension": None}}, namespace="default"
            )
            await asyncio.sleep(5)
            seen.append(await world.replicas())
        return seen

    assert run_manual(story()) == [{"east": 2}, {"east": 2, "west": 2}]


def test_overrides_change_manifests_of_the_clusters_they_name() -> None:
    async def story() -> list[tuple[str, str | None, list[str] | None]]:
        async with fleet("east", "west", lively=False) as world:
            image = {
                "operator": "replace",
                "path": "/spec/template/spec/containers/0/image",
                "value": "mirror/web",
            }
            selectors = [{"apiVersion": "apps/v1", "kind": "Deployment", "name": "web"}]
            await world.admin.create(
                OVERRIDEPOLICIES,
                {
                    "metadata": {"name": "mirror", "namespace": "default"},
                    "spec": {
                        "resourceSelectors": selectors,
                        "overrideRules": [
                            {
                                "targetCluster": {"clusterNames": ["west"]},
                                "overriders": {
                                    "plaintext": [image],
                                    "argsOverrider": [
                                        {"containerName": "main", "operator": "add", "value": ["-v"]}
                                    ],
                                },
                            }
                        ],
                    },
                },
            )
            label = {"operator": "add", "value": {"fleet": "blue"}}
            rule = {"overriders": {"labelsOverrider": [label]}}
            await world.admin.create(
                CLUSTEROVERRIDEPOLICIES,
                {
                    "metadata": {"name": "all"},
                    "spec": {"resourceSelectors": selectors, "overrideRules": [rule]},
                },
            )
            await deploy(world, 2)
            await asyncio.sleep(5)
            seen = []
            for name in ("east", "west"):
                found = await world.at(name).get(DEPLOYMENTS, "web", namespace="default")
                container = found["spec"]["template"]["spec"]["containers"][0]
                labels = found["metadata"]["labels"]
                seen.append((container["image"], labels.get("fleet"), container.get("args")))
            return seen

    assert run_manual(story()) == [("web:1", "blue", None), ("mirror/web", "blue", ["-v"])]


def test_status_and_health_come_back_to_the_template() -> None:
    async def story() -> tuple[Object, Object, Object]:
        async with fleet("east", "west") as world:
            await deploy(world, 5)
            await until(lambda: _is_complete(world))
            binding = await world.binding("web-deployment")
            whole = await world.admin.get(DEPLOYMENTS, "web", namespace="default")
            broken = {"metadata": {"labels": {"app": "web", "broken": "yes"}}}
            await world.admin.patch(
                DEPLOYMENTS, "web", {"spec": {"template": broken}}, how="strategic", namespace="default"
            )
            await asyncio.sleep(10)
            return binding, whole, await world.binding("web-deployment")

    binding, whole, after = run_manual(story())
    items = binding["status"]["aggregatedStatus"]
    assert [(i["clusterName"], i["applied"], i["health"], i["status"]["readyReplicas"]) for i in items] == [
        ("east", True, "Healthy", 3),
        ("west", True, "Healthy", 2),
    ]
    assert condition(binding, "FullyApplied") == ("True", "FullyAppliedSuccess")
    status = whole["status"]
    assert (status["replicas"], status["readyReplicas"], status["availableReplicas"]) == (5, 5, 5)
    assert status["observedGeneration"] == whole["metadata"]["generation"]
    assert [each["health"] for each in after["status"]["aggregatedStatus"]] == ["Unhealthy", "Unhealthy"]


async def _is_complete(world: Fleet) -> bool:
    found = await world.admin.get(DEPLOYMENTS, "web", namespace="default")
    return bool((found.get("status") or {}).get("readyReplicas") == 5)


def test_a_binding_that_nobody_scheduled_has_no_aggregated_status() -> None:
    async def story() -> Object:
        async with fleet("east", lively=False) as world:
            await world.control.components.crash("scheduler")
            await deploy(world, 2)
            await asyncio.sleep(2)
            patch = {"spec": {"clusters": [{"name": "east", "replicas": 2}]}}
            await world.admin.patch(RESOURCEBINDINGS, "web-deployment", patch, namespace="default")
            await asyncio.sleep(5)
            assert await world.replicas() == {"east": 2}
            return await world.binding("web-deployment")

    assert "aggregatedStatus" not in (run_manual(story()).get("status") or {})


def test_a_bad_override_stops_its_own_binding_only() -> None:
    async def story() -> tuple[dict[str, int], str]:
        async with fleet("east", lively=False) as world:
            bad = {"operator": "remove", "path": "/spec/nonsense"}
            await world.admin.create(
                OVERRIDEPOLICIES,
                {
                    "metadata": {"name": "bad", "namespace": "default"},
                    "spec": {
                        "resourceSelectors": [{"apiVersion": "apps/v1", "kind": "Deployment", "name": "web"}],
                        "overrideRules": [{"overriders": {"plaintext": [bad]}}],
                    },
                },
            )
            await deploy(world, 2)
            await world.admin.create(PROPAGATIONPOLICIES, policy("api"))
            await world.admin.create(DEPLOYMENTS, deployment("api", 2))
            await asyncio.sleep(5)
            with pytest.raises(NotFound):
                await world.at("east").get(DEPLOYMENTS, "web", namespace="default")
            from karpool.model.kubernetes.api_resources import EVENTS

            events = [
                each for each in (await world.admin.list(EVENTS)).items if each["reason"] == "SyncWorkFailed"
            ]
            return await world.replicas("api"), events[0]["message"]

    replicas, message = run_manual(story())
    assert replicas == {"east": 2}
    assert "override policy bad" in message
