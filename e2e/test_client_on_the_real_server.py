"""Karpool's client and informers against what a real kube-apiserver does to its clients."""

import asyncio
import json
import urllib.request
import uuid
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import pytest

from e2e.control_plane import ApiServer, api_server
from e2e.fleet import Fleet
from e2e.kubectl import Kubectl, Object
from e2e.peers import Built
from e2e.scene import WARNED
from karpool.kube.api.client import Client
from karpool.kube.config import kubeconfig
from karpool.kube.errors import ApiUnreachable, Gone
from karpool.kube.transport.http import HttpTransport
from karpool.kube.transport_interface import HttpRequest, HttpResponse, StreamResponse
from karpool.kube.watch.informer import Informer
from karpool.model.kubernetes.api_resources import CONFIGMAPS, ListOptions
from karpool.model.kubernetes.meta import WireObject

NAMESPACE = ListOptions(namespace="default")


@pytest.fixture(scope="module")
def bare(peers: dict[str, Built], place: Path, whole: Fleet) -> Iterator[tuple[ApiServer, Kubectl]]:
    """A narrow API server, whose watches end every few seconds and are served by etcd itself."""
    flags = (
        "--min-request-timeout=2",
        "--watch-cache=false",
        "--max-requests-inflight=2",
        "--max-mutating-requests-inflight=2",
    )
    name = f"bare-{uuid.uuid4().hex[:8]}"  # below a prefix of its own in an etcd that may have seen others
    with api_server(peers["kubernetes"], place, whole.etcd_url, name, ["plain"], flags) as server:
        yield server, Kubectl(peers["kubernetes"].program("kubectl"), server.kubeconfig())


class Cuttable:
    """A transport whose cable can be pulled."""

    def __init__(self, server: ApiServer) -> None:
        self._real = HttpTransport(kubeconfig.load(server.kubeconfig()))
        self.connected = asyncio.Event()
        self.connected.set()
        self._cut = asyncio.Event()

    def cut(self) -> None:
        self.connected.clear()
        self._cut.set()

    def mend(self) -> None:
        self._cut = asyncio.Event()
        self.connected.set()

    async def request(self, request: HttpRequest, *, timeout: float | None = None) -> HttpResponse:
        if not self.connected.is_set():
            raise ApiUnreachable("the cable is pulled")
        return await self._real.request(request, timeout=timeout)

    @asynccontextmanager
    async def stream(
        self, request: HttpRequest, *, timeout: float | None = None
    ) -> AsyncIterator[StreamResponse]:
        if not self.connected.is_set():
            raise ApiUnreachable("the cable is pulled")
        async with self._real.stream(request, timeout=timeout) as answer:
            yield _Cut(answer, self._cut)

    async def close(self) -> None:
        await self._real.close()


class _Cut:
    """A stream that breaks off when the cable is pulled."""

    def __init__(self, answer: StreamResponse, cut: asyncio.Event) -> None:
        self.status, self.headers = answer.status, answer.headers
        self._answer, self._cut = answer, cut

    async def chunks(self) -> AsyncGenerator[bytes, None]:
        pulled = asyncio.ensure_future(self._cut.wait())
        pieces = self._answer.chunks()
        try:
            while True:
                piece = asyncio.ensure_future(anext(pieces, b""))
                done, _ = await asyncio.wait({piece, pulled}, return_when=asyncio.FIRST_COMPLETED)
                if piece not in done:
                    piece.cancel()
                    await asyncio.wait({piece})
                    raise ApiUnreachable("the cable was pulled")
                if not (found := piece.result()):
                    return
                yield found
        finally:
            pulled.cancel()
            await pieces.aclose()


def config_map(name: str, value: str = "") -> Object:
    metadata = {"name": name, "namespace": "default"}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": {"value": value}}


def forget_history(etcd_url: str) -> None:
    """Have etcd compact everything up to now: older versions are gone for good."""

    def call(path: str, body: Object) -> Object:
        request = urllib.request.Request(f"{etcd_url}{path}", json.dumps(body).encode(), method="POST")
        with urllib.request.urlopen(request, timeout=10) as answer:
            found: Object = json.loads(answer.read())
            return found

    revision = call("/v3/kv/range", {"key": "AA=="})["header"]["revision"]
    call("/v3/kv/compaction", {"revision": revision, "physical": True})


def _holds(informer: Informer[WireObject], name: str) -> bool:
    return name in {each.metadata.name for each in informer.objects()}


async def until(look: Callable[[], bool], seconds: float = 180.0) -> None:
    async with asyncio.timeout(seconds):
        while not look():  # noqa: ASYNC110
            await asyncio.sleep(0.05)


def test_an_informer_comes_back_from_an_expired_watch(bare: tuple[ApiServer, Kubectl], whole: Fleet) -> None:
    server, kubectl = bare

    async def story() -> None:
        transport = Cuttable(server)
        async with Client(transport, name="bare") as client:
            await client.create(CONFIGMAPS, config_map("kept"))
            await client.create(CONFIGMAPS, config_map("removed"))
            informer = Informer(client, CONFIGMAPS, into=WireObject, selection=NAMESPACE)
            running = asyncio.create_task(informer.run())
            await asyncio.wait_for(informer.synced.wait(), 180)
            listed = informer.relists
            transport.cut()
            await asyncio.to_thread(kubectl, "delete", "configmap", "removed")
            await asyncio.to_thread(kubectl.apply, config_map("new"))
            await asyncio.to_thread(forget_history, whole.etcd_url)
            transport.mend()
            await until(partial(_holds, informer, "new"))
            names = {each.metadata.name for each in informer.objects()}
            assert "kept" in names and "removed" not in names
            assert informer.relists > listed, "the old version is gone: it must list again"
            running.cancel()

    asyncio.run(story())


def test_an_informer_outlives_watches_that_the_server_ends(bare: tuple[ApiServer, Kubectl]) -> None:
    server, kubectl = bare

    async def story() -> None:
        async with Client(HttpTransport(kubeconfig.load(server.kubeconfig())), name="bare") as client:
            informer = Informer(client, CONFIGMAPS, into=WireObject, selection=NAMESPACE)
            running = asyncio.create_task(informer.run())
            await asyncio.wait_for(informer.synced.wait(), 180)
            listed = informer.relists
            for number in range(8):
                await asyncio.to_thread(kubectl.apply, config_map(f"ticking-{number}"))
                await until(partial(_holds, informer, f"ticking-{number}"))
                await asyncio.sleep(0.7)
            assert informer.relists == listed, "a watch that ends is resumed, not begun anew"
            running.cancel()

    asyncio.run(story())


def test_a_list_from_a_forgotten_page_says_so(bare: tuple[ApiServer, Kubectl], whole: Fleet) -> None:
    server, kubectl = bare
    kubectl.apply(*(config_map(f"page-{number}") for number in range(6)))

    async def story() -> None:
        async with Client(HttpTransport(kubeconfig.load(server.kubeconfig())), name="bare") as client:
            pages = client.pages(CONFIGMAPS, NAMESPACE, page_size=2)
            await anext(pages)
            await asyncio.to_thread(kubectl.apply, config_map("page-0", "changed"))
            await asyncio.to_thread(forget_history, whole.etcd_url)
            with pytest.raises(Gone):
                async for _ in pages:
                    pass

    asyncio.run(story())


def test_requests_that_are_refused_for_fairness_are_repeated_until_they_are_served(
    bare: tuple[ApiServer, Kubectl],
) -> None:
    server, kubectl = bare
    kubectl.apply(*_flow())
    kubectl.apply(*_reading_for("plain"))
    kubectl.apply(config_map("there"))

    async def story() -> None:
        async with Client(HttpTransport(kubeconfig.load(server.kubeconfig("plain"))), name="bare") as client:
            answers = await asyncio.gather(
                *(client.list(CONFIGMAPS, NAMESPACE, into=WireObject) for _ in range(300))
            )
            assert all(answer.items for answer in answers)

    asyncio.run(story())
    assert 429 in _codes(server, "plain"), "nobody was refused, so nothing was shown"


def test_a_field_that_the_server_does_not_know_is_said(
    bare: tuple[ApiServer, Kubectl], capsys: pytest.CaptureFixture[str]
) -> None:
    """Scenarios look for such lines in the logs of every component; see `Scene`."""
    server, _ = bare

    async def story() -> None:
        async with Client(HttpTransport(kubeconfig.load(server.kubeconfig())), name="bare") as client:
            await client.create(CONFIGMAPS, {**config_map("odd"), "nonsense": 1})

    asyncio.run(story())
    said = capsys.readouterr().out
    assert WARNED in said and "unknown field" in said


def _codes(server: ApiServer, user: str) -> set[int]:
    return {
        entry.get("responseStatus", {}).get("code", 0)
        for entry in server.audit()
        if entry["user"]["username"] == user
    }


def _flow() -> list[Object]:
    kind = "flowcontrol.apiserver.k8s.io/v1"
    subject = {"kind": "User", "user": {"name": "plain"}}
    rules = {
        "verbs": ["*"],
        "apiGroups": ["*"],
        "resources": ["*"],
        "namespaces": ["*"],
        "clusterScope": True,
    }
    return [
        {
            "apiVersion": kind,
            "kind": "PriorityLevelConfiguration",
            "metadata": {"name": "narrow"},
            "spec": {
                "type": "Limited",
                "limited": {
                    "nominalConcurrencyShares": 1,
                    "borrowingLimitPercent": 0,
                    "limitResponse": {"type": "Reject"},
                },
            },
        },
        {
            "apiVersion": kind,
            "kind": "FlowSchema",
            "metadata": {"name": "narrow"},
            "spec": {
                "priorityLevelConfiguration": {"name": "narrow"},
                "matchingPrecedence": 500,
                "rules": [{"subjects": [subject], "resourceRules": [rules]}],
            },
        },
    ]


def _reading_for(user: str) -> list[Object]:
    group = "rbac.authorization.k8s.io"
    rules = [{"apiGroups": [""], "resources": ["configmaps"], "verbs": ["list"]}]
    return [
        {
            "apiVersion": f"{group}/v1",
            "kind": "ClusterRole",
            "metadata": {"name": "reading"},
            "rules": rules,
        },
        {
            "apiVersion": f"{group}/v1",
            "kind": "ClusterRoleBinding",
            "metadata": {"name": "reading"},
            "roleRef": {"apiGroup": group, "kind": "ClusterRole", "name": "reading"},
            "subjects": [{"apiGroup": group, "kind": "User", "name": user}],
        },
    ]
