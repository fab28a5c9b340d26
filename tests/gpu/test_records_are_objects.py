"""A record survives the API server; what somebody else made of it is refused, field by field."""

import copy

import pytest
from hypothesis import given
from hypothesis import strategies as st

from karpool.cluster.market.launch_reasons import ATTEMPT_REASONS, LaunchReason
from karpool.gpu.records import scale_up_object
from karpool.gpu.records.demand_key import DemandKey
from karpool.gpu.records.scale_up_record import STAGES, ScaleUpRecord, ScaleUpState, ScaleUpUnit
from karpool.model.errors import Invalid
from karpool.provisioning.candidates.attempts import CandidateHistory

_NAMES = st.text("abcdefghij-0123456789", min_size=1, max_size=12)
_TIMES = st.integers(1_600_000_000, 2_000_000_000).map(float) | st.just(1_767_225_600.25)
_COUNTS = st.integers(0, 2**31 - 1)
_KEYS = st.builds(
    DemandKey,
    pool=_NAMES,
    model=st.text(min_size=1, max_size=20),
    gpus=st.integers(1, 128),
    vram_gib=_COUNTS,
    tflops=_COUNTS,
    constraints=_NAMES,
)
_UNITS = st.builds(
    ScaleUpUnit,
    index=_COUNTS,
    gpus=st.integers(0, 128),
    cpu_milli=_COUNTS,
    memory_bytes=st.integers(0, 2**60),
    candidate=_NAMES,
    stage=st.sampled_from(STAGES),
    since=_TIMES,
    started=_TIMES,
    node=_NAMES,
    held=st.lists(_NAMES, max_size=3).map(tuple),
    ended=st.sampled_from((*ATTEMPT_REASONS, LaunchReason.SURPLUS, None)),
)
_RECORDS = st.builds(
    ScaleUpRecord,
    key=_KEYS,
    state=st.sampled_from(ScaleUpState),
    first_seen=_TIMES,
    state_since=_TIMES,
    uid=_NAMES,
    version=_NAMES,
    epoch=_COUNTS,
    message=st.text(max_size=20),
    round=_COUNTS,
    next_attempt=_TIMES,
    units=st.lists(_UNITS, max_size=3).map(tuple),
    memory=st.dictionaries(
        _NAMES,
        st.builds(
            CandidateHistory,
            _COUNTS,
            _TIMES,
            st.sampled_from(ATTEMPT_REASONS),
            st.integers(-1, 9),
            st.booleans(),
        ),
    ),
    retried=st.dictionaries(_NAMES, _COUNTS),
    waiting=_COUNTS,
)


def stored(record: ScaleUpRecord) -> dict[str, object]:
    found = scale_up_object.to_object(record, "smart")
    found["metadata"] |= {
        "uid": record.uid,
        "resourceVersion": record.version,
        "creationTimestamp": "2026-01-01T00:00:00Z",
    }
    return {**found, "status": scale_up_object.to_status(record)}


@pytest.mark.long
@given(_RECORDS)
def test_what_is_written_is_what_is_read(record: ScaleUpRecord) -> None:
    assert scale_up_object.from_object(stored(record)) == record


def test_without_a_status_it_has_just_begun() -> None:
    key = DemandKey("shared", "L4", 1, 8, 30)
    found = stored(ScaleUpRecord(key, ScaleUpState.READY, 5.0, 5.0, "u", "1", epoch=7))
    del found["status"]

    record = scale_up_object.from_object(found)

    assert (record.state, record.epoch, record.uid) == (ScaleUpState.BUFFERED, 0, "u")


@pytest.mark.parametrize(
    ("path", "value", "field"),
    [
        pytest.param(("status", "state"), "Dreaming", "status.state", id="unknown state"),
        pytest.param(("status", "epoch"), -1, "status.epoch", id="negative epoch"),
        pytest.param(("status", "firstSeen"), "yesterday", "status.firstSeen", id="not a time"),
        pytest.param(("status", "units"), [{"stage": "Backoff"}], "status.units[0].stage", id="not a stage"),
        pytest.param(
            ("status", "units"), [{"stage": "Ready", "gpus": -4}], "status.units[0].gpus", id="gpus"
        ),
        pytest.param(("spec", "pool"), "other", "spec", id="a name of another demand"),
    ],
)
def test_a_bad_field_is_named(path: tuple[str, str], value: object, field: str) -> None:
    found = copy.deepcopy(
        stored(ScaleUpRecord(DemandKey("shared", "L4", 1, 8, 30), ScaleUpState.READY, 5.0, 5.0, "u", "1"))
    )
    found[path[0]][path[1]] = value  # type: ignore[index]

    with pytest.raises(Invalid) as caught:
        scale_up_object.from_object(found)

    assert caught.value.path == field
