"""Kinds that are served in several versions: Karmada's bindings, converted by Karmada's own webhook.

Karpool reads and writes them as v1alpha2. Others may write v1alpha1, where replicas stand
elsewhere, and an API server that was upgraded still has objects that were stored so.
"""

import asyncio
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest

from e2e.control_plane import crds_of
from e2e.fleet import Fleet
from e2e.karmada import conversion
from e2e.kubectl import Kubectl, Object, wait_for
from e2e.member import Member
from e2e.peers import Built
from e2e.scene import Scene
from e2e.workloads import AGGREGATED, HELD_BACK, deployment
from karpool.kube.api.client import Client
from karpool.kube.config import kubeconfig
from karpool.kube.transport.http import HttpTransport
from karpool.kube.watch.informer import Informer
from karpool.model.kubernetes.api_resources import RESOURCEBINDINGS, ListOptions
from karpool.model.kubernetes.meta import WireObject

OLD, NEW = "v1alpha1", "v1alpha2"
KIND = "resourcebindings.work.karmada.io"
SECONDS = 120
DEFAULT = ListOptions(namespace="default")


class Bound(WireObject, frozen=True):
    spec: dict[str, Any] | None = None


def old_binding(name: str, namespace: str, replicas: int) -> Object:
    """Where it says how many replicas there are is what was changed later."""
    resource = {
        "apiVersion": "example.com/v1",
        "kind": "Thing",
        "name": name,
        "namespace": namespace,
        "replicas": replicas,
        "resourcePerReplicas": {"cpu": "500m"},
    }
    return {
        "apiVersion": f"work.karmada.io/{OLD}",
        "kind": "ResourceBinding",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {"resource": resource},
    }


def read(kubectl: Kubectl, version: str, name: str, namespace: str) -> Object:
    found: Object = kubectl.get(f"resourcebindings.{version}.work.karmada.io", name, "-n", namespace)["spec"]
    return found


def test_clients_of_an_old_version_can_read_where_we_placed(scene: Scene) -> None:
    """They can only read: Karmada's webhook refuses bindings that are written in the old version."""
    scene.scheduler("karpool", asking=False)
    namespace = scene.namespace()
    workloads = [deployment("web", namespace, 3, "500m")]
    placed = scene.place(namespace, workloads, ["static"], AGGREGATED, "karpool-scheduler", **HELD_BACK)
    assert placed == {"web-deployment": {"static": 3}}
    seen = read(scene.control.kubectl, OLD, "web-deployment", namespace)
    assert seen["clusters"] == [{"name": "static", "replicas": 3}]
    assert seen["resource"]["replicas"] == 3
    assert not scene.control.kubectl.admits(old_binding("thing", namespace, 3))


@pytest.fixture
def upgraded(peers: dict[str, Built], whole: Fleet) -> Iterator[Member]:
    """A server on which the kind was stored in the old version when the first object was made."""
    member = whole.static
    definitions = crds_of(peers["karmada"].source / "charts" / "karmada" / "_crds" / "bases" / "work")
    (definition,) = [each for each in definitions if each["metadata"]["name"] == KIND]
    definition["spec"]["conversion"] = conversion(whole.control.kubectl)
    try:
        member.kubectl.apply(_stored_as(OLD, definition))
        member.kubectl("wait", "--for=condition=Established", "crd", KIND, "--timeout=120s")
        wait_for("it is served", partial(_serves, member.kubectl))
        member.kubectl.apply(old_binding("before", "default", 3))
        member.kubectl.apply(_stored_as(NEW, definition))
        yield member
    finally:
        member.kubectl("delete", "crd", KIND, "--ignore-not-found", "--timeout=120s")


def _stored_as(version: str, definition: Object) -> Object:
    spec = definition["spec"]
    versions = [{**each, "storage": each["name"] == version} for each in spec["versions"]]
    metadata = {"name": KIND, "annotations": definition["metadata"].get("annotations", {})}
    return {**definition, "metadata": metadata, "spec": {**spec, "versions": versions}}


def _serves(kubectl: Kubectl) -> bool:
    return kubectl.run("get", f"resourcebindings.{OLD}.work.karmada.io", "-A").returncode == 0


def test_what_was_stored_in_another_version_is_listed_watched_and_changed(upgraded: Member) -> None:
    kubectl = upgraded.kubectl

    async def story() -> None:
        transport = HttpTransport(kubeconfig.load(upgraded.server.kubeconfig()))
        async with Client(transport, name="upgraded") as client:
            informer = Informer(client, RESOURCEBINDINGS, into=Bound, selection=DEFAULT)
            running = asyncio.create_task(informer.run())
            await asyncio.wait_for(informer.synced.wait(), SECONDS)
            assert _seen(informer) == {"before": 3}
            await asyncio.to_thread(kubectl.apply, old_binding("after", "default", 5))
            await _until(informer, {"before": 3, "after": 5})
            await client.patch(
                RESOURCEBINDINGS,
                "before",
                {"spec": {"replicas": 4, "clusters": [{"name": "static", "replicas": 4}]}},
                namespace="default",
            )
            await _until(informer, {"before": 4, "after": 5})
            running.cancel()

    asyncio.run(story())
    assert read(kubectl, OLD, "before", "default")["resource"]["replicas"] == 4
    stored = kubectl.get("crd", KIND)["status"]["storedVersions"]
    assert stored == [OLD, NEW], "both versions were in the store, or nothing was shown"


def _seen(informer: Informer[Bound]) -> dict[str, int]:
    return {each.metadata.name: (each.spec or {}).get("replicas", 0) for each in informer.objects()}


async def _until(informer: Informer[Bound], wanted: dict[str, int]) -> None:
    async with asyncio.timeout(SECONDS):
        while _seen(informer) != wanted:  # noqa: ASYNC110
            await asyncio.sleep(0.05)
