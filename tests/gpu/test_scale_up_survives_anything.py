"""Random histories with every kind of fault: nothing leaks, nothing is bought twice, all are served.

200 histories by default, as many as KARPOOL_HISTORIES says otherwise.
"""

import os
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from karpool.gpu.scale_up.settings import ScaleUpSettings
from tests.gpu.simulated import RUNGS, Cluster, Fault

HISTORIES = int(os.environ.get("KARPOOL_HISTORIES", "200"))
_RUNG = st.sampled_from([rung.key for rung in RUNGS])


class Histories(RuleBasedStateMachine):
    @initialize(cap=st.sampled_from((1, 2, 4, 15)))
    def begin(self, cap: int) -> None:
        self.cluster = Cluster(ScaleUpSettings(max_in_flight=cap))

    def pick(self, names: "list[str]", number: int) -> str:
        return sorted(names)[number % len(names)]

    # People

    @rule(
        shape=st.sampled_from(("small", "small", "big", "pair", "h100", "never", "unknown")),
        namespace=st.sampled_from(("apps", "apps", "tight")),
        priority=st.sampled_from((0, 0, 100)),
        count=st.integers(1, 3),
    )
    def add_workers(self, shape: str, namespace: str, priority: int, count: int) -> None:
        for _ in range(count):
            self.cluster.add_worker(shape, namespace=namespace, priority=priority)

    @rule(members=st.integers(2, 4), shape=st.sampled_from(("big", "h100")))
    def add_gang(self, members: int, shape: str) -> None:
        self.cluster.add_gang(members, shape)

    @precondition(lambda self: self.cluster.workers)
    @rule(number=st.integers(0, 100))
    def delete_worker(self, number: int) -> None:
        self.cluster.delete_worker(self.pick(list(self.cluster.workers), number))

    @precondition(lambda self: any(each.waits for each in self.cluster.workers.values()))
    @rule(number=st.integers(0, 100), nominated=st.booleans())
    def nominate(self, number: int, nominated: bool) -> None:
        waiting = [uid for uid, worker in self.cluster.workers.items() if not worker.node]
        uid = self.pick(waiting, number)
        self.cluster.workers[uid] = replace(
            self.cluster.workers[uid], nominated_node="node-x" if nominated else ""
        )

    @rule(gib=st.sampled_from((0, 20, 60)))
    def change_quota(self, gib: int) -> None:
        self.cluster.quota = Cluster(quota_gib=gib).quota

    @precondition(lambda self: self.cluster.pods)
    @rule(number=st.integers(0, 100))
    def delete_a_smart_pod_by_hand(self, number: int) -> None:
        self.cluster._pod_gone(self.pick(list(self.cluster.pods), number))

    @precondition(lambda self: self.cluster.records)
    @rule(number=st.integers(0, 100))
    def delete_a_record_by_hand(self, number: int) -> None:
        del self.cluster.records[self.pick(list(self.cluster.records), number)]

    # The cloud

    @rule(key=_RUNG)
    def stock_out(self, key: str) -> None:
        self.cluster.out_of_stock.add(key)

    @rule(key=_RUNG)
    def stock_again(self, key: str) -> None:
        self.cluster.out_of_stock.discard(key)

    @rule(
        quirk=st.sampled_from(
            ({"slow": 120.0}, {"slow": 5000.0}, {"fewer": 1}, {"model": "other"}, {"lost": True})
        )
    )
    def next_node_is_odd(self, quirk: "dict[str, object]") -> None:
        self.cluster.next_node = dict(quirk)

    @precondition(lambda self: self.cluster.nodes)
    @rule(number=st.integers(0, 100))
    def interrupt(self, number: int) -> None:
        self.cluster.interrupt(self.pick(list(self.cluster.nodes), number))

    @precondition(lambda self: self.cluster.pods)
    @rule(number=st.integers(0, 100), stuck=st.booleans())
    def hang_in_deletion(self, number: int, stuck: bool) -> None:
        self.cluster.pods[self.pick(list(self.cluster.pods), number)].stuck = stuck

    # The controller

    @rule(kind=st.sampled_from(("before", "after", "conflict", "fail")), number=st.integers(1, 8))
    def fault_at_a_write(self, kind: str, number: int) -> None:
        self.cluster.faults.append(Fault(number, kind))

    @rule(seconds=st.sampled_from((0.0, 20.0, 300.0, 3600.0)))
    def crash(self, seconds: float) -> None:
        self.cluster.crash(seconds)

    @rule(
        kind=st.sampled_from(("workers", "records", "pods", "claims", "nodes")),
        seconds=st.sampled_from((5.0, 15.0, 30.0)),
    )
    def watch_lags(self, kind: str, seconds: float) -> None:
        self.cluster.lag[kind] = self.cluster.now + seconds

    @rule(reject=st.booleans())
    def reject_pods(self, reject: bool) -> None:
        self.cluster.reject_pods = reject

    @rule(seconds=st.sampled_from((5, 15, 30, 60, 60, 240, 900)))
    def pass_time(self, seconds: float) -> None:
        tick = 5.0 if seconds <= 60 else 15.0
        for _ in range(int(seconds // tick)):
            self.cluster.advance(tick, tick)
            self.cluster.check()
        self.cluster.check_gangs()

    @rule()
    def look_again(self) -> None:
        self.cluster.control()

    @invariant()
    def safe(self) -> None:
        if hasattr(self, "cluster"):
            self.cluster.check()

    def teardown(self) -> None:
        if hasattr(self, "cluster"):
            self.cluster.calm()
            self.cluster.check_quiet()


Histories.TestCase.settings = settings(
    max_examples=HISTORIES,
    stateful_step_count=20,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
TestHistories = Histories.TestCase
# A night has many, and may be slow.
TestHistories.pytestmark = [pytest.mark.long, pytest.mark.timeout(max(240, HISTORIES))]
