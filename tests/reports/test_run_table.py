"""Cells of several runs: each once, by its middle run, and how far the runs differ below."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from statistics import median, stdev

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from pytest_hwqueue.records.cell import RunRecord
from pytest_hwqueue.records.stored import CellRuns, gather
from pytest_hwqueue.reports.terminal import render_details

MakeRecord = Callable[..., RunRecord]


def joined(text: str) -> str:
    return " ".join(text.split())


def line_with(text: str, part: str) -> str:
    return next(line for line in text.split("\n") if part in line)


def p99(record: RunRecord) -> float:
    assert record.metrics.latency is not None
    assert record.metrics.latency.p99 is not None
    return record.metrics.latency.p99


def runs_of(record: RunRecord, p99_ms: list[float]) -> CellRuns:
    """Copies of a record with other figures."""
    assert record.metrics.latency is not None
    runs = []
    for run, value in enumerate(p99_ms, start=1):
        latency = record.metrics.latency
        changed = type(latency)(**vars(latency) | {"p99": value})
        metrics = record.metrics.model_copy(update={"latency": changed})
        runs.append(record.model_copy(update={"run": run, "metrics": metrics}))
    return CellRuns(tuple(runs))


@given(p99_ms=st.lists(st.floats(0.001, 1e6), min_size=1, max_size=9, unique=True))
def test_as_many_runs_are_faster_as_slower(one_record: RunRecord, p99_ms: list[float]) -> None:
    middle = p99(runs_of(one_record, p99_ms).middle)
    faster = sum(value < middle for value in p99_ms)
    slower = sum(value > middle for value in p99_ms)
    assert 0 <= slower - faster <= 1


def test_each_cell_is_shown_once_by_its_middle_run(run_records: list[RunRecord]) -> None:
    tiny, gemm = gather(run_records)
    assert (len(tiny.runs), len(gemm.runs)) == (5, 4)
    assert p99(tiny.middle) == median(map(p99, tiny.runs))
    text = render_details(run_records, width=160, colour=False)
    table, _, runs = text.partition("\nRuns of each cell")
    assert len(re.findall(r"^tiny_kernel_stress", table, re.M)) == 1
    assert len(re.findall(r"^large_gemm_only", table, re.M)) == 1
    assert f"{p99(tiny.middle):.2f} [" in line_with(table, "tiny_kernel_stress ¹")
    assert "¹ of 5 runs the one with the median P99: see Runs" in table
    assert f"run {tiny.middle.run}" in line_with(runs, "tiny_kernel_stress[")


def test_runs_are_told_by_median_range_and_spread(run_records: list[RunRecord]) -> None:
    tiny, _ = gather(run_records)
    values = [p99(run) for run in tiny.runs]
    sd = stdev(map(math.log, values))
    text = render_details(run_records, width=120, colour=False)
    shown = line_with(text, "tiny_kernel_stress[cuda-s8-native-graph]").split()
    numbers = [f"{value:.2f}" for value in (median(values), min(values), max(values), 100 * sd)]
    assert shown[1:-2] == ["5", *numbers]
    assert "median P99" in text
    assert "sd of ln P99" in text
    assert "sd: standard deviation between runs" in text


@pytest.mark.parametrize("width", [40, 60, 80, 120])
def test_failed_runs_are_counted_and_named(run_records: list[RunRecord], width: int) -> None:
    text = joined(render_details(run_records, width=width, colour=False))
    assert "1 timeout of 9 runs" in text
    assert "run 3 TIMEOUT in stage measure: ended after 300 s" in text
    assert "3 of 4" in text
    assert "of 3 runs the one with the median P99; 1 more came to nothing: see Runs" in text


@pytest.mark.parametrize("width", [20, 40, 60, 80, 120, 160])
def test_no_line_is_longer_than_the_terminal(run_records: list[RunRecord], width: int) -> None:
    text = render_details(run_records, width=width, colour=False)
    assert max(map(cell_len, text.split("\n"))) <= width
    assert "sd" in text


def test_notes_of_runs_that_are_not_shown_are_kept(run_records: list[RunRecord]) -> None:
    text = render_details(run_records, width=120, colour=False)
    assert "¹ run 4: 4 of 1000 samples taken while throttled" in text
    noted = [
        record.model_copy(update={"notes": [f"{record.run} of 1000 samples taken while throttled"]})
        for record in run_records
    ]
    text = render_details(noted, width=120, colour=False)
    assert len(re.findall("taken while throttled", text)) == 2, "once for each cell's shown run"


def test_cells_without_a_p99_are_told_by_their_median(make_record: MakeRecord) -> None:
    slow = [
        make_record("other", n=100, median_ns=1e6 * run, run=run, traced=False) for run in (1, 2, 3)
    ]
    (cell,) = gather(slow)
    assert cell.percentile == "p50"
    assert cell.middle.run == 2
    text = render_details(slow, width=120, colour=False)
    assert "of 3 runs the one with the median P50" in text
    assert "median P50" in text
    fast = [make_record(n=1000, run=run, traced=False, seed=run) for run in (1, 2)]
    both = render_details([*slow, *fast], width=120, colour=False)
    assert "of 2 runs the one with the lower middle P99" in both
    runs = both.partition("\nRuns of each cell")[2]
    assert "P50" in line_with(runs, "other[")
    assert "P99" in line_with(runs, "tiny_kernel_stress[")


def test_too_few_samples_for_any_percentile_show_the_first_run(make_record: MakeRecord) -> None:
    records = [make_record(n=4, run=run, traced=False) for run in (1, 2)]
    (cell,) = gather(records)
    assert cell.percentile is None
    assert cell.middle.run == 1
    assert "the first of 2 runs" in render_details(records, width=100, colour=False)


def test_a_spread_needs_two_runs(make_record: MakeRecord) -> None:
    records = [
        make_record(traced=False),
        make_record(run=2, status="failed", stage="set-up", reason="out of memory"),
    ]
    text = render_details(records, width=120, colour=False)
    assert "sd refused for the cell: needs at least 2 runs, has 1 (1 missing)" in text
    assert "run 2 FAILED in stage set-up: out of memory" in text


def test_a_cell_that_always_failed_says_so(make_record: MakeRecord) -> None:
    died = [make_record(run=run, status="failed", reason=f"cause {run}") for run in (1, 2)]
    text = render_details(died, width=100, colour=False)
    assert "1 failed of 1 cell" in text
    assert "2 failed of 2 runs" in text
    assert "run 1 FAILED: cause 1" in text


def test_a_single_run_has_no_table_of_runs(session_records: list[RunRecord]) -> None:
    text = render_details(session_records, width=120, colour=False)
    assert "Runs of each cell" not in text
    assert "see Runs" not in text


def test_a_test_that_measures_twice_in_each_run_has_two_cells(make_record: MakeRecord) -> None:
    records = [make_record(run=run, seed=run, traced=False) for run in (1, 1, 2, 2)]
    assert [[run.run for run in cell.runs] for cell in gather(records)] == [[1, 2], [1, 2]]


def test_a_sweep_of_several_runs_has_one_table(make_record: MakeRecord) -> None:
    records = [
        make_record(streams=streams, run=run, seed=run, traced=False)
        for run in (1, 2, 3)
        for streams in (1, 2, 4)
    ]
    text = render_details(records, width=120, colour=False)
    assert text.count("caling of tiny_kernel_stress over streams") == 1
    after = text[text.index("caling of tiny") :]
    assert [len(re.findall(rf"^ +{n} +\d", after, re.M)) for n in (1, 2, 4)] == [1, 1, 1]
