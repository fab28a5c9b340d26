"""Server-side apply through the API: creating, sharing, conflicting, taking over."""

from karpool_fleet.apiserver.serve.server import ApiServer
from tests.apiserver.serving import CONFIG_MAPS, Client, StillClock, config_map, counted

APPLY = "application/apply-patch+yaml"
PATH = f"{CONFIG_MAPS}/a"


def applied(**data: str) -> dict:
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a"}, "data": data}


async def apply(client: Client, manager: str, body: dict, **query: str) -> tuple[int, dict]:
    return await client.call("PATCH", PATH, body, kind=APPLY, fieldManager=manager, **query)


async def test_apply_creates_then_changes_then_does_nothing(client: Client) -> None:
    code, made = await apply(client, "one", applied(k="1"))
    assert code == 201 and made["metadata"]["managedFields"][0]["manager"] == "one"
    code, changed = await apply(client, "one", applied(k="2"))
    assert code == 200 and changed["data"] == {"k": "2"}
    code, same = await apply(client, "one", applied(k="2"))
    assert same["metadata"]["resourceVersion"] == changed["metadata"]["resourceVersion"]


async def test_what_a_manager_no_longer_applies_is_removed(client: Client) -> None:
    await apply(client, "one", applied(k="1", gone="1"))
    await apply(client, "two", applied(mine="2"))
    _, after = await apply(client, "one", applied(k="1"))
    assert after["data"] == {"k": "1", "mine": "2"}


async def test_another_managers_field_is_a_conflict_unless_forced(client: Client) -> None:
    await apply(client, "one", applied(k="1"))
    code, answer = await apply(client, "two", applied(k="2"))
    assert (code, answer["reason"]) == (409, "Conflict")
    cause = answer["details"]["causes"][0]
    assert cause["reason"] == "FieldManagerConflict" and cause["field"] == ".data.k"
    code, forced = await apply(client, "two", applied(k="2"), force="true")
    assert code == 200 and forced["data"] == {"k": "2"}


async def test_plain_writes_take_fields_from_appliers(client: Client) -> None:
    await apply(client, "one", applied(k="1"))
    await client.merge(PATH, {"data": {"k": "2"}}, fieldManager="editor")
    code, answer = await apply(client, "one", applied(k="1"))
    assert code == 409 and "editor" in answer["details"]["causes"][0]["message"]


async def test_the_first_apply_respects_what_others_wrote(client: Client) -> None:
    await client.create(CONFIG_MAPS, config_map("a", k="1", same="1"))
    code, answer = await apply(client, "one", applied(k="2"))
    assert code == 409 and "before-first-apply" in answer["details"]["causes"][0]["message"]
    code, agreed = await apply(client, "one", applied(same="1"))
    assert code == 200 and agreed["data"] == {"k": "1", "same": "1"}


async def test_apply_needs_a_manager_and_a_matching_object(client: Client) -> None:
    await client.refused(422, "Invalid", "PATCH", PATH, applied(), kind=APPLY)
    other = applied()
    other["metadata"]["name"] = "b"
    await client.refused(400, "BadRequest", "PATCH", PATH, other, kind=APPLY, fieldManager="one")
    await client.refused(400, "BadRequest", "PATCH", PATH, [], kind=APPLY, fieldManager="one")


async def test_yaml_is_read_without_its_traps(client: Client) -> None:
    from karpool.kube.transport_interface import HttpRequest

    async def send(raw: bytes) -> int:
        query = [("fieldManager", "one")]
        answer = await client.transport.request(
            HttpRequest("PATCH", PATH, query, {"content-type": APPLY}, raw)
        )
        return answer.status

    head = b"apiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: a\n"
    assert await send(head + b"data:\n  when: 2026-01-01\n") == 201
    assert (await client.get(PATH))["data"] == {"when": "2026-01-01"}
    assert await send(head + b"data: &x\n  a: b\nbinaryData: *x\n") == 400
    assert await send(head + b"data: [unclosed\n") == 400


async def test_a_dry_run_apply_stores_nothing(client: Client) -> None:
    code, shown = await apply(client, "one", applied(k="1"), dryRun="All")
    assert code == 201 and shown["data"] == {"k": "1"}
    assert not await client.exists(PATH)


async def test_objects_that_were_never_applied_carry_no_managed_fields(client: Client) -> None:
    made = await client.create(CONFIG_MAPS, config_map("plain"))
    assert "managedFields" not in made["metadata"]


async def test_a_tracking_server_says_who_wrote_every_field(clock: StillClock) -> None:
    client = Client(ApiServer(clock, ids=counted(), track_fields=True))
    made = await client.create(CONFIG_MAPS, config_map("a", k="v"), fieldManager="me")
    entry = made["metadata"]["managedFields"][0]
    assert (entry["manager"], entry["operation"]) == ("me", "Update")
    assert "f:k" in entry["fieldsV1"]["f:data"]
    code, answer = await apply(client, "one", applied(k="2"))
    assert code == 409 and '"me"' in answer["details"]["causes"][0]["message"]


async def test_a_tracking_server_knows_a_write_that_changes_nothing(clock: StillClock) -> None:
    client = Client(ApiServer(clock, ids=counted(), track_fields=True))
    made = await client.create(CONFIG_MAPS, config_map("a", k="v"), fieldManager="me")
    clock.seconds += 100
    assert await client.update(PATH, config_map("a", k="v"), fieldManager="other") == made
    assert await client.merge(PATH, {"data": {"k": "v"}}, fieldManager="other") == made
    changed = await client.update(PATH, config_map("a", k="w"), fieldManager="other")
    assert [e["manager"] for e in changed["metadata"]["managedFields"]] == ["other"]
