"""The autoscaler's view of the cluster: snapshot, pods to move, and unschedulable pods."""

from collections.abc import Iterable, Mapping

from karpool.cluster.aspects import Aspect
from karpool.cluster.changes import DELETED, ObjectChange
from karpool.cluster.cluster import Cluster
from karpool.cluster.kinds import NODES, PODS
from karpool.cluster.snapshot import Snapshot
from karpool.model.kubernetes.api_resources import ObjectKey
from karpool.model.kubernetes.node import Node
from karpool.model.kubernetes.pod import Pod
from karpool.model.kubernetes.pod_disruption import CompiledPdb, is_provisionable
from karpool_fleet.runtime.supervisor import Context
from karpool_fleet.runtime.watched_cluster import ClusterFeeds, PodsByNode

_ASPECTS = Aspect.NAMESPACES | Aspect.VOLUMES | Aspect.DAEMONS | Aspect.BUDGETS


class AutoscalerState:
    def __init__(self, context: Context) -> None:
        self._informers = context.informers
        self._cluster = Cluster(_ASPECTS, shares=False)
        self._nodes = context.informers.of(NODES.resource, Node)
        self._pods = context.informers.of(PODS.resource, Pod)
        self._feeds = ClusterFeeds(context, self._cluster)
        self._pods_by_node = PodsByNode()
        self.unschedulable: dict[str, Pod] = {}  # by namespace/name

    async def start(self) -> None:
        await self._informers.synced()
        self._feeds.start()
        self._pods.on_change(self._on_pod)

    @property
    def changes(self) -> int:
        """Return a number that grows with every change that affects decisions."""
        return self._cluster.changes

    def snapshot(self) -> Snapshot:
        return self._cluster.snapshot()

    def node(self, name: str) -> Node | None:
        return self._nodes.get(ObjectKey("", name))

    def nodes(self) -> Iterable[Node]:
        return self._nodes.objects()

    def pod(self, name: str) -> Pod | None:
        namespace, _, own = name.rpartition("/")
        return self._pods.get(ObjectKey(namespace, own))

    def pods_on(self, node: str) -> Mapping[str, Pod]:
        return {str(key): pod for key, pod in self._pods_by_node.on(node).items()}

    def budgets(self, namespace: str) -> Iterable[CompiledPdb]:
        return self._cluster.budgets(namespace)

    def _on_pod(self, change: ObjectChange[Pod]) -> None:
        self._pods_by_node.take(change)
        name, pod = str(change.key), change.object
        self.unschedulable.pop(name, None)
        if pod is None or change.type == DELETED or pod.spec.node_name:
            return
        if is_provisionable(pod) and not pod.is_terminating and not pod.is_terminal:
            self.unschedulable[name] = pod
