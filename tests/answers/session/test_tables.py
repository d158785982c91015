"""What a session prints, in brief and with -v: whole texts, and what holds of any text."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from pytest_hwqueue.answers.session.tables import render, render_details, render_lines
from pytest_hwqueue.data.document.notes import Notes
from pytest_hwqueue.data.document.terminal import fold
from pytest_hwqueue.data.metrics.between_runs import RunSpread
from pytest_hwqueue.data.metrics.estimate import Estimate
from pytest_hwqueue.data.metrics.numbers import PrintedFigure, rate, rate_in_short, work_unit
from pytest_hwqueue.data.records.cell import BackToBack, RunRecord
from pytest_hwqueue.data.records.counters import CpuCounters, ThreadCounts
from pytest_hwqueue.data.records.declared import Primary
from pytest_hwqueue.data.records.fingerprint import Fingerprint
from pytest_hwqueue.data.records.stored import CellRuns, gather
from pytest_hwqueue.data.records.telemetry import Telemetry, ThrottledSpan
from tests.answers.conftest import changed, joined, make, paced
from tests.stored_texts import assert_as_stored

THROTTLED = Telemetry(source="nvml", throttled=(ThrottledSpan(10, 30, ("power_cap",)),))


def waited(seconds: float | None) -> CpuCounters:
    """Counters of one thread that waited so long for a core."""
    counts: dict[str, Any] = {
        "voluntary": 1, "involuntary": 1, "on_cpu_s": 0.5, "run_delay_s": seconds
    }  # fmt: skip
    thread = ThreadCounts(thread=1, name="hwq-stream-3", **counts)
    return CpuCounters(
        duration_s=1.0, iterations=1, launches=1, threads=[thread], idle_threads=0,
        ended_threads=0, system_softirqs=None, system_interrupts=None, per_1000_launches=None,
        **counts,
    )  # fmt: skip


def doubtful() -> list[RunRecord]:
    """Cells that were measured, each with something that casts doubt on its figures."""
    bound = "bounded by launching from Python (99% of the time); graph dispatch measures"
    told: list[tuple[str, int, dict[str, Any]]] = [
        ("a", 1, {"launch_bound": True, "notes": [bound]}),
        ("a", 2, {"notes": ["3 of 9 samples taken while throttled"]}),
        ("b", 2, {"notes": ["4 of 9 samples taken while throttled"]}),
        ("c", 8, {"telemetry": THROTTLED, "counters": waited(0.032)}),
        ("d", 8, {"telemetry": THROTTLED, "notes": ["20 samples taken while throttled"]}),
        ("e", 8, {"counters": waited(0.009), "primary": Primary(name="burst", per="launch")}),
    ]
    full = [
        changed(
            make("g", streams=n, traced=False), "samples",
            back_to_back=BackToBack(
                blocks_ns=[9_000_000] * 50, iterations=10, launching_ns=launching_ns
            ),
        )
        for n, launching_ns in ((1, 300_000), (2, 890_000))
    ]  # fmt: skip
    unseen = make("f", traced=False, n=4000, counters=waited(None))
    measured = [make(name, streams=n, traced=False, **fields) for name, n, fields in told]
    return [*measured, *full, unseen]


def fruitless() -> list[RunRecord]:
    """Cells of which some or all runs failed, in every way."""
    return [
        changed(make("late"), "", status="failed", reason="trace lost"),
        make("hung", status="invalid", stage="warm-up", reason="it hung in [setup]"),
        make("died", streams=1, status="timeout", reason="after 300 s", fingerprint=None),
        *(make("crashed", run=run, status="failed", reason=f"cause {run}") for run in (1, 2)),
        make("once", traced=False),
        make("once", run=2, status="failed", stage="set-up", reason="out of memory"),
        *(make("moe", streams=n, status="skipped", reason="takes 1 to 32") for n in (64, 128)),
    ]


def figured() -> list[RunRecord]:
    """Cells with figures of the device, and figures that are refused."""
    probe, wait = (
        "metrics.queue_switch.overhead.difference",
        "metrics.ready_to_start.other_stream_before.first.median",
    )
    probes = (("a", 8, 3.0), ("b", 8, 2.0), ("c", 8, 2.5), ("a", 16, 4.0), ("a", 1, 77.7))
    convoy = make("hetero_kernels", streams=2, tags={"small": 5e6})
    return [
        *(changed(make(name, streams=n), probe, value=value, low=1.0, high=9.0)
          for name, n, value in probes),
        changed(make("t", streams=2), probe, value=None, refused="the streams are threads"),
        changed(convoy, "metrics.ratios.convoy_ratio.p50", low=0.1, high=20.0),
        make("hetero_kernels", streams=4, tags={"small": 5e6}, median_ns=430e3),
        changed(make(streams=4), wait, value=None, refused="9 of 9 early"),
    ]  # fmt: skip


def compared_settings() -> list[RunRecord]:
    """Cells of a scheduler, in both dispatch modes, of which the runs are of equal lengths."""
    return [
        make(cell={"dispatch": dispatch, "scheduler": "stream-priority"}, n=n, seed=n, traced=False)
        for dispatch, n in (("eager", 80), ("graph", 99))
    ]


def own_tests() -> list[RunRecord]:
    names = ("tests/test_mine.py::test_a", f"tests/test_mine.py::test_b[{'long-name-' * 7}]")
    return [make(name, family=None, n=50, work={}) for name in names]


def median_only() -> list[RunRecord]:
    """Cells of several runs: without a P99, with one, and with too few samples for any."""
    noted = ["9 of 1000 samples taken while throttled"]
    return [
        *(make("slow", n=100, median_ns=1e6 * run, run=run, traced=False) for run in (1, 2, 3)),
        *(make("fast", run=run, traced=False, seed=run, notes=noted) for run in (1, 2)),
        *(make("few", n=4, run=run, traced=False) for run in (1, 2)),
    ]


def swept() -> list[RunRecord]:
    """A sweep of three runs; work grows with the streams up to 8, then only time does."""
    return [
        make(
            streams=n, run=run, traced=False, seed=n + run, median_ns=1e6 * max(1, n / 8),
            work={"k": float(n)},
        )
        for run in (1, 2, 3) for n in (1, 8, 32)
    ]  # fmt: skip


def no_sweeps() -> list[RunRecord]:
    """Sweeps of which nothing or little can be told, on a model; the last cell is no sweep."""
    other = {"parameters": {"mm_dim": 2048}, "variant": "mm_dim=2048"}
    model = Fingerprint(hard={"device_name": "simulated NVIDIA H200"}, soft={})
    sweeps: list[tuple[str, int, dict[str, Any]]] = [
        *(("few", n, {"n": 20}) for n in (2, 4)),
        # As was printed: 2 streams with a speed-up of 162 and an efficiency of 8088 %.
        *(("impossible", n, {"n": 100, "median_ns": ms * 1e6}) for n, ms in ((1, 162), (2, 2))),
        ("differs", 1, {}),
        ("differs", 2, {"cell": other}),
        ("no time", 1, {}),
    ]
    records = [make(name, streams=n, traced=False, **more) for name, n, more in sweeps]
    none = changed(make("no time", streams=2, traced=False), "samples", host_ns=[0] * 1000)
    return [changed(each, "", fingerprint=model) for each in (*records, none)]


SETS: dict[str, Callable[[], list[RunRecord]]] = {
    "doubtful": doubtful, "fruitless": fruitless, "figured": figured, "settings": compared_settings,
    "own": own_tests, "median": median_only, "swept": swept, "no_sweeps": no_sweeps,
}  # fmt: skip
NAMES = ("session", "runs", *SETS)


@pytest.fixture(name="records", params=NAMES)
def _records(request: pytest.FixtureRequest) -> tuple[str, list[RunRecord]]:
    """Return each set of records with its name."""
    name = request.param
    shared = {"session": "session_records", "runs": "run_records"}
    return name, request.getfixturevalue(shared[name]) if name in shared else SETS[name]()


Culprit = tuple[str, Sequence[RunRecord]]


def test_what_is_printed_is_as_stored(records: Culprit) -> None:
    name, shown = records
    brief = render(shown, width=80, colour=False)
    assert_as_stored(__file__, f"{name}_80.txt", brief)
    for width in (160, 60):
        details = render_details(shown, width=width, colour=False)
        assert_as_stored(__file__, f"{name}_v_{width}.txt", details)


def test_no_line_is_longer_than_the_terminal_and_no_failure_is_hidden(records: Culprit) -> None:
    for width in (20, 40, 60, 80, 100, 120, 250):
        details = render_details(records[1], width=width, colour=False)
        for text in (details, render(records[1], width=width, colour=False)):
            assert max(map(cell_len, text.split("\n"))) <= width
            assert "…" not in text
        for record in records[1]:
            assert record.reason is None or record.reason in joined(details), width


def test_colour_is_only_written_if_wanted(session_records: list[RunRecord]) -> None:
    plain = render_details(session_records, width=100, colour=False)
    coloured = render_details(session_records, width=100, colour=True)
    assert "\x1b" not in plain
    assert re.search(r"\x1b\[31m[^\n]*FAILED", coloured)
    bare = re.sub(r"\x1b\[[\d;]*m", "", coloured)
    assert [line.rstrip() for line in bare.split("\n")] == plain.split("\n")
    assert render_details([], width=80, colour=False) == ""


def test_no_impossible_figure_is_printed_and_a_model_is_called_so() -> None:
    for width in (200, 40):
        text = joined(render_details(no_sweeps(), width=width, colour=False))
        assert "speedup, efficiency refused for 2 streams" in text
        assert text.count("than is possible, 3× at most") == 1
        assert "8088" not in text
    assert "8 cells on simulated NVIDIA H200" in render(no_sweeps(), width=80, colour=False)


@given(st.text(st.characters(codec="ascii", exclude_categories=["Cc"])), st.integers(4, 40))
def test_a_folded_name_fits_and_loses_nothing(name: str, widest: int) -> None:
    name = name.strip()
    lines = fold(name, widest)
    assert all(len(line) <= widest for line in lines)
    assert "".join(lines).replace(" ", "") == name.replace(" ", "")


def test_changes_and_scaling_are_printed_if_asked_and_lines_wrap() -> None:
    """Cells with the suite's longest name, in both dispatch modes."""
    sweep = [
        make(
            name, streams=streams, traced=False, seed=streams,
            work={"small kernels": 4e4 * streams}, cell={"dispatch": dispatch},
        )
        for name in ("comms_compute_overlap", "tiny_kernel_stress")
        for streams in (1, 64) for dispatch in ("eager", "graph")
    ]  # fmt: skip
    changes = {r.cell_id: ("P99", "", PrintedFigure("+12.3", "%")) for r in sweep}
    texts = {
        "changes": render(sweep, width=80, colour=False, changes=changes),
        "wide": render(sweep, width=120, colour=False, changes=changes),
        "scaling": render(swept(), width=80, colour=False, scaling=True),
        # Lines keep their indent.
        "other": render_lines(["stored in a: 1 cell", f"  cell: {'word ' * 30}"], 80),
    }
    assert max(map(cell_len, texts["changes"].split("\n"))) <= 80
    shown = [f"===== {name} =====\n{text}" for name, text in texts.items()]
    assert_as_stored(__file__, "asked.txt", "\n\n".join(shown))


def test_a_refusal_says_whether_it_is_of_a_cell_or_of_its_tags() -> None:
    notes = Notes()
    for cell, tag, has in (("a", None, 20), ("a", "small", 40), ("b", "small", 30)):
        notes.refuse("P99", f"has {has} (9 missing)", cell, tag)
    notes.refuse("P50", "no clock", "b", "small")
    assert notes.lines(2) == [
        "P99 refused for both cells and their small: has 20 to 40 (9 missing)",
        "P50 refused for small of b: no clock",
    ]
    assert notes.refused_in_short() == {"P99": 2, "P99 of small": 2, "P50 of small": 1}


def test_a_drift_is_told_with_its_size_beside_the_figure_that_it_leaves() -> None:
    notes = Notes()
    for cell, drift in (("a", 0.01), ("b", -0.0213), ("c", None)):
        notes.note(Estimate(value=9, low=8, high=10, drift=drift), "throughput", cell)
    assert notes.lines(3) == [
        "throughput of 2 cells drifts by -2.13 % to +1.00 % over its window, whose mean the "
        "interval is of"
    ]


@given(
    st.floats(min_value=1e-3, max_value=1e15),
    st.sampled_from(
        ["kernels/s", "TFLOP/s", "GB/s", "small kernels/s", "GB of one rank's bus traffic/s"]
    ),
)
def test_a_short_rate_and_its_unit_make_the_whole(value: float, unit: str) -> None:
    short, whole = rate_in_short(value, unit), rate(value, unit)
    assert short.number == whole.number
    assert "".join(f"{short.unit}{work_unit(unit)}/s".split()) == "".join(whole.unit.split())


@given(p99_ms=st.lists(st.floats(0.001, 1e6), min_size=1, max_size=9, unique=True))
def test_as_many_runs_are_faster_as_slower(one_record: RunRecord, p99_ms: list[float]) -> None:
    runs = [changed(one_record, "metrics.latency.p99", value=value) for value in p99_ms]
    latency = CellRuns(tuple(runs)).middle.metrics.latency
    assert latency is not None
    slower = sum(value > latency.p99 for value in p99_ms)
    assert 0 <= slower - sum(value < latency.p99 for value in p99_ms) <= 1


def test_a_test_that_measures_twice_in_each_run_has_two_cells() -> None:
    records = [make(run=run, seed=run, traced=False) for run in (1, 1, 2, 2)]
    assert [[run.run for run in cell.runs] for cell in gather(records)] == [[1, 2], [1, 2]]


def test_a_cell_with_a_pace_is_called_so_wherever_it_is_shown() -> None:
    cell = paced(make("f", tags={"small": 5e6}, traced=False))
    brief = joined(render([cell], width=120, colour=False))
    assert "pace, not latency: f (time from one iteration's end to the next's, by events)" in brief
    assert "latency of" not in brief
    details = joined(render_details([cell], width=160, colour=False))
    assert "(cuda): pace, not latency: time from one iteration's end to the next's" in details
    assert "f ¹ · pace" in details
    both = joined(render_details([make("g", traced=False), cell], width=160, colour=False))
    assert "latency of what stands behind each name; whole iterations seen by the host" in both
    assert "; pace: time from one iteration's end to the next's, by events" in both


def three_runs(*medians_ns: float) -> list[RunRecord]:
    """Runs of a cell whose samples are worth too few for an interval of P99."""
    runs = []
    for number, median_ns in enumerate(medians_ns, 1):
        record = make(median_ns=median_ns, run=number, traced=False)
        assert record.metrics.latency is not None
        p99 = record.metrics.latency.p99.model_copy(
            update={"high": float("inf"), "refused": "has 400 samples; 1000 suffice"}
        )
        runs.append(changed(record, "metrics.latency", p99=p99))
    return runs


def test_runs_bound_a_p99_that_the_samples_of_none_do() -> None:
    one = three_runs(1e6)
    assert "[—]" in render(one, width=80, colour=False)
    two = render(three_runs(1e6, 1.1e6), width=80, colour=False)
    assert "[—]" in two
    assert "median run" not in two
    for shown in (render, render_details):
        three = joined(shown(three_runs(1e6, 1.1e6, 1.05e6), width=160, colour=False))
        assert "[—]" not in three
        assert "P99's interval is of this session's median run, by 3 runs, Student's t" in three


def test_a_baselines_spread_bounds_the_p99_of_one_run() -> None:
    spreads = {make().cell_id: RunSpread(0.01, 10)}
    for shown in (render, render_details):
        text = joined(shown(three_runs(1e6), width=160, colour=False, spreads=spreads))
        assert "[—]" not in text
        assert (
            "P99's interval is of this session's median run, by 1 run and how far the baseline's "
            "differ within a session"
        ) in text


def test_the_figure_of_two_runs_lies_within_their_interval() -> None:
    # Half of the interval is 0.8 %, half of their difference 1.5.
    (cell,) = gather(three_runs(1e6, 1.03e6))
    record, by = cell.shown({cell.middle.cell_id: RunSpread(0.005, 8)})
    assert by.startswith("2 runs")
    assert record.metrics.latency is not None
    p99 = record.metrics.latency.p99
    assert p99.low <= float(p99) <= p99.high


def test_a_tag_that_is_judged_has_the_interval_of_the_cell() -> None:
    runs = [
        changed(run, "metrics", tags={"burst": run.metrics.latency})
        for run in three_runs(1e6, 1.1e6, 1.05e6)
    ]
    (cell,) = gather(runs)
    shown, _ = cell.shown({})
    assert shown.metrics.tags["burst"] == shown.metrics.latency


def test_an_interval_of_samples_stays_where_runs_differ_by_less() -> None:
    runs = [make(n=4000, run=number, traced=False) for number in (1, 2, 3)]
    text = joined(render(runs, width=160, colour=False))
    assert "median run" not in text
