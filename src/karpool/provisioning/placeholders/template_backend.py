"""Backends that request nodes with an object of their own API and a PodTemplate instead of a pod.

The template is created before the object that refers to it, and deleted before it. An interrupted call leaves
either nothing, or an object that is still seen and withdrawn again. A template without an object is deleted
with the owner of the request.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any

from karpool.cluster.changes import PutDropSink
from karpool.kube.api.client import Client
from karpool.kube.errors import Conflict, NotFound
from karpool.kube.watched import WatchedKind
from karpool.model.kubernetes.api_resources import PODTEMPLATES, ApiResource, ListOptions, ObjectKey
from karpool.model.kubernetes.meta import Condition, Wire, WireObject
from karpool.provisioning.node_request import NodeCandidate, NodeRequest, RequestPurpose
from karpool.provisioning.placeholders.backend import RequestResult
from karpool.provisioning.placeholders.placeholder import Placeholder, PlaceholderState
from karpool.provisioning.placeholders.smart_pod import SmartPodSettings, identified, selector, smart_pod
from karpool.provisioning.placeholders.writes import CreateResult, create_missing, delete_own, request_all

GROUP = "autoscaling.x-k8s.io"
Object = dict[str, Any]


class ConditionedStatus(Wire, frozen=True):
    conditions: list[Condition] | None = None


class ConditionedObject(WireObject, frozen=True):
    status: ConditionedStatus | None = None


class TemplateBackend:
    """A backend for one kind; subclasses provide `name`, `spec` and `judge`."""

    name = ""

    def __init__(
        self,
        client: Client,
        settings: SmartPodSettings,
        resource: ApiResource,
        purpose: RequestPurpose | None = None,
    ) -> None:
        self.purpose = purpose
        self.settings = settings
        self.resource = resource
        self._client = client
        self._known: dict[ObjectKey, Placeholder] = {}

    @cached_property
    def watches(self) -> Sequence[WatchedKind[Any]]:
        own_objects = ListOptions(namespace=self.settings.namespace, label_selector=selector(self.purpose))
        return (WatchedKind(self.resource, ConditionedObject, PutDropSink(self.put, self.drop), own_objects),)

    def spec(self, template: str) -> Object:
        """Return the spec of the object that requests one unit of the named template."""
        raise NotImplementedError

    def judge(self, said: Mapping[str, Condition]) -> tuple[PlaceholderState, str]:
        raise NotImplementedError

    def put(self, key: ObjectKey, obj: ConditionedObject) -> None:
        placeholder = identified(self.resource, obj, self.settings.namespace)
        if placeholder is None or self.purpose not in (None, placeholder.purpose):
            self._known.pop(key, None)
            return
        conditions = (obj.status.conditions if obj.status is not None else None) or ()
        outlook, message = self.judge({condition.type: condition for condition in conditions})
        self._known[key] = replace(placeholder, outlook=outlook, message=message)

    def drop(self, key: ObjectKey) -> None:
        self._known.pop(key, None)

    def placeholders(self) -> Sequence[Placeholder]:
        return list(self._known.values())

    async def request(
        self, ask: NodeRequest, candidate: NodeCandidate, indices: Collection[int] | None = None
    ) -> RequestResult:
        """Create missing objects. Raises Invalid and creates none if request and candidate conflict."""
        chosen = range(len(ask.units)) if indices is None else indices
        pods = {index: smart_pod(ask, candidate, index, self.settings) for index in chosen}

        async def make(index: int) -> CreateResult:
            metadata = pods[index]["metadata"]
            outcome = await create_missing(self._client, PODTEMPLATES, template_of(pods[index]))
            if outcome.made is None:
                return outcome
            asking = {"metadata": metadata, "spec": self.spec(metadata["name"])}
            return await create_missing(self._client, self.resource, asking)

        return await request_all(pods, make)

    async def withdraw(self, placeholder: Placeholder) -> bool:
        if placeholder.resource != self.resource or placeholder.key.namespace != self.settings.namespace:
            raise ValueError(f"{placeholder.key} is not a {self.resource.kind} of {self.settings.namespace}")
        await self._withdraw_template(placeholder.key)
        return await delete_own(self._client, placeholder)

    async def _withdraw_template(self, key: ObjectKey) -> None:
        try:
            template = await self._client.get(
                PODTEMPLATES, key.name, namespace=key.namespace, into=ConditionedObject
            )
        except NotFound:
            return
        placeholder = identified(PODTEMPLATES, template, self.settings.namespace)
        if placeholder is not None:
            await delete_own(self._client, placeholder)


def template_of(pod: Object) -> Object:
    """Return the smart pod as a template of the same name, without an owner of its pods."""
    metadata = pod["metadata"]
    inner = {"labels": metadata["labels"], "annotations": metadata["annotations"]}
    return {"metadata": metadata, "template": {"metadata": inner, "spec": pod["spec"]}}


def is_true(said: Mapping[str, Condition], kind: str) -> bool:
    return kind in said and said[kind].status == "True"


def message_of(said: Mapping[str, Condition], kind: str) -> str:
    said_condition = said.get(kind)
    return "" if said_condition is None else said_condition.message or said_condition.reason or ""


async def served(client: Client, kind: str) -> ApiResource | None:
    """Return how the cluster serves a kind of this group; None if it does not."""
    try:
        group = await client.get_path(f"/apis/{GROUP}")
        preferred = [str(version["version"]) for version in group.get("versions") or ()]
        for version in preferred:
            listing = await client.get_path(f"/apis/{GROUP}/{version}")
            for entry in listing.get("resources") or ():
                if entry.get("kind") == kind and "/" not in entry["name"]:
                    return ApiResource(
                        GROUP, version, entry["name"], kind, bool(entry.get("namespaced", True))
                    )
    except (NotFound, Conflict):
        return None
    return None
