"""What was acknowledged is there after the process has been killed."""

import asyncio
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from karpool_fleet.apiserver.serve.server import ApiServer
from karpool_fleet.apiserver.storage import durability
from karpool_fleet.apiserver.storage.journal import Journal
from tests.apiserver.serving import CONFIG_MAPS, PODS, Client, StillClock, config_map, counted, pod
from tests.apiserver.test_custom_resources import DEFINITIONS, WIDGETS, definition, widget
from tests.apiserver.test_garbage import owned


def open_server(directory: Path) -> Client:
    return Client(ApiServer(StillClock(), ids=counted(), journal=Journal(directory, fsync=False)))


def size_of(directory: Path) -> int:
    return sum(path.stat().st_size for path in directory.iterdir())


async def test_everything_is_back_after_a_restart(tmp_path: Path) -> None:
    client = open_server(tmp_path)
    await client.create(DEFINITIONS, definition())
    await client.create(WIDGETS, widget("w"))
    for name in ("a", "b", "c"):
        await client.create(CONFIG_MAPS, config_map(name, k="1"))
    await client.merge(f"{CONFIG_MAPS}/a", {"data": {"k": "2"}})
    await client.delete(f"{CONFIG_MAPS}/b")
    paths = ("/api/v1/configmaps", WIDGETS, "/api/v1/namespaces", DEFINITIONS)
    before = [await client.get(path) for path in paths]
    await client.server.close()
    client = open_server(tmp_path)
    assert [await client.get(path) for path in paths] == before
    start = before[0]["metadata"]["resourceVersion"]
    made = await client.create(CONFIG_MAPS, config_map("d"))
    assert int(made["metadata"]["resourceVersion"]) == int(start) + 1
    async with client.watch(CONFIG_MAPS, resourceVersion=start) as watch:
        assert (await watch.next())["object"] == made
    await client.refused(410, "Expired", "GET", CONFIG_MAPS, watch="true", resourceVersion=int(start) - 1)
    await client.server.close()


async def test_deletions_that_were_under_way_go_on(tmp_path: Path) -> None:
    client = open_server(tmp_path)
    a = await client.create(CONFIG_MAPS, config_map("a"))
    await client.create(CONFIG_MAPS, owned("b", a))
    await client.create("/api/v1/namespaces", {"metadata": {"name": "team"}})
    await client.create("/api/v1/namespaces/team/configmaps", config_map("c"))
    background = client.server.cluster.background
    background.kick = lambda: None  # the process dies before it gets around to it
    await client.delete(f"{CONFIG_MAPS}/a")
    await client.delete("/api/v1/namespaces/team")
    await client.server.close()
    client = open_server(tmp_path)
    await client.get(CONFIG_MAPS)
    await client.server.settle()
    assert (await client.get("/api/v1/configmaps"))["items"] == []
    assert not await client.exists("/api/v1/namespaces/team")
    await client.server.close()


@pytest.mark.long
async def test_a_compacted_journal_holds_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(durability, "COMPACT_MIN_BYTES", 20_000)
    client = open_server(tmp_path)
    for number in range(400):
        await client.create(PODS, pod(f"p{number % 10}-{number}"))
        if number % 2:
            await client.delete(f"{PODS}/p{number % 10}-{number}")
    listed = await client.get(PODS)
    await client.server.close()
    assert size_of(tmp_path) < 4 * len(json.dumps(listed))
    client = open_server(tmp_path)
    assert await client.get(PODS) == listed
    await client.server.close()


WRITER = """
import asyncio, sys
from pathlib import Path
from karpool_fleet.apiserver.storage.journal import Journal
from karpool_fleet.apiserver.serve.server import ApiServer
from tests.apiserver.serving import CONFIG_MAPS, Client, StillClock, config_map, counted

async def writer(client, prefix):
    for number in range(100_000):
        name = f"{prefix}-{number}"
        await client.create(CONFIG_MAPS, config_map(name))
        print(name, flush=True)

async def main():
    client = Client(ApiServer(StillClock(), ids=counted(), journal=Journal(Path(sys.argv[1]))))
    await asyncio.gather(*(writer(client, prefix) for prefix in "abcd"))

asyncio.run(main())
"""


@pytest.mark.long
def test_an_acknowledged_write_survives_kill_9(tmp_path: Path) -> None:
    root = Path(__file__).parents[2]
    command = [sys.executable, "-c", WRITER, str(tmp_path)]
    with subprocess.Popen(command, cwd=root, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        acknowledged = [process.stdout.readline().strip() for _ in range(200)]
        os.kill(process.pid, signal.SIGKILL)
        acknowledged += [line.strip() for line in process.stdout if line.endswith("\n")]

    async def check() -> None:
        client = open_server(tmp_path)
        listed = await client.get(CONFIG_MAPS)
        assert set(acknowledged) <= {item["metadata"]["name"] for item in listed["items"]}
        await client.server.close()

    asyncio.run(check())


async def test_nothing_is_answered_that_could_not_be_made_durable(tmp_path: Path) -> None:
    from karpool_fleet.apiserver.storage.journal_file import JournalError

    client = open_server(tmp_path)
    await client.create(CONFIG_MAPS, config_map("before"))
    journal = client.server._durability._journal

    def full(record: bytes) -> int:
        raise JournalError("no space left on device")

    append, journal.append = journal.append, full
    await client.refused(500, "InternalError", "POST", CONFIG_MAPS, config_map("lost"))
    journal.append = append
    await client.refused(500, "InternalError", "GET", CONFIG_MAPS)
    await client.refused(500, "InternalError", "POST", CONFIG_MAPS, config_map("later"))
    await client.server.close()
    client = open_server(tmp_path)
    listed = await client.get(CONFIG_MAPS)
    assert [item["metadata"]["name"] for item in listed["items"]] == ["before"]
    await client.server.close()
