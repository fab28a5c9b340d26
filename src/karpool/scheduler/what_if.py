"""What would be decided about one binding now: read everything once, decide, write nothing."""

from dataclasses import dataclass, replace

from karpool.kube.client import Client
from karpool.kube.errors import NotFound
from karpool.kube.informer import Change
from karpool.kube.resource import CLUSTERRESOURCEBINDINGS, CLUSTERS, RESOURCEBINDINGS, Key
from karpool.model.errors import Invalid
from karpool.model.karmada.binding import Binding, BindingKey, Head, binding_key
from karpool.model.karmada.words import SCHEDULED_LABELS
from karpool.scheduler import cool_down
from karpool.scheduler.availability import Asker, Availabilities
from karpool.scheduler.decision import Availability, Decision, Mode
from karpool.scheduler.filters import peers_of
from karpool.scheduler.known import Object
from karpool.scheduler.ledger import Ledger
from karpool.scheduler.promise import Lifetime
from karpool.scheduler.schedule import Ask, decide, prepare
from karpool.scheduler.settings import Settings
from karpool.scheduler.triggers import Action, Trigger, trigger
from karpool.scheduler.view import View
from karpool.scheduler.writing import resource_of

_LISTING = {
    RESOURCEBINDINGS.kind: "kubectl get resourcebindings -A",
    CLUSTERRESOURCEBINDINGS.kind: "kubectl get clusterresourcebindings",
}


@dataclass(frozen=True)
class WhatIf:
    """`trigger` says whether the scheduler would act on it at all."""

    binding: Binding
    trigger: Trigger
    decision: Decision
    promised: int  # replicas of this binding that are on their way
    overlooked: str = ""  # why no scheduler looks at it, whatever changes

    @property
    def is_due(self) -> bool:
        return self.trigger.action is Action.SCHEDULE and not self.overlooked

    @property
    def why(self) -> str:
        return self.overlooked or self.trigger.why


async def what_if(
    client: Client,
    key: BindingKey,
    settings: Settings,
    *,
    asker: Asker | None = None,
    lifetime: Lifetime | None = None,
    fresh: bool = False,
) -> WhatIf:
    """Raises NotFound for a binding that is not there, and Invalid for one that cannot be read."""
    return await considered(await listed(client, lifetime), key, settings, asker=asker, fresh=fresh)


async def considered(
    view: View, key: BindingKey, settings: Settings, *, asker: Asker | None = None, fresh: bool = False
) -> WhatIf:
    """The same of what is known already."""
    known = view.bindings.get(key)
    if known is None:
        resource = resource_of(key)
        raise NotFound(
            f"{resource.kind} {key}",
            404,
            message=f"there is no such binding; `{_LISTING[resource.kind]}` lists them",
        )
    if known.binding is None:
        problem = known.problem or Invalid("spec", str(key), "cannot be read")
        raise problem.at(f"{resource_of(key).kind} {key}")
    binding, members = known.binding, view.clusters.all()
    found = trigger(binding, {each.name for each in members if each.is_deleting}, settings)
    peers = peers_of(binding, view.bindings.in_groups_of(binding)) if settings.workload_affinity else None
    mode = Mode.FRESH if fresh else found.mode
    plan = prepare(binding, members, settings, peers=peers, mode=mode)
    asks = Availabilities(settings, view.clock, ledger=view.ledger, asker=asker)
    left = cool_down.cooling(binding.annotations, view.clock.now())
    known_room: dict[str, Availability] = {}
    while isinstance(step := decide(plan, known_room), Ask):
        known_room |= cool_down.without_room(await asks.gather(binding, step.clusters), left)
    own = view.ledger.of(key).values() if view.ledger is not None else ()
    return WhatIf(binding, found, step, sum(each.replicas for each in own), _overlooked(known.head))


def _overlooked(head: Head) -> str:
    if head.is_suspended:
        return "spec.suspension.scheduling is true"
    if head.is_carrier:
        return f"it has none of the labels that a policy leaves ({', '.join(SCHEDULED_LABELS)})"
    return ""


async def listed(client: Client, lifetime: Lifetime | None = None) -> View:
    """Bindings, clusters and promises as they are now.

    Whoever reads once cannot know when members reported their pods. Summaries are taken to have counted
    them: a scheduler that runs doubts that for seconds, we would for as long as promises live.
    """
    view = View(client.clock, Ledger(replace(lifetime or Lifetime(), settle_seconds=0.0)))
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


def _added(raw: Object) -> Change[Object]:
    meta = raw.get("metadata") or {}
    return Change("ADDED", Key(str(meta.get("namespace") or ""), str(meta.get("name") or "")), raw)
