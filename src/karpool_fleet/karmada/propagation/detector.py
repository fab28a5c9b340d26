"""The resource detector: finds the policy of each template and creates its binding.

A template is claimed before it is bound, so that every binding has a claim. A template whose policy is gone
or no longer matches is released and looks for another; its binding, and what was propagated, stay until the
template is deleted.
"""

import asyncio
from typing import NamedTuple

from karpool.cluster.changes import ObjectChange
from karpool.kube.errors import AlreadyExists
from karpool.kube.event_recorder import ObjectReference
from karpool.kube.work_queue import Requeue
from karpool.model.kubernetes.api_resources import (
    CLUSTERPROPAGATIONPOLICIES,
    PRIORITYCLASSES,
    PROPAGATIONPOLICIES,
    ObjectKey,
)
from karpool_fleet.karmada.propagation.bindings import (
    BindingFeeds,
    BindingRef,
    binding_patch,
    claim_patch,
    new_binding,
    ref_for,
    ref_of,
    spec_for,
)
from karpool_fleet.karmada.propagation.names import CLUSTER_POLICY_ID, POLICY_ID, Object, is_reserved
from karpool_fleet.karmada.propagation.policies import (
    MISMATCH,
    Claim,
    choose,
    claim_by,
    claim_on,
    match_policy,
)
from karpool_fleet.karmada.propagation.templates import (
    TemplateKey,
    WatchedTemplates,
    key_in,
    same_specification,
)
from karpool_fleet.runtime.controller import QueueController
from karpool_fleet.runtime.informers import Feed
from karpool_fleet.runtime.supervisor import Context
from karpool_fleet.runtime.writes import patch_object, patch_version

KIND_RETRY = Requeue(10.0)  # a kind that is not served may be defined later
GOING_RETRY = Requeue(1.0)  # until the binding of a deleted predecessor is gone


class _Policy(NamedTuple):
    """A policy to reconcile; without a namespace it is cluster-wide."""

    namespace: str
    name: str


class ResourceDetector(QueueController[TemplateKey | _Policy]):
    workers = 5

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self._templates = WatchedTemplates(context, self._on_template)
        self._claimed: dict[tuple[str, str], dict[TemplateKey, None]] = {}
        self._claims: dict[TemplateKey, tuple[str, str]] = {}
        self._by_namespace: dict[str, dict[str, Object]] = {}
        self._made: dict[BindingRef, Object] = {}  # bindings that the watch has not reported yet
        self._own: Feed[Object] = context.informers.of(PROPAGATIONPOLICIES)
        self._wide: Feed[Object] = context.informers.of(CLUSTERPROPAGATIONPOLICIES)
        self._classes: Feed[Object] = context.informers.of(PRIORITYCLASSES)
        self._bindings = BindingFeeds(context)
        self._own.on_change(self._on_policy)
        self._wide.on_change(self._on_policy)
        self._bindings.on_change(self._on_binding)

    async def _work(self, group: asyncio.TaskGroup) -> None:
        self._templates.group = group
        await super()._work(group)

    # Triggers

    def _on_policy(self, change: ObjectChange[Object]) -> None:
        namespace, name = change.key
        held = self._by_namespace.setdefault(namespace, {})
        if change.type == "DELETED":
            held.pop(name, None)
        elif change.object is not None:
            held[name] = change.object
        self._queue.add(_Policy(namespace, name))

    def _on_template(self, key: TemplateKey, change: ObjectChange[Object]) -> None:
        self._index(key, None if change.type == "DELETED" else change.object)
        if change.old is None or change.object is None or not same_specification(change.old, change.object):
            self._queue.add(key)

    def _on_binding(self, change: ObjectChange[Object]) -> None:
        self._made.pop(BindingRef(*change.key), None)
        if change.type == "DELETED" and change.object is not None:
            self._queue.add(key_in(change.object["spec"]["resource"]))

    def _index(self, key: TemplateKey, template: Object | None) -> None:
        claim = claim_on(template) if template is not None else None
        now = (claim.namespace, claim.name) if claim else None
        before = self._claims.get(key)
        if before == now:
            return
        if before is not None:
            self._claimed[before].pop(key, None)
            del self._claims[key]
        if now is not None:
            self._claimed.setdefault(now, {})[key] = None
            self._claims[key] = now

    # Reconciliation

    async def _reconcile(self, task: TemplateKey | _Policy) -> Requeue | None:
        if isinstance(task, TemplateKey):
            return await self._propagate(task)
        return await self._spread(task)

    async def _spread(self, which: _Policy) -> Requeue | None:
        """Requeue every template that a change of this policy may affect."""
        for key in list(self._claimed.get(which, ())):
            self._queue.add(key)
        policy = self._by_namespace.get(which.namespace, {}).get(which.name)
        if policy is None:
            return None
        await self._identify(policy)
        missing = None
        for selector in policy["spec"]["resourceSelectors"]:
            kind = (selector["apiVersion"], selector["kind"])
            if not self._templates.is_watched(*kind):
                # The new watch will report its templates.
                if await self._templates.watch(*kind) is None:
                    missing = KIND_RETRY
                continue
            for template in self._templates.of_kind(*kind):
                if match_policy(policy, template) > MISMATCH:
                    meta = template["metadata"]
                    self._queue.add(TemplateKey(*kind, meta.get("namespace", ""), meta["name"]))
        return missing

    async def _identify(self, policy: Object) -> None:
        """Write the permanent id to a policy that has none."""
        meta, claim = policy["metadata"], claim_by(policy)
        label = POLICY_ID if claim.namespace else CLUSTER_POLICY_ID
        if label in (meta.get("labels") or {}):
            return
        resource = PROPAGATIONPOLICIES if claim.namespace else CLUSTERPROPAGATIONPOLICIES
        await patch_object(self._client, resource, policy, {"metadata": {"labels": {label: claim.id}}})

    async def _propagate(self, key: TemplateKey) -> Requeue | None:
        template = self._templates.get(key)
        if template is None or "deletionTimestamp" in template["metadata"] or is_reserved(key.namespace):
            return None
        # An informer may leave these out of listed items.
        template = {**template, "apiVersion": key.api_version, "kind": key.kind}
        claim = claim_on(template)
        policy = choose(
            template,
            self._claimant(claim),
            self._by_namespace.get(key.namespace, {}).values() if key.namespace else (),
            self._wide.objects(),
        )
        if policy is None:
            await self._give_up(key, template)
            return None
        template = await self._claim(template, claim_by(policy))
        return await self._bind(template, policy)

    def _claimant(self, claim: Claim | None) -> Object | None:
        if claim is None:
            return None
        policy = self._by_namespace.get(claim.namespace, {}).get(claim.name)
        # The claim belongs to an earlier policy of the same name.
        return policy if policy is not None and claim_by(policy).id == claim.id else None

    async def _claim(self, template: Object, claim: Claim | None) -> Object:
        patch = claim_patch(template, claim)
        if not patch:
            return template
        resource = await self._templates.kinds.find(template["apiVersion"], template["kind"])
        assert resource is not None, "a template of a kind that is not served"
        return await patch_version(self._client, resource, template, {"metadata": patch})

    async def _give_up(self, key: TemplateKey, template: Object) -> None:
        """Release a template without policy: its binding is no longer scheduled, and stays as it is."""
        binding = self._bindings.get(ref_for(template))
        ours = binding is not None and binding["spec"]["resource"].get("uid") == template["metadata"]["uid"]
        if binding is not None and ours and (patch := claim_patch(binding, None)):
            await patch_version(self._client, ref_of(binding).resource, binding, {"metadata": patch})
        await self._claim(template, None)

    async def _bind(self, template: Object, policy: Object) -> Requeue | None:
        ref, claim = ref_for(template), claim_by(policy)
        spec = spec_for(template, policy, self._schedule_priority(template, policy))
        binding = self._bindings.get(ref) or self._made.get(ref)
        if binding is None:
            try:
                body = new_binding(template, claim, spec)
                made = await self._client.create(ref.resource, body, namespace=ref.where)
                if self._bindings.get(ref) is None:
                    self._made[ref] = made
                return None
            except AlreadyExists:
                binding = await self._client.get(ref.resource, ref.name, namespace=ref.where)
        if (
            "deletionTimestamp" in binding["metadata"]
            or binding["spec"]["resource"].get("uid") != template["metadata"]["uid"]
        ):
            return GOING_RETRY
        if patch := binding_patch(binding, template, claim, spec):
            await patch_version(self._client, ref.resource, binding, patch)
        return None

    def _schedule_priority(self, template: Object, policy: Object) -> int | None:
        priority = policy["spec"].get("schedulePriority")
        if not priority:
            return None
        name = priority["priorityClassName"]
        priority_class = self._classes.get(ObjectKey("", name))
        if priority_class is None:
            meta = template["metadata"]
            about = ObjectReference(
                template["apiVersion"],
                template["kind"],
                meta.get("namespace", ""),
                meta["name"],
                meta["uid"],
            )
            message = f"priority class {name} of policy {policy['metadata']['name']} does not exist"
            self._context.events.record(about, "Warning", "ApplyPolicyFailed", message)
            raise LookupError(message)
        return int(priority_class.get("value", 0))
