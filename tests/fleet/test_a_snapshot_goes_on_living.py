"""An embedded cluster that begins as a file has it: what real kubelets wrote must not end it."""

import asyncio
import json
from pathlib import Path
from typing import Any

from karpool.model.kubernetes.api_resources import NODES
from karpool_fleet.clusters.clock import LoopClock, run_manual
from karpool_fleet.clusters.fleet import EmbeddedFleet
from karpool_fleet.clusters.fleet_file import ClusterSpec, FleetFile

READY = {
    "type": "Ready",
    "status": "True",
    "reason": "KubeletReady",
    "lastHeartbeatTime": "2025-12-31T23:59:50Z",
    "lastTransitionTime": "2025-12-01T00:00:00Z",
}
ROOM = {"cpu": "4", "memory": "8Gi", "pods": "110"}
NODE = {
    "apiVersion": "v1",
    "kind": "Node",
    "metadata": {"name": "real", "uid": "1"},
    "spec": {},
    "status": {"capacity": ROOM, "allocatable": ROOM, "conditions": [READY]},
}


def test_nodes_with_heartbeats_are_not_lost_when_these_stop(tmp_path: Path) -> None:
    """No embedded kubelet goes on with the heartbeats of a file."""
    file = tmp_path / "cluster.json"
    file.write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": [NODE]}))
    spec = ClusterSpec(name="c", autoscaler="none", snapshot=str(file))

    async def story() -> dict[str, Any]:
        async with EmbeddedFleet(FleetFile(clusters=[spec]), LoopClock()) as fleet:
            await asyncio.sleep(600)
            return await fleet.clusters["c"].embedded.client("admin").get(NODES, "real")

    node = run_manual(story())
    assert node["status"]["conditions"][0]["status"] == "True"
    assert not node["spec"].get("taints")
