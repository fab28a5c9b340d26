"""CustomResourceDefinitions: served from the write on, and gone with everything they defined."""

from tests.apiserver.serving import Client, seen

DEFINITIONS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
WIDGETS = "/apis/example.com/v1/namespaces/default/widgets"


def definition(**version: object) -> dict:
    schema = {
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
            "status": {"type": "object", "properties": {"count": {"type": "integer"}}},
        },
    }
    return {
        "metadata": {"name": "widgets.example.com"},
        "spec": {
            "group": "example.com",
            "scope": "Namespaced",
            "names": {"plural": "widgets", "kind": "Widget", "shortNames": ["wd"]},
            "versions": [
                {
                    "name": "v1",
                    "served": True,
                    "storage": True,
                    "schema": {"openAPIV3Schema": schema},
                    "subresources": {
                        "status": {},
                        "scale": {"specReplicasPath": ".spec.size", "statusReplicasPath": ".status.count"},
                    },
                    **version,
                }
            ],
        },
    }


def widget(name: str, **spec: object) -> dict:
    return {"metadata": {"name": name}, "spec": {"size": 1, **spec}}


async def test_a_definition_is_served_at_once(client: Client) -> None:
    await client.refused(404, "NotFound", "GET", WIDGETS)
    made = await client.create(DEFINITIONS, definition())
    conditions = {c["type"]: c["status"] for c in made["status"]["conditions"]}
    assert conditions == {"NamesAccepted": "True", "Established": "True"}
    created = await client.create(WIDGETS, widget("w"))
    assert created["spec"] == {"size": 1, "colour": "red"}
    assert (created["kind"], created["apiVersion"]) == ("Widget", "example.com/v1")
    discovered = await client.get("/apis/example.com/v1")
    assert {r["name"] for r in discovered["resources"]} == {"widgets", "widgets/status", "widgets/scale"}


async def test_custom_objects_are_validated_and_pruned(client: Client) -> None:
    await client.create(DEFINITIONS, definition())
    answer = await client.refused(422, "Invalid", "POST", WIDGETS, widget("w", size=0))
    assert answer["details"]["causes"][0]["field"] == "spec.size"
    created = await client.create(WIDGETS, widget("w", unicorn=1))
    assert "unicorn" not in created["spec"]
    await client.refused(400, "BadRequest", "POST", WIDGETS, widget("x", unicorn=1), fieldValidation="Strict")


async def test_custom_objects_have_status_and_scale(client: Client) -> None:
    await client.create(DEFINITIONS, definition())
    await client.create(WIDGETS, widget("w"))
    await client.merge(f"{WIDGETS}/w/status", {"status": {"count": 3}, "spec": {"size": 9}})
    scale = await client.get(f"{WIDGETS}/w/scale")
    assert (scale["spec"]["replicas"], scale["status"]["replicas"]) == (1, 3)
    scaled = await client.merge(f"{WIDGETS}/w/scale", {"spec": {"replicas": 4}})
    assert scaled["spec"]["replicas"] == 4
    assert (await client.get(f"{WIDGETS}/w"))["metadata"]["generation"] == 2


async def test_strategic_merge_is_for_built_in_kinds(client: Client) -> None:
    await client.create(DEFINITIONS, definition())
    await client.create(WIDGETS, widget("w"))
    await client.refused(
        415,
        "UnsupportedMediaType",
        "PATCH",
        f"{WIDGETS}/w",
        {},
        kind="application/strategic-merge-patch+json",
    )


async def test_an_object_is_read_in_any_served_version(client: Client) -> None:
    body = definition()
    first = body["spec"]["versions"][0]
    body["spec"]["versions"].append({**first, "name": "v2", "storage": False})
    await client.create(DEFINITIONS, body)
    await client.create(WIDGETS, widget("w"))
    other = WIDGETS.replace("v1", "v2")
    assert (await client.get(f"{other}/w"))["apiVersion"] == "example.com/v2"
    assert (await client.get(other))["items"][0]["apiVersion"] == "example.com/v2"
    changed = await client.merge(f"{other}/w", {"spec": {"size": 2}})
    assert changed["apiVersion"] == "example.com/v2"
    assert (await client.get(f"{WIDGETS}/w"))["apiVersion"] == "example.com/v1"
    async with client.watch(other) as watch:
        assert (await watch.next())["object"]["apiVersion"] == "example.com/v2"


async def test_a_definition_goes_with_its_objects_and_ends_their_watches(client: Client) -> None:
    await client.create(DEFINITIONS, definition())
    for number in range(3):
        await client.create(WIDGETS, widget(f"w{number}"))
    held = widget("held")
    held["metadata"]["finalizers"] = ["example.com/hold"]
    await client.create(WIDGETS, held)
    version = (await client.get(WIDGETS))["metadata"]["resourceVersion"]
    async with client.watch(WIDGETS, resourceVersion=version) as watch:
        await client.delete(f"{DEFINITIONS}/widgets.example.com")
        await client.server.settle()
        assert [item["metadata"]["name"] for item in (await client.get(WIDGETS))["items"]] == ["held"]
        assert await client.exists(f"{DEFINITIONS}/widgets.example.com")
        await client.merge(f"{WIDGETS}/held", {"metadata": {"finalizers": None}})
        await client.server.settle()
        events = [seen(e) for e in await watch.rest()]
    assert events.count(("DELETED", "held")) == 1
    assert not await client.exists(f"{DEFINITIONS}/widgets.example.com")
    await client.refused(404, "NotFound", "GET", WIDGETS)
    await client.create(DEFINITIONS, definition())
    assert (await client.get(WIDGETS))["items"] == []


async def test_definitions_that_cannot_be_served_are_refused(client: Client) -> None:
    wrong = definition()
    wrong["metadata"]["name"] = "other.example.com"
    await client.refused(422, "Invalid", "POST", DEFINITIONS, wrong)
    await client.create(DEFINITIONS, definition())
    rival = definition()
    rival["metadata"]["name"] = "gadgets.example.com"
    rival["spec"]["names"]["plural"] = "gadgets"
    await client.refused(409, "Conflict", "POST", DEFINITIONS, rival)


async def test_a_changed_definition_is_served_as_changed(client: Client) -> None:
    await client.create(DEFINITIONS, definition())
    await client.refused(422, "Invalid", "POST", WIDGETS, widget("w", size=-1))
    found = await client.get(f"{DEFINITIONS}/widgets.example.com")
    schema = found["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    schema["properties"]["spec"]["properties"]["size"]["minimum"] = -5
    await client.update(f"{DEFINITIONS}/widgets.example.com", found)
    await client.create(WIDGETS, widget("w", size=-1))


async def test_objects_of_any_depth_are_stored_or_refused(client: Client) -> None:
    from karpool.kube.transport_interface import HttpRequest

    schema = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    await client.create(DEFINITIONS, definition(schema={"openAPIV3Schema": schema}, subresources={}))
    for depth in (10, 400, 900, 5000):
        nested = b'{"a":' * depth + b"1" + b"}" * depth
        body = b'{"metadata":{"name":"d%d"},"spec":%s}' % (depth, nested)
        answer = await client.transport.request(HttpRequest("POST", WIDGETS, body=body))
        assert answer.status in (201, 400), answer.body
        stored = await client.transport.request(HttpRequest("GET", f"{WIDGETS}/d{depth}"))
        assert stored.status == (200 if answer.status == 201 else 404)
