"""Every reason says what a move that ends for it failed for; a code of another version is unknown."""

import msgspec
import pytest

from karpool.consolidation.policy.kept_node import KeptNode
from karpool.consolidation.policy.reasons import ConsolidationReason, MoveFailure
from karpool.model.infeasible import Infeasible


@pytest.mark.parametrize(
    ("code", "failure"),
    [
        ("budget", MoveFailure.BUDGET),
        ("stopped", MoveFailure.BUDGET),
        ("no_room", MoveFailure.SCHEDULING),
        ("stock_out", MoveFailure.SCHEDULING),
        ("placeholder_ended", MoveFailure.SCHEDULING),
        ("timeout", MoveFailure.UNKNOWN),
        ("refused", MoveFailure.UNKNOWN),
        ("age", MoveFailure.UNKNOWN),
        ("", MoveFailure.UNKNOWN),
        ("new_pod", MoveFailure.CHURN),
        ("well_used", MoveFailure.CHURN),
    ],
)
def test_a_code_has_one_failure(code, failure):
    assert ConsolidationReason(code).failure is failure
    assert str(ConsolidationReason(code)) == code


def test_a_code_of_another_version_is_unknown():
    assert ConsolidationReason("tomorrow") is ConsolidationReason.UNKNOWN
    raw = {
        "node": "n",
        "pool": "p",
        "price_per_hour": None,
        "disruption": 1.0,
        "why": [{"code": "tomorrow", "message": "it is", "object": "pod a/b"}],
    }
    (why,) = msgspec.convert(raw, KeptNode).why
    assert (why.reason, why.detail, why.about) == (ConsolidationReason.UNKNOWN, "it is", "pod a/b")


def test_no_two_reasons_share_a_code():
    assert len(ConsolidationReason.__members__) == len(ConsolidationReason)


def test_a_document_has_code_message_and_object_and_nothing_else():
    why = Infeasible(ConsolidationReason.NO_ROOM, "no node has room")
    assert msgspec.json.encode(why) == b'{"code":"no_room","message":"no node has room","object":""}'
    assert msgspec.json.decode(msgspec.json.encode(why), type=Infeasible[ConsolidationReason]) == why


@pytest.mark.parametrize(
    ("detail", "about", "sentence"),
    [
        ("no node has room", "", "no node has room"),
        ("no node has room", "pod a/b", "no node has room (pod a/b)"),
        ("pod a/b has no room", "pod a/b", "pod a/b has no room"),
    ],
)
def test_a_sentence_names_what_stands_in_the_way_once(detail, about, sentence):
    assert Infeasible(ConsolidationReason.NO_ROOM, detail, about).sentence() == sentence
