"""Scale, binding and the other doors of an object."""

import pytest

from tests.apiserver.serving import PODS, Client, pod
from tests.apiserver.test_crud import DEPLOYMENTS, deployment

MERGE = "application/merge-patch+json"


async def test_a_pod_is_bound_once(client: Client) -> None:
    await client.create(PODS, pod("p"))
    target = {"metadata": {"name": "p"}, "target": {"kind": "Node", "name": "n1"}}
    answer = await client.create(f"{PODS}/p/binding", target)
    assert answer["status"] == "Success"
    bound = await client.get(f"{PODS}/p")
    assert bound["spec"]["nodeName"] == "n1"
    assert [(c["type"], c["status"]) for c in bound["status"]["conditions"]] == [("PodScheduled", "True")]
    for node in ("n1", "n2"):
        target["target"]["name"] = node
        await client.refused(409, "Conflict", "POST", f"{PODS}/p/binding", target)


async def test_bindings_can_be_posted_beside_the_pod(client: Client) -> None:
    await client.create(PODS, pod("p"))
    path = "/api/v1/namespaces/default/bindings"
    await client.create(path, {"metadata": {"name": "p"}, "target": {"name": "n1"}})
    assert (await client.get(f"{PODS}/p"))["spec"]["nodeName"] == "n1"
    body = {"metadata": {"name": "missing"}, "target": {"name": "n1"}}
    await client.refused(404, "NotFound", "POST", path, body)
    await client.refused(405, "MethodNotAllowed", "GET", path)


@pytest.mark.parametrize(
    ("code", "reason", "binding"),
    [
        (422, "Invalid", {}),
        (422, "Invalid", {"target": {"name": ""}}),
        (422, "Invalid", {"target": {"kind": "Pod", "name": "n1"}}),
        (409, "Conflict", {"metadata": {"uid": "other"}, "target": {"name": "n1"}}),
        (400, "BadRequest", {"metadata": {"name": "q"}, "target": {"name": "n1"}}),
    ],
)
async def test_bindings_that_make_no_sense(client: Client, code: int, reason: str, binding: dict) -> None:
    await client.create(PODS, pod("p"))
    await client.refused(code, reason, "POST", f"{PODS}/p/binding", binding)


async def test_pods_that_are_gated_or_going_are_not_bound(client: Client) -> None:
    await client.create(PODS, pod("gated", schedulingGates=[{"name": "example.com/wait"}]))
    body = pod("going")
    body["metadata"]["finalizers"] = ["example.com/hold"]
    await client.create(PODS, body)
    await client.delete(f"{PODS}/going")
    for name in ("gated", "going"):
        target = {"target": {"name": "n1"}}
        await client.refused(409, "Conflict", "POST", f"{PODS}/{name}/binding", target)
    ungated = await client.merge(f"{PODS}/gated", {"spec": {"schedulingGates": None}})
    assert "schedulingGates" not in ungated["spec"]
    await client.create(f"{PODS}/gated/binding", {"target": {"name": "n1"}})


async def test_scale_is_read_replaced_and_patched(client: Client) -> None:
    await client.create(DEPLOYMENTS, deployment("web", 2))
    path = f"{DEPLOYMENTS}/web/scale"
    found = await client.get(path)
    assert (found["kind"], found["apiVersion"]) == ("Scale", "autoscaling/v1")
    assert (found["spec"], found["status"]) == ({"replicas": 2}, {"replicas": 0, "selector": "app=web"})
    found["spec"]["replicas"] = 5
    assert (await client.update(path, found))["spec"] == {"replicas": 5}
    await client.refused(409, "Conflict", "PUT", path, found)
    assert (await client.merge(path, {"spec": {"replicas": 0}}))["spec"] == {"replicas": 0}
    stored = await client.get(f"{DEPLOYMENTS}/web")
    assert stored["spec"]["replicas"] == 0 and stored["metadata"]["generation"] == 3
    for wrong in (-1, "many", 2**31):
        await client.refused(422, "Invalid", "PATCH", path, {"spec": {"replicas": wrong}}, kind=MERGE)


async def test_subresources_that_do_not_exist_are_404_and_those_that_need_a_node_501(client: Client) -> None:
    await client.create(PODS, pod("p"))
    await client.refused(404, "NotFound", "GET", f"{PODS}/p/unicorn")
    await client.refused(404, "NotFound", "GET", f"{PODS}/p/scale")
    await client.refused(404, "NotFound", "GET", "/api/v1/namespaces/default/configmaps/c/status")
    await client.refused(501, "NotImplemented", "GET", f"{PODS}/p/log")
    await client.refused(501, "NotImplemented", "POST", f"{PODS}/p/exec")
    await client.refused(404, "NotFound", "GET", f"{PODS}/missing/log")
    await client.refused(405, "MethodNotAllowed", "DELETE", f"{PODS}/p/status")


async def test_containers_are_resized_and_added_through_their_own_doors(client: Client) -> None:
    await client.create(PODS, pod("p"))
    resources = {"requests": {"cpu": "2"}}
    sent = {"spec": {"containers": [{"name": "app", "image": "ignored", "resources": resources}]}}
    strategic = "application/strategic-merge-patch+json"
    after = await client.ok("PATCH", f"{PODS}/p/resize", sent, kind=strategic)
    container = after["spec"]["containers"][0]
    assert container["resources"] == resources and container["image"] == "registry.example/app:1"
    debug = {"spec": {"ephemeralContainers": [{"name": "debug", "image": "registry.example/debug"}]}}
    after = await client.ok("PATCH", f"{PODS}/p/ephemeralcontainers", debug, kind=strategic)
    assert [c["name"] for c in after["spec"]["ephemeralContainers"]] == ["debug"]


async def test_access_reviews_allow_everything(client: Client) -> None:
    body = {"spec": {"resourceAttributes": {"verb": "delete", "resource": "nodes"}}}
    path = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
    assert (await client.create(path, body))["status"]["allowed"] is True
    await client.refused(405, "MethodNotAllowed", "GET", path)
