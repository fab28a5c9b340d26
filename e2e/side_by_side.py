"""One script of raw requests, for the embedded API server and the real one; what they answer is compared.

A step is a request and what is kept of its answer: the status code, and the body without
what differs from run to run (uids, versions, times, owners of fields).
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from karpool.kube.transport_interface import HttpRequest, Transport

NAMESPACE = "side-by-side"
_BASE = f"/api/v1/namespaces/{NAMESPACE}"
_APPS = f"/apis/apps/v1/namespaces/{NAMESPACE}"
_CRD = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
_WIDGETS = f"/apis/e2e.karpool.dev/v1/namespaces/{NAMESPACE}/widgets"
_VOLATILE = frozenset(
    (
        "uid",
        "resourceVersion",
        "creationTimestamp",
        "deletionTimestamp",
        "managedFields",
        "generation",
        "continue",
        "remainingItemCount",
        "lastTransitionTime",
        "clusterIP",
        "clusterIPs",
        "serviceAccount",  # the old spelling of serviceAccountName, which the embedded server leaves out
        "deployment.kubernetes.io/revision",
        "observedGeneration",
        "terminatingReplicas",  # written by the controllers of Kubernetes 1.35 and newer
        "conditions",
    )
)
Object = dict[str, Any]


@dataclass(frozen=True)
class Step:
    name: str
    method: str
    path: str
    body: Any = None
    query: tuple[tuple[str, str], ...] = ()
    headers: Mapping[str, str] = field(default_factory=dict)


def config_map(name: str, **data: str) -> Object:
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": data}


def pod(name: str, **spec: Any) -> Object:
    containers = [{"name": "main", "image": "none", "resources": {"requests": {"cpu": "100m"}}}]
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "labels": {"app": name}},
        "spec": {
            "containers": containers,
            "automountServiceAccountToken": False,
            "schedulerName": "nobody",
            **spec,
        },
    }


def deployment(name: str, **spec: Any) -> Object:
    labels = {"app": name}
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": name},
        "spec": {
            "replicas": 0,
            "selector": {"matchLabels": labels},
            "template": {
                "metadata": {"labels": labels},
                "spec": {"containers": [{"name": "main", "image": "none"}]},
            },
            **spec,
        },
    }


_DEFINITION = {
    "apiVersion": "apiextensions.k8s.io/v1",
    "kind": "CustomResourceDefinition",
    "metadata": {"name": "widgets.e2e.karpool.dev"},
    "spec": {
        "group": "e2e.karpool.dev",
        "scope": "Namespaced",
        "names": {"plural": "widgets", "singular": "widget", "kind": "Widget", "listKind": "WidgetList"},
        "versions": [
            {
                "name": "v1",
                "served": True,
                "storage": True,
                "subresources": {"status": {}},
                "schema": {
                    "openAPIV3Schema": {
                        "type": "object",
                        "properties": {
                            "spec": {
                                "type": "object",
                                "required": ["size"],
                                "properties": {
                                    "size": {"type": "integer", "minimum": 1},
                                    "colour": {"type": "string", "default": "red"},
                                },
                            },
                            "status": {"type": "object", "properties": {"ready": {"type": "boolean"}}},
                        },
                    }
                },
            }
        ],
    },
}


def widget(name: str, **spec: Any) -> Object:
    return {"apiVersion": "e2e.karpool.dev/v1", "kind": "Widget", "metadata": {"name": name}, "spec": spec}


_MERGE = {"content-type": "application/merge-patch+json"}
_JSON = {"content-type": "application/json-patch+json"}
_STRATEGIC = {"content-type": "application/strategic-merge-patch+json"}
_APPLY = {"content-type": "application/apply-patch+yaml"}
_STRICT = (("fieldValidation", "Strict"),)
_PDB = f"/apis/policy/v1/namespaces/{NAMESPACE}/poddisruptionbudgets"
_LEASES = f"/apis/coordination.k8s.io/v1/namespaces/{NAMESPACE}/leases"


def setting_up() -> Iterator[Step]:
    yield Step("make a namespace", "POST", "/api/v1/namespaces", {"metadata": {"name": NAMESPACE}})
    yield Step("define a kind", "POST", _CRD, _DEFINITION)


def steps() -> Iterator[Step]:
    maps = f"{_BASE}/configmaps"
    yield Step("create", "POST", maps, config_map("one", a="1"))
    yield Step("create again", "POST", maps, config_map("one"))
    yield Step("read", "GET", f"{maps}/one")
    yield Step("read what is not there", "GET", f"{maps}/none")
    yield Step("replace an old version", "PUT", f"{maps}/one", _at(config_map("one", a="2"), "1"))
    yield Step("replace under another name", "PUT", f"{maps}/one", config_map("two"))
    yield Step("replace", "PUT", f"{maps}/one", config_map("one", a="3"))
    yield Step("merge patch", "PATCH", f"{maps}/one", {"data": {"b": "2"}}, headers=_MERGE)
    yield Step(
        "json patch",
        "PATCH",
        f"{maps}/one",
        [{"op": "replace", "path": "/data/a", "value": "4"}],
        headers=_JSON,
    )
    yield Step(
        "json patch whose test fails",
        "PATCH",
        f"{maps}/one",
        [{"op": "test", "path": "/data/a", "value": "0"}],
        headers=_JSON,
    )
    yield Step("merge patch of nothing", "PATCH", f"{maps}/none", {"data": {}}, headers=_MERGE)
    applied = {**config_map("applied", a="1")}
    yield Step("apply", "PATCH", f"{maps}/applied", applied, (("fieldManager", "x"),), _APPLY)
    clash = {**config_map("applied", a="2")}
    yield Step(
        "apply over another's field", "PATCH", f"{maps}/applied", clash, (("fieldManager", "y"),), _APPLY
    )
    forced = (("fieldManager", "y"), ("force", "true"))
    yield Step("apply by force", "PATCH", f"{maps}/applied", clash, forced, _APPLY)
    yield Step("apply without a manager", "PATCH", f"{maps}/applied", clash, (), _APPLY)
    yield Step("dry run", "POST", maps, config_map("dry"), (("dryRun", "All"),))
    yield Step("a dry run leaves nothing", "GET", f"{maps}/dry")
    yield Step("bad name", "POST", maps, config_map("Not_A_Name"))
    yield Step("no name", "POST", maps, {"metadata": {}})
    yield Step("another kind", "POST", maps, {**config_map("odd"), "kind": "Secret"})
    yield Step("another namespace", "POST", maps, _in(config_map("odd"), "default"))
    yield Step("unknown field, strict", "POST", maps, {**config_map("odd"), "nonsense": 1}, _STRICT)
    yield Step("not JSON", "POST", maps, b"{")
    yield Step("wrong media type", "PATCH", f"{maps}/one", {}, headers={"content-type": "text/plain"})
    yield Step(
        "patch type that is none", "PATCH", f"{maps}/one", {}, headers={"content-type": "application/json"}
    )
    yield Step("unknown path", "GET", "/apis/none.example.com/v1/things")
    yield Step("unknown resource", "GET", f"{_BASE}/things")
    yield Step("method that is not allowed", "POST", f"{maps}/one", {})
    yield Step("list by label", "GET", maps, query=(("labelSelector", "a in (b"),))
    yield Step("list by unknown field", "GET", maps, query=(("fieldSelector", "data.a=1"),))
    yield Step("list by name", "GET", maps, query=(("fieldSelector", "metadata.name=one"),))
    yield Step("list with a bad limit", "GET", maps, query=(("limit", "many"),))
    yield Step("list with a bad version", "GET", maps, query=(("resourceVersion", "new"),))
    yield Step("delete with another uid", "DELETE", f"{maps}/one", {"preconditions": {"uid": "no"}})
    yield Step("delete", "DELETE", f"{maps}/one")
    yield Step("delete again", "DELETE", f"{maps}/one")
    yield from _pods()
    yield from _workloads()
    yield from _widgets()


def _pods() -> Iterator[Step]:
    pods = f"{_BASE}/pods"
    yield Step("pod", "POST", pods, pod("plain"))
    yield Step("pod without containers", "POST", pods, pod("bad", containers=[]))
    negative = [{"name": "main", "image": "none", "resources": {"requests": {"cpu": "-1"}}}]
    yield Step("pod with a negative request", "POST", pods, pod("bad", containers=negative))
    over = {"requests": {"cpu": "2"}, "limits": {"cpu": "1"}}
    bad = [{"name": "main", "image": "none", "resources": over}]
    yield Step("pod that asks for more than its limit", "POST", pods, pod("bad", containers=bad))
    twice = [{"name": "main", "image": "none"}, {"name": "main", "image": "none"}]
    yield Step("pod with two containers of a name", "POST", pods, pod("bad", containers=twice))
    yield Step("pod of an unknown priority", "POST", pods, pod("bad", priorityClassName="none"))
    image = {"spec": {"containers": [{"name": "main", "image": "other"}]}}
    yield Step("strategic patch of one container", "PATCH", f"{pods}/plain", image, headers=_STRATEGIC)
    moved = {"spec": {"nodeName": "elsewhere"}}
    yield Step("move a pod by patch", "PATCH", f"{pods}/plain", moved, headers=_MERGE)
    status = {"status": {"conditions": [{"type": "Odd", "status": "True"}]}}
    yield Step("patch the status", "PATCH", f"{pods}/plain/status", status, headers=_STRATEGIC)
    binding = {"metadata": {"name": "plain"}, "target": {"kind": "Node", "name": "nowhere-1"}}
    yield Step("bind", "POST", f"{pods}/plain/binding", binding)
    yield Step("bind again", "POST", f"{pods}/plain/binding", binding)
    eviction = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": "none"}}
    yield Step("evict what is not there", "POST", f"{pods}/none/eviction", eviction)
    budget = {
        "metadata": {"name": "bad"},
        "spec": {"minAvailable": 1, "maxUnavailable": 1, "selector": {}},
    }
    yield Step("budget with both numbers", "POST", _PDB, budget)
    yield Step("delete a pod at once", "DELETE", f"{pods}/plain", {"gracePeriodSeconds": 0})


def _workloads() -> Iterator[Step]:
    yield Step("deployment", "POST", f"{_APPS}/deployments", deployment("web"))
    other = deployment("bad", selector={"matchLabels": {"app": "other"}})
    yield Step("deployment that selects others", "POST", f"{_APPS}/deployments", other)
    yield Step("read its scale", "GET", f"{_APPS}/deployments/web/scale")
    scale = {"spec": {"replicas": -1}}
    yield Step("negative scale", "PATCH", f"{_APPS}/deployments/web/scale", scale, headers=_MERGE)
    selector = {"spec": {"selector": {"matchLabels": {"app": "else"}}}}
    yield Step("change what cannot change", "PATCH", f"{_APPS}/deployments/web", selector, headers=_MERGE)
    lease = {
        "metadata": {"name": "lead"},
        "spec": {"holderIdentity": "me", "renewTime": "2026-01-01T00:00:00.000001Z"},
    }
    yield Step("lease", "POST", _LEASES, lease)
    wrong = {"metadata": {"name": "bad"}, "spec": {"leaseDurationSeconds": 0}}
    yield Step("lease of no time", "POST", _LEASES, wrong)
    yield Step("delete all deployments", "DELETE", f"{_APPS}/deployments")


def _widgets() -> Iterator[Step]:
    yield Step("custom resource", "POST", _WIDGETS, widget("w", size=1, extra=True))
    yield Step("custom resource below the minimum", "POST", _WIDGETS, widget("bad", size=0))
    yield Step("custom resource without a field", "POST", _WIDGETS, widget("bad"))
    yield Step("custom resource, strict", "POST", _WIDGETS, widget("bad", size=1, extra=True), _STRICT)
    status = {"status": {"ready": True}, "spec": {"size": 9}}
    yield Step("its status leaves the rest", "PATCH", f"{_WIDGETS}/w/status", status, headers=_MERGE)
    yield Step("strategic patch of it", "PATCH", f"{_WIDGETS}/w", {"spec": {}}, headers=_STRATEGIC)
    yield Step("replace it without a version", "PUT", f"{_WIDGETS}/w", widget("w", size=2))


def _at(obj: Object, version: str) -> Object:
    return {**obj, "metadata": {**obj["metadata"], "resourceVersion": version}}


def _in(obj: Object, namespace: str) -> Object:
    return {**obj, "metadata": {**obj["metadata"], "namespace": namespace}}


def _without_kind(value: Any) -> Any:
    if not isinstance(value, dict) or "metadata" not in value:
        return value
    return {key: each for key, each in value.items() if key not in ("kind", "apiVersion")}


async def play(transport: Transport, step: Step) -> tuple[int, Any]:
    body = step.body if isinstance(step.body, bytes) else json.dumps(step.body).encode()
    headers = {"accept": "application/json"}
    if step.body is not None:
        headers["content-type"] = "application/json"
    request = HttpRequest(
        step.method, step.path, step.query, {**headers, **step.headers}, b"" if step.body is None else body
    )
    answer = await transport.request(request, timeout=30)
    try:
        return answer.status, scrub(json.loads(answer.body))
    except ValueError:
        return answer.status, None


def scrub(value: Any) -> Any:
    """Without what differs from run to run; of an error its reason and causes, not its words."""
    if isinstance(value, dict):
        if value.get("kind") == "Status" and value.get("status") == "Failure":
            causes = (value.get("details") or {}).get("causes") or ()
            fields = sorted((cause.get("reason", ""), cause.get("field", "")) for cause in causes)
            return {"reason": value.get("reason", ""), "causes": fields}
        kept = {key: scrub(each) for key, each in value.items() if key not in _VOLATILE}
        # What is empty may be left out, and items of lists need not say their kind.
        return {key: each for key, each in kept.items() if each not in ({}, [], None)}
    if isinstance(value, list):
        return [_without_kind(scrub(each)) for each in value]
    return value
