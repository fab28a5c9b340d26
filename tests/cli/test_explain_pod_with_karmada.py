"""`karpool explain pod --karmada-context`: a live member, and what a live Karmada has promised in it."""

import asyncio
import json
import sys
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from karpool.kube.clock import RealClock
from karpool_fleet.apiserver.serve.http import serve
from karpool_fleet.apiserver.serve.kubeconfig_file import EmbeddedClusterEntry, write_kubeconfig
from tests.dashboard.fleets import clusters_of, control_plane, nodes_and_pods


async def karpool(*words: str) -> tuple[int | None, str, str]:
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "karpool.cli.main",
        *words,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    out, err = await process.communicate()
    return process.returncode, out.decode(), err.decode()


@pytest.mark.long
async def test_promises_of_a_live_karmada_stand_beside_the_pod(tmp_path: Path) -> None:
    fleet = {"karmada": control_plane(RealClock().now()), "east": nodes_and_pods(6, seed=3)}
    path = tmp_path / "config"
    async with AsyncExitStack() as stack:
        clusters = await stack.enter_async_context(clusters_of(fleet))
        entries = []
        for name, cluster in clusters.items():
            listening = await serve(cluster.server)
            stack.push_async_callback(listening.close)
            entries.append(EmbeddedClusterEntry(name, listening.url, "", b""))
        write_kubeconfig(path, entries)
        asked = ("explain", "pod", "team/too-big", "--kubeconfig", str(path), "--context", "east")

        code, text, error = await karpool(*asked, "--karmada-context", "karmada")
        assert code == 3, error
        assert "default/shop-web-deployment" in text and "4 replicas" in text

        code, document, error = await karpool(*asked, "--karmada-context", "karmada", "-o", "json")
        assert json.loads(document)["promises"] == [{"binding": "default/shop-web-deployment", "replicas": 4}]

        code, document, error = await karpool(
            *asked, "--karmada-context", "karmada", "--cluster-name", "west", "-o", "json"
        )
        assert {entry["replicas"] for entry in json.loads(document)["promises"]} == {8, 12}

        code, _, error = await karpool(*asked, "--karmada-context", "nowhere")
        assert code == 1
        assert "nowhere" in error
