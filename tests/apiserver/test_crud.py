"""Create, read and update, and the errors they answer with."""

import json

import pytest

from tests.apiserver.serving import CONFIG_MAPS, PODS, Client, config_map, pod

DEPLOYMENTS = "/apis/apps/v1/namespaces/default/deployments"


def deployment(name: str, replicas: int = 1) -> dict:
    template = {
        "metadata": {"labels": {"app": name}},
        "spec": {"containers": [{"name": "app", "image": "registry.example/app:1"}]},
    }
    return {
        "metadata": {"name": name},
        "spec": {"replicas": replicas, "selector": {"matchLabels": {"app": name}}, "template": template},
    }


async def test_a_created_object_is_read_back_as_it_was_answered(client: Client) -> None:
    created = await client.create(CONFIG_MAPS, config_map("a", key="value"))
    assert created["metadata"]["uid"] and created["metadata"]["creationTimestamp"] == "2026-01-01T00:00:00Z"
    assert await client.get(f"{CONFIG_MAPS}/a") == created
    listed = await client.get(CONFIG_MAPS)
    assert listed["items"] == [created]
    assert (listed["kind"], listed["apiVersion"]) == ("ConfigMapList", "v1")


async def test_what_is_not_there_is_a_404_status(client: Client) -> None:
    answer = await client.refused(404, "NotFound", "GET", f"{CONFIG_MAPS}/missing")
    assert answer["details"] == {"name": "missing", "kind": "configmaps"}
    await client.refused(404, "NotFound", "PUT", f"{CONFIG_MAPS}/missing", config_map("missing"))
    await client.refused(404, "NotFound", "DELETE", f"{CONFIG_MAPS}/missing")
    await client.refused(404, "NotFound", "GET", "/api/v1/unicorns")
    await client.refused(404, "NotFound", "GET", "/nowhere")
    await client.refused(404, "NotFound", "GET", "/apis/apps/v9/deployments")


async def test_methods_that_make_no_sense_are_405(client: Client) -> None:
    await client.create(CONFIG_MAPS, config_map("a"))
    await client.refused(405, "MethodNotAllowed", "POST", f"{CONFIG_MAPS}/a", config_map("a"))
    await client.refused(405, "MethodNotAllowed", "PUT", CONFIG_MAPS, config_map("a"))
    await client.refused(405, "MethodNotAllowed", "POST", "/api/v1/configmaps", config_map("a"))
    await client.refused(405, "MethodNotAllowed", "POST", "/version", {})


@pytest.mark.parametrize(
    ("code", "reason", "body"),
    [
        (400, "BadRequest", {"kind": "Secret", "metadata": {"name": "a"}}),
        (400, "BadRequest", {"apiVersion": "v2", "metadata": {"name": "a"}}),
        (400, "BadRequest", {"metadata": {"name": "a", "namespace": "kube-system"}}),
        (400, "BadRequest", {"metadata": {"name": "a", "resourceVersion": "5"}}),
        (400, "BadRequest", {"metadata": []}),
        (400, "BadRequest", {"metadata": {"name": 5}}),
        (400, "BadRequest", ["not", "an", "object"]),
        (422, "Invalid", {"metadata": {}}),
        (422, "Invalid", {"metadata": {"name": "Not Valid"}}),
        (422, "Invalid", {"metadata": {"name": "a" * 254}}),
        (422, "Invalid", {"metadata": {"name": "a", "labels": {"k": "not ok!"}}}),
        (422, "Invalid", {"metadata": {"name": "a", "labels": {"k": 5}}}),
        (422, "Invalid", {"metadata": {"name": "a", "annotations": {"k": "x" * 300_000}}}),
        (422, "Invalid", {"metadata": {"name": "a", "finalizers": ["nonsense"]}}),
        (422, "Invalid", {"metadata": {"name": "a", "ownerReferences": [{"kind": "Pod"}]}}),
    ],
)
async def test_bodies_that_cannot_be_created(client: Client, code: int, reason: str, body: object) -> None:
    answer = await client.refused(code, reason, "POST", CONFIG_MAPS, body)
    if code == 422:
        assert answer["details"]["causes"][0]["field"].startswith("metadata")
    assert (await client.get(CONFIG_MAPS))["items"] == []


@pytest.mark.parametrize(
    "raw", [b"", b"{", b"\xff\xfe", b'"\\ud800"', b"[" * 100_000, b'{"metadata":{"name":"a"},"data":1e999}']
)
async def test_bodies_that_are_not_json_are_a_400(client: Client, raw: bytes) -> None:
    from karpool.kube.transport_interface import HttpRequest

    answer = await client.transport.request(HttpRequest("POST", CONFIG_MAPS, body=raw))
    assert answer.status == 400 and json.loads(answer.body)["reason"] == "BadRequest"


async def test_a_name_can_be_taken_once(client: Client) -> None:
    await client.create(CONFIG_MAPS, config_map("a"))
    answer = await client.refused(409, "AlreadyExists", "POST", CONFIG_MAPS, config_map("a"))
    assert 'configmaps "a" already exists' in answer["message"]


async def test_generated_names_differ_and_keep_their_prefix(client: Client) -> None:
    made = [
        (await client.create(CONFIG_MAPS, {"metadata": {"generateName": "run-"}}))["metadata"]["name"]
        for _ in range(20)
    ]
    assert len(set(made)) == 20
    assert all(name.startswith("run-") and len(name) == 9 for name in made)


async def test_objects_need_a_namespace_that_exists(client: Client) -> None:
    path = "/api/v1/namespaces/nowhere/configmaps"
    answer = await client.refused(404, "NotFound", "POST", path, config_map("a"))
    assert 'namespaces "nowhere"' in answer["message"]


async def test_of_two_writers_of_one_version_one_wins(client: Client) -> None:
    first = await client.create(CONFIG_MAPS, config_map("a", n="0"))
    second = json.loads(json.dumps(first))
    first["data"] = {"n": "1"}
    second["data"] = {"n": "2"}
    won = await client.update(f"{CONFIG_MAPS}/a", first)
    await client.refused(409, "Conflict", "PUT", f"{CONFIG_MAPS}/a", second)
    assert (await client.get(f"{CONFIG_MAPS}/a")) == won


async def test_an_update_of_another_object_with_the_same_name_is_refused(client: Client) -> None:
    first = await client.create(CONFIG_MAPS, config_map("a"))
    await client.delete(f"{CONFIG_MAPS}/a")
    await client.create(CONFIG_MAPS, config_map("a"))
    del first["metadata"]["resourceVersion"]
    await client.refused(409, "Conflict", "PUT", f"{CONFIG_MAPS}/a", first)


async def test_a_write_that_changes_nothing_keeps_the_version(client: Client) -> None:
    made = await client.create(CONFIG_MAPS, config_map("a", k="v"))
    assert await client.update(f"{CONFIG_MAPS}/a", made) == made
    assert await client.merge(f"{CONFIG_MAPS}/a", {"data": {"k": "v"}}) == made
    assert await client.get(f"{CONFIG_MAPS}/a") == made


async def test_the_server_keeps_what_only_it_writes(client: Client) -> None:
    made = await client.create(CONFIG_MAPS, config_map("a"))
    sent = config_map("a", k="v")
    sent["metadata"] |= {
        "creationTimestamp": "2001-01-01T00:00:00Z",
        "generation": 99,
        "deletionTimestamp": "2001-01-01T00:00:00Z",
    }
    kept = await client.update(f"{CONFIG_MAPS}/a", sent)
    assert kept["data"] == {"k": "v"}
    assert kept["metadata"]["uid"] == made["metadata"]["uid"]
    assert kept["metadata"]["creationTimestamp"] == made["metadata"]["creationTimestamp"]
    assert "deletionTimestamp" not in kept["metadata"]


async def test_spec_and_status_have_their_own_doors(client: Client) -> None:
    body = deployment("web")
    body["status"] = {"replicas": 7}
    made = await client.create(DEPLOYMENTS, body)
    assert "replicas" not in made.get("status", {})
    made["status"] = {"replicas": 1, "observedGeneration": 1}
    made["spec"]["replicas"] = 9
    after = await client.update(f"{DEPLOYMENTS}/web/status", made)
    assert (after["spec"]["replicas"], after["status"]["replicas"]) == (1, 1)
    assert after["metadata"]["generation"] == 1
    after["status"] = {}
    after["spec"]["replicas"] = 3
    last = await client.update(f"{DEPLOYMENTS}/web", after)
    assert (last["spec"]["replicas"], last["status"]["replicas"]) == (3, 1)
    assert last["metadata"]["generation"] == 2


async def test_generation_counts_changes_of_the_spec_only(client: Client) -> None:
    await client.create(DEPLOYMENTS, deployment("web"))
    labelled = await client.merge(f"{DEPLOYMENTS}/web", {"metadata": {"labels": {"a": "b"}}})
    scaled = await client.merge(f"{DEPLOYMENTS}/web", {"spec": {"replicas": 2}})
    assert (labelled["metadata"]["generation"], scaled["metadata"]["generation"]) == (1, 2)


async def test_fields_that_are_fixed_at_birth(client: Client) -> None:
    await client.create(DEPLOYMENTS, deployment("web"))
    other = {"matchLabels": {"app": "other"}}
    await client.refused(
        422,
        "Invalid",
        "PATCH",
        f"{DEPLOYMENTS}/web",
        {"spec": {"selector": other, "template": {"metadata": {"labels": {"app": "other"}}}}},
        kind="application/merge-patch+json",
    )
    await client.create(PODS, pod("p"))
    change = {"spec": {"nodeSelector": {"a": "b"}}}
    await client.refused(422, "Invalid", "PATCH", f"{PODS}/p", change, kind="application/merge-patch+json")
    image = [{"op": "replace", "path": "/spec/containers/0/image", "value": "registry.example/app:2"}]
    patched = await client.ok("PATCH", f"{PODS}/p", image, kind="application/json-patch+json")
    assert patched["spec"]["containers"][0]["image"] == "registry.example/app:2"


async def test_dry_run_answers_as_if_and_stores_nothing(client: Client) -> None:
    before = (await client.get(CONFIG_MAPS))["metadata"]["resourceVersion"]
    made = await client.create(CONFIG_MAPS, config_map("a", k="v"), dryRun="All")
    assert made["data"] == {"k": "v"} and made["metadata"]["uid"]
    assert not await client.exists(f"{CONFIG_MAPS}/a")
    assert (await client.get(CONFIG_MAPS))["metadata"]["resourceVersion"] == before
    stored = await client.create(CONFIG_MAPS, config_map("a", k="v"))
    shown = await client.merge(f"{CONFIG_MAPS}/a", {"data": {"k": "w"}}, dryRun="All")
    assert shown["data"] == {"k": "w"}
    await client.delete(f"{CONFIG_MAPS}/a", dryRun="All")
    assert await client.get(f"{CONFIG_MAPS}/a") == stored
    await client.refused(400, "BadRequest", "DELETE", f"{CONFIG_MAPS}/a", dryRun="Some")


async def test_unknown_fields_are_refused_warned_of_or_ignored(client: Client) -> None:
    body = pod("p")
    body["spec"]["unicorn"] = 1
    await client.refused(400, "BadRequest", "POST", PODS, body, fieldValidation="Strict")
    warned = await client.send("POST", PODS, body, fieldValidation="Warn")
    assert warned.status == 201 and 'unknown field \\"spec.unicorn\\"' in warned.headers["warning"]
    assert warned.headers["warning"].startswith('299 - "')
    assert b"unicorn" not in warned.body
    body["metadata"]["name"] = "q"
    ignored = await client.send("POST", PODS, body, fieldValidation="Ignore")
    assert ignored.status == 201 and "warning" not in ignored.headers


async def test_admission_hooks_see_amend_and_refuse_writes(client: Client) -> None:
    from karpool_fleet.apiserver.serve.status import forbidden

    seen = []

    def hook(operation, resource, new, old) -> None:
        seen.append((operation, resource.plural))
        if resource.plural == "configmaps" and new is not None:
            if new["metadata"]["name"] == "bad":
                raise forbidden(resource, "bad", "no such names here")
            new["metadata"].setdefault("labels", {})["seen"] = "yes"

    client.server.admission.append(hook)
    made = await client.create(CONFIG_MAPS, config_map("good"))
    assert made["metadata"]["labels"] == {"seen": "yes"}
    await client.refused(403, "Forbidden", "POST", CONFIG_MAPS, config_map("bad"))
    await client.delete(f"{CONFIG_MAPS}/good")
    assert [entry for entry in seen if entry[1] == "configmaps"] == [
        ("CREATE", "configmaps"),
        ("CREATE", "configmaps"),
        ("DELETE", "configmaps"),
    ]


async def test_requests_can_be_intercepted(client: Client) -> None:
    from karpool_fleet.apiserver.serve.status import internal

    async def around(request, handler):
        return internal("cut").response() if request.method == "GET" else await handler(request)

    client.server.around = around
    await client.create(CONFIG_MAPS, config_map("a"))
    await client.refused(500, "InternalError", "GET", f"{CONFIG_MAPS}/a")


async def test_a_fault_of_the_server_is_a_500_and_the_next_request_works(client: Client) -> None:
    def broken(operation, resource, new, old) -> None:
        raise ZeroDivisionError

    await client.get(CONFIG_MAPS)
    client.server.admission.append(broken)
    await client.refused(500, "InternalError", "POST", CONFIG_MAPS, config_map("a"))
    client.server.admission.remove(broken)
    await client.create(CONFIG_MAPS, config_map("a"))


async def test_version_and_health(client: Client) -> None:
    for path in ("/version", "/version/"):
        assert (await client.get(path))["major"] == "1"
    for path in ("/healthz", "/livez", "/readyz", "/readyz/ping"):
        assert (await client.send("GET", path)).body == b"ok"
    assert b"[+]ping ok" in (await client.send("GET", "/readyz", verbose="")).body
    await client.refused(404, "NotFound", "GET", "/readyz/unicorn")
