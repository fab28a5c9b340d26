"""A copy says what the estimator would say, for any cluster, question and promises, whatever has changed."""

from random import Random

import pytest

from karpool.rooms import publisher
from karpool.rooms.copied_rooms import CopiedRooms
from tests.rooms.worlds import LivingCluster, Wire, random_promise, random_request


@pytest.mark.parametrize("seed", range(40))
def test_the_same_numbers_whatever_happens(seed):
    random = Random(seed)
    copies = CopiedRooms()
    wires = [
        Wire(LivingCluster(random, f"member{number}", nodes=random.choice((0, 1, 6, 20))), copies)
        for number in range(3)
    ]
    promised = dict.fromkeys(wires, ())
    for _ in range(6):
        for wire in wires:
            wire.living.live(random.randrange(10))
            promised[wire] = promised[wire][random.randrange(2) :]
            wire.catch_up(promised[wire])
        for _ in range(4):
            request = random_request(random)
            for wire in wires:
                assert wire.answer(request, promised[wire]) == wire.living.answer(request, promised[wire])
            grown = random.choice(wires)
            promised[grown] = (*promised[grown], random_promise(random))
            grown.catch_up(promised[grown])


@pytest.mark.parametrize("seed", range(10))
def test_one_pass_over_all_clusters_and_one_cluster_alone_agree(seed):
    random = Random(seed)
    copies = CopiedRooms()
    wires = [Wire(LivingCluster(random, f"member{number}", nodes=9), copies) for number in range(12)]
    for wire in wires:
        wire.catch_up()
    names = [wire.living.name for wire in wires]
    for _ in range(20):
        request = random_request(random)
        together = copies.answers(request, names)
        assert [copies.answers(request, [name])[name] for name in names] == list(together.values())
        assert [(answer.value, answer.parts) for answer in together.values()] == [
            wire.living.answer(request, ()) for wire in wires
        ]


@pytest.mark.parametrize("seed", range(5))
def test_a_room_in_many_parts_is_the_same_room(seed, monkeypatch):
    monkeypatch.setattr(publisher, "PART_BYTES", 200)
    monkeypatch.setattr(publisher, "_ROWS_AT_ONCE", 4)
    monkeypatch.setattr(publisher, "_STRINGS_AT_ONCE", 3)
    random = Random(seed)
    wire = Wire(LivingCluster(random), CopiedRooms())
    assert len(wire.parts()) > 5
    wire.sent = None
    for _ in range(4):
        wire.catch_up()
        request = random_request(random)
        assert wire.answer(request, ()) == wire.living.answer(request, ())
        wire.living.live()


def test_an_epoch_ends_when_most_texts_are_of_nodes_that_have_gone(monkeypatch):
    monkeypatch.setattr(publisher, "_SLACK", 4)
    random = Random(1)
    wire = Wire(LivingCluster(random), CopiedRooms())
    wire.catch_up()
    epoch = wire.publisher.epoch
    for _ in range(60):
        wire.living.add_node()
        wire.living.remove_node()
        wire.catch_up()
        request = random_request(random)
        assert wire.answer(request, ()) == wire.living.answer(request, ())
    assert wire.publisher.epoch != epoch


def test_a_delta_is_small():
    wire = Wire(LivingCluster(Random(3), nodes=500), CopiedRooms())
    whole = sum(part.ByteSize() for part in wire.parts())
    wire.living.add_pod()
    (delta,) = wire.parts()
    assert delta.ByteSize() < whole / 100
