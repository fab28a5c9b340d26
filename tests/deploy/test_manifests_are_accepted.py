"""An API server takes every manifest, with strict validation: no unknown field, nothing that is missing."""

import json
from typing import Any

import pytest

from karpool.kube.clock import RealClock
from karpool.kube.transport_interface import HttpRequest, HttpResponse
from karpool_fleet.apiserver.serve.server import ApiServer
from tests.deploy.manifests import Object, folders, objects

_STRICT = [("fieldValidation", "Strict")]
_FREE: Object = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
MONITORS: Object = {
    "apiVersion": "apiextensions.k8s.io/v1",
    "kind": "CustomResourceDefinition",
    "metadata": {"name": "servicemonitors.monitoring.coreos.com"},
    "spec": {
        "group": "monitoring.coreos.com",
        "names": {"plural": "servicemonitors", "kind": "ServiceMonitor"},
        "scope": "Namespaced",
        "versions": [{"name": "v1", "served": True, "storage": True, "schema": {"openAPIV3Schema": _FREE}}],
    },
}


class Server:
    def __init__(self) -> None:
        self._server = ApiServer(RealClock())
        self._plurals: dict[tuple[str, str], tuple[str, bool]] = {}

    async def ask(self, method: str, path: str, body: Any = None, query: Any = ()) -> tuple[int, Object]:
        data = b"" if body is None else json.dumps(body).encode()
        request = HttpRequest(method, path, query, {"content-type": "application/json"}, data)
        answer = await self._server.handle(request)
        assert isinstance(answer, HttpResponse)
        return answer.status, json.loads(answer.body)

    async def create(self, obj: Object) -> tuple[int, Object]:
        version = obj["apiVersion"]
        root = f"/apis/{version}" if "/" in version else f"/api/{version}"
        if (version, obj["kind"]) not in self._plurals:
            _, listed = await self.ask("GET", root)
            for each in listed["resources"]:
                if "/" not in each["name"]:
                    self._plurals[version, each["kind"]] = each["name"], each["namespaced"]
        plural, namespaced = self._plurals[version, obj["kind"]]
        where = f"/namespaces/{obj['metadata']['namespace']}" if namespaced else ""
        assert namespaced is ("namespace" in obj["metadata"])
        return await self.ask("POST", f"{root}{where}/{plural}", obj, _STRICT)

    async def close(self) -> None:
        await self._server.close()


@pytest.fixture
async def server() -> Any:
    found = Server()
    for name in ("karmada-system", "kube-system", "karpool-system", "karpool-smart-pods"):
        await found.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
    yield found
    await found.close()


_SKIPPED = {"namespace", "smart-pods"}  # which make the namespaces themselves


@pytest.mark.parametrize("folder", sorted(set(folders()) - {"member", "host"}))
async def test_every_manifest_is_accepted(server: Server, folder: str) -> None:
    if folder.endswith("monitors"):
        assert (await server.create(MONITORS))[0] == 201
    for obj in objects(folder):
        status, answer = await server.create(obj)
        there = folder in _SKIPPED and obj["kind"] == "Namespace"
        assert status == 201 or (there and status == 409), answer.get("message")


async def test_a_wrong_field_would_be_noticed(server: Server) -> None:
    (found,) = [each for each in objects("scheduler") if each["kind"] == "Deployment"]
    wrong = json.loads(json.dumps(found))
    wrong["spec"]["template"]["spec"]["containers"][0]["volumeMount"] = []
    status, answer = await server.create(wrong)
    assert status == 400 and "volumeMount" in answer["message"]
