"""Events of autoscalers about pending pods: where they will run, or why not.

Events are best effort: they get lost, are rate limited and arrive late. The binding of a pod decides; until
then events only tell people the state.
"""

import re
from dataclasses import dataclass

from karpool.kube.clock import Clock
from karpool.kube.expiring import EVENT_SECONDS, ExpiringMap
from karpool.model.kubernetes.api_resources import ObjectKey
from karpool.model.kubernetes.event import KubeEvent

_PODS_MAX = 5000
_MESSAGE_MAX = 1024
_CLAIM = re.compile(r"\bnodeclaim/([a-z0-9][a-z0-9.-]{0,252})")
_NODE = re.compile(r"\bnode/([a-z0-9][a-z0-9.-]{0,252})")
_NEVER = float("-inf")


@dataclass(frozen=True, slots=True)
class AutoscalerEvent:
    """The latest event of one kind about one pod."""

    at: float = _NEVER
    claim: str = ""
    node: str = ""
    message: str = ""


@dataclass(frozen=True, slots=True)
class AutoscalerEvents:
    coming: AutoscalerEvent | None = None  # Karpenter's Nominated, cluster-autoscaler's TriggeredScaleUp
    refused: AutoscalerEvent | None = (
        None  # Karpenter's FailedScheduling, cluster-autoscaler's NotTriggerScaleUp
    )

    @property
    def latest_is_refusal(self) -> bool:
        return self.refused is not None and (self.coming is None or self.refused.at > self.coming.at)


NOTHING = AutoscalerEvents()


class AutoscalerEventLog:
    """Events by the UID of the pod; the oldest are dropped."""

    def __init__(self, clock: Clock) -> None:
        self._events = ExpiringMap[str, AutoscalerEvents](clock, EVENT_SECONDS, _PODS_MAX)

    def events_of(self, uid: str) -> AutoscalerEvents:
        return self._events.get(uid) or NOTHING

    def put(self, key: ObjectKey, event: KubeEvent) -> None:
        about = event.involved_object
        if about.kind != "Pod" or not about.uid:
            return
        events = self.events_of(about.uid)
        said = AutoscalerEvent(event.at or 0.0, message=event.message[:_MESSAGE_MAX])
        if event.reason in ("Nominated", "TriggeredScaleUp"):
            claim, node = _CLAIM.search(event.message), _NODE.search(event.message)
            said = AutoscalerEvent(said.at, claim[1] if claim else "", node[1] if node else "", said.message)
            events = AutoscalerEvents(_later(events.coming, said), events.refused)
        elif event.reason == "NotTriggerScaleUp" or (
            event.reason == "FailedScheduling" and _is_karpenters(event)
        ):
            events = AutoscalerEvents(events.coming, _later(events.refused, said))
        else:
            return
        self._events.put(about.uid, events)

    def drop(self, key: ObjectKey) -> None:
        """Ignore deletions: events expire, and the state of the pod decides."""


def _later(before: AutoscalerEvent | None, said: AutoscalerEvent) -> AutoscalerEvent:
    return said if before is None or said.at >= before.at else before


def _is_karpenters(event: KubeEvent) -> bool:
    """Whether Karpenter wrote it: kube-scheduler uses the same reason to say that no node has room now."""
    component = event.reporting_component or (event.source.component if event.source is not None else "")
    return component.startswith("karpenter") or event.message.startswith("Failed to schedule pod")
