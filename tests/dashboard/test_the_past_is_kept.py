"""Figures over time: means of what was seen, sums of what happened, bounded, and the same after a restart."""

import math
import os
import resource
import sqlite3
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from karpool.dashboard.api.views import ClusterRow, ResourceAmount
from karpool.dashboard.history_file import HistoryFile
from karpool.dashboard.pages.time_series import FLEET, NAMES, RANGES, FleetHistory
from karpool.model.errors import Invalid

START = 1_790_000_000.0


def row(name: str = "east", nodes: int = 3, waiting: int = 0, **changes: object) -> ClusterRow:
    amounts = {"cpu": ResourceAmount(allocatable=4000 * nodes, requested=1000 * nodes)}
    given = {"name": name, "watched": True, "nodes": nodes, "pods": 5, "pending": waiting, "amounts": amounts}
    return ClusterRow(**{**given, "price_per_hour": 0.1 * nodes, **changes})  # type: ignore[arg-type]


looks = st.lists(
    st.tuples(st.floats(0.0, 400.0), st.integers(0, 50), st.integers(0, 3)), min_size=1, max_size=60
)


@given(looks)
@settings(max_examples=60, deadline=None)
def test_a_step_has_the_mean_of_what_was_seen_and_the_sum_of_what_happened(given_looks) -> None:
    history, now, evicted = FleetHistory(), START, 0
    seen: dict[str, dict[int, list[tuple[int, int]]]] = {known.name: {} for known in RANGES}
    for pause, nodes, evictions in given_looks:
        now += pause
        evicted += evictions
        history.sample([row(nodes=nodes)], {"east": evicted}, now)
        for known in RANGES:
            seen[known.name].setdefault(int(now // known.step_seconds), []).append((nodes, evictions))

    for known in RANGES:
        answer = history.read("east", known.name, None, None, now)
        assert len(answer.times) <= known.steps + 1
        for at, nodes, evictions in zip(
            answer.times, answer.series["nodes"], answer.series["evictions"], strict=True
        ):
            of_step = seen[known.name].get(int(at // known.step_seconds))
            if of_step is None:
                assert nodes is None and evictions is None
            else:
                assert nodes is not None and math.isclose(nodes, sum(n for n, _ in of_step) / len(of_step))
                assert evictions == sum(happened for _, happened in of_step)


def test_the_fleet_is_the_sum_of_the_clusters_that_are_read() -> None:
    history = FleetHistory()
    history.sample([row("east", 3), row("west", 4), row("new", 9, not_ready="pods")], {}, START)
    answer = history.read(FLEET, "hour", None, None, START)

    assert (answer.series["nodes"][-1], answer.series["clusters"][-1]) == (7.0, 2.0)
    assert answer.series["nodes"][0] is None
    assert set(answer.series) == set(NAMES) == set(answer.units)


def test_nothing_is_remembered_of_what_was_never_read() -> None:
    history = FleetHistory()
    history.sample([row(not_ready="everything")], {}, START)

    assert set(history.read(FLEET, "hour", None, None, START).series["nodes"]) == {None}


def test_the_rings_do_not_grow_and_the_oldest_cluster_goes_first() -> None:
    history = FleetHistory(clusters_max=3)
    for number in range(6):
        history.sample([row(f"c{number}")], {}, START + number)
    end = START + 6

    assert set(history.read("c5", "hour", None, None, end).series["nodes"]) == {None, 3.0}
    assert set(history.read("c0", "hour", None, None, end).series["nodes"]) == {None}
    assert history.read(FLEET, "hour", None, None, end).series["nodes"][-1] == 3.0


def test_a_piece_of_the_range_can_be_asked_for() -> None:
    history = FleetHistory()
    for number in range(60):
        history.sample([row(nodes=number)], {}, START + 10 * number)
    end = START + 600
    answer = history.read("east", "hour", START + 100, START + 150, end)

    assert [value for value in answer.series["nodes"] if value is not None] == [10, 11, 12, 13, 14, 15]
    with pytest.raises(Invalid, match="hour, day, month"):
        history.read("east", "year", None, None, end)


def test_what_was_kept_is_there_again_and_what_is_old_goes(tmp_path: Path) -> None:
    path = tmp_path / "past.sqlite"
    before, file = FleetHistory(), HistoryFile(path)
    for number in range(400):
        file.keep(before.sample([row(nodes=number)], {"east": number}, START + 10 * number))
    end = START + 4000
    file.close()

    again = HistoryFile(path)
    after = FleetHistory()
    after.restore(again.steps())
    again.close()

    for known in RANGES:
        assert after.read("east", known.name, None, None, end) == before.read(
            "east", known.name, None, None, end
        )
    steps = sqlite3.connect(path).execute("SELECT count(*) FROM steps WHERE step_seconds = 10").fetchone()
    assert steps == (2 * 360,)


def test_a_file_of_somebody_else_is_refused(tmp_path: Path) -> None:
    other = tmp_path / "other.sqlite"
    with sqlite3.connect(other) as file:
        file.execute("CREATE TABLE theirs (x)")
    text = tmp_path / "notes.txt"
    text.write_text("not a database at all, but long enough to be looked at " * 20)

    for path in (other, text, tmp_path / "no" / "such" / "folder.sqlite"):
        with pytest.raises(Invalid, match="history-file"):
            HistoryFile(path)
    assert "not a database" in text.read_text()


def test_a_row_that_was_edited_is_passed_over(tmp_path: Path) -> None:
    path = tmp_path / "past.sqlite"
    file = HistoryFile(path)
    file.keep(FleetHistory().sample([row()], {}, START))
    with sqlite3.connect(path) as edited:
        edited.execute("UPDATE steps SET sums = 'x' WHERE cluster = 'east'")
        edited.execute("INSERT INTO steps VALUES (10, 5, 'odd', 1, '[1, 2]')")
    history = FleetHistory()
    history.restore(file.steps())

    assert history.read(FLEET, "hour", None, None, START).series["nodes"][-1] == 3.0
    assert set(history.read("east", "hour", None, None, START).series["nodes"]) == {None}


def test_a_file_that_cannot_be_written_any_more_does_not_stop_the_page(tmp_path: Path) -> None:
    path = tmp_path / "past.sqlite"
    file = HistoryFile(path)
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("DROP TABLE steps")

    file.keep(FleetHistory().sample([row()], {}, START))


def test_a_disk_that_fills_up_stops_neither_the_page_nor_loses_what_was_kept(tmp_path: Path) -> None:
    """In a process of its own, whose files may grow to 100 KiB, then without that limit."""
    path = tmp_path / "past.sqlite"
    child = os.fork()
    if not child:
        with suppress(BaseException):
            resource.setrlimit(resource.RLIMIT_FSIZE, (100 * 1024, 100 * 1024))
            _fill(path, 300)
            os._exit(0)
        os._exit(1)
    assert os.waitpid(child, 0)[1] == 0

    again = HistoryFile(path)
    kept = [step.step for step in again.steps() if step.step_seconds == 10 and step.cluster == "east"]
    assert 0 < len(kept) < 300 and kept == list(range(kept[0], kept[0] + len(kept)))
    again.close()
    _fill(path, 350)
    again = HistoryFile(path)
    assert sum(step.step_seconds == 10 and step.cluster == "east" for step in again.steps()) == 350
    again.close()


def _fill(path: Path, looks: int) -> None:
    file, history = HistoryFile(path), FleetHistory()
    for number in range(looks):
        file.keep(history.sample([row(nodes=number)], {}, START + 10 * number))
    file.close()
