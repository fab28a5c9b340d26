"""Releases unused device claims: a simplified resource-claim controller.

A claim is reserved for pods. A pod that has ended or is gone is removed from it, and a claim without
reservations loses its devices. Claims that were created for one pod are deleted when it ends; when the pod is
deleted, the garbage collector deletes them.

Pods are read by name, every few seconds for each claim in use: few pods have claims, and another watch of all
pods would be a cost for every embedded cluster without claims.
"""

from contextlib import suppress
from typing import Any

from karpool.cluster.changes import ObjectChange
from karpool.kube.errors import Conflict, NotFound
from karpool.kube.work_queue import Requeue
from karpool.model.kubernetes.api_resources import PODS, RESOURCECLAIMS, ObjectKey
from karpool.model.kubernetes.pod import Pod
from karpool_fleet.runtime.controller import QueueController
from karpool_fleet.runtime.informers import Feed
from karpool_fleet.runtime.supervisor import Context
from karpool_fleet.runtime.writes import patch_version

Object = dict[str, Any]
LOOK_SECONDS = 5.0


class ResourceClaimController(QueueController[ObjectKey]):
    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self._claims: Feed[Object] = context.informers.of(RESOURCECLAIMS)
        self._claims.on_change(self._claim_changed)

    def _claim_changed(self, change: ObjectChange[Object]) -> None:
        if change.type != "DELETED":
            self._queue.add(change.key)

    async def _reconcile(self, key: ObjectKey) -> Requeue | None:
        claim = self._claims.get(key)
        consumers = _consumers(claim) if claim is not None else []
        if claim is None or not consumers or claim["metadata"].get("deletionTimestamp"):
            return None
        staying = [consumer for consumer in consumers if await self._uses(key.namespace, consumer)]
        if len(staying) == len(consumers):
            return Requeue(LOOK_SECONDS)
        with suppress(NotFound, Conflict):  # changed meanwhile; another event follows
            if not staying and _is_of_pod(claim):
                await self._client.delete(RESOURCECLAIMS, key.name, namespace=key.namespace)
            else:
                news: Object = (
                    {"reservedFor": staying} if staying else {"reservedFor": None, "allocation": None}
                )
                await patch_version(self._client, RESOURCECLAIMS, claim, {"status": news}, status=True)
        return Requeue(LOOK_SECONDS) if staying else None

    async def _uses(self, namespace: str, consumer: Object) -> bool:
        """Whether the consumer still uses the claim; another pod of the same name does not count."""
        try:
            pod = await self._client.get(PODS, str(consumer.get("name", "")), namespace=namespace, into=Pod)
        except NotFound:
            return False
        return pod.metadata.uid == consumer.get("uid") and not pod.is_terminal


def _consumers(claim: Object) -> list[Object]:
    return list((claim.get("status") or {}).get("reservedFor") or ())


def _is_of_pod(claim: Object) -> bool:
    return any(owner.get("kind") == "Pod" for owner in claim["metadata"].get("ownerReferences") or ())
