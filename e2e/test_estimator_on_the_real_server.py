"""`karpool estimator` in special hours: asked to stop while it answers, and beside cluster-autoscaler."""

import threading
from collections import Counter
from collections.abc import Iterator

import grpc
import pytest

from e2e.access import NODE_GROUPS, give
from e2e.asking import Asker, replica
from e2e.kubectl import Object, wait_for
from e2e.member import Member
from e2e.scene import Scene
from e2e.workloads import node

ONE = replica("1")


def test_no_answer_is_wrong_while_it_is_asked_to_stop(scene: Scene, static: Member) -> None:
    (program,) = scene.estimators("karpool", ["static"]).values()
    port = scene.estimator_ports["static"]
    seen: Counter[int | grpc.StatusCode] = Counter()
    is_over = threading.Event()

    def ask() -> None:
        asker = Asker("static", port, scene.pki, patient=False)
        while not is_over.is_set():
            try:
                seen[asker.replicas(ONE)] += 1
            except grpc.RpcError as error:
                seen[error.code()] += 1
                break
        asker.close()

    clients = [threading.Thread(target=ask) for _ in range(8)]
    for client in clients:
        client.start()
    wait_for("answers", lambda: seen.total() > 200)
    program.ask_to_stop()
    wait_for("it ended", lambda: program.code is not None)
    is_over.set()
    for client in clients:
        client.join()
    assert program.code == 0, program.tail()
    # The right number or a clear refusal: the port is closed, or the call had come and not begun.
    refusals = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED)
    assert set(seen) <= {12, *refusals}
    assert sum(seen[refusal] for refusal in refusals) == len(clients)


STATUS = """\
time: 2026-11-15 12:00:00 +0000 UTC
autoscalerStatus: Running
clusterWide:
  health:
    status: Healthy
    nodeCounts:
      registered:
        total: 3
        ready: 3
  scaleUp:
    status: NoActivity
nodeGroups:
- name: workers
  health:
    status: Healthy
    nodeCounts:
      registered:
        total: 1
        ready: 1
    cloudProviderTarget: 1
    minSize: 0
    maxSize: 3
  scaleUp:
    status: NoActivity
"""


@pytest.fixture
def grouped(static: Member) -> Iterator[Member]:
    """One more node, of a group that may have two more like it; nobody here would make them."""
    labels = {"eks.amazonaws.com/nodegroup": "workers"}
    status: Object = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": "cluster-autoscaler-status", "namespace": "kube-system"},
        "data": {"status": STATUS},
    }
    static.kubectl.apply(node("worker-0", "2", **labels), status)
    yield static
    static.kubectl("delete", "configmap", "cluster-autoscaler-status", "-n", "kube-system")
    static.kubectl("delete", "node", "worker-0")


def test_node_groups_count_under_the_role_for_them(scene: Scene, grouped: Member) -> None:
    """Twelve cores, two of the worker, and four of two more workers; all of it free."""
    give(grouped.kubectl, NODE_GROUPS, scene.peers["helm"].program("helm"))
    flags = ["--node-capacity-providers=cluster-autoscaler"]
    scene.estimators("karpool", ["static"], flags, user=NODE_GROUPS.user)
    asker = Asker("static", scene.estimator_ports["static"], scene.pki)
    try:
        wait_for("all of it counts", lambda: asker.replicas(ONE) == 12 + 2 + 4)
    finally:
        asker.close()
