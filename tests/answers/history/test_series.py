"""Stored runs as series: sessions in order, machines apart, and what was found in them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from pytest_hwqueue.answers.history.analysis import analyse
from pytest_hwqueue.answers.history.series import Series, SeriesHistory, arrange
from pytest_hwqueue.data.records.cell import RunRecord
from pytest_hwqueue.judge.baselines.runs import CellBaseline, add_runs, cell_of_record
from pytest_hwqueue.judge.baselines.sources import Source
from pytest_hwqueue.judge.verdict import GateSettings
from pytest_hwqueue.parts.processes.git import CommitLine

MakeRecord = Callable[..., RunRecord]
Make = Callable[..., CellBaseline]


@pytest.fixture(name="cell_of")
def _cell_of(make_record: MakeRecord) -> Make:
    """Makes a cell with a run per value, each in a session of its own from ``first`` on."""

    def make(values: Any, first: int = 0, commits: int = 1, **differs: Any) -> CellBaseline:
        plain = cell_of_record(make_record("a", 1, n=1000, **differs), "s")
        runs = [
            replace(
                plain.runs[0],
                session=f"s{number:02}",
                when=f"2026-{1 + number // 28:02}-{number % 28 + 1:02}T08:00:00+00:00",
                commit=f"{number // commits:040d}",
                p99_ns=round(1e7 * value),
            )
            for number, value in enumerate(values, start=first)
        ]
        return CellBaseline(plain.header, tuple(runs))

    return make


def source(*cells: CellBaseline) -> list[Source]:
    return [Source(f"source {n}", "baseline", {"a": cell}) for n, cell in enumerate(cells)]


def noisy(count: int, seed: int = 0, sd: float = 0.02) -> np.ndarray:
    return np.asarray(np.exp(np.random.default_rng(seed).normal(0, sd, count)))


def analysed(series: list[Series], **given: Any) -> list[SeriesHistory]:
    pytest.importorskip("otava", reason="the extra history is not installed")
    between = given.pop("between", lambda old, new: None)
    return analyse(series, ["x"], between, GateSettings(), **given).series


def test_sessions_are_in_order_of_time_and_each_run_counts_once(cell_of: Make) -> None:
    late, early = cell_of([3, 4], first=2), cell_of([1, 2])
    (series,) = arrange(source(late, early, late), ["p99"])
    assert [session.session for session in series.sessions] == ["s00", "s01", "s02", "s03"]
    assert series.values == pytest.approx([1e7, 2e7, 3e7, 4e7])
    assert (series.machine, series.machine_fields, series.refused) == (1, {}, 0)


def test_a_session_is_the_geometric_mean_of_its_runs(cell_of: Make) -> None:
    cell = cell_of([1, 4])
    runs = tuple(replace(run, session="one") for run in cell.runs)
    (series,) = arrange(source(CellBaseline(cell.header, runs)), ["p99"])
    assert series.values == pytest.approx([2e7])
    assert (series.sessions[0].runs, len(series.sessions[0].commits)) == (2, 2)


@pytest.mark.parametrize(
    ("old", "new", "fields"),
    [
        ({"soft": {"device_uuid": "GPU-1"}}, {"soft": {"device_uuid": "GPU-2"}},
         ({"device_uuid": "GPU-1"}, {"device_uuid": "GPU-2"})),
        ({"soft": {"driver_version": "580.1"}}, {"soft": {"driver_version": "580.2"}},
         ({"driver_version": "580.1"}, {"driver_version": "580.2"})),
        ({"hard": {"driver_major": 580}}, {"hard": {"driver_major": 590}},
         ({"driver_major": 580}, {"driver_major": 590})),
    ],
)  # fmt: skip
def test_a_change_of_machine_is_no_change_of_code(
    cell_of: Make, old: dict[str, Any], new: dict[str, Any], fields: tuple[dict[str, Any], ...]
) -> None:
    cells = cell_of(noisy(30), **old), cell_of(1.5 * noisy(30), first=30, **new)
    apart = arrange(source(*cells), ["p99"])
    assert [(each.machine, each.machine_fields) for each in apart] == [
        (1, fields[0]),
        (2, fields[1]),
    ]
    assert [each.changes for each in analysed(apart)] == [[], []]
    (pooled,) = arrange(source(*cells), ["p99"], pool_machines=True)
    (history,) = analysed([pooled])
    assert [change.index for change in history.changes] == [30]


def test_machines_that_take_turns_are_two_series_each_in_order(
    cell_of: Make, make_record: MakeRecord
) -> None:
    one, other = (
        cell_of([1] * 4, soft={"device_uuid": uuid}) for uuid in ("GPU-1", "GPU-2")
    )  # fmt: skip
    both = add_runs(one, CellBaseline(other.header, tuple(
        replace(run, session=f"t{n}", when=run.when.replace("T08", "T20"))
        for n, run in enumerate(other.runs)
    )))  # fmt: skip
    first, second = arrange(source(both), ["p99"])
    assert [session.session for session in first.sessions] == ["s00", "s01", "s02", "s03"]
    assert [session.session for session in second.sessions] == ["t0", "t1", "t2", "t3"]


def test_other_software_is_one_series_and_is_reported_where_it_changed(cell_of: Make) -> None:
    values = noisy(40)
    values[20:] *= 1.2
    cells = (
        cell_of(values[:20], soft={"torch_version": "2.6"}),
        cell_of(values[20:], first=20, soft={"torch_version": "2.7"}),
    )
    (history,) = analysed(arrange(source(*cells), ["p99"]))
    (change,) = history.changes
    assert change.also_changed == {"torch_version": ("2.6", "2.7")}
    assert (change.worse, change.below_gate, history.accumulated) == (True, False, False)


def test_the_commits_between_are_those_of_the_sessions_around(cell_of: Make) -> None:
    values = noisy(40)
    values[20:] *= 1.2
    asked = []

    def between(old: str, new: str) -> list[CommitLine]:
        asked.append((old, new))
        return [CommitLine(commit=new, subject="slower")]

    for commits, expected in ((1, [("0" * 38 + "19", "0" * 38 + "20")]), (50, [])):
        asked.clear()
        (history,) = analysed(
            arrange(source(cell_of(values, commits=commits)), ["p99"]), between=between
        )
        assert asked == expected
        found = history.changes[0].commits
        assert found is not None
        assert [each.subject for each in found] == ["slower"] * len(expected)


def test_small_steps_that_add_up_are_found_where_the_gate_sees_none(cell_of: Make) -> None:
    stairs = noisy(60, sd=0.01) * 1.04 ** (np.arange(60) // 15)
    (history,) = analysed(arrange(source(cell_of(stairs)), ["p99"]))
    assert history.accumulated
    assert history.gate_detects is not None
    assert all(change.ratio - 1 < history.gate_detects for change in history.changes)
    assert any("adds up to" in note for note in history.notes)


def test_two_modes_are_kept_and_said(cell_of: Make) -> None:
    turns = noisy(60) * np.where(np.random.default_rng(5).random(60) < 0.4, 1.2, 1)
    (history,) = analysed(arrange(source(cell_of(turns)), ["p99"]))
    assert [note.partition(":")[0] for note in history.notes] == ["bimodal"]


def test_a_flat_cell_has_nothing_to_say(cell_of: Make) -> None:
    (history,) = analysed(arrange(source(cell_of(noisy(60, seed=1))), ["p99"]))
    assert (history.changes, history.notes, history.accumulated) == ([], [], False)


def test_a_session_without_a_figure_is_left_out_and_counted(cell_of: Make) -> None:
    (series,) = arrange(source(cell_of([1, 0, 1])), ["p99"])
    assert (len(series.sessions), series.refused) == (2, 1)
    assert arrange(source(cell_of([1])), ["nothing.p99"]) == []
