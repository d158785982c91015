"""A session at a glance: a line for each cell at 80 columns, and no doubt left unsaid."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.cells import cell_len

from pytest_hwqueue.devices.fingerprint import Fingerprint
from pytest_hwqueue.metrics.numbers import PrintedFigure, rate, rate_in_short, work_unit
from pytest_hwqueue.records.cell import Primary, RunRecord
from pytest_hwqueue.reports.terminal import render, render_lines

MakeRecord = Callable[..., RunRecord]


def joined(text: str) -> str:
    return " ".join(text.split())


def cell_line(text: str, name: str) -> str:
    (line,) = [line for line in text.split("\n") if line.startswith(f"{name} ")]
    return line


@pytest.fixture(name="sweep")
def a_sweep_of_long_names(make_record: MakeRecord) -> list[RunRecord]:
    """Sixteen cells with the suite's longest name, in both dispatch modes."""
    return [
        make_record(
            name, streams=streams, traced=False, seed=streams,
            work={"small kernels": 4e4 * streams}, cell={"dispatch": dispatch},
        )
        for name in ("comms_compute_overlap", "tiny_kernel_stress")
        for streams in (1, 8, 32, 64)
        for dispatch in ("eager", "graph")
    ]  # fmt: skip


@pytest.mark.parametrize("width", [80, 120, 250])
@pytest.mark.parametrize("compared", [False, True])
def test_each_cell_has_one_line_with_its_name_and_figures(
    sweep: list[RunRecord], width: int, compared: bool
) -> None:
    changes = {r.cell_id: ("P99", "", PrintedFigure("+12.3", "%")) for r in sweep}
    text = render(sweep, width=width, colour=False, changes=changes if compared else None)
    assert max(map(cell_len, text.split("\n"))) <= width
    for record in sweep:
        cell = record.cell
        line = cell_line(text, f"{cell.name} s{cell.streams} {cell.dispatch}")
        assert "1000" in line
        assert line.count("[") == 1
        assert line.endswith("+12.3") == compared
    assert len(text.split("\n")) < len(sweep) + 15


@pytest.mark.parametrize("width", [20, 40, 60, 80, 100, 120, 160])
def test_no_line_is_longer_than_the_terminal(session_records: list[RunRecord], width: int) -> None:
    text = render(session_records, width=width, colour=False)
    assert max(map(cell_len, text.split("\n"))) <= width
    assert "FAILED in stage set-up: out of memory" in joined(text)


def test_units_that_have_no_column_are_said_below(sweep: list[RunRecord]) -> None:
    narrow = render(sweep, width=80, colour=False)
    assert "small kernels/s" not in narrow
    assert "per s: small kernels" in narrow
    wide = render(sweep, width=120, colour=False)
    assert " small kernels/s" in wide
    assert "per s:" not in wide


def test_long_names_of_tests_fold_and_lose_nothing(make_record: MakeRecord) -> None:
    name = f"test_own.py::test_{'of_a_long_name_' * 4}"
    records = [make_record(name, streams=n, family=None, traced=False) for n in (1, 2)]
    text = render(records, width=80, colour=False)
    folded = "".join(text.split())
    assert folded.count("of_a_long_name_" * 4) >= 1
    assert max(map(cell_len, text.split("\n"))) <= 80


def test_a_refused_p99_says_why_and_other_refusals_are_summed_up(
    make_record: MakeRecord,
) -> None:
    records = [make_record(streams=n, n=100, tags={"small": 5e6}, traced=False) for n in (1, 2)]
    text = joined(render(records, width=80, colour=False))
    assert "P99 refused for all 2 cells: needs at least 368 samples, has 100" in text
    assert "also refused: P99 of small (2 cells)" in text
    assert text.count("needs at least") == 1


def test_doubts_are_said_once_with_whose_they_are(make_record: MakeRecord) -> None:
    note = "bounded by launching from Python (99% of the time); graph dispatch measures"
    records = [
        make_record("a", streams=1, traced=False, launch_bound=True, notes=[note]),
        make_record("a", streams=2, traced=False, notes=["3 of 9 samples taken while throttled"]),
        make_record("b", streams=2, traced=False, notes=["4 of 9 samples taken while throttled"]),
    ]
    text = joined(render(records, width=120, colour=False))
    assert "launch-bound, so Python was measured and not the queues: a (s1)" in text
    assert "graph dispatch measures" not in text
    assert "a (s2), b (s2): 3 of 9 samples taken while throttled" in text
    assert text.count("throttled") == 1


def test_what_the_latency_is_of_is_said(make_record: MakeRecord) -> None:
    record = make_record(traced=False)
    assert "latency of: whole iterations seen by the host" in render(
        [record], width=80, colour=False
    )
    tagged = make_record(traced=False, primary=Primary(name="burst", per="launch"))
    text = render([tagged, record], width=120, colour=False)
    assert "latency of: burst (tiny_kernel_stress), whole iterations" in text


def test_skipped_cells_are_named_together_with_their_reason(make_record: MakeRecord) -> None:
    skipped = [
        make_record("moe", streams=n, status="skipped", reason="takes 1 to 32 streams")
        for n in (64, 128)
    ]
    text = joined(render([make_record(traced=False), *skipped], width=80, colour=False))
    assert "2 skipped of 3 cells" in text
    assert "skipped: moe (s64, s128): takes 1 to 32 streams" in text
    assert text.count("takes 1 to 32") == 1


def test_runs_show_the_middle_one_and_name_those_that_failed(make_record: MakeRecord) -> None:
    runs = [make_record(traced=False, run=number, seed=number) for number in (1, 2)]
    runs.append(make_record(status="failed", reason="it crashed", stage="warm-up", run=3))
    text = joined(render(runs, width=80, colour=False))
    assert "1 cell on NVIDIA H200" in text
    assert "of 2 runs of a cell the middle one is shown" in text
    assert "run 3 of 3 FAILED in stage warm-up: it crashed" in text


def test_a_sweep_says_where_it_saturates_and_prints_the_table_if_asked(
    make_record: MakeRecord,
) -> None:
    # Work grows with the streams up to 8, then only time does.
    records = [
        make_record(streams=n, traced=False, seed=n, median_ns=1e6 * max(1, n / 8), work={"k": n})
        for n in (1, 8, 32)
    ]
    text = render(records, width=80, colour=False)
    assert "streams that saturate: tiny_kernel_stress 8 (-v" in joined(text)
    assert "speedup" not in text
    assert "speedup" in render(records, width=80, colour=False, scaling=True)


def test_simulated_is_said_in_the_heading(make_record: MakeRecord) -> None:
    record = make_record(traced=False)
    simulated = Fingerprint(hard={"device_name": "simulated NVIDIA H200"}, soft={})
    record = record.model_copy(update={"fingerprint": simulated})
    text = render([record], width=80, colour=False)
    assert text.startswith("1 cell on simulated NVIDIA H200")


@settings(deadline=None, max_examples=200)
@given(
    st.floats(min_value=1e-3, max_value=1e15),
    st.sampled_from(["kernels/s", "TFLOP/s", "GB/s", "small kernels/s", "GB of bus traffic/s"]),
)
def test_a_short_rate_and_its_unit_make_the_whole(value: float, unit: str) -> None:
    short, whole = rate_in_short(value, unit), rate(value, unit)
    assert short.number == whole.number
    assert "".join(f"{short.unit}{work_unit(unit)}/s".split()) == "".join(whole.unit.split())


def test_other_lines_wrap_at_the_terminal_and_keep_their_indent() -> None:
    text = render_lines(["stored in a: 1 cell", f"  cell: {'word ' * 30}"], 80)
    lines = text.split("\n")
    assert lines[0] == "stored in a: 1 cell"
    assert lines[1].startswith("  cell: word")
    assert lines[2].startswith("  word")
    assert max(map(len, lines)) <= 80
