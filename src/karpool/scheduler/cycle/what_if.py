"""Computes what would be decided about one binding now: reads everything once, and writes nothing."""

from dataclasses import dataclass, replace

from karpool.cluster.changes import ObjectChange
from karpool.kube.api.client import Client
from karpool.kube.errors import NotFound
from karpool.model.errors import Invalid
from karpool.model.karmada.binding import Binding, BindingHead, BindingKey, binding_key
from karpool.model.karmada.names import SCHEDULED_LABELS
from karpool.model.kubernetes.api_resources import (
    CLUSTERRESOURCEBINDINGS,
    CLUSTERS,
    RESOURCEBINDINGS,
    ObjectKey,
)
from karpool.scheduler.cycle import cool_down
from karpool.scheduler.cycle.binding_store import Object, SchedulerStores
from karpool.scheduler.cycle.cycle import plan_for
from karpool.scheduler.cycle.decision import ClusterAvailability, SchedulingDecision
from karpool.scheduler.cycle.schedule import NeedsEstimates, decide
from karpool.scheduler.cycle.settings import SchedulingSettings
from karpool.scheduler.cycle.triggers import ScheduleTrigger, TriggerAction
from karpool.scheduler.estimates.availability import AvailabilityReader
from karpool.scheduler.estimates.estimate_cache import EstimatorApi
from karpool.scheduler.promises.ledger import PromiseLedger
from karpool.scheduler.promises.promise import PromiseLifetime

_LISTING = {
    RESOURCEBINDINGS.kind: "kubectl get resourcebindings -A",
    CLUSTERRESOURCEBINDINGS.kind: "kubectl get clusterresourcebindings",
}


@dataclass(frozen=True)
class WhatIf:
    """`trigger` says whether the scheduler would act on it at all."""

    binding: Binding
    trigger: ScheduleTrigger
    decision: SchedulingDecision
    promised: int  # replicas of this binding in flight
    overlooked: str = ""  # why no scheduler handles it

    @property
    def is_due(self) -> bool:
        return self.trigger.action is TriggerAction.SCHEDULE and not self.overlooked

    @property
    def why(self) -> str:
        return self.overlooked or self.trigger.why


async def what_if(
    client: Client,
    key: BindingKey,
    settings: SchedulingSettings,
    *,
    asker: EstimatorApi | None = None,
    lifetime: PromiseLifetime | None = None,
    fresh: bool = False,
) -> WhatIf:
    """Raises NotFound for a missing binding, and Invalid for one that cannot be read."""
    return await what_if_known(await listed(client, lifetime), key, settings, asker=asker, fresh=fresh)


async def what_if_known(
    view: SchedulerStores,
    key: BindingKey,
    settings: SchedulingSettings,
    *,
    asker: EstimatorApi | None = None,
    fresh: bool = False,
) -> WhatIf:
    """The same for state that is already read."""
    version = view.bindings.get(key)
    if version is None:
        resource = key.resource
        raise NotFound(
            f"{resource.kind} {key}",
            404,
            message=f"the binding does not exist; `{_LISTING[resource.kind]}` lists all",
        )
    if version.binding is None:
        problem = version.problem or Invalid("spec", str(key), "cannot be read")
        raise problem.at(f"{key.resource.kind} {key}")
    binding = version.binding
    schedule_trigger, plan = plan_for(view, binding, settings, fresh=fresh)
    reader = AvailabilityReader(settings, view.clock, ledger=view.ledger, asker=asker)
    cooling_seconds = cool_down.cooling(binding.annotations, view.clock.now())
    availability: dict[str, ClusterAvailability] = {}
    while isinstance(step := decide(plan, availability), NeedsEstimates):
        gathered = await reader.gather(binding, step.clusters)
        availability |= cool_down.without_room(gathered, cooling_seconds)
    promises = view.ledger.promises_of(key).values() if view.ledger is not None else ()
    promised = sum(promise.replicas for promise in promises)
    return WhatIf(binding, schedule_trigger, step, promised, _overlooked(version.head))


def _overlooked(head: BindingHead) -> str:
    if head.is_suspended:
        return "spec.suspension.scheduling is true"
    if head.is_carrier:
        return f"it has none of the labels that a policy leaves ({', '.join(SCHEDULED_LABELS)})"
    return ""


async def listed(client: Client, lifetime: PromiseLifetime | None = None) -> SchedulerStores:
    """Read the current bindings, clusters and promises.

    A single read cannot know when members reported their pods. Summaries are assumed to have counted them: a
    running scheduler doubts that for seconds, this command would for the lifetime of promises.
    """
    view = SchedulerStores(
        client.clock, PromiseLedger(replace(lifetime or PromiseLifetime(), settle_seconds=0.0))
    )
    try:
        clusters = (await client.list(CLUSTERS)).items
    except NotFound as error:
        hint = "is this the Karmada API server? choose it with --kubeconfig or --context"
        raise NotFound("list clusters.cluster.karmada.io", error.code, message=hint) from None
    for raw in clusters:
        view.clusters.apply(_added(raw))
    for resource in (RESOURCEBINDINGS, CLUSTERRESOURCEBINDINGS):
        for raw in (await client.list(resource)).items:
            change = _added(raw)
            view.bindings.apply(change, binding_key(*change.key))
    view.rebuild()
    return view


def _added(raw: Object) -> ObjectChange[Object]:
    meta = raw.get("metadata") or {}
    return ObjectChange(
        "ADDED", ObjectKey(str(meta.get("namespace") or ""), str(meta.get("name") or "")), raw
    )
