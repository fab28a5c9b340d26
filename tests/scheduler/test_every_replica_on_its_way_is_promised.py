"""Whatever happens in between, the ledger covers every replica that is placed and not on a node.

A small world of members that apply, create, bind and report with any delay, an API server that
refuses or loses answers, and a scheduler that dies at every instant. Within the lifetime of
promises nothing on its way may be uncovered, for none of the readers; after it, nothing stays.
"""

from dataclasses import dataclass, field, replace

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from karpool.model.karmada.binding import AggregatedStatus, TargetCluster
from karpool.scheduler.promises.ledger import PromiseLedger
from karpool.scheduler.promises.promise import PromiseLifetime
from karpool.scheduler.promises.promise_annotation import PROMISES
from karpool.wire.requests import ArrivedReplicas
from tests.scheduler.promising import binding, deployed

NAMES, CLUSTERS = ("a", "b"), ("m1", "m2")
LIFETIME = PromiseLifetime(100_000.0, 100_000.0, float("inf"))
WALL = 1_800_000_000.0
# Long stories about one workload in one member find more than short ones about many.
names, clusters = st.sampled_from(("a", "a", "a", "b")), st.sampled_from(("m1", "m1", "m1", "m2"))
amounts = st.sampled_from((0, 1, 2, 5, 6))


@dataclass
class Place:
    """One workload in one member."""

    told: int = 0  # replicas that the member was told to have
    waiting: int = 0
    bound: int = 0


@dataclass
class Summaries:
    """Of one member. The next one is made after the last one was delivered."""

    made: dict[str, int] | None = None  # pods of each workload, on its way
    counted: dict[str, int] = field(default_factory=lambda: dict.fromkeys(NAMES, 0))
    number: int = 0


class Promises(RuleBasedStateMachine):
    @initialize()
    def start(self):
        self.now = 0.0
        self.api = {name: binding(name, last_scheduled_time="2020-01-01T00:00:00Z") for name in NAMES}
        self.old = {name: [self.api[name]] for name in NAMES}
        self.places = {(name, cluster): Place() for name in NAMES for cluster in CLUSTERS}
        self.summaries = {cluster: Summaries() for cluster in CLUSTERS}
        self.restart()

    @rule()
    def restart(self):
        self.ledger = PromiseLedger(LIFETIME)
        self.now += 7.0
        self.ledger.rebuild(self.api.values(), self.now, WALL + self.now)
        for cluster, summaries in self.summaries.items():
            self.ledger.observe_cluster(cluster, summaries.number, self.now)
        self.seen = dict(self.api)

    # Decisions

    @rule(
        name=names,
        cluster=clusters,
        replicas=amounts,
        outcome=st.sampled_from(["taken", "taken", "taken", "lost", "dies before", "dies after"]),
    )
    def decide(self, name, cluster, replicas, outcome):
        known = self.seen[name]
        to = {target.name: target.replicas for target in known.targets} | {cluster: replicas}
        targets = tuple(TargetCluster(each, count) for each, count in sorted(to.items()) if count)
        self.now += 1.0
        token = self.ledger.promise(known, targets, self.now)
        record = self.ledger.record(known.key, self.now, WALL + self.now)
        if outcome == "dies before":
            self.restart()
            return
        if known.resource_version != self.api[name].resource_version:
            self.ledger.undo(token, self.now)  # somebody else was faster
            return
        changes = {"targets": targets} if targets != known.targets else {}
        generation = known.generation + bool(changes)
        self.write(name, annotations={PROMISES: record}, generation=generation, **changes)
        if outcome == "dies after":
            self.restart()
        elif outcome == "lost":
            self.ledger.confirm(token, 0)
            self.deliver(name)  # it reads again
        else:
            self.ledger.confirm(token, generation)
            self.seen[name] = self.api[name]

    @rule(name=names, cluster=clusters)
    def somebody_takes_replicas_back(self, name, cluster):
        present = self.api[name]
        targets = tuple(
            TargetCluster(target.name, target.replicas // 2) if target.name == cluster else target
            for target in present.targets
        )
        kept = tuple(each for each in targets if each.replicas)
        if kept != present.targets:
            self.write(name, targets=kept, generation=present.generation + 1)

    # Members

    @rule(name=names)
    def everything_lands(self, name):
        for cluster in CLUSTERS:
            self.apply(name, cluster)
            self.create(name, cluster, 6)
            self.bind(name, cluster, 6)
        self.report(name, 0)
        self.deliver(name)

    @rule(name=names, cluster=clusters)
    def apply(self, name, cluster):
        place = self.places[name, cluster]
        place.told = self.target(name, cluster)
        surplus = max(0, place.bound + place.waiting - place.told)
        gone = min(place.waiting, surplus)  # those without a node first
        place.waiting -= gone
        place.bound -= surplus - gone

    @rule(name=names, cluster=clusters, count=st.integers(1, 6))
    def create(self, name, cluster, count):
        place = self.places[name, cluster]
        place.waiting += min(count, max(0, place.told - place.bound - place.waiting))

    @rule(name=names, cluster=clusters, count=st.integers(1, 6))
    def bind(self, name, cluster, count):
        place = self.places[name, cluster]
        landed = min(count, place.waiting)
        place.waiting -= landed
        place.bound += landed

    @rule(name=names, unready=st.integers(0, 2))
    def report(self, name, unready):
        items = []
        for cluster in CLUSTERS:
            place = self.places[name, cluster]
            status = deployed(max(0, place.bound - unready), place.bound + place.waiting)
            items.append(AggregatedStatus(cluster, True, "Healthy", status))
        self.write(name, aggregated=tuple(items))

    @rule(cluster=clusters)
    def make_summary(self, cluster):
        summaries = self.summaries[cluster]
        if summaries.made is None:
            summaries.made = {
                name: self.places[name, cluster].bound + self.places[name, cluster].waiting for name in NAMES
            }

    @rule(cluster=clusters)
    def deliver_summary(self, cluster):
        summaries = self.summaries[cluster]
        if summaries.made is not None:
            summaries.counted, summaries.made = summaries.made, None
            summaries.number += 1
            self.ledger.observe_cluster(cluster, summaries.number, self.now)

    # What the scheduler hears

    @rule(name=names)
    def deliver(self, name):
        self.now += 1.0
        self.seen[name] = self.api[name]
        self.ledger.observe(self.api[name], self.now, WALL + self.now)

    @rule(name=names)
    def estimator_reports(self, name):
        for cluster in CLUSTERS:
            place = self.places[name, cluster]
            arrived = ArrivedReplicas((place.bound,), place.waiting)
            self.ledger.report(cluster, self.api[name].key, arrived, self.now)

    @rule(seconds=st.integers(1, 60))
    def time_passes(self, seconds):
        self.now += seconds
        self.ledger.expire(self.now)

    # What must be so

    @invariant()
    def nothing_on_its_way_is_uncovered(self):
        for (name, cluster), place in self.places.items():
            target = self.target(name, cluster)
            promise = self.ledger.promises_of(self.api[name].key).get(cluster)
            promised = sum(promise.promised) if promise else 0
            told = promise.desired[0] if promise else 0
            missing = max(0, target - place.bound)
            # An estimator that sees the pods itself, one that does not, and the summary.
            assert min(promised, max(0, told - place.bound)) >= missing
            assert (promise.replicas if promise else 0) >= missing
            assert promised <= max(target, told)

    @invariant()
    def the_summary_shows_it_or_is_charged(self):
        for cluster, summaries in self.summaries.items():
            totals = self.ledger.charged(cluster)
            charged = 0 if totals is None else totals.pods
            promises = list(self.ledger.promises(cluster))
            naive = sum(
                sum(each.uncounted(self.now, self.ledger._index.summaries(cluster), float("inf")))
                for each in promises
            )
            assert charged == naive
            for name in NAMES:
                promise = self.ledger.promises_of(self.api[name].key).get(cluster)
                own = 0
                if promise is not None:
                    own = sum(
                        promise.uncounted(self.now, self.ledger._index.summaries(cluster), float("inf"))
                    )
                assert own + summaries.counted[name] >= self.target(name, cluster)

    @rule()
    def in_the_end_nothing_is_promised(self):
        for name, cluster in self.places:
            self.apply(name, cluster)
            self.create(name, cluster, 6)
            self.bind(name, cluster, 6)
        later = self.now + LIFETIME.limit_seconds + 1
        copy = PromiseLedger(LIFETIME)
        copy.rebuild(self.api.values(), self.now, WALL + self.now)
        copy.expire(later)
        assert copy.clusters() == []
        for name in NAMES:
            self.deliver(name)
            self.report(name, 0)
            self.deliver(name)
        self.estimator_reports("a")
        self.estimator_reports("b")
        assert not any(promise.replicas for promise in self.ledger.promises() if not promise.shrank)

    # Words

    def target(self, name, cluster):
        return self.api[name].assigned().get(cluster, 0)

    def write(self, name, **changes):
        present = self.api[name]
        version = str(int(present.resource_version or "0") + 1)
        self.api[name] = replace(present, resource_version=version, **changes)


Promises.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestEveryReplica = Promises.TestCase


def story() -> Promises:
    world = Promises()
    world.start()
    world.decide("a", "m1", 2, "taken")
    world.everything_lands("a")
    return world


def test_replicas_taken_back_while_nobody_looked_are_promised_again():
    """The report is from before: it shows two, and one of them is going."""
    world = story()
    world.somebody_takes_replicas_back("a", "m1")
    world.restart()
    world.apply("a", "m1")
    world.decide("a", "m1", 2, "taken")

    world.nothing_on_its_way_is_uncovered()
    world.report("a", 0)
    world.deliver("a")
    world.nothing_on_its_way_is_uncovered()
    world.everything_lands("a")
    world.in_the_end_nothing_is_promised()


def test_a_cluster_that_was_left_while_nobody_looked_is_promised_again():
    world = story()
    for _ in range(2):
        world.somebody_takes_replicas_back("a", "m1")
    world.restart()
    world.apply("a", "m1")
    world.decide("a", "m1", 2, "taken")
    world.deliver("a")

    world.nothing_on_its_way_is_uncovered()
