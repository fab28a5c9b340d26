"""Whatever a client does, the server agrees with a dict, and watches tell the whole story."""

import asyncio
import json
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from karpool_fleet.apiserver.serve.server import ApiServer
from tests.apiserver.serving import CONFIG_MAPS, Client, StillClock, config_map, counted

NAMES = st.sampled_from([f"c{number}" for number in range(5)])
DATA = st.dictionaries(st.sampled_from("abc"), st.sampled_from("xyz"), max_size=3)
HELD = "example.com/hold"


class AnySequence(RuleBasedStateMachine):
    @initialize()
    def start(self) -> None:
        self.loop = asyncio.new_event_loop()
        self.client = Client(ApiServer(StillClock(), ids=counted()))
        listed = self.run(self.client.get(CONFIG_MAPS))
        self.first_version = listed["metadata"]["resourceVersion"]
        self.model: dict[str, dict[str, Any]] = {}  # name: data, held, deleting
        self.versions: dict[str, int] = {}

    def run(self, awaitable: Any) -> Any:
        return self.loop.run_until_complete(awaitable)

    def teardown(self) -> None:
        if hasattr(self, "loop"):
            self.run(self.client.server.close())
            self.loop.close()

    def call(self, method: str, name: str, body: Any = None, **rest: Any) -> tuple[int, dict]:
        path = CONFIG_MAPS if method == "POST" else f"{CONFIG_MAPS}/{name}"
        status, answer = self.run(self.client.call(method, path, body, **rest))
        if status in (200, 201) and answer["kind"] == "ConfigMap":
            self.versions[name] = int(answer["metadata"]["resourceVersion"])
        return status, answer

    @rule(name=NAMES, data=DATA, held=st.booleans())
    def create(self, name: str, data: dict, held: bool) -> None:
        body = config_map(name, **data)
        if held:
            body["metadata"]["finalizers"] = [HELD]
        status, _ = self.call("POST", name, body)
        assert status == (409 if name in self.model else 201)
        self.model.setdefault(name, {"data": data, "held": held, "deleting": False})

    @rule(name=NAMES, data=DATA)
    def replace(self, name: str, data: dict) -> None:
        body = config_map(name, **data)
        if name in self.model and self.model[name]["held"]:
            body["metadata"]["finalizers"] = [HELD]
        status, _ = self.call("PUT", name, body)
        assert status == (200 if name in self.model else 404)
        if name in self.model:
            self.model[name]["data"] = data

    @rule(name=NAMES, data=DATA)
    def replace_an_old_version(self, name: str, data: dict) -> None:
        if name not in self.model or self.model[name]["data"] == data:
            return
        stale = self.versions[name] - 1
        body = config_map(name, **data)
        body["metadata"]["resourceVersion"] = str(stale)
        assert self.call("PUT", name, body)[0] == 409

    @rule(name=NAMES, data=DATA)
    def merge(self, name: str, data: dict) -> None:
        status, _ = self.call("PATCH", name, {"data": data}, kind="application/merge-patch+json")
        assert status == (200 if name in self.model else 404)
        if name in self.model:
            self.model[name]["data"] = self.model[name]["data"] | data

    @rule(name=NAMES, key=st.sampled_from("abc"))
    def remove_a_key(self, name: str, key: str) -> None:
        patch = [{"op": "remove", "path": f"/data/{key}"}]
        status, _ = self.call("PATCH", name, patch, kind="application/json-patch+json")
        if name not in self.model:
            assert status == 404
        elif key in self.model[name]["data"]:
            assert status == 200
            self.model[name]["data"] = {k: v for k, v in self.model[name]["data"].items() if k != key}
        else:
            assert status == 422

    @rule(name=NAMES)
    def delete(self, name: str) -> None:
        status, _ = self.call("DELETE", name)
        assert status == (200 if name in self.model else 404)
        if name in self.model:
            self.model[name]["deleting"] = True
            if not self.model[name]["held"]:
                del self.model[name]

    @rule(name=NAMES)
    def let_go(self, name: str) -> None:
        if name not in self.model:
            return
        self.call("PATCH", name, {"metadata": {"finalizers": None}}, kind="application/merge-patch+json")
        self.model[name]["held"] = False
        if self.model[name]["deleting"]:
            del self.model[name]

    @rule(name=NAMES, data=DATA)
    def dry_run(self, name: str, data: dict) -> None:
        self.run(self.client.call("POST", CONFIG_MAPS, config_map(name, **data), dryRun="All"))
        self.run(self.client.call("DELETE", f"{CONFIG_MAPS}/{name}", dryRun="All"))

    @invariant()
    def the_list_is_the_model(self) -> None:
        if not hasattr(self, "model"):
            return
        listed = self.run(self.client.get(CONFIG_MAPS))
        found = {item["metadata"]["name"]: item for item in listed["items"]}
        assert list(found) == sorted(self.model)
        for name, item in found.items():
            assert item.get("data", {}) == self.model[name]["data"]
            assert ("deletionTimestamp" in item["metadata"]) == self.model[name]["deleting"]
            assert int(item["metadata"]["resourceVersion"]) == self.versions[name]

    @invariant()
    def a_watch_from_the_beginning_ends_in_the_same_state(self) -> None:
        if not hasattr(self, "model"):
            return
        rebuilt: dict[str, dict] = {}
        last = 0
        for event in self.run(self.replay()):
            obj = event["object"]
            name, version = obj["metadata"]["name"], int(obj["metadata"]["resourceVersion"])
            assert version > last, "events arrive in the order of their versions"
            last = version
            assert (event["type"] == "ADDED") == (name not in rebuilt)
            if event["type"] == "DELETED":
                del rebuilt[name]
            else:
                rebuilt[name] = obj
        listed = self.run(self.client.get(CONFIG_MAPS))
        assert sorted(rebuilt.items()) == [(i["metadata"]["name"], i) for i in listed["items"]]

    async def replay(self) -> list[dict]:
        current = self.client.server.cluster.store.collection("configmaps").history
        wanted = current.end - current.after(int(self.first_version))
        paths = (CONFIG_MAPS, "/api/v1/configmaps")  # a namespace is filtered, everything is not
        told = []
        for path in paths:
            async with self.client.watch(path, resourceVersion=self.first_version) as watch:
                told.append(await watch.take(wanted))
        assert told[0] == told[1]
        return told[0]


AnySequence.TestCase.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
TestAnySequence = AnySequence.TestCase


def story(seed: int) -> list[bytes]:
    """Everything a client hears in a fixed sequence of requests."""
    import random

    from karpool_fleet.clusters.clock import LoopClock, run_manual

    async def main() -> list[bytes]:
        chance = random.Random(seed)
        client = Client(ApiServer(LoopClock(), ids=counted()))
        heard = []
        async with client.watch(CONFIG_MAPS) as watch:
            for _ in range(60):
                name = f"c{chance.randrange(6)}"
                match chance.randrange(4):
                    case 0:
                        made = (
                            {"metadata": {"generateName": "g-"}}
                            if chance.random() < 0.3
                            else config_map(name)
                        )
                        answer = await client.send("POST", CONFIG_MAPS, made)
                    case 1:
                        patch = {"data": {"n": str(chance.random())}}
                        answer = await client.send(
                            "PATCH", f"{CONFIG_MAPS}/{name}", patch, kind="application/merge-patch+json"
                        )
                    case 2:
                        answer = await client.send("DELETE", f"{CONFIG_MAPS}/{name}")
                    case _:
                        answer = await client.send("GET", CONFIG_MAPS, limit=3)
                heard.append(answer.body)
                await asyncio.sleep(chance.random())
            count = client.server.cluster.store.collection("configmaps").history.end
            heard += [json.dumps(event).encode() for event in await watch.take(count)]
        return heard

    return run_manual(main())


def test_the_same_requests_get_the_same_bytes() -> None:
    assert story(1) == story(1)
    assert story(1) != story(2)
