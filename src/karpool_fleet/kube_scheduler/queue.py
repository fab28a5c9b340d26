"""The scheduling queue: the order of pods, and when they are retried.

Higher priority comes first, then the older pod. A pod without a node is parked with the others of its shape.
When an event may help, only the first of them is tried, and the next one only after it was placed. So an
event costs the number of parked shapes, not the number of pods. Parked pods are also retried after a while.

A pod that is woken during its back-off is tried after all others, but not later than necessary (upstream
since 1.33). Only errors enforce the full back-off.
"""

import heapq
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from karpool.model.kubernetes.api_resources import ObjectKey
from karpool.model.kubernetes.pod_shape import PodShape

# Times are sums of floats: what is due within this margin is due.
_SLACK = 1e-6
ACTIVE, WAITING, DELAYED, TAKEN = "active", "waiting", "delayed", "taken"


@dataclass(slots=True, eq=False)
class QueuedPod:
    key: ObjectKey
    uid: str
    priority: int
    created: str
    attempts: int = 0
    shape: PodShape | None = None  # of the last attempt
    message: str = ""  # the last message to the pod
    mounts_claims: bool = False
    place: str = TAKEN
    ticket: int = 0  # grows with every move, which invalidates older entries
    ready_at: float = 0.0  # end of its back-off

    @property
    def rank(self) -> tuple[int, str, ObjectKey]:
        return (-self.priority, self.created, self.key)


_Entry = tuple[tuple[int, str, ObjectKey], int, QueuedPod]


@dataclass(slots=True, eq=False)
class _Shelf:
    """Parked pods of one shape."""

    shape: PodShape
    heap: list[_Entry] = field(default_factory=list)
    awake: bool = False  # its first pod is being tried
    message: str = ""
    told_at: float | None = None  # when the other pods get that message

    def pods(self) -> Iterator[QueuedPod]:
        return (pod for _, ticket, pod in self.heap if pod.ticket == ticket)


class SchedulingQueue:
    def __init__(self, first_backoff: float, longest_backoff: float, flush: float, telling: float) -> None:
        self._first, self._longest, self._flush, self._telling = (
            first_backoff,
            longest_backoff,
            flush,
            telling,
        )
        self._pods: dict[ObjectKey, QueuedPod] = {}
        self._active: list[_Entry] = []
        self._backing_off: list[tuple[float, _Entry]] = []
        self._delayed: list[tuple[float, int, QueuedPod]] = []
        self._shelves: dict[int, _Shelf] = {}  # by identity of the shape
        self._parked: deque[tuple[float, int, QueuedPod]] = deque()
        self._to_tell: dict[int, _Shelf] = {}
        self._tickets = 0

    def __len__(self) -> int:
        return len(self._pods)

    def __contains__(self, key: ObjectKey) -> bool:
        return key in self._pods

    def get(self, key: ObjectKey) -> QueuedPod | None:
        return self._pods.get(key)

    @property
    def has_waiting(self) -> bool:
        return bool(self._shelves)

    def add(self, pod: QueuedPod) -> None:
        self._pods[pod.key] = pod
        self._activate(pod, 0.0)

    def remove(self, key: ObjectKey) -> None:
        pod = self._pods.pop(key, None)
        if pod is not None:
            was = pod.place
            self._move(pod, TAKEN)
            if was in (ACTIVE, TAKEN):
                self._next_of(pod)

    def pop(self, now: float) -> QueuedPod | None:
        """Return the next pod to try; it stays known until it is removed, parked or delayed."""
        self._ripen(now)
        pod = _first(self._active)
        while pod is None and self._backing_off:
            _, (_, ticket, candidate) = heapq.heappop(self._backing_off)
            pod = candidate if candidate.ticket == ticket else None
        if pod is not None:
            self._move(pod, TAKEN)
            pod.attempts += 1
        return pod

    def placed(self, pod: QueuedPod) -> None:
        """Remove a placed pod; the next of its shape may be tried."""
        self.remove(pod.key)

    def park(self, pod: QueuedPod, shape: PodShape, message: str, now: float) -> None:
        """Park a pod without a node until an event may help."""
        pod.shape = shape
        pod.message = message
        pod.ready_at = now + self._backoff(pod)
        shelf = self._shelves.get(id(shape))
        if shelf is None:
            shelf = self._shelves[id(shape)] = _Shelf(shape)
        shelf.awake = False
        self._move(pod, WAITING)
        heapq.heappush(shelf.heap, (pod.rank, pod.ticket, pod))
        self._parked.append((now + self._flush, pod.ticket, pod))
        if shelf.message != message:
            shelf.message = message
            if len(shelf.heap) > 1:
                shelf.told_at = now + self._telling
                self._to_tell.setdefault(id(shape), shelf)

    def delay(self, pod: QueuedPod, now: float) -> None:
        """Retry a pod after an error, when its back-off is over."""
        self._pods[pod.key] = pod
        self._move(pod, DELAYED)
        heapq.heappush(self._delayed, (now + self._backoff(pod), pod.ticket, pod))

    def wake(self, helps: Callable[[PodShape], bool], now: float) -> None:
        """Wake the first pod of each shape that an event may help."""
        for shelf in list(self._shelves.values()):
            if not shelf.awake and helps(shelf.shape):
                self._raise_first(shelf, now)

    def wake_pod(self, key: ObjectKey, now: float) -> None:
        pod = self._pods.get(key)
        if pod is not None and pod.place == WAITING:
            self._activate(pod, now)

    def waiting(self) -> Iterator[QueuedPod]:
        return (pod for shelf in self._shelves.values() for pod in shelf.pods())

    def due(self, now: float) -> list[QueuedPod]:
        """Wake pods whose time is over; return pods that get the message of their shelf."""
        self._ripen(now)
        while self._parked and (self._parked[0][0] <= now + _SLACK or self._is_void(self._parked[0])):
            _, ticket, pod = self._parked.popleft()
            if pod.ticket == ticket:
                self._activate(pod, now)
        told = []
        for number, shelf in list(self._to_tell.items()):
            if shelf.told_at is not None and shelf.told_at <= now + _SLACK:
                del self._to_tell[number]
                for pod in sorted(shelf.pods(), key=lambda pod: pod.rank):
                    if pod.message != shelf.message:
                        pod.message = shelf.message
                        told.append(pod)
        return told

    def next_due(self) -> float | None:
        times = [heap[0][0] for heap in (self._delayed,) if heap]
        if self._parked:
            times.append(self._parked[0][0])
        times += (shelf.told_at for shelf in self._to_tell.values() if shelf.told_at is not None)
        return min(times, default=None)

    def _ripen(self, now: float) -> None:
        while self._backing_off and self._backing_off[0][0] <= now + _SLACK:
            heapq.heappush(self._active, heapq.heappop(self._backing_off)[1])
        while self._delayed and self._delayed[0][0] <= now + _SLACK:
            _, ticket, pod = heapq.heappop(self._delayed)
            if pod.ticket == ticket:
                self._activate(pod, 0.0)

    def _activate(self, pod: QueuedPod, now: float) -> None:
        self._move(pod, ACTIVE)
        entry = (pod.rank, pod.ticket, pod)
        if now and pod.ready_at > now:
            heapq.heappush(self._backing_off, (pod.ready_at, entry))
        else:
            heapq.heappush(self._active, entry)

    def _next_of(self, pod: QueuedPod) -> None:
        shelf = self._shelves.get(id(pod.shape)) if pod.shape is not None else None
        if shelf is not None and shelf.awake:
            self._raise_first(shelf, 0.0)

    def _raise_first(self, shelf: _Shelf, now: float) -> None:
        shelf.awake = False
        pod = _first(shelf.heap)
        if pod is None:
            del self._shelves[id(shelf.shape)]
            self._to_tell.pop(id(shelf.shape), None)
            return
        shelf.awake = True
        self._activate(pod, now)

    def _move(self, pod: QueuedPod, place: str) -> None:
        self._tickets += 1
        pod.ticket = self._tickets
        pod.place = place

    def _backoff(self, pod: QueuedPod) -> float:
        return min(self._first * 2.0 ** min(max(pod.attempts - 1, 0), 30), self._longest)

    @staticmethod
    def _is_void(entry: tuple[float, int, QueuedPod]) -> bool:
        return entry[2].ticket != entry[1]


def _first(heap: list[_Entry]) -> QueuedPod | None:
    """Remove and return the first valid pod."""
    while heap:
        _, ticket, pod = heapq.heappop(heap)
        if pod.ticket == ticket:
            return pod
    return None
