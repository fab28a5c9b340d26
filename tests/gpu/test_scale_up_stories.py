"""Scale-ups in a simulated cluster, one story at a time: each was a bug somewhere once."""

from tests.gpu.simulated import Cluster


def served(cluster: Cluster, *uids: str) -> bool:
    return all(cluster.workers[uid].node for uid in uids)


def run(cluster: Cluster, seconds: float) -> None:
    for _ in range(int(seconds // 5)):
        cluster.advance(5)
        cluster.check()
        cluster.check_gangs()


def test_a_request_brings_one_node_and_nothing_is_left() -> None:
    cluster = Cluster()
    uid = cluster.add_worker("small")

    run(cluster, 300)

    assert served(cluster, uid)
    assert cluster.nodes_bought == 1
    assert not cluster.pods
    assert not cluster.records
