"""Watches all clusters of a fleet and builds the answers of the API.

Answers are values of `views`, built on request. A consolidation plan is made at most every few seconds and
only while a page shows it, because it blocks the process: about half a second for 2,000 nodes. Nothing is
ever written.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import structlog

from karpool.consolidation.bound.certificate import certified
from karpool.consolidation.planning.plan import ConsolidationPlan
from karpool.consolidation.planning.planner import plan_consolidation
from karpool.consolidation.policy.settings import PlanSettings
from karpool.consolidation.view import ClusterView
from karpool.dashboard.api import list_views, views
from karpool.dashboard.change_notifier import ChangeNotifier, ViewArea
from karpool.dashboard.cluster_watch import DashboardCluster
from karpool.dashboard.history_file import HistoryFile
from karpool.dashboard.pages import (
    cluster_table,
    fleet_map,
    gpus,
    move_ledger,
    node_table,
    placements,
    promises,
    recent_events,
    scale_up_timelines,
    search,
    waiting_pods,
)
from karpool.dashboard.pages.consolidation_board import board, in_order, move_detail
from karpool.dashboard.pages.node_detail import node_detail
from karpool.dashboard.pages.paging import ListQuery
from karpool.dashboard.pages.time_series import SAMPLE_SECONDS, FleetHistory, filled, range_of
from karpool.dashboard.prometheus_history import PrometheusHistory
from karpool.kube.api.client import Client
from karpool.kube.clock import Clock
from karpool.kube.transport.prometheus import PrometheusServer
from karpool.kube.watch.informer_set import InformerSet
from karpool.model.errors import Invalid
from karpool.model.karmada.binding import binding_key
from karpool.model.karmada.member_cluster import MemberCluster
from karpool.model.kubernetes.api_resources import ObjectKey
from karpool.provisioning.market_file import market_of, shared_contract
from karpool.scheduler.cycle.settings import SchedulingSettings
from karpool.scheduler.cycle.what_if import what_if_known
from karpool.scheduler.estimates.estimate_cache import EstimatorApi
from karpool.scheduler.promises.ledger import PromiseLedger
from karpool.scheduler.promises.promise import PromiseLifetime

log = structlog.get_logger(__name__)

TICK_SECONDS = 1.0  # promises show whole seconds
PLAN_EVERY_SECONDS = 10.0  # clusters change all the time, and people read a plan for longer than that
PLAN_SHARE = 10.0  # planning takes at most a tenth of the time
PLAN_DEADLINE_SECONDS = 5.0  # 2,000 nodes take half a second; a longer plan would block the page
PLANS_AT_ONCE = 6  # per answer: each blocks the process for up to a second
LOOKED_AT_SECONDS = 60.0  # open pages ask again within half a minute
# Refreshing the view of 1,000 nodes takes 10 ms, and a hundred clusters change all the time. So an answer
# refreshes only as many as fit into an unnoticeable delay; a few more are refreshed between answers.
CATCH_UP_SECONDS = 0.1
CATCH_UP_IN_TICK_SECONDS = 0.05


@dataclass(frozen=True)
class CollectorSettings:
    """Settings of an administrator.

    `asker` returns a client for the estimators of a control plane, if enabled.
    """

    lifetime: PromiseLifetime = field(default_factory=PromiseLifetime)
    settings: SchedulingSettings = field(default_factory=SchedulingSettings)
    plan: PlanSettings = field(default_factory=lambda: PlanSettings(deadline_seconds=PLAN_DEADLINE_SECONDS))
    asker: Callable[[Client], EstimatorApi | None] = lambda client: None
    region: str = ""
    catalogue: Path | None = None  # a file instead of the shipped catalogue
    contract: Path | None = None
    history: Path | None = None  # file for the history, in addition to memory
    file: list_views.ShownFile | None = None  # shown instead of live clusters
    prometheus: PrometheusServer | None = None  # another source of history


@dataclass
class _Planned:
    plan: ConsolidationPlan
    version: int
    at: float  # monotonic
    took: float

    def is_due(self, version: int, now: float) -> bool:
        wait = max(PLAN_EVERY_SECONDS, PLAN_SHARE * self.took)
        return version != self.version and now >= self.at + wait


class FleetCollector:
    """The clusters of a fleet and the answers about them; running `informers` keeps them current."""

    def __init__(self, clusters: Mapping[str, Client], wishes: CollectorSettings | None = None) -> None:
        """Create a collector. Names of members are their names in Karmada."""
        if not clusters:
            raise ValueError("a dashboard needs at least one cluster")
        self.bell = ChangeNotifier()
        self._wishes = wishes or CollectorSettings()
        contract = self._wishes.contract
        self._contract = shared_contract(contract) if contract is not None else None
        self._clients: dict[str, Client] = {}
        self.watches: dict[str, DashboardCluster] = {}
        for name, client in clusters.items():
            self.add(name, client)
        self.clock: Clock = next(iter(clusters.values())).clock
        self._plans: dict[str, _Planned] = {}
        self._looked_at = float("-inf")
        self._contact: dict[str, tuple[bool, str | None]] = {}  # whether stale, and what is not listed yet
        self._askers: dict[str, EstimatorApi | None] = {}
        self._verified: dict[tuple[int, str], tuple[int, int]] = {}
        self._rows: dict[str, tuple[ClusterView, Any, views.ClusterRow]] = {}
        self._is_behind = False  # whether an answer showed a cluster before its latest change
        self._node_orders = node_table.NodeOrders()
        self.history = FleetHistory()
        self._sampled_at = float("-inf")
        server = self._wishes.prometheus
        self._past = PrometheusHistory(server.fetch, self.clock) if server is not None else None
        self.on_sample: Callable[[Sequence[views.ClusterRow], Mapping[str, int]], None] | None = None
        self._keep = HistoryFile(self._wishes.history) if self._wishes.history is not None else None
        if self._keep is not None:
            self.history.restore(self._keep.steps())

    # Clusters that join and leave

    def add(self, name: str, client: Client) -> InformerSet:
        """Add a cluster; return its informers, which the caller runs."""
        wishes, contract = self._wishes, self._contract
        self._clients[name] = client
        self.watches[name] = DashboardCluster(
            name,
            client,
            self.bell,
            lifetime=wishes.lifetime,
            # Each cluster has its own market; a contract is shared by all.
            market=market_of(wishes.catalogue, wishes.region, contract.member(name) if contract else None),
        )
        return self.watches[name].informers

    def remove(self, name: str) -> None:
        del self.watches[name], self._clients[name]
        if self._contract is not None:
            self._contract.leave(name)
        for held in (self._plans, self._contact, self._askers, self._rows):
            held.pop(name, None)

    # Running

    async def close(self) -> None:
        for asker in self._askers.values():
            if close := getattr(asker, "close", None):
                await close()
        if self._keep is not None:
            self._keep.close()

    @property
    def informers(self) -> list[InformerSet]:
        return [watch.informers for watch in self.watches.values()]

    def not_ready(self) -> str | None:
        """Return what was not listed yet, for the first cluster that is not synced."""
        reasons = (watch.not_ready() for watch in self.watches.values())
        return next((reason for reason in reasons if reason is not None), None)

    async def run(self) -> None:
        """Handle changes by time until cancelled: promises expire, clusters become stale, plans age."""
        while True:
            await self.clock.sleep(TICK_SECONDS)
            try:
                self._look_at_time()
            except Exception:  # a bug in a plan must not stop the watches
                log.exception("dashboard tick raised")

    def _look_at_time(self) -> None:
        was_behind = self._is_behind
        self._catch_up(CATCH_UP_IN_TICK_SECONDS)
        if was_behind:
            self.bell.ring((ViewArea.FLEET,))
        if self._verify() | self._expire():
            self.bell.ring((ViewArea.PROMISES, ViewArea.PLACEMENTS, ViewArea.FLEET))
        contact = {
            watch.name: (watch.staleness > fleet_map.QUIET_SECONDS, watch.not_ready())
            for watch in self.watches.values()
        }
        if contact != self._contact:  # also when a kind turns out to be missing, which changes no object
            self._contact = contact
            self.bell.ring((ViewArea.FLEET, ViewArea.CONSOLIDATION))
        self._sample()
        if self.clock.monotonic() - self._looked_at < LOOKED_AT_SECONDS:
            for watch in self.watches.values():
                planned = self._plans.get(watch.name)
                if planned is not None and planned.is_due(watch.version, self.clock.monotonic()):
                    self._make_plan(watch)

    def _catch_up(self, seconds: float = CATCH_UP_SECONDS) -> None:
        """Refresh changed clusters, the oldest view first, until the time is over."""
        end = self.clock.monotonic() + seconds
        behind = [watch for watch in self.watches.values() if watch.is_behind]
        for watch in sorted(behind, key=lambda watch: watch.looked_at):
            watch.view()
            if self.clock.monotonic() > end:
                break
        self._is_behind = any(watch.is_behind for watch in behind)

    def _sample(self) -> None:
        now = self.clock.now()
        if self.clock.monotonic() < self._sampled_at + SAMPLE_SECONDS:
            return
        self._sampled_at = self.clock.monotonic()
        evictions = {name: watch.evictions.count for name, watch in self.watches.items()}
        rows = self.fleet().clusters
        steps = self.history.sample(rows, evictions, now)
        if self.on_sample is not None:
            self.on_sample(rows, evictions)
        if self._keep is not None:
            self._keep.keep(steps)
        self.bell.ring((ViewArea.TIME,))

    def _expire(self) -> bool:
        freed = [ledger.expire(self.clock.monotonic()) for ledger in self._ledgers()]
        return any(freed)

    def _verify(self) -> bool:
        """Tell the ledgers which promised pods are on nodes, as estimators tell schedulers."""
        freed, now = False, self.clock.monotonic()
        for number, ledger in enumerate(self._ledgers()):
            for name in ledger.clusters():
                watch = self.watches.get(name)
                if watch is None or not self._is_news(number, name, (watch.seen, ledger.grown(name))):
                    continue
                for promise in list(ledger.promises(name)):
                    arrived = watch.arrived(promise)
                    freed |= bool(arrived.bound and ledger.report(name, promise.binding, arrived, now))
        return freed

    def _is_news(self, ledger: int, cluster: str, version: tuple[int, int]) -> bool:
        before, self._verified[ledger, cluster] = self._verified.get((ledger, cluster)), version
        return before != version

    # Answers

    def fleet(self) -> views.FleetOverview:
        self._catch_up()
        return fleet_map.fleet(
            [self._facts(watch) for watch in self.watches.values()],
            self._members(),
            promises.by_cluster(self._ledgers()),
            self.clock.now(),
            self._row,
        )

    def clusters(self, query: ListQuery) -> list_views.ClusterList:
        def has_node(cluster: str) -> bool:
            watch = self.watches.get(cluster)
            return watch is not None and watch.index().has(query.words)

        return cluster_table.cluster_table(self.fleet(), query, has_node, self._wishes.file)

    def cluster(self, name: str) -> list_views.ClusterDetail | None:
        row = next((row for row in self.fleet().clusters if row.name == name), None)
        if row is None:
            return None
        watch, now = self.watches.get(name), self.clock.now()
        traces = cluster_table.ClusterTraces()
        if watch is not None:
            planned = self._plans.get(name)
            traces = cluster_table.ClusterTraces(
                watch.view(),
                planned.plan if planned is not None else None,
                watch.failing_pools(),
                watch.cluster.failures.stock_outs(now),
            )
        return cluster_table.cluster_detail(row, traces, now)

    def all_nodes(self, query: ListQuery) -> list_views.FleetNodeList:
        self._catch_up()
        indexes = [watch.index() for watch in self.watches.values()]
        return node_table.node_table(indexes, query, self.clock.now(), self._node_orders)

    def waiting(self, query: ListQuery) -> list_views.WaitingPodList:
        return waiting_pods.waiting_pods(
            (watch.waiting() for watch in self.watches.values()), query, self.clock.now()
        )

    def pod(self, cluster: str, namespace: str, name: str) -> list_views.PodDetails | None:
        """Return a pod, or None if it does not exist."""
        now = self.clock.now()
        if not name:
            return list_views.PodDetails(at=now, items=[])
        watch = self.watches.get(cluster)
        if watch is None:
            return None
        explanation = watch.explained(ObjectKey(namespace, name))
        if explanation is not None:
            promised = promises.by_cluster(self._ledgers()).get(cluster, fleet_map.NOTHING)
            traces = waiting_pods.PodTraces(
                watch.scale_ups.wanted_by(namespace, name),
                promised.replicas,
                watch.price_gaps(),
            )
            detail = waiting_pods.pod_detail(cluster, explanation, traces, now)
        elif node := watch.node_of(f"{namespace}/{name}"):
            detail = waiting_pods.placed_pod(cluster, namespace, name, node)
        else:
            return None
        return list_views.PodDetails(at=now, items=[detail])

    def gpus(self, query: ListQuery) -> list_views.DeviceList:
        self._catch_up()
        return gpus.gpus((watch.devices() for watch in self.watches.values()), query, self.clock.now())

    def moves(self, query: ListQuery) -> list_views.MoveLedger:
        return move_ledger.ledger(
            (
                move_ledger.ClusterMoves(name, watch.moves.records, watch.moves.problems)
                for name, watch in self.watches.items()
            ),
            query,
            self.clock.now(),
        )

    def search(self, query: ListQuery) -> list_views.SearchHits:
        placed = (
            f"{version.head.key.namespace}/{version.head.key.name}"
            for watch in self._control_planes()
            for version in watch.scheduling.bindings.all()
        )
        return search.search(
            self.fleet(),
            (watch.searched() for watch in self.watches.values()),
            placed,
            query,
            self.clock.now(),
        )

    async def time(
        self, cluster: str, range_: str, begin: float | None, end: float | None
    ) -> list_views.TimeSeries | None:
        if cluster and cluster not in self.watches and cluster not in self._members():
            return None
        own = self.history.read(cluster, range_, begin, end, self.clock.now())
        if self._past is None or own.end < own.begin:
            return own
        past, remark = await self._past.read(cluster, range_of(range_), own.begin, own.end)
        return filled(own, past, remark)

    def nodes(self, cluster: str, pool: str | None = None) -> views.NodeList | None:
        watch = self.watches.get(cluster)
        return None if watch is None else fleet_map.nodes(cluster, watch.view(), self.clock.now(), pool=pool)

    def node(self, cluster: str, name: str) -> views.NodeDetail | None:
        watch = self.watches.get(cluster)
        if watch is None:
            return None
        self._looked_at = self.clock.monotonic()
        return node_detail(cluster, watch.view(), name, self._plan(watch))

    def placements(self) -> views.PlacementList:
        versions = [
            version for watch in self._control_planes() for version in watch.scheduling.bindings.all()
        ]
        ledger = next(iter(self._ledgers()), None)
        return placements.placements(versions, ledger, self.clock.now())

    async def placement(self, namespace: str, name: str) -> views.PlacementDetail | None:
        """Return the decision that would be made about one binding now.

        Raises Invalid if it cannot be read.
        """
        key = binding_key(namespace, name)
        for watch in self._control_planes():
            version = watch.scheduling.bindings.get(key)
            if version is None:
                continue
            if version.binding is None:
                raise version.problem or Invalid("spec", name, "cannot be read")
            asker = self._asker(watch.name)
            what_if = await what_if_known(watch.scheduling, key, self._wishes.settings, asker=asker)
            ledger = watch.scheduling.ledger
            return placements.detail(version, what_if, ledger, asked_estimators=asker is not None)
        return None

    def promises(self) -> views.PromiseList:
        return promises.promises(self._ledgers(), self.clock.monotonic(), self.clock.now())

    def scale_ups(self) -> views.ScaleUpList:
        return scale_up_timelines.scale_ups(
            (
                (
                    watch.name,
                    watch.scale_ups.records(),
                    scale_up_timelines.traces(watch.smart_pods, watch.claims.progress),
                    watch.scale_ups.problems,
                )
                for watch in self.watches.values()
            ),
            self.clock.now(),
        )

    def consolidation(self, cluster: str = "") -> views.ConsolidationBoards:
        """Return the plans of one cluster, or of all. Only a few plans are made per call."""
        self._looked_at = self.clock.monotonic()
        pending, boards = [], []
        unplanned = [name for name in self.watches if name not in self._plans and cluster in ("", name)]
        later = unplanned[PLANS_AT_ONCE:]
        for watch in self.watches.values():
            if cluster not in ("", watch.name):
                continue
            plan = self._plan(watch) if watch.name not in later else None
            if plan is None:
                pending.append(watch.name)
            elif plan.before.nodes or plan.pools:
                boards.append(board(watch.name, plan))
        return views.ConsolidationBoards(at=self.clock.now(), boards=in_order(boards), pending=pending)

    def move(self, cluster: str, id_: str) -> views.MoveDetail | None:
        watch = self.watches.get(cluster)
        plan = self._plan(watch) if watch is not None else None
        return None if plan is None else move_detail(cluster, plan, id_)

    def events(self, choice: recent_events.EventChoice = recent_events.EVERYTHING) -> views.RecentEventList:
        return recent_events.recent_events(
            ((watch.name, watch.events) for watch in self.watches.values()), self.clock.now(), choice
        )

    # Inside

    def _facts(self, watch: DashboardCluster) -> fleet_map.ClusterOverview:
        view, heard = watch.latest_view(), watch.staleness
        return fleet_map.ClusterOverview(
            watch.name,
            view,
            is_control_plane=watch.is_control_plane,
            heard_seconds_ago=heard if heard > fleet_map.QUIET_SECONDS else 0.0,
            not_ready=watch.not_ready(),
            problems=(*view.problems, *(f"no price: {gap}" for gap in watch.price_gaps())),
            failures=watch.failing_pools(),
        )

    def _row(
        self,
        facts: fleet_map.ClusterOverview,
        member: MemberCluster | None,
        promised: fleet_map.PromisedCapacity,
    ) -> views.ClusterRow:
        """Return the row; it is rebuilt only when its data changed, because a fleet has a hundred rows."""
        said = (
            facts.is_control_plane,
            facts.heard_seconds_ago,
            facts.not_ready,
            facts.problems,
            facts.failures,
        )
        shown = *said, member, promised
        before = self._rows.get(facts.name)
        if before is None or before[0] is not facts.view or before[1] != shown:
            row = fleet_map.watched(facts, member, promised)
            before = self._rows[facts.name] = facts.view, shown, row
        return before[2]

    def _control_planes(self) -> list[DashboardCluster]:
        return [watch for watch in self.watches.values() if watch.is_control_plane]

    def _ledgers(self) -> list[PromiseLedger]:
        ledgers = (watch.scheduling.ledger for watch in self._control_planes())
        return [ledger for ledger in ledgers if ledger is not None]

    def _members(self) -> dict[str, MemberCluster]:
        return {
            member.name: member
            for watch in self._control_planes()
            for member in watch.scheduling.clusters.all()
        }

    def _asker(self, name: str) -> EstimatorApi | None:
        if name not in self._askers:
            self._askers[name] = self._wishes.asker(self._clients[name])
        return self._askers[name]

    def _plan(self, watch: DashboardCluster) -> ConsolidationPlan | None:
        """Return the latest plan; None until the cluster is synced."""
        planned = self._plans.get(watch.name)
        if planned is None:
            if watch.not_ready() is not None:
                return None
            return self._make_plan(watch)
        return planned.plan

    def _make_plan(self, watch: DashboardCluster) -> ConsolidationPlan:
        start = self.clock.monotonic()
        version = watch.version
        view, now = watch.view(), self.clock.now()

        def elapsed() -> float:
            return self.clock.monotonic() - start

        plan = plan_consolidation(view, self._wishes.plan, now, elapsed=elapsed)
        plan = certified(plan, view, self._wishes.plan, now, elapsed=elapsed, whole_nodes=False)
        end = self.clock.monotonic()
        self._plans[watch.name] = _Planned(plan, version, end, end - start)
        self.bell.ring((ViewArea.CONSOLIDATION,))
        return plan
