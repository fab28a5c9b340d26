"""Whatever is sent, the answer is a Status or an object, never an error of the server's own."""

import asyncio
import json
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from karpool.kube.transport_interface import HttpRequest, HttpResponse
from karpool_fleet.apiserver.kinds.builtin import builtin_types, review_types
from karpool_fleet.apiserver.serve.server import ApiServer
from tests.apiserver.serving import StillClock, counted, pod
from tests.apiserver.test_crud import deployment
from tests.apiserver.test_custom_resources import definition
from tests.apiserver.test_eviction import budget

FIELDS = st.sampled_from(
    [
        "metadata",
        "name",
        "namespace",
        "labels",
        "annotations",
        "finalizers",
        "ownerReferences",
        "uid",
        "generateName",
        "spec",
        "status",
        "template",
        "containers",
        "selector",
        "matchLabels",
        "matchExpressions",
        "replicas",
        "ports",
        "type",
        "minAvailable",
        "maxUnavailable",
        "target",
        "versions",
        "names",
        "group",
        "schema",
        "openAPIV3Schema",
        "conditions",
        "deleteOptions",
        "preconditions",
        "key",
        "operator",
        "values",
        "resources",
        "requests",
        "cpu",
        "tolerations",
        "schedulingGates",
        "nodeName",
        "clusterIP",
        "managedFields",
        "kind",
        "apiVersion",
    ]
)
SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**70), 2**70),
    st.floats(allow_nan=False, allow_infinity=False),
    st.sampled_from(["", "a", "v1", "Pod", "50%", "In", "2026-01-01T00:00:00Z", "🦄", "-1", "x" * 300]),
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(FIELDS, inner, max_size=4),
    max_leaves=12,
)
PATHS = [
    f"{f'/apis/{t.group}' if t.group else '/api'}/{t.version}"
    f"/{'namespaces/default/' if t.namespaced else ''}{t.plural}"
    for t in [*builtin_types(), *review_types()]
]
KINDS = [
    "application/json",
    "application/merge-patch+json",
    "application/strategic-merge-patch+json",
    "application/json-patch+json",
    "application/apply-patch+yaml",
]


def ask(*requests: HttpRequest) -> list[HttpResponse]:
    async def main() -> list[HttpResponse]:
        server = ApiServer(StillClock(), ids=counted(), track_fields=True)
        answers = []
        for request in requests:
            answer = await server.handle(request)
            assert isinstance(answer, HttpResponse)
            answers.append(answer)
        await server.settle()
        return answers

    return asyncio.run(main())


def fine(answer: HttpResponse) -> None:
    assert answer.status < 500 or answer.status == 501, answer.body
    json.loads(answer.body)


def sent(
    method: str, path: str, body: Any, kind: str = "application/json", *query: tuple[str, str]
) -> HttpRequest:
    return HttpRequest(method, path, query, {"content-type": kind}, json.dumps(body).encode())


@pytest.mark.long
@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(path=st.sampled_from(PATHS), body=VALUES, named=st.booleans())
def test_any_body_can_be_posted_anywhere(path: str, body: Any, named: bool) -> None:
    if named and isinstance(body, dict):
        body = {**body, "metadata": {"name": "a"}, "kind": "", "apiVersion": ""}
    for answer in ask(sent("POST", path, body), HttpRequest("GET", path), HttpRequest("DELETE", f"{path}/a")):
        fine(answer)


STORED = [
    ("/api/v1/namespaces/default/pods", pod("a")),
    ("/apis/apps/v1/namespaces/default/deployments", deployment("a")),
    ("/apis/policy/v1/namespaces/default/poddisruptionbudgets", budget("a", minAvailable=1)),
    ("/api/v1/namespaces/default/services", {"metadata": {"name": "a"}, "spec": {"ports": [{"port": 1}]}}),
    ("/api/v1/namespaces", {"metadata": {"name": "a"}}),
    ("/apis/apiextensions.k8s.io/v1/customresourcedefinitions", definition()),
]
DOORS = ["", "/status", "/scale", "/binding", "/eviction", "/finalize", "/resize", "/ephemeralcontainers"]


@pytest.mark.long
@settings(max_examples=250, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    stored=st.sampled_from(STORED),
    door=st.sampled_from(DOORS),
    method=st.sampled_from(["PUT", "PATCH", "POST", "DELETE"]),
    kind=st.sampled_from(KINDS),
    body=VALUES,
    keep=st.booleans(),
)
def test_any_change_of_a_stored_object_is_taken_or_refused(
    stored: tuple[str, dict], door: str, method: str, kind: str, body: Any, keep: bool
) -> None:
    path, obj = stored
    if keep and isinstance(body, dict):  # near misses reach further than noise
        body = {**obj, **{key: value for key, value in body.items() if key != "metadata"}}
    if kind == "application/json-patch+json" and not isinstance(body, list):
        body = [{"op": "add", "path": "/spec", "value": body}]
    target = f"{path}/{obj['metadata']['name']}"
    manager = ("fieldManager", "me")
    created, *rest = ask(
        sent("POST", path, obj),
        sent(method, target + door, body, kind, manager),
        HttpRequest("GET", target),
        HttpRequest("GET", path, [("limit", "1")]),
        HttpRequest("GET", path, [], {"accept": "application/json;as=Table;g=meta.k8s.io;v=v1"}),
    )
    assert created.status == 201
    for answer in rest:
        fine(answer)


@settings(max_examples=100, deadline=None)
@given(
    path=st.sampled_from(
        ["/api/v1/pods", "/api/v1/namespaces/default/pods/a", "/", "//", "/api//v1/pods", "/apis/x"]
    ),
    query=st.lists(
        st.tuples(
            st.sampled_from(
                [
                    "limit",
                    "continue",
                    "resourceVersion",
                    "resourceVersionMatch",
                    "labelSelector",
                    "fieldSelector",
                    "watch",
                    "timeoutSeconds",
                    "sendInitialEvents",
                    "dryRun",
                    "includeObject",
                    "propagationPolicy",
                ]
            ),
            st.one_of(
                st.text(max_size=8), st.sampled_from(["0", "1", "true", "a=b", "a in (", "Exact", "All"])
            ),
        ),
        max_size=4,
    ),
    method=st.sampled_from(["GET", "DELETE", "HEAD", "POST", "BREW"]),
    accept=st.text(max_size=20),
)
def test_any_query_is_answered(path: str, query: list, method: str, accept: str) -> None:
    async def main() -> None:
        server = ApiServer(StillClock(), ids=counted())
        answer = await server.handle(HttpRequest(method, path, query, {"accept": accept}))
        assert answer.status < 600 and (answer.status < 500 or answer.status == 504)
        await server.close()

    asyncio.run(main())


@pytest.mark.parametrize("path", PATHS)
def test_every_resource_lists_and_prints(path: str) -> None:
    listed, printed = ask(
        HttpRequest("GET", path),
        HttpRequest("GET", path, [], {"accept": "application/json;as=Table;g=meta.k8s.io;v=v1"}),
    )
    assert listed.status == printed.status
    assert listed.status in (200, 405)  # 405: resources that only answer questions
