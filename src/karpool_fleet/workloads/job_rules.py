"""The rules of a Job, as functions of its spec, its status and its pods.

Ends are counted exactly once. A pod of a Job has a finalizer. When it has ended, its uid is first recorded in
the status, then the finalizer is removed, then the record becomes a count. A controller that was killed at
any point continues from there.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from karpool.kube.api.decoding import Object
from karpool.model.kubernetes.pod import Pod
from karpool.model.kubernetes.pod_disruption import is_active
from karpool.model.kubernetes.times import parse_rfc3339
from karpool_fleet.workloads.pods import is_ready

FINALIZER = "batch.kubernetes.io/job-tracking"
INDEX = "batch.kubernetes.io/job-completion-index"
FIRST_DELAY, LONGEST_DELAY = 10.0, 600.0  # between a failure and the next pod
NOBODY: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True)
class JobVerdict:
    success: bool
    reason: str
    message: str


@dataclass(slots=True)
class JobTally:
    """A Job's pods by state, and what its status has counted and recorded of them."""

    succeeded: int = 0
    failed: int = 0
    noted_succeeded: list[str] = field(default_factory=list)
    noted_failed: list[str] = field(default_factory=list)
    completed: frozenset[int] = NOBODY
    active: list[Pod] = field(default_factory=list)
    terminating: list[Pod] = field(default_factory=list)
    to_release: list[Pod] = field(default_factory=list)  # recorded, and still with the finalizer

    @property
    def all_succeeded(self) -> int:
        return self.succeeded + len(self.noted_succeeded)

    @property
    def all_failed(self) -> int:
        return self.failed + len(self.noted_failed)

    @property
    def notes(self) -> Object:
        notes = {"succeeded": self.noted_succeeded, "failed": self.noted_failed}
        return {key: uids for key, uids in notes.items() if uids}


def index_of(pod: Pod) -> int | None:
    text = pod.annotations.get(INDEX, "")
    return int(text) if text.isascii() and text.isdigit() and len(text) < 10 else None


def is_indexed(spec: Object) -> bool:
    return spec.get("completionMode") == "Indexed"


def tally(spec: Object, status: Object, pods: Sequence[Pod]) -> JobTally:
    """Count what can be counted now, and record pods that have ended since."""
    notes = status.get("uncountedTerminatedPods") or {}
    held = {pod.metadata.uid for pod in pods if FINALIZER in (pod.metadata.finalizers or ())}
    result = JobTally(
        succeeded=status.get("succeeded") or 0,
        failed=status.get("failed") or 0,
        completed=parse_indexes(status.get("completedIndexes") or ""),
    )
    for uid in notes.get("succeeded") or ():
        if uid in held:
            result.noted_succeeded.append(uid)
        else:
            result.succeeded += 1
    for uid in notes.get("failed") or ():
        if uid in held:
            result.noted_failed.append(uid)
        else:
            result.failed += 1
    waits_for_end = spec.get("podReplacementPolicy") == "Failed"
    for pod in pods:
        _sort(result, pod, pod.metadata.uid in held, waits_for_end, is_indexed(spec))
    if is_indexed(spec):
        # An index counts once, however many of its pods succeed.
        result.succeeded = len(result.completed) - len(result.noted_succeeded)
    return result


def _sort(result: JobTally, pod: Pod, held: bool, waits_for_end: bool, indexed: bool) -> None:
    uid = pod.metadata.uid
    if is_active(pod):
        result.active.append(pod)
        return
    if not pod.is_terminal:
        result.terminating.append(pod)
        if waits_for_end:
            return
    if not held:
        return
    result.to_release.append(pod)
    if uid in result.noted_succeeded or uid in result.noted_failed:
        return
    if pod.status.phase != "Succeeded":
        result.noted_failed.append(uid)
        return
    index = index_of(pod)
    if not indexed:
        result.noted_succeeded.append(uid)
    elif index is not None and index not in result.completed:
        result.completed |= {index}
        result.noted_succeeded.append(uid)


def verdict(obj: Object, count: JobTally, now: float) -> JobVerdict | None:
    """Return how the Job ends, or None while it runs."""
    spec, status = obj["spec"], obj.get("status") or {}
    limit = spec.get("backoffLimit", 6)
    if count.all_failed > limit or _restarted_too_often(count.active, limit):
        return JobVerdict(False, "BackoffLimitExceeded", f"More than {limit} attempts have failed")
    deadline, started = spec.get("activeDeadlineSeconds"), status.get("startTime")
    due = parse_rfc3339(started) + deadline if started and deadline is not None else None
    if due is not None and due <= now and not spec.get("suspend"):
        return JobVerdict(False, "DeadlineExceeded", f"The Job was active for {deadline} seconds")
    completions = spec.get("completions")
    if completions is None:
        done = count.all_succeeded > 0 and not count.active
    else:
        done = count.all_succeeded >= completions
    return JobVerdict(True, "CompletionsReached", "All its pods have succeeded") if done else None


def _restarted_too_often(active: Iterable[Pod], limit: int) -> bool:
    restarts = sum(
        status.restart_count
        for pod in active
        if pod.spec.restart_policy == "OnFailure"
        for statuses in (pod.status.container_statuses, pod.status.init_container_statuses)
        for status in statuses or ()
    )
    return restarts > 0 if limit == 0 else restarts >= limit


def wanted_active(spec: Object, count: JobTally) -> int:
    if spec.get("suspend"):
        return 0
    parallel = spec.get("parallelism", 1)
    completions = spec.get("completions")
    if completions is None:
        return len(count.active) if count.all_succeeded else int(parallel)
    waiting = len(count.terminating) if spec.get("podReplacementPolicy") == "Failed" else 0
    return max(0, int(min(completions - count.all_succeeded, parallel)) - waiting)


def free_indexes(spec: Object, count: JobTally, many: int) -> list[int]:
    taken = count.completed | {index for pod in count.active if (index := index_of(pod)) is not None}
    indexes: list[int] = []
    for index in range(spec.get("completions") or 0):
        if len(indexes) == many:
            break
        if index not in taken:
            indexes.append(index)
    return indexes


def next_start(pods: Iterable[Pod]) -> float:
    """Return when the next pod may be created: each failure since the last success doubles the delay."""
    ended = sorted(
        ((_ended_at(pod), pod.status.phase) for pod in pods if pod.is_terminal), key=lambda end: end[0]
    )
    failures, last = 0, 0.0
    for at, phase in ended:
        failures = 0 if phase == "Succeeded" else failures + 1
        last = at
    if not failures:
        return 0.0
    return last + min(LONGEST_DELAY, FIRST_DELAY * 2.0 ** min(failures - 1, 10))


def _ended_at(pod: Pod) -> float:
    times = [
        condition.last_transition_time
        for condition in pod.status.conditions or ()
        if condition.type in ("Ready", "ContainersReady", "DisruptionTarget")
        and condition.last_transition_time
    ]
    text = max(times, default=None) or pod.metadata.creation_timestamp
    return parse_rfc3339(text) if text else 0.0


def parse_indexes(text: str) -> frozenset[int]:
    """Parse `1,3-5` as a set; parts of another form are ignored."""
    indexes: set[int] = set()
    for piece in text.split(",") if text else ():
        first, _, last = piece.partition("-")
        if first.isdigit() and (not last or last.isdigit()) and len(first) < 10 and len(last) < 10:
            indexes.update(range(int(first), int(last or first) + 1))
    return frozenset(indexes)


def show_indexes(indexes: Iterable[int]) -> str:
    runs: list[list[int]] = []
    for index in sorted(indexes):
        if runs and index == runs[-1][1] + 1:
            runs[-1][1] = index
        else:
            runs.append([index, index])
    return ",".join(f"{first}" if first == last else f"{first}-{last}" for first, last in runs)


def counts_of(spec: Object, count: JobTally) -> Object:
    """Return the numbers of a Job's status; zeros are left out, as upstream."""
    status: Object = {
        "active": len(count.active),
        "ready": sum(is_ready(pod) for pod in count.active),
        "succeeded": count.succeeded,
        "failed": count.failed,
        "terminating": len(count.terminating),
        "uncountedTerminatedPods": count.notes,
    }
    if is_indexed(spec):
        status["completedIndexes"] = show_indexes(count.completed)
    always = ("ready", "terminating", "uncountedTerminatedPods")
    return {key: value for key, value in status.items() if value or key in always}
