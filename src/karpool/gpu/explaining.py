"""What each waiting worker is told about its scale-up: a reason and a sentence with the numbers."""

from karpool.gpu.deciding import Deciding
from karpool.gpu.demand import Demand, Item
from karpool.gpu.record import Record, State, Unit
from karpool.gpu.world import Explanation, Tell

_OF_STAGE = {
    State.CREATING: Tell.REQUESTED,
    State.PENDING: Tell.REQUESTED,
    State.LAUNCHING: Tell.COMING,
    State.REGISTERED: Tell.COMING,
    State.DEVICE_WAIT: Tell.DEVICES,
    State.READY: Tell.DEVICES,
    State.HANDING_OFF: Tell.HANDING_OFF,
    State.RETRYING: Tell.HANDING_OFF,
}


def explain(step: Deciding) -> None:
    held = {
        uid: (record, unit)
        for record in step.records.values()
        for unit in record.active_units
        for uid in unit.held
    }
    for name, demand in step.world.demand.items():
        record = step.records.get(name)
        general = _general(record, demand)  # the same for all of a key; it may have very many items
        for item in demand.items:
            if item.uid in step.items:
                step.explanations[item.uid] = _told(step, item, held.get(item.uid), general)


def _general(record: Record | None, demand: Demand) -> tuple[Tell, str]:
    if record is None:
        return Tell.WAITING, f"no GPU has room for {demand.key}; a scale-up begins"
    return _about(record, demand)


def _told(
    step: Deciding, item: Item, held: tuple[Record, Unit] | None, general: tuple[Tell, str]
) -> Explanation:
    if not step.is_whole(item):
        gang = item.request.gang
        assert gang is not None
        text = f"waits for its group {gang.group}: {gang.required_members} members start together"
        return Explanation(item.uid, Tell.WAITING, text)
    if held is not None:
        record, unit = held
        text = f"scale-up {record.name}: devices of node {unit.node} are reserved; {unit.stage.value}"
        return Explanation(item.uid, Tell.HANDING_OFF, text)
    joined = step.joined.get(item.uid)
    if joined is not None:
        text = f"a node of scale-up {joined} has room for it and is on its way"
        return Explanation(item.uid, Tell.JOINED, text)
    return Explanation(item.uid, *general)


def _about(record: Record, demand: Demand) -> tuple[Tell, str]:
    prefix = f"scale-up {record.name}"
    match record.state:
        case State.BACKOFF:
            why = record.reason or "it failed"
            return Tell.BACKOFF, f"{prefix}: attempt {record.epoch} ended: {why}; the next candidate follows"
        case State.EXHAUSTED:
            tried = f"all {len(demand.ladder)} candidates failed in round {record.round + 1}"
            return Tell.EXHAUSTED, f"{prefix}: {tried} ({record.message}); it starts over with the first"
        case State.REJECTED:
            return Tell.REJECTED, f"{prefix}: no candidate can serve it ({record.message})"
        case _ if record.active_units:
            unit = max(record.active_units, key=lambda each: (each.stage.place, -each.index))
            return _OF_STAGE[unit.stage], f"{prefix}: {_words(record, unit, demand)}"
        case _:
            return Tell.WAITING, f"{prefix}: {record.state.value}, {record.waiting} waiting"


def _words(record: Record, unit: Unit, demand: Demand) -> str:
    rung = demand.rung(unit.candidate)
    asked = f"{len(record.active_units)} node(s) asked for, {rung or unit.candidate}"
    place = f", node {unit.node}" if unit.node else f", claim {unit.claim}" if unit.claim else ""
    return f"{asked}: {unit.stage.value}{place}"
