"""Claims for devices (DRA) on a cluster of their own, beside Karpenter that is told to look at them.

Karpenter's kwok provider names no devices of its machines, so Karpenter itself buys nothing for a claim; the
test plays the driver that publishes what the new machine has.
"""

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from e2e import access
from e2e.components import karpool_controller
from e2e.control_plane import etcd
from e2e.fleet import COMPONENTS
from e2e.kubectl import Object, wait_for
from e2e.market import SOLD
from e2e.member import Member, member, node_pool
from e2e.peers import Built
from e2e.test_consolidation import QUICK, planned, pool
from e2e.workloads import deployment

DRIVER = "gpu.nvidia.com"
NAMESPACE = "training"
SMART_PODS = "karpool-smart-pods"


@pytest.fixture(scope="module")
def drivers(peers: dict[str, Built], place: Path) -> Iterator[Member]:
    looking = {"IGNORE_DRA_REQUESTS": "false"}
    folder = place / "dra"
    folder.mkdir()
    with (
        etcd(peers["etcd"], folder) as url,
        member(peers, folder, url, "dra", COMPONENTS, instance_types=SOLD, karpenter_env=looking) as cluster,
    ):
        access.prepare(cluster.kubectl, "elastic")
        cluster.kubectl.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}})
        yield cluster


@pytest.fixture
def karpool(drivers: Member, place: Path, running: contextlib.ExitStack) -> Callable[..., None]:
    def start(command: str, *flags: str) -> None:
        log = place / "dra" / f"{command}.log"
        program = karpool_controller(command, drivers.server, log, flags, user=command)
        running.callback(program.stop)

    return start


def device_class() -> Object:
    kind = f"device.attributes['{DRIVER}'].type == 'gpu'"
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "DeviceClass",
        "metadata": {"name": DRIVER},
        "spec": {"selectors": [{"cel": {"expression": f"device.driver == '{DRIVER}' && {kind}"}}]},
    }


def template(name: str, memory: str) -> Object:
    enough = f"device.capacity['{DRIVER}'].memory.compareTo(quantity('{memory}')) >= 0"
    exactly = {"deviceClassName": DRIVER, "selectors": [{"cel": {"expression": enough}}]}
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaimTemplate",
        "metadata": {"name": name, "namespace": NAMESPACE},
        "spec": {"spec": {"devices": {"requests": [{"name": "gpu", "exactly": exactly}]}}},
    }


def published(node: str) -> Object:
    """What NVIDIA's driver writes of the one A10G of a g5.xlarge."""
    device = {
        "name": "gpu-0",
        "attributes": {"type": {"string": "gpu"}, "productName": {"string": "NVIDIA A10G"}},
        "capacity": {"memory": {"value": "23028Mi"}},
    }
    pool_of_node = {"name": node, "generation": 1, "resourceSliceCount": 1}
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceSlice",
        "metadata": {"name": f"{node}-gpus"},
        "spec": {"driver": DRIVER, "nodeName": node, "pool": pool_of_node, "devices": [device]},
    }


def trainer(name: str, of_template: str) -> Object:
    claims = [{"name": "gpu", "resourceClaimTemplateName": of_template}]
    return deployment(name, NAMESPACE, 1, "100m", resourceClaims=claims)


def node_of_claim(cluster: Member) -> str:
    names = [claim.get("status", {}).get("nodeName", "") for claim in cluster.kubectl.items("nodeclaims")]
    return names[0] if len(names) == 1 else ""


def test_a_claim_that_waits_brings_its_node_and_keeps_it(
    drivers: Member, karpool: Callable[..., None]
) -> None:
    kubectl = drivers.kubectl
    machines = node_pool("gpu", types=("g5.xlarge",))
    machines["spec"]["disruption"] = pool("m5.large", k=1)["spec"]["disruption"]
    machines["metadata"]["annotations"] = pool("m5.large", k=1)["metadata"]["annotations"]
    kubectl.apply(machines, device_class(), template("modest", "16Gi"), template("huge", "80Gi"))
    karpool("gpu-scaler", "--region=us-east-1", "--debounce=1s")
    kubectl.apply(trainer("modest", "modest"), trainer("huge", "huge"))

    node = wait_for("a machine for the claim", lambda: node_of_claim(drivers))
    kubectl.apply(published(node))
    wait_for("the claim is served", lambda: drivers.pods(NAMESPACE, phase="Running"))
    (pod,) = drivers.pods(NAMESPACE, phase="Running")
    assert (pod["metadata"]["labels"]["app"], pod["spec"]["nodeName"]) == ("modest", node)
    claims = kubectl.items("resourceclaims", "-n", NAMESPACE)
    (given,) = [claim for claim in claims if claim.get("status", {}).get("allocation")]
    (result,) = given["status"]["allocation"]["devices"]["results"]
    assert (result["driver"], result["pool"], result["device"]) == (DRIVER, node, "gpu-0")
    wait_for("nothing is left", lambda: not kubectl.items("pods", "-n", SMART_PODS))
    assert len(kubectl.items("nodeclaims")) == 1, "no machine for the claim that none can serve"

    # A machine without pods goes, the one with the claim stays.
    kubectl("delete", "deployment", "huge", "-n", NAMESPACE)
    general = {"karpenter.sh/nodepool": "general"}
    kubectl.apply(pool("m5.large", k=1), deployment("short", NAMESPACE, 1, "100m", nodeSelector=general))
    drivers.wait_running(NAMESPACE, 2)
    kubectl("delete", "deployment", "short", "-n", NAMESPACE)
    drivers.wait_running(NAMESPACE, 1)
    moved = [source["name"] for move in planned(drivers)["moves"] for source in move["nodes"]]
    assert moved and node not in moved
    karpool("consolidator", *QUICK)
    wait_for("the empty machine is gone", lambda: len(kubectl.items("nodeclaims")) == 1)
    assert node_of_claim(drivers) == node
    assert [pod["spec"]["nodeName"] for pod in drivers.pods(NAMESPACE, phase="Running")] == [node]
