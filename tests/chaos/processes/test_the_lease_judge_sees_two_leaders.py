"""The judge of leases, told of each kind of damage, and of hand-overs that are none."""

import msgspec
import pytest

from tests.chaos.processes.http_messages import Head, ProxiedRequest
from tests.chaos.processes.lease_judge import LeaseJudge

PATH = "/apis/coordination.k8s.io/v1/namespaces/n/leases/l"


class Court:
    def __init__(self) -> None:
        self.now, self._version = 0.0, 0
        self.judge = LeaseJudge({"a": "c", "b": "c"}, lambda: self.now)

    def lease(
        self, replica: str, holder: str, *, uid: str = "u", duration: int = 15, status: int = 200
    ) -> None:
        spec = {"holderIdentity": holder, "leaseDurationSeconds": duration}
        self._version += 1
        meta = {"uid": uid, "resourceVersion": str(self._version)}
        request = ProxiedRequest(Head(f"PUT {PATH} HTTP/1.1"), msgspec.json.encode({"spec": spec}))
        self.judge.asked(replica, request)
        self.judge.answered(replica, request, status, msgspec.json.encode({"metadata": meta, "spec": spec}))

    def write(self, replica: str, path: str = "/api/v1/nodes/n", method: str = "PATCH") -> None:
        self.judge.asked(replica, ProxiedRequest(Head(f"{method} {path} HTTP/1.1"), b""))


@pytest.fixture
def court() -> Court:
    made = Court()
    made.lease("a", "A")
    return made


def test_the_holder_may_write(court: Court) -> None:
    court.write("a")
    assert court.judge.violations == [] and court.judge.writes == {"a": 1}


def test_nobody_else_may(court: Court) -> None:
    court.write("b")
    assert "never led" in court.judge.violations[0]


def test_a_former_holder_may_not(court: Court) -> None:
    court.now = 20
    court.lease("b", "B")
    assert court.judge.violations == []
    court.write("a")
    assert "while B holds" in court.judge.violations[0]


def test_events_and_reads_are_free(court: Court) -> None:
    court.write("b", "/apis/events.k8s.io/v1/namespaces/n/events", "POST")
    court.write("b", "/api/v1/nodes", "GET")
    assert court.judge.violations == []


def test_a_lease_is_not_taken_before_its_time(court: Court) -> None:
    court.now = 14
    court.lease("b", "B")
    assert "after 14.00 s of 15" in court.judge.violations[0]


def test_a_renewal_counts_anew(court: Court) -> None:
    court.now = 10
    court.lease("a", "A")
    court.now = 20
    court.lease("b", "B")
    assert court.judge.violations


def test_what_was_given_back_is_taken_at_once(court: Court) -> None:
    court.lease("a", "")
    court.lease("b", "B")
    assert court.judge.violations == [] and court.judge.leases["c"].holders == ["A", "B"]


def test_only_the_holder_gives_back(court: Court) -> None:
    court.now = 20
    court.lease("b", "B")
    court.lease("a", "")
    assert court.judge.violations == ["a empties the lease of B"]


def test_a_lease_that_was_deleted_has_no_holder(court: Court) -> None:
    court.now = 1
    court.lease("b", "B", uid="other")
    assert court.judge.violations == []


def test_what_was_refused_was_not_written(court: Court) -> None:
    court.lease("b", "B", status=409)
    court.write("a")
    assert court.judge.violations == []


def looked(court: Court, seconds: int, *well: str) -> None:
    """Each of those reads the lease and lacks nothing, for so long."""
    for _ in range(seconds):
        for replica in well:
            court.judge.asked(replica, ProxiedRequest(Head(f"GET {PATH} HTTP/1.1"), b""))
        court.now += 1.0
        court.judge.look(well)


def test_a_lease_that_nobody_takes_although_one_could_is_seen(court: Court) -> None:
    looked(court, 30, "b")
    assert court.judge.violations == []
    looked(court, 1, "b")
    assert "b stands by for 31 s, and nobody leads c" in court.judge.violations[0]
    assert court.judge.leases["c"].longest_vacancy == 31


def test_time_counts_only_while_somebody_stands_for_it_and_is_well(court: Court) -> None:
    looked(court, 20, "b")
    looked(court, 1)  # b was killed
    for _ in range(50):
        court.now += 1.0
        court.judge.look(["b"])  # it starts, and has not read the lease
    looked(court, 20, "b")
    court.lease("b", "B")
    looked(court, 20, "a")
    court.now += 100  # this process did not run
    looked(court, 20, "a")
    assert court.judge.violations == [] and court.judge.leases["c"].longest_vacancy == 20
