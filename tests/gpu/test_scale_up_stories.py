"""Scale-ups in a simulated cluster, one story at a time: each was a bug somewhere once."""

from dataclasses import replace

import pytest

from karpool.cluster.market.launch_reasons import LaunchReason
from karpool.gpu.records.scale_up_record import ScaleUpState
from karpool.gpu.scale_up.input import WaitReason
from karpool.gpu.scale_up.settings import ScaleUpSettings
from tests.gpu.simulated import RUNGS, Cluster, Fault

SMALL, LARGE, H100 = (rung.key for rung in RUNGS)


def run(cluster: Cluster, seconds: float) -> None:
    for _ in range(int(seconds // 5)):
        cluster.advance(5)
        cluster.check()
        cluster.check_gangs()


def served(cluster: Cluster, *uids: str) -> bool:
    return all(cluster.workers[uid].node for uid in uids)


def ended(cluster: Cluster) -> list[str]:
    return [str(unit.ended) for record in cluster.records.values() for unit in record.units if unit.ended]


def test_a_request_brings_one_node_and_nothing_is_left() -> None:
    cluster = Cluster()
    uid = cluster.add_worker("small")

    run(cluster, 300)

    assert served(cluster, uid)
    assert cluster.nodes_bought == 1
    assert not cluster.pods
    assert not cluster.records


def test_a_smart_pod_that_is_never_scheduled_does_not_outlive_its_time() -> None:
    """`activeDeadlineSeconds` never begins to count for a pod without a node."""
    cluster = Cluster()
    cluster.out_of_stock.update((SMALL, LARGE, H100))
    cluster.add_worker("small")

    run(cluster, 3600)

    assert all(cluster.now - pod.placeholder.created < 60 for pod in cluster.pods.values())
    assert cluster.nodes_bought == 0


def test_between_ready_and_devices_no_second_node_is_bought() -> None:
    cluster = Cluster()
    cluster.next_node = {"slow": 600.0}
    first = cluster.add_worker("small")
    run(cluster, 200)
    second = cluster.add_worker("small")

    run(cluster, 900)

    assert served(cluster, first, second)
    assert cluster.nodes_bought == 1


def test_two_shapes_of_one_model_do_not_hide_each_other() -> None:
    cluster = Cluster()
    small, pair = cluster.add_worker("small"), cluster.add_worker("pair")

    run(cluster, 600)

    assert served(cluster, small, pair)


def test_devices_of_one_pod_are_on_one_node() -> None:
    cluster = Cluster()
    uids = [cluster.add_worker("pair") for _ in range(3)]

    run(cluster, 900)

    assert served(cluster, *uids)
    for uid in uids:
        nodes = {name.rsplit("-gpu-", 1)[0] for name in cluster.workers[uid].devices}
        assert nodes == {cluster.workers[uid].node}


def test_a_smart_pod_stuck_in_deletion_blocks_nobody_else() -> None:
    cluster = Cluster()
    stuck = cluster.add_worker("h100")
    run(cluster, 60)
    for pod in cluster.pods.values():
        pod.stuck = True
    other = cluster.add_worker("small")

    run(cluster, 600)

    assert served(cluster, other)
    assert cluster.pods, "it is still there"
    run(cluster, 900)
    assert served(cluster, stuck), "another node serves it"


def test_a_node_that_went_after_it_was_there_is_not_a_stock_out() -> None:
    cluster = Cluster()
    uid = cluster.add_worker("small")
    run(cluster, 80)
    (node,) = cluster.nodes
    cluster.interrupt(node)

    run(cluster, 15)
    memory = next(iter(cluster.records.values())).memory
    assert {tried.last for tried in memory.values()} == {LaunchReason.INTERRUPTED}
    run(cluster, 600)

    assert served(cluster, uid)
    assert cluster.claims["claim-2"].rung.key == SMALL, "the same candidate again, without a penalty"


def test_when_all_candidates_failed_it_starts_over_with_the_first() -> None:
    cluster = Cluster()
    cluster.out_of_stock.update((SMALL, LARGE, H100))
    uid = cluster.add_worker("big")
    told = set()
    for _ in range(240):
        run(cluster, 5)
        told |= {explanation.reason for explanation in cluster.last_plan.explanations.values()}
    assert WaitReason.EXHAUSTED in told
    assert {claim.rung.key for claim in cluster.claims.values()} == {SMALL, LARGE, H100}
    cluster.out_of_stock.clear()

    run(cluster, 1200)

    assert served(cluster, uid)


def test_a_nominated_pod_is_left_to_preemption() -> None:
    cluster = Cluster()
    uid = cluster.add_worker("small")
    cluster.workers[uid] = replace(cluster.workers[uid], nominated_node="node-x")

    run(cluster, 120)

    assert not cluster.records
    assert not cluster.pods


def test_seven_of_eight_devices_are_waited_for_and_then_used() -> None:
    cluster = Cluster(ScaleUpSettings(device_limit=120.0))
    cluster.out_of_stock.update((SMALL, H100))
    cluster.next_node = {"fewer": 1}
    uid = cluster.add_worker("pair")

    run(cluster, 120)
    assert not served(cluster, uid)
    run(cluster, 300)

    assert served(cluster, uid)
    assert cluster.nodes_bought == 1


def test_a_node_without_devices_is_reported_and_not_counted_on() -> None:
    cluster = Cluster(ScaleUpSettings(device_limit=120.0))
    cluster.next_node = {"slow": 100_000.0}
    uid = cluster.add_worker("small")
    seen: set[str] = set()
    for _ in range(60):
        run(cluster, 5)
        seen |= {node for record in cluster.records.values() for node in record.bad_nodes}

    run(cluster, 300)

    assert len(seen) == 1
    assert served(cluster, uid)
    assert not {cluster.workers[uid].node} & seen


def test_a_node_of_the_wrong_model_excludes_its_candidate() -> None:
    cluster = Cluster()
    cluster.next_node = {"model": "other"}
    uid = cluster.add_worker("h100")
    reasons: set[str] = set()
    for _ in range(60):
        run(cluster, 5)
        reasons |= set(ended(cluster))

    assert LaunchReason.WRONG_NODE in reasons
    assert not served(cluster, uid)


def test_one_pod_name_in_two_namespaces_is_two_requests() -> None:
    cluster = Cluster()
    one, two = cluster.add_worker("big"), cluster.add_worker("big", namespace="other")
    name = cluster.workers[one].item.request.name
    item = cluster.workers[two].item
    cluster.workers[two] = replace(
        cluster.workers[two], item=replace(item, request=replace(item.request, name=name))
    )

    run(cluster, 600)

    assert served(cluster, one, two)


def test_a_gang_is_handed_over_whole() -> None:
    cluster = Cluster(ScaleUpSettings(max_in_flight=1))
    members = cluster.add_gang(3, "h100")

    run(cluster, 1200)

    assert served(cluster, *members)


def test_a_gang_that_is_not_whole_in_time_gives_its_nodes_to_others() -> None:
    cluster = Cluster(ScaleUpSettings(max_in_flight=1))
    members = cluster.add_gang(9, "h100", timeout=60.0)  # on three nodes, which come 75 s apart
    ended: set[str] = set()
    for _ in range(120):
        run(cluster, 5)
        for record in cluster.records.values():
            ended |= {str(unit.ended) for unit in record.units if unit.ended}

    assert "Timeout" in ended
    assert not any(cluster.workers[uid].node for uid in members)


def backed_off_gang() -> tuple[Cluster, list[str]]:
    """One of nine on three nodes that come one after the other, with less time than that takes."""
    cluster = Cluster(ScaleUpSettings(max_in_flight=1))
    members = cluster.add_gang(9, "h100", timeout=60.0)
    for _ in range(120):
        run(cluster, 5)
        if any(record.state is ScaleUpState.BACKOFF for record in cluster.records.values()):
            return cluster, members
    raise AssertionError("the gang never backed off")


def test_a_gang_that_backs_off_asks_for_nothing_until_its_time() -> None:
    cluster, members = backed_off_gang()
    (record,) = cluster.records.values()
    bought, attempts = cluster.nodes_bought, record.attempts

    assert attempts >= 1
    assert record.next_attempt > cluster.now
    while cluster.now < record.next_attempt - 5:
        run(cluster, 5)
        (seen,) = cluster.records.values()
        assert not seen.active_units
        assert (cluster.nodes_bought, seen.attempts) == (bought, attempts)
        assert not any(cluster.workers[uid].node for uid in members)


def test_what_came_for_a_gang_that_backs_off_serves_others_at_once() -> None:
    cluster, members = backed_off_gang()
    bought = cluster.nodes_bought

    other = cluster.add_worker("h100")
    run(cluster, 30)

    assert served(cluster, other)
    assert cluster.nodes_bought == bought
    assert not any(cluster.workers[uid].node for uid in members)


def test_a_gang_that_backed_off_tries_again_and_starts_whole() -> None:
    cluster, members = backed_off_gang()

    run(cluster, 3600)  # nodes of the first attempts are there, and only the last one is missing

    assert served(cluster, *members)
    assert cluster.nodes_bought == 3


def test_a_gang_that_is_whole_in_time_starts() -> None:
    cluster = Cluster()
    members = cluster.add_gang(9, "h100", timeout=60.0)

    run(cluster, 600)

    assert served(cluster, *members)


def test_quota_counts_demand_that_is_already_on_its_way() -> None:
    cluster = Cluster(quota_gib=20)
    uids = [cluster.add_worker("small", namespace="tight") for _ in range(5)]

    run(cluster, 900)

    assert sum(bool(cluster.workers[uid].node) for uid in uids) == 2
    assert cluster.nodes_bought == 1


def test_what_a_full_size_node_would_refuse_gets_no_record() -> None:
    cluster = Cluster()
    cluster.add_worker("never")
    cluster.add_worker("unknown")

    run(cluster, 300)

    assert not cluster.records
    assert cluster.nodes_bought == 0


def test_a_pod_that_may_not_be_created_backs_off_and_recovers() -> None:
    cluster = Cluster()
    cluster.reject_pods = True
    uid = cluster.add_worker("small")
    seen: set[tuple[str, str]] = set()
    for _ in range(12):
        run(cluster, 5)
        seen |= {(record.state, record.reason) for record in cluster.records.values()}
    assert (ScaleUpState.BACKOFF, LaunchReason.CREATE_REFUSED) in seen
    cluster.reject_pods = False

    run(cluster, 900)

    assert served(cluster, uid)


def test_equal_requests_fill_nodes_before_new_ones_are_asked_for() -> None:
    cluster = Cluster(ScaleUpSettings(max_in_flight=100))
    uids = [cluster.add_worker("small") for _ in range(20)]

    run(cluster, 900)

    assert served(cluster, *uids)
    assert cluster.nodes_bought == 7  # three of eight GiB share a device of 24


def _writes_of_one_story() -> int:
    cluster = Cluster()
    cluster.add_worker("big")
    run(cluster, 300)
    return cluster.writes


@pytest.mark.long
@pytest.mark.parametrize("kind", ["before", "after", "conflict", "fail"])
def test_at_every_write_something_goes_wrong_and_it_ends_the_same(kind: str) -> None:
    for number in range(1, _writes_of_one_story() + 1):
        cluster = Cluster()
        uid = cluster.add_worker("big")
        cluster.faults.append(Fault(number, kind))

        run(cluster, 600)

        assert served(cluster, uid), f"{kind} write {number}"
        assert cluster.nodes_bought == 1, f"{kind} write {number}"
        assert not cluster.pods
        assert not cluster.records


def test_a_record_that_was_deleted_by_hand_begins_anew_after_its_smart_pods() -> None:
    cluster = Cluster()
    uid = cluster.add_worker("small")
    run(cluster, 30)
    assert cluster.pods
    cluster.records.clear()
    cluster.control()
    cluster.check()
    assert not cluster.records, "its smart pod is still there"

    run(cluster, 600)

    assert served(cluster, uid)
    assert not cluster.pods
