"""A small cluster for histories of scale-ups: API, autoscaler, nodes, and what goes wrong with them.

Everything is a plain value on a virtual clock. The controller under test is the real desk,
step and order of actions; only its hands are simulated. `check` holds the safety
invariants of the reference (S1 to S21) against what is true, not against what is cached.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from karpool.cluster.market.launch_reasons import LaunchReason
from karpool.gpu.allocation.allocation import GpuAllocation
from karpool.gpu.controller.actuator import actuate
from karpool.gpu.controller.allocator_state import AllocatorState, GpuNodeFacts, GpuWorker, View
from karpool.gpu.records.scale_up_record import ATTEMPTING, STAGES, ScaleUpRecord, ScaleUpState
from karpool.gpu.scale_up.demand import GIB, ScaleUpCandidate, WaitingWorker
from karpool.gpu.scale_up.input import (
    CommitHold,
    CreatePlaceholder,
    DeletePlaceholder,
    HoldDevices,
    ScaleUpInput,
    ScaleUpPlan,
)
from karpool.gpu.scale_up.settings import ScaleUpSettings
from karpool.gpu.scale_up.step import plan_step
from karpool.kube.errors import Conflict, NotFound, ServerFault
from karpool.model.devices.amounts import DeviceAmount, DeviceShare
from karpool.model.devices.device import RUNNING, SMART_POD_USE, Device
from karpool.model.devices.node_devices import NodeYield
from karpool.model.devices.quota import GpuQuota, NamespaceQuota
from karpool.model.devices.request import Gang, GpuRequest
from karpool.model.infeasible import Infeasible
from karpool.model.kubernetes.api_resources import PODS, ObjectKey
from karpool.provisioning.candidates.attempts import STOCK_REST_SECONDS
from karpool.provisioning.claims.claim_progress import ClaimProgress, ClaimStage
from karpool.provisioning.node_request import NodeCandidate, RequestPurpose
from karpool.provisioning.placeholders.placeholder import Placeholder, PlaceholderState

TICK = 5.0
POOL = "shared"


def rung(name: str, devices: int, vram_gib: int, tflops: int, model: str) -> ScaleUpCandidate:
    brings = NodeYield(devices, tflops * 1000, vram_gib * GIB, 16_000, 64 * GIB, model)
    return ScaleUpCandidate(NodeCandidate(pools=("gpu",), instance_types=(name,)), brings)


RUNGS = (
    rung("l4.small", 1, 24, 120, "L4"),
    rung("l4.large", 4, 24, 120, "L4"),
    rung("h100", 2, 80, 900, "H100"),
)
BY_KEY = {each.key: each for each in RUNGS}


@dataclass
class Shape:
    gpus: int = 1
    vram_gib: int = 8
    tflops: int = 30
    model: str = ""


SHAPES = {
    "small": Shape(),
    "big": Shape(vram_gib=20, tflops=100),
    "pair": Shape(gpus=2, vram_gib=10, tflops=50),
    "h100": Shape(vram_gib=40, tflops=300, model="H100"),
    "never": Shape(vram_gib=500),
    "unknown": Shape(model="Z9"),
}


class Crash(BaseException):
    """The process is gone; nothing after this happens."""


@dataclass
class Pod:
    placeholder: Placeholder
    gpus: int
    rung: ScaleUpCandidate
    stuck: bool = False


@dataclass
class Claim:
    name: str
    rung: ScaleUpCandidate
    created: float
    gpus: int
    launches: float
    ending: LaunchReason | None = None
    ended: float | None = None
    node: str = ""


@dataclass
class Node:
    name: str
    claim: str
    rung: ScaleUpCandidate
    model: str
    shows: int
    ready_at: float
    devices_at: float
    going: bool = False
    empty_since: float | None = None
    lingering: dict[str, float] = field(default_factory=dict)  # device marks that clear late


@dataclass
class Fault:
    """Die before or after the n-th write from now, or have it refused."""

    number: int
    kind: str  # before, after, conflict, fail


class Cluster:
    """The truth, and the controller that sees some of it."""

    def __init__(self, settings: ScaleUpSettings | None = None, *, quota_gib: int = 60) -> None:
        self.now = 100_000.0
        self.settings = settings or ScaleUpSettings(max_in_flight=4)
        self.workers: dict[str, GpuWorker] = {}
        self.records: dict[str, ScaleUpRecord] = {}
        self.pods: dict[str, Pod] = {}
        self.claims: dict[str, Claim] = {}
        self.nodes: dict[str, Node] = {}
        self.quota = GpuQuota(
            namespace="tight", total=NamespaceQuota(requests=DeviceAmount(10**9, quota_gib * GIB))
        )
        self.out_of_stock: set[str] = set()
        self.reject_pods = False
        self.next_node: dict[str, Any] = {}
        self.faults: list[Fault] = []
        self.lag: dict[str, float] = {}  # kind -> until when its watch stands still
        self.cache: dict[str, Any] = {}
        self.serial = Counter[str]()
        self.desk: AllocatorState | None = None
        self.down_until = 0.0
        self.up_since = self.now
        self.commits: Counter[tuple[str, str, int]] = Counter()
        self.effects: Counter[str] = Counter()
        self.restarts = 0
        self.commit_restarts: dict[tuple[str, str, int], int] = {}
        self.delete_calls: dict[str, float] = {}
        self.tries: dict[tuple[str, str], float] = {}
        self.told: dict[str, float] = {}
        self.writes = 0
        self.last_plan = ScaleUpPlan()
        self.started = True
        self.nodes_bought = 0
        self.torn_gangs: set[str] = set()
        self.orphaned: dict[str, float] = {}  # since when smart pods have no record

    # What people and the cloud do

    def add_worker(
        self, shape: str = "small", *, namespace: str = "apps", priority: int = 0, gang: Gang | None = None
    ) -> str:
        self.serial["worker"] += 1
        number = self.serial["worker"]
        wanted = SHAPES[shape]
        request = GpuRequest(
            uid=f"w{number}",
            namespace=namespace,
            name=f"worker-{number}",
            pool=POOL,
            request=DeviceShare(wanted.tflops * 1000, wanted.vram_gib * GIB),
            count=wanted.gpus,
            model=wanted.model,
            priority=priority,
            gang=gang,
            cpu_milli=500,
            memory_bytes=GIB,
        )
        self.workers[request.uid] = GpuWorker(WaitingWorker(request, self.now))
        return request.uid

    def add_gang(self, members: int, shape: str, timeout: float = 0.0) -> list[str]:
        self.serial["gang"] += 1
        gang = Gang(f"gang-{self.serial['gang']}", members, members, members, timeout)
        return [self.add_worker(shape, gang=gang) for _ in range(members)]

    def delete_worker(self, uid: str) -> None:
        self.workers.pop(uid, None)

    def interrupt(self, node: str) -> None:
        self.nodes[node].going = True

    def remove_node(self, name: str) -> None:
        node = self.nodes.pop(name)
        claim = self.claims[node.claim]
        claim.ending, claim.ended = LaunchReason.REMOVED, self.now
        self.pods = {key: pod for key, pod in self.pods.items() if pod.placeholder.node != name}
        for uid, worker in list(self.workers.items()):
            if worker.node == name:
                del self.workers[uid]

    # Time

    def advance(self, seconds: float, tick: float = TICK) -> None:
        until = self.now + seconds
        while self.now < until:
            self.now = min(self._next(tick), until)
            self._autoscale()
            self._live()
            self._bind_pods()
            self._collect()
            self.control()

    def _next(self, tick: float) -> float:
        """A tick; or, when nothing moves, when the controller wants to look again."""
        moving = (
            self.pods
            or self.lag
            or self.now < self.down_until
            or any(claim.ending is None and not claim.node for claim in self.claims.values())
            or any(node.going or self.now < node.devices_at + 10 for node in self.nodes.values())
        )
        later = self.last_plan.wake_at
        return self.now + tick if moving or later is None else max(self.now + tick, later)

    def _autoscale(self) -> None:
        for pod in self._pending():
            if pod.placeholder.claim and self._is_coming(self.claims.get(pod.placeholder.claim)):
                continue
            if self.now - pod.placeholder.created < 10.0:
                continue
            pod.placeholder = replace(pod.placeholder, claim=self._nominate(pod))

    def _nominate(self, pod: Pod) -> str:
        for claim in self.claims.values():
            if claim.rung.key == pod.rung.key and claim.ending is None and not claim.node:
                taken = sum(each.gpus for each in self.pods.values() if each.placeholder.claim == claim.name)
                if taken + pod.gpus <= claim.rung.brings.devices:
                    return claim.name
        self.serial["claim"] += 1
        name = f"claim-{self.serial['claim']}"
        claim = Claim(name, pod.rung, self.now, pod.gpus, self.now + 40.0)
        if pod.rung.key in self.out_of_stock:
            claim.ending, claim.ended = LaunchReason.STOCK_OUT, self.now
        self.claims[name] = claim
        return name

    def _is_coming(self, claim: Claim | None) -> bool:
        return claim is not None and claim.ending is None

    def _pending(self) -> list[Pod]:
        return [
            pod
            for pod in self.pods.values()
            if not pod.placeholder.node and pod.placeholder.deleting_since is None
        ]

    def _live(self) -> None:
        for claim in self.claims.values():
            if claim.ending is None and not claim.node and self.now >= claim.launches:
                quirk, self.next_node = self.next_node, {}
                if quirk.get("lost"):
                    claim.ending, claim.ended = LaunchReason.REGISTRATION_TIMEOUT, self.now
                    continue
                self.nodes_bought += 1
                claim.node = f"node-{claim.name}"
                self.nodes[claim.node] = Node(
                    claim.node,
                    claim.name,
                    claim.rung,
                    quirk.get("model", claim.rung.brings.model),
                    claim.rung.brings.devices - quirk.get("fewer", 0),
                    self.now + 10.0,
                    self.now + 20.0 + quirk.get("slow", 0.0),
                )
        for node in list(self.nodes.values()):
            used = any(worker.node == node.name for worker in self.workers.values()) or any(
                pod.placeholder.node == node.name for pod in self.pods.values()
            )
            node.empty_since = None if used else node.empty_since or self.now
            if node.going and self.now - (node.empty_since or self.now) >= 30.0:
                self.remove_node(node.name)
            elif node.empty_since is not None and self.now - node.empty_since >= 600.0:
                if self.now >= node.devices_at + 600.0:  # what is not initialised is never empty
                    self.remove_node(node.name)
            elif node.going and not used:
                continue
            elif node.going:
                self.remove_node(node.name)

    def _bind_pods(self) -> None:
        """The device plugin offers devices a moment before our own records of them are there.

        Nominations do not bind the scheduler: it takes the newest node that fits.
        """
        for pod in self._pending():
            for node in reversed(self.nodes.values()):
                taken = sum(each.gpus for each in self.pods.values() if each.placeholder.node == node.name)
                free = node.shows - taken
                has_workers = any(worker.node == node.name for worker in self.workers.values())
                fits = node.rung.key == pod.rung.key and free >= pod.gpus and not node.going
                if fits and not has_workers and self.now >= node.devices_at:
                    pod.placeholder = replace(
                        pod.placeholder, node=node.name, outlook=PlaceholderState.THERE, claim=node.claim
                    )
                    break

    def _collect(self) -> None:
        """Deleted pods go; what a record owned goes with it. Claims are remembered for a while."""
        recent = self.now - 900.0
        self.claims = {
            name: claim for name, claim in self.claims.items() if claim.ended is None or claim.ended > recent
        }
        uids = {record.uid for record in self.records.values()}
        for key, pod in list(self.pods.items()):
            owner = pod.placeholder.message
            if owner not in uids and pod.placeholder.deleting_since is None:
                pod.placeholder = replace(pod.placeholder, deleting_since=self.now)
            since = pod.placeholder.deleting_since
            if since is not None and not pod.stuck and self.now > since:
                self._pod_gone(key)

    def _pod_gone(self, key: str) -> None:
        pod = self.pods.pop(key)
        node = self.nodes.get(pod.placeholder.node)
        if node is not None:
            node.lingering[pod.placeholder.uid] = self.now + 5.0

    # The controller

    def crash(self, seconds: float = 0.0) -> None:
        self.desk = None
        self.down_until = self.now + seconds
        self.restarts += 1

    def control(self) -> None:
        if self.now < self.down_until:
            return
        if self.desk is None:
            self.desk = AllocatorState(self.settings)
            self.up_since = self.now
            self.lag.clear()
            self.cache = {}
        self.desk.allocator.put_quota(self.quota)
        try:
            self._run(self.desk)
        except Crash:
            self.crash()

    def _run(self, desk: AllocatorState) -> None:
        view = self.view()
        found, world = desk.refresh(view, lambda item: RUNGS)
        hands = _Hands(self, desk)
        for item, allocation in found.served:
            _drive(hands.bind(item, allocation))
        plan = self.last_plan = plan_step(world, self.settings)
        self._told(world, plan, found.refused)
        told = {*plan.explanations, *found.refused, *(item.uid for item, _ in found.served)}
        assert all(w.uid in told for w in view.workers if w.waits and w.uid not in world.committed), "L3"
        self._check_plan(world, plan)
        _drive(actuate(plan, dict(world.records), hands))

    def view(self) -> View:
        truth: dict[str, Any] = {
            "workers": tuple(self.workers.values()),
            "records": dict(self.records),
            "pods": tuple(pod.placeholder for pod in self.pods.values()),
            "claims": {name: self._progress(claim) for name, claim in self.claims.items()},
            "nodes": tuple(self._facts(node) for node in self.nodes.values()),
        }
        for kind, seen in truth.items():
            if self.now >= self.lag.get(kind, 0.0) or kind not in self.cache:
                self.cache[kind] = seen
        return View(
            now=self.now,
            workers=self.cache["workers"],
            records=self._newest(self.cache["records"]),
            placeholders=self.cache["pods"],
            claims=self.cache["claims"],
            nodes=self.cache["nodes"],
        )

    def _newest(self, cached: dict[str, ScaleUpRecord]) -> dict[str, ScaleUpRecord]:
        """The controller knows what it wrote itself, however late the watch is."""
        own: dict[str, ScaleUpRecord] = self.cache.setdefault("own", {})
        newest = dict(cached)
        for name, record in own.items():
            known = newest.get(name)
            if (name in cached and known is not None and int(known.version) < int(record.version)) or (
                name not in cached and self.now < self.lag.get("records", 0.0)
            ):
                newest[name] = record
        return newest

    def _progress(self, claim: Claim) -> ClaimProgress:
        stage = (
            ClaimStage.FAILED
            if claim.ending
            else ClaimStage.REGISTERING
            if claim.node
            else ClaimStage.LAUNCHING
        )
        return ClaimProgress(
            claim.name,
            claim.name,
            "gpu",
            stage,
            claim.created,
            ended=claim.ended,
            ending=claim.ending,
            node=claim.node,
        )

    def _facts(self, node: Node) -> GpuNodeFacts:
        return GpuNodeFacts(
            node.name,
            ready=self.now >= node.ready_at,
            going=node.going,
            devices=self._devices(node),
            cpu_milli=16_000,
            memory_bytes=64 * GIB,
        )

    def _devices(self, node: Node) -> tuple[Device, ...]:
        if self.now < node.devices_at + 5.0:
            return ()
        marks = [
            f"{SMART_POD_USE}{pod.placeholder.uid}"
            for pod in self.pods.values()
            if pod.placeholder.node == node.name
            for _ in range(pod.gpus)
        ]
        node.lingering = {uid: until for uid, until in node.lingering.items() if until > self.now}
        marks += ["nvidia-device-plugin" for _ in node.lingering]
        brings = node.rung.brings
        amount = DeviceAmount(brings.tflops_milli, brings.vram_bytes)
        return tuple(
            Device(
                name=f"{node.name}-gpu-{index}",
                node=node.name,
                owner=node.name,
                pool=POOL,
                phase=RUNNING,
                model=node.model,
                index=index,
                capacity=amount,
                available=amount,
                used_by=marks[index] if index < len(marks) else "",
            )
            for index in range(node.shows)
        )

    def _told(self, world: ScaleUpInput, plan: ScaleUpPlan, refused: dict[str, Any]) -> None:
        for uid in [*plan.explanations, *refused]:
            self.told[uid] = self.now

    # The API's side of the hands

    def write(self) -> None:
        """Called by every write before it happens; faults strike here."""
        self.writes += 1
        for fault in self.faults:
            fault.number -= 1
        due = [fault for fault in self.faults if fault.number == 0]
        self.faults = [fault for fault in self.faults if fault.number > 0]
        for fault in due:
            if fault.kind == "before":
                raise Crash
            if fault.kind == "conflict":
                raise Conflict("simulated", 409, message="somebody else wrote")
            if fault.kind == "fail":
                raise ServerFault("simulated", 500, message="no")
            if fault.kind == "after":
                self.faults.append(Fault(-1, "pending"))

    def written(self) -> None:
        if any(fault.kind == "pending" for fault in self.faults):
            self.faults = [fault for fault in self.faults if fault.kind != "pending"]
            raise Crash

    # Invariants

    def _check_plan(self, world: ScaleUpInput, plan: ScaleUpPlan) -> None:
        if not plan.store and not plan.commits:
            return
        assert plan_step(world, self.settings) == plan, "S17: the same world, another plan"
        shuffled = replace(
            world,
            placeholders=tuple(reversed(world.placeholders)),
            records=dict(reversed(list(world.records.items()))),
            nodes=dict(reversed(list(world.nodes.items()))),
        )
        other = plan_step(shuffled, self.settings)
        assert {r.name: r for r in other.store} == {r.name: r for r in plan.store}, "S17: order matters"
        self._check_shared(world, plan)

    def _check_shared(self, world: ScaleUpInput, plan: ScaleUpPlan) -> None:
        waiting = {item.uid for demand in world.demand.values() for item in demand.items}
        waiting -= world.committed
        for record in plan.store:
            self._check_store(world.records.get(record.name), record)
        removed = {record.name for record in plan.remove}
        if any(not unit_known(world, record) for record in plan.store):
            planned = [
                unit
                for record in [*plan.store, *(r for n, r in world.records.items() if not _in(plan, n))]
                if record.name not in removed
                for unit in record.active_units
                if unit.stage.place < ScaleUpState.READY.place
            ]
            assert len(planned) <= self.settings.max_in_flight, "S7: over the cap"
            assert len(planned) <= len(waiting) + 1, "S7: more nodes than items"

    def _check_store(self, old: ScaleUpRecord | None, new: ScaleUpRecord) -> None:
        for unit in new.units:
            known = old is not None and old.epoch == new.epoch
            if not known or all(each.index != unit.index for each in old.units):  # type: ignore[union-attr]
                self._check_rest(new, unit.candidate)
        if old is None:
            return
        assert new.epoch >= old.epoch, "S16: the epoch went back"
        assert new.readiness_epoch >= old.readiness_epoch
        if new.epoch == old.epoch and old.state in STAGES[:-1] and new.state in STAGES[:-1]:
            back = (
                old.state in (ScaleUpState.HANDING_OFF, ScaleUpState.RETRYING)
                and new.state is ScaleUpState.READY
            )
            assert back or new.state.place >= old.state.place, f"S16: {old.state} -> {new.state}"
            if back:
                assert new.readiness_epoch == old.readiness_epoch
        for key, tried in new.memory.items():
            if tried.last is LaunchReason.STOCK_OUT and old.memory.get(key) != tried:
                self.tries[(new.uid, key)] = self.now

    def _check_rest(self, record: ScaleUpRecord, candidate: str) -> None:
        failed = self.tries.get((record.uid, candidate))
        if failed is not None and candidate in record.memory:
            assert self.now - failed >= STOCK_REST_SECONDS, "S15: tried again too soon"

    def check(self) -> None:
        """What must be true at any moment."""
        self._check_pods()
        self._check_ledger()
        for key, count in self.commits.items():
            allowed = 1 + self.restarts - self.commit_restarts[key]
            assert count <= allowed, f"S11: {key} tried {count} times"
        assert all(count <= 1 for count in self.effects.values()), "S11: two commits took effect"
        assert all(key == record.name for key, record in self.records.items())  # S1

    def _check_pods(self) -> None:
        live = [pod.placeholder for pod in self.pods.values() if pod.placeholder.deleting_since is None]
        by_record: dict[str, list[Placeholder]] = {}
        for pod in live:
            by_record.setdefault(pod.request, []).append(pod)
        for name, pods in by_record.items():
            record = self.records.get(name)
            if record is None:
                gone = self.orphaned.setdefault(name, self.now)
                since = max(gone, *(pod.created for pod in pods), self.up_since, self.down_until)
                late = self.now - since <= self.settings.orphan_grace + self.settings.resync
                assert late, "S3: orphans"
                continue
            self.orphaned.pop(name, None)
            assert len(pods) <= len(record.units), "S2: more pods than units"
            assert len({pod.index for pod in pods}) == len(pods), "S2: an index twice"
            assert all(pod.epoch == record.epoch for pod in pods), "S2: a pod of another epoch"
        for pod in live:
            since = max(pod.created + self.settings.maximum_age, self.up_since, self.down_until)
            assert self.now - since <= self.settings.resync + 8 * TICK, "S4: a smart pod too old"

    def _check_ledger(self) -> None:
        if self.desk is None:
            return
        allocator = self.desk.allocator
        ledger = allocator.ledger
        assert not ledger.committed.keys() & ledger.assumed.keys(), "S9"
        for name in list(self.desk._devices):
            device, free, left = self.desk._devices[name], allocator.free(name), allocator.available(name)
            assert device.capacity is not None and free is not None and left is not None
            assert device.capacity.covers(left) and left.covers(free) and free.covers(DeviceAmount()), "S8"
        for uid, worker in self.workers.items():
            if worker.node:
                assert worker.devices, "a pod is bound without devices"
            del uid
        used: Counter[str] = Counter()
        for worker in self.workers.values():
            for name in worker.devices if worker.node else ():
                used[name] += worker.item.request.request.vram_bytes
        for name, vram in used.items():
            node = self.nodes.get(name.rsplit("-gpu-", 1)[0])
            if node is not None:
                assert vram <= node.rung.brings.vram_bytes, f"S8: {name} is over-committed"

    def check_gangs(self) -> None:
        """S21: all of a gang that still lives has devices, or none has."""
        gangs: dict[str, list[GpuWorker]] = {}
        for worker in self.workers.values():
            if worker.item.request.gang:
                gangs.setdefault(worker.item.request.gang.group, []).append(worker)
        for name, members in gangs.items():
            bound = sum(bool(member.node) for member in members)
            whole = len(members) >= members[0].item.request.gang.required_members  # type: ignore[union-attr]
            if whole and name not in self.torn_gangs:
                assert bound in (0, len(members)), f"S21: {name} is torn, {bound} of {len(members)}"

    def check_quiet(self) -> None:
        """After the faults have stopped and everything can be had: L1, L2, S22."""
        possible = [
            worker
            for worker in self.workers.values()
            if worker.item.request.namespace != "tight"
            and worker.item.request.model != "Z9"
            and worker.item.request.request.vram_bytes < 100 * GIB
            and self._gang_is_whole(worker)
        ]
        waiting = [worker.item.request.key for worker in possible if not worker.node]
        assert not waiting, f"L1: still waiting: {waiting}"
        assert not self.pods, f"S22: smart pods left: {sorted(self.pods)}"
        open_ = {name: record.state for name, record in self.records.items()}
        assert not open_, f"L2: records left: {open_}"

    def _gang_is_whole(self, worker: GpuWorker) -> bool:
        gang = worker.item.request.gang
        if gang is None:
            return True
        members = [
            each
            for each in self.workers.values()
            if each.item.request.gang and each.item.request.gang.group == gang.group
        ]
        return len(members) >= gang.required_members

    def calm(self) -> None:
        """Stop the faults, make everything obtainable, and let the longest timers pass."""
        self.faults, self.lag, self.next_node = [], {}, {}
        self.out_of_stock.clear()
        self.reject_pods = False
        self.down_until = min(self.down_until, self.now)
        for pod in self.pods.values():
            pod.stuck = False
        for worker in list(self.workers.values()):
            self.workers[worker.uid] = replace(worker, nominated_node="")
        for _ in range(240):
            self.advance(60.0, tick=20.0)
            self.check()
            if not self.pods and not self.records:
                break


def _in(plan: ScaleUpPlan, name: str) -> bool:
    return any(record.name == name for record in plan.store)


def unit_known(world: ScaleUpInput, record: ScaleUpRecord) -> bool:
    """Whether a record to be stored starts nothing new."""
    old = world.records.get(record.name)
    before = {(old.epoch, unit.index) for unit in old.units} if old else set()
    return {(record.epoch, unit.index) for unit in record.units} <= before


def _drive(work: Any) -> Any:
    """Run a coroutine that never really waits."""
    try:
        work.send(None)
    except StopIteration as done:
        return done.value
    raise AssertionError("the simulation never waits")


class _Hands:
    def __init__(self, cluster: Cluster, desk: AllocatorState) -> None:
        self.cluster = cluster
        self.desk = desk

    async def store(self, record: ScaleUpRecord) -> ScaleUpRecord:
        cluster = self.cluster
        cluster.write()
        known = cluster.records.get(record.name)
        if record.uid and (known is None or known.uid != record.uid):
            raise NotFound("simulated", 404, message="the record is gone")
        if (known.version if known else "") != record.version:
            raise Conflict("simulated", 409, message="another version")
        cluster.serial["version"] += 1
        if not record.uid:
            cluster.serial["record"] += 1
            record = replace(record, uid=f"r{cluster.serial['record']}")
        stored = replace(record, version=str(cluster.serial["version"]))
        cluster.records[record.name] = stored
        cluster.cache.setdefault("own", {})[record.name] = stored
        cluster.written()
        return stored

    async def remove(self, record: ScaleUpRecord) -> None:
        cluster = self.cluster
        cluster.write()
        known = cluster.records.get(record.name)
        if known is not None and known.version == record.version:
            del cluster.records[record.name]
            cluster.cache.get("own", {}).pop(record.name, None)
        cluster.written()

    async def create(self, record: ScaleUpRecord, creates: Sequence[CreatePlaceholder]) -> None:
        cluster = self.cluster
        for create in creates:
            cluster.write()
            name = f"smart-{record.name}-{create.epoch}-{create.unit.index}"
            if cluster.reject_pods:
                self.desk.refused[(record.name, create.epoch, create.unit.index)] = "quota"
                continue
            if name not in cluster.pods:
                cluster.serial["pod"] += 1
                cluster.pods[name] = Pod(
                    Placeholder(
                        PODS,
                        ObjectKey("smart", name),
                        f"p{cluster.serial['pod']}",
                        record.name,
                        create.epoch,
                        create.unit.index,
                        RequestPurpose.SCALE_UP,
                        cluster.now,
                        create.rung.key,
                        message=record.uid,
                    ),
                    create.unit.gpus,
                    create.rung,
                )
            cluster.written()

    async def delete(self, delete: DeletePlaceholder) -> None:
        cluster, pod = self.cluster, delete.placeholder
        cluster.write()
        last = cluster.delete_calls.get(pod.uid)
        assert last is None or cluster.now - last >= 5.0, "S19: deleted again too soon"
        cluster.delete_calls[pod.uid] = cluster.now
        self.desk.deleted(pod.uid, cluster.now)
        known = cluster.pods.get(pod.key.name)
        if known is not None and known.placeholder.uid == pod.uid:
            if known.placeholder.deleting_since is None:
                known.placeholder = replace(known.placeholder, deleting_since=cluster.now)
            if not known.stuck:
                cluster._pod_gone(pod.key.name)
        cluster.written()

    async def hold(self, hold: HoldDevices) -> None:
        assert hold.expires > self.cluster.now, "S10"
        self.desk.hold(hold, self.cluster.now)

    async def drop(self, uid: str) -> None:
        self.desk.drop(uid)

    async def commit(self, commit: CommitHold, record: ScaleUpRecord) -> None:
        cluster = self.cluster
        entry = self.desk.allocator.ledger.assumed.get(commit.item.uid)
        if entry is not None:
            there = [pod for pod in cluster.pods.values() if pod.placeholder.node == entry.node]
            if any(pod.placeholder.request == record.name for pod in there):
                raise Conflict("simulated", 409, message="a smart pod is still there")
        key = (commit.item.uid, record.uid, commit.readiness_epoch)
        cluster.commit_restarts.setdefault(key, cluster.restarts)
        cluster.commits[key] += 1
        self.desk.attempted.add(key)
        await self._take(commit.item)

    async def bind(self, item: WaitingWorker, allocation: GpuAllocation) -> None:
        await self._take(item)

    async def _take(self, item: WaitingWorker) -> None:
        """As the real one: ledger, annotation, binding; what fails is rolled back."""
        cluster, desk = self.cluster, self.desk
        allocation = desk.allocator.commit(item.uid)
        if isinstance(allocation, Infeasible):
            return
        try:
            cluster.write()
            worker = cluster.workers.get(item.uid)
            if worker is None or worker.node:
                raise NotFound("simulated", 404, message="the worker is gone")
            cluster.workers[item.uid] = replace(worker, devices=allocation.devices)
            cluster.written()
            cluster.write()
            self._check_free(allocation)
            cluster.workers[item.uid] = replace(worker, devices=allocation.devices, node=allocation.node)
            cluster.effects[item.uid] += 1
            cluster.written()
        except (NotFound, Conflict, ServerFault):
            if item.request.gang:
                cluster.torn_gangs.add(item.request.gang.group)
            desk.allocator.drop(item.uid)
        except Crash:
            if item.request.gang:
                cluster.torn_gangs.add(item.request.gang.group)
            raise

    def _check_free(self, allocation: GpuAllocation) -> None:
        """S12, against what is true."""
        node = self.cluster.nodes.get(allocation.node)
        if node is None:
            raise NotFound("simulated", 404, message="the node is gone")
        on_node = [pod for pod in self.cluster.pods.values() if pod.placeholder.node == allocation.node]
        live = [pod for pod in on_node if pod.placeholder.deleting_since is None]
        occupied = sum(pod.gpus for pod in live)
        marked = {device.name for device in self.cluster._devices(node)[:occupied]}
        assert not marked & set(allocation.devices), "S12: committed under a live smart pod"


__all__ = ["ATTEMPTING", "RUNGS", "SHAPES", "Cluster", "Fault"]
