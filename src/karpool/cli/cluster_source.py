"""Read a cluster for one command: live through its API, or from a file.

Either way the result is the same `ClusterState`, so that a command cannot tell.
"""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from math import inf
from typing import Any

from karpool.cli.options import ClusterOptions
from karpool.kube import kubeconfig
from karpool.kube.client import Client
from karpool.kube.decoding import BadObject, Report, log_bad_objects
from karpool.kube.errors import Denied
from karpool.kube.http import HttpTransport
from karpool.kube.resource import NAMESPACES, NODES, PODS, PVCS, PVS, STORAGECLASSES, Resource
from karpool.kube.snapshot_file import read_objects
from karpool.model.node import Node
from karpool.model.pod import Pod
from karpool.model.volumes import PersistentVolume, PersistentVolumeClaim, StorageClass
from karpool.state.cluster import ClusterState, Namespace

_Listed = tuple[tuple[Resource, type[Any]], ...]
_ALWAYS: _Listed = ((NAMESPACES, Namespace), (NODES, Node), (PODS, Pod))
_VOLUMES: _Listed = ((PVCS, PersistentVolumeClaim), (PVS, PersistentVolume), (STORAGECLASSES, StorageClass))


@dataclass(frozen=True)
class Loaded:
    state: ClusterState
    undecodable: Sequence[BadObject] = ()

    @property
    def problems(self) -> Sequence[str]:
        """Every object that was left out, and why."""
        return [str(problem) for problem in (*self.undecodable, *self.state.problems)]


@asynccontextmanager
async def connect(options: ClusterOptions, report: Report = log_bad_objects) -> AsyncIterator[Client]:
    config = kubeconfig.load(options.kubeconfig, context=options.context or "")
    timeout = inf if options.request_timeout_seconds == 0 else options.request_timeout_seconds
    client = Client(HttpTransport(config), name=config.name, timeout=timeout, report=report)
    async with client:
        yield client


async def load_cluster(options: ClusterOptions) -> Loaded:
    bad: list[BadObject] = []
    if options.snapshot is not None:
        state = ClusterState()
        state.load(read_objects(options.snapshot, report=bad.extend))
    else:
        async with connect(options, bad.extend) as client:
            state = await read_cluster(client)
    return Loaded(state, bad)


async def read_cluster(client: Client) -> ClusterState:
    """Everything that a cluster state reads. Who may not list volumes gets pods that go where they like."""
    listed = [(resource.kind, await client.list(resource, into=into)) for resource, into in _ALWAYS]
    try:
        volumes = [(resource.kind, await client.list(resource, into=into)) for resource, into in _VOLUMES]
    except Denied as error:
        client.report([BadObject("volumes", "of all pods", f"not looked at: {error}")])
        volumes = []
    state = ClusterState(volumes=bool(volumes))
    for kind, page in (*listed, *volumes):
        state.replace(kind, page.items)
    return state
