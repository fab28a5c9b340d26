"""The ConfigMap that stops consolidation for a whole cluster."""

from karpool.cluster.changes import PutDropSink
from karpool.consolidation.execution.options import STOP_NAME, STOP_NAMESPACE
from karpool.consolidation.policy.reasons import ConsolidationReason
from karpool.kube.watched import WatchedKind
from karpool.model.infeasible import Infeasible
from karpool.model.kubernetes.api_resources import CONFIGMAPS, ListOptions, ObjectKey
from karpool.model.kubernetes.configmap import ConfigMap

STOP_KEY = "stop"
_YES = frozenset(("true", "yes", "1", "on"))


class StopSwitch:
    def __init__(self, namespace: str = STOP_NAMESPACE, name: str = STOP_NAME) -> None:
        self._place = ObjectKey(namespace, name)
        self._is_on = False
        self.changes = 0

    @property
    def watch(self) -> WatchedKind[ConfigMap]:
        place = ListOptions(
            namespace=self._place.namespace, field_selector=f"metadata.name={self._place.name}"
        )
        return WatchedKind(CONFIGMAPS, ConfigMap, PutDropSink(self.put, self.drop), place, optional=True)

    def put(self, key: ObjectKey, switch: ConfigMap) -> None:
        if key == self._place:
            self._turn((switch.data or {}).get(STOP_KEY, "").strip().lower() in _YES)

    def drop(self, key: ObjectKey) -> None:
        if key == self._place:
            self._turn(False)

    def _turn(self, is_on: bool) -> None:
        self.changes += is_on != self._is_on
        self._is_on = is_on

    def reason(self) -> Infeasible[ConsolidationReason] | None:
        if not self._is_on:
            return None
        message = f'consolidation is stopped by ConfigMap {self._place}; set {STOP_KEY}: "false" to continue'
        return Infeasible(ConsolidationReason.STOPPED, message, f"configmap {self._place}")
