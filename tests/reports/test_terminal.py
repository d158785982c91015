"""The terminal's tables: they fit, they hide nothing, and refusals come with their reasons."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from pytest_hwqueue.devices.telemetry import Telemetry, ThrottledSpan
from pytest_hwqueue.records.cell import RunRecord
from pytest_hwqueue.reports.grid import fold
from pytest_hwqueue.reports.terminal import render_details
from pytest_hwqueue.tracing.cpu_counters import CpuCounters, ThreadCounts

MakeRecord = Callable[..., RunRecord]


def joined(text: str) -> str:
    """The text with lines joined, so that a wrapped sentence can be found."""
    return " ".join(text.split())


def line_with(text: str, part: str) -> str:
    return next(line for line in text.split("\n") if part in line)


@pytest.mark.parametrize("width", [20, 40, 60, 80, 100, 120, 160, 250])
def test_no_line_is_longer_than_the_terminal(session_records: list[RunRecord], width: int) -> None:
    text = render_details(session_records, width=width, colour=False)
    assert max(map(cell_len, text.split("\n"))) <= width
    assert "…" not in text


@pytest.mark.parametrize("width", [80, 100, 160])
def test_every_cell_is_there_with_its_median_and_its_interval(
    session_records: list[RunRecord], width: int
) -> None:
    text = render_details(session_records, width=width, colour=False)
    for record in session_records:
        name = record.cell.name.rpartition("::")[2]
        assert name in text
    for shown in ("431", "[429, 434]", "1.16", "[3.14, 3.17]", "11.2", "[11.2, 11.3]"):
        assert shown in text


@pytest.mark.parametrize("width", [40, 80, 100, 160, 250])
def test_refused_values_are_dashes_and_the_reasons_stand_below(
    session_records: list[RunRecord], width: int
) -> None:
    text = joined(render_details(session_records, width=width, colour=False))
    assert "—" in text
    assert "P99 refused for large_gemm_only (4 streams, graph): needs at least 368" in text
    assert "samples, has 100 (268 missing)" in text
    assert "P95 refused for the cell: needs at least 72 samples, has 50" in text
    assert "timeline refused for large_gemm_only (4 streams, graph): CUPTI: not permitted" in text


def test_the_same_reason_is_said_once_for_all_cells(make_record: MakeRecord) -> None:
    records = [make_record(streams=n, n=100 - n, traced=False, seed=n) for n in (1, 5, 20)]
    text = joined(render_details(records, width=160, colour=False))
    expected = "P99 refused for all 3 cells: needs at least 368 samples, has 80 to 99 (269 to 288"
    assert expected in text
    assert text.count("P99 refused") == 1


@pytest.mark.parametrize("width", [40, 80, 160])
def test_what_failed_is_never_hidden(session_records: list[RunRecord], width: int) -> None:
    text = joined(render_details(session_records, width=width, colour=False))
    assert "1 failed, 1 skipped of 8 cells" in text
    assert "FAILED in stage set-up: out of memory: CUDA out of memory. Tried" in text
    assert "or a parameter such as mm_dim" in text
    assert "SKIPPED: large_gemm_only takes 1 to 32 streams" in text


@pytest.mark.parametrize("status", ["failed", "timeout", "invalid"])
def test_a_bad_status_is_red(make_record: MakeRecord, status: str) -> None:
    record = make_record(status=status, reason="it hung in [setup]", stage="warm-up")
    text = render_details([record], width=100, colour=True)
    assert "\x1b[31m" in text
    assert f"{status.upper()} in stage warm-up: it hung in [setup]" in text
    assert "nothing was measured" in text


def test_a_failure_after_measuring_keeps_its_numbers(make_record: MakeRecord) -> None:
    record = make_record().model_copy(update={"status": "failed", "reason": "trace lost"})
    text = render_details([record], width=120, colour=False)
    assert "FAILED: trace lost" in text
    assert "[95 %]" in text


def test_notes_are_footnotes_of_their_cells(session_records: list[RunRecord]) -> None:
    text = render_details(session_records, width=160, colour=False)
    assert "¹" in line_with(text, "hetero_kernels ")
    assert "¹ bounded by launching from Python" in text
    assert "² ³" in line_with(text, "large_gemm_only ²")
    assert "² warm-up did not become stable: not stable within 5 s" in text
    assert "³ measuring ended early: time cap of 20 s" in text


def test_a_note_that_two_cells_share_is_printed_once(make_record: MakeRecord) -> None:
    records = [make_record(streams=n, notes=["the clock was locked"]) for n in (1, 2)]
    text = render_details(records, width=120, colour=False)
    assert text.count("the clock was locked") == 1
    assert text.count("¹") == 3


@pytest.mark.parametrize(
    ("waited_s", "told"), [(0.032, True), (0.009, False), (None, False)]
)  # fmt: skip
def test_a_thread_that_waited_for_a_core_is_told(
    make_record: MakeRecord, waited_s: float | None, told: bool
) -> None:
    thread = ThreadCounts(
        thread=1, name="hwq-stream-3", voluntary=1, involuntary=1, on_cpu_s=0.5,
        run_delay_s=waited_s,
    )  # fmt: skip
    counters = CpuCounters(
        duration_s=1.0, iterations=1, launches=1, threads=[thread], idle_threads=0,
        ended_threads=0, voluntary=1, involuntary=1, on_cpu_s=0.5, run_delay_s=waited_s,
        system_softirqs=None, system_interrupts=None, per_1000_launches=None,
    )  # fmt: skip
    text = render_details([make_record(counters=counters)], width=100, colour=False)
    assert ("waited for a core 3.20 % of its time (thread hwq-stream-3)" in text) == told


def test_throttled_samples_are_told(make_record: MakeRecord) -> None:
    telemetry = Telemetry(source="nvml", throttled=(ThrottledSpan(10, 30, ("power_cap",)),))
    record = make_record(telemetry=telemetry)
    assert "20 samples taken while throttled" in render_details([record], width=100, colour=False)
    noted = make_record(telemetry=telemetry, notes=["20 of 1000 samples taken while throttled"])
    assert render_details([noted], width=100, colour=False).count("throttled") == 1


def test_tags_and_ratios_stand_below_their_cell(session_records: list[RunRecord]) -> None:
    lines = render_details(session_records, width=160, colour=False).split("\n")
    start = next(i for i, line in enumerate(lines) if line.startswith("hetero_kernels"))
    below = "\n".join(lines[start : start + 8])
    assert re.search(r"^  small +1000 +5\.52 ms \[5\.50, 5\.54\]", below, re.MULTILINE)
    assert re.search(r"^  large +1000 +9\.83 ms", below, re.MULTILINE)
    assert re.search(r"convoy_ratio 8\.\d\d× \[\S+, \S+\] at P50 · 8\.\d\d× .* at P99", below)
    assert "latency of a small chain alongside large products, divided by that alone" in below


def test_a_ratio_of_several_cells_is_explained_once(make_record: MakeRecord) -> None:
    records = [make_record("hetero_kernels", streams=n, tags={"small": 5e6}) for n in (2, 4)]
    text = render_details(records, width=160, colour=False)
    assert text.count("latency of a small chain") == 1
    assert len(re.findall(r"convoy_ratio \d", text)) == 2


def test_a_ratio_that_tells_too_little_is_refused_and_recorded(make_record: MakeRecord) -> None:
    record = make_record("hetero_kernels", tags={"small": 5e6})
    ratio = record.metrics.ratios["convoy_ratio"]
    assert ratio.p50 is not None
    wide = dataclasses.replace(ratio, intervals=ratio.intervals | {"p50": (0.1, 20.0)})
    metrics = record.metrics.model_copy(update={"ratios": {"convoy_ratio": wide}})
    text = joined(
        render_details([record.model_copy(update={"metrics": metrics})], width=100, colour=False)
    )
    assert re.search(r"convoy_ratio — at P50 · 8\.\d\d× \[", text)
    assert "convoy_ratio at P50 refused for the cell: its interval, 0.1× to 20×, is wider" in text


def test_device_figures_are_given_at_every_width(make_record: MakeRecord) -> None:
    record = make_record()
    narrow = joined(render_details([record], width=70, colour=False))
    assert re.search(r"throughput \d\.\d\d M kernels/s \[\S+, \S+\]", narrow)
    assert re.search(r"ready→start \d\.\d\d µs \[\S+, \S+\] after another stream", narrow)
    # Streams took turns: none of the kernels came behind one of its own stream.
    assert "after the same" not in narrow
    assert re.search(r"\d\.\d\d kernels in flight", narrow)
    assert "memory peak 1.20 GiB" in narrow
    wide = render_details([record], width=250, colour=False)
    heading = line_with(wide, "P50 [95 %]")
    for column in ("P95", "P99", "max", "throughput", "ready→start", "overlap"):
        assert column in heading
    assert "after other" in wide
    assert "after same" not in wide


def switched(record: RunRecord, **changed: object) -> RunRecord:
    """The record with another probe of the device."""
    found = record.metrics.queue_switch
    assert found is not None
    overhead = dataclasses.replace(found.overhead, **changed)  # type: ignore[arg-type]
    probe = dataclasses.replace(found, overhead=overhead)
    metrics = record.metrics.model_copy(update={"queue_switch": probe})
    return record.model_copy(update={"metrics": metrics})


def test_queue_switch_is_the_devices_and_said_once(make_record: MakeRecord) -> None:
    records = [
        switched(make_record(name, streams=streams), difference=value, interval=(1.0, 9.0))
        for name, streams, value in (
            ("a", 8, 3.0), ("b", 8, 2.0), ("c", 8, 2.5), ("a", 16, 4.0), ("a", 1, 77.7),
        )
    ]  # fmt: skip
    text = joined(render_details(records, width=100, colour=False))
    assert text.count("queue switch") == 1
    assert "against one, of a probe (50 µs kernels): 2.50 µs [2.00, 3.00]" in text
    assert "(middle and range of 3 cells) on 8 streams; 4.00 µs [1.00, 9.00] on 16 streams" in text
    assert "77.7" not in text


def test_a_refused_queue_switch_has_its_reason(make_record: MakeRecord) -> None:
    reason = {"difference": "the streams are threads"}
    records = [
        switched(make_record(streams=n), difference=None, interval=None, refused=reason)
        for n in (2, 4)
    ]
    text = joined(render_details(records, width=100, colour=False))
    assert "— (the streams are threads) on 2, 4 streams" in text


def test_delays_of_a_timeline_that_is_wrong_are_refused(make_record: MakeRecord) -> None:
    record = make_record()
    found = record.metrics.ready_to_start
    assert found is not None
    side = dataclasses.replace(
        found.other_stream_before.first, median=None, refused={"median": "9 of 9 kernels early"}
    )
    split = dataclasses.replace(found.other_stream_before, first=side)
    changed = dataclasses.replace(found, other_stream_before=split)
    metrics = record.metrics.model_copy(update={"ready_to_start": changed})
    text = joined(
        render_details([record.model_copy(update={"metrics": metrics})], width=80, colour=False)
    )
    assert "— after another stream" in text
    assert "ready→start after another stream refused for the cell: 9 of 9 kernels early" in text


def test_settings_that_vary_are_columns_and_others_stand_above(make_record: MakeRecord) -> None:
    records = [
        make_record(cell={"dispatch": dispatch, "scheduler": "stream-priority"})
        for dispatch in ("eager", "graph")
    ]
    text = render_details(records, width=160, colour=False)
    assert "dispatch" in line_with(text, "P50")
    assert "scheduler" not in line_with(text, "P50")
    assert "8 streams · scheduler stream-priority · size full" in text


def test_device_and_kind_of_latency_are_in_the_title(make_record: MakeRecord) -> None:
    text = render_details([make_record()], width=100, colour=False)
    assert text.startswith("latency_sensitive on NVIDIA H200 (cuda): latency per iteration")
    record = make_record()
    assert record.samples is not None
    samples = record.samples.model_copy(update={"host_ns": []})
    events = record.model_copy(update={"samples": samples})
    assert "latency per iteration, device time, from events" in render_details(
        [events], width=100, colour=False
    )


def test_a_process_that_died_does_not_hide_the_device(make_record: MakeRecord) -> None:
    died = make_record(streams=1, status="timeout", reason="ended after 300 s", fingerprint=None)
    text = render_details([died, make_record()], width=100, colour=False)
    assert text.startswith("latency_sensitive on NVIDIA H200 (cuda): ")
    assert "unknown device (cuda)" in render_details([died], width=100, colour=False)


def test_tests_of_ones_own_are_named_without_their_common_file(make_record: MakeRecord) -> None:
    names = ("tests/test_mine.py::test_a", "tests/test_mine.py::test_b[x]")
    records = [make_record(name, family=None) for name in names]
    text = render_details(records, width=120, colour=False)
    assert text.startswith("your own tests in tests/test_mine.py on NVIDIA H200")
    assert "tests/test_mine.py::" not in text
    assert "test_b[x]" in text


def test_a_unit_is_in_the_heading_only_if_all_times_share_it(make_record: MakeRecord) -> None:
    one = render_details([make_record(median_ns=2e6)], width=120, colour=False).split("\n")
    assert one[4].split()[0] == "ms"
    # The second cell's P99 is refused, so the column has one unit, but its neighbours have two.
    records = [make_record(median_ns=430e3), make_record("other", median_ns=2e6, n=100)]
    two = render_details(records, width=120, colour=False)
    assert re.search(r"432 µs \[.*\] +\d+ µs +\d+ µs \[", line_with(two, "tiny_kernel"))


def test_p999_has_a_column_only_where_some_cell_has_it(make_record: MakeRecord) -> None:
    assert "P99.9" not in render_details([make_record(n=1000)], width=250, colour=False)
    assert "P99.9" in render_details([make_record(n=4000)], width=250, colour=False)


def test_a_sweep_of_streams_has_a_table_of_its_own(session_records: list[RunRecord]) -> None:
    text = render_details(session_records, width=120, colour=False)
    assert "Weak scaling of tiny_kernel_stress over streams: cuda, scheduler native" in text
    assert text.count(" scaling of ") == 1
    after = text[text.index("Weak scaling of") :]
    assert re.search(r"^ +8 +7\.31 .* 8\.00× .* saturated$", after, re.MULTILINE)
    assert "Saturated from 8 streams on (8 in 95 % of resamples)" in after
    assert joined(after).count("Weak scaling: each stream brings its own work") == 1


def test_a_sweep_says_why_it_found_no_saturation(make_record: MakeRecord) -> None:
    records = [make_record(streams=n, n=20, traced=False) for n in (2, 4)]
    text = joined(render_details(records, width=80, colour=False))
    assert "Saturation —: needs at least 50 iterations at each count, has 20" in text


def test_cells_that_differ_otherwise_are_no_sweep(make_record: MakeRecord) -> None:
    records = [
        make_record(streams=1),
        make_record(streams=2, cell={"parameters": {"mm_dim": 2048}, "variant": "mm_dim=2048"}),
    ]
    assert " scaling of " not in render_details(records, width=120, colour=False)


def test_a_sweep_that_cannot_be_computed_says_so(make_record: MakeRecord) -> None:
    records = [make_record(streams=n) for n in (1, 2)]
    assert records[1].samples is not None
    records[1].samples.host_ns[0] = 0
    text = joined(render_details(records, width=100, colour=False))
    assert "cannot be told: iteration durations must be finite and above 0 ns" in text


def test_the_legend_has_three_entries_at_most(session_records: list[RunRecord]) -> None:
    text = render_details(session_records, width=80, colour=False)
    legend = text.split("\n\n")[-1].split("\n")
    entries = [line[:12].strip() for line in legend if not line.startswith(" ")]
    assert entries == ["[low, high]", "queue switch", "ready→start"]


def test_colour_is_only_written_if_wanted(session_records: list[RunRecord]) -> None:
    plain = render_details(session_records, width=100, colour=False)
    coloured = render_details(session_records, width=100, colour=True)
    assert "\x1b" not in plain
    bare = re.sub(r"\x1b\[[\d;]*m", "", coloured)
    assert [line.rstrip() for line in bare.split("\n")] == plain.split("\n")


def test_no_records_no_text() -> None:
    assert render_details([], width=80, colour=False) == ""


@given(st.text(st.characters(codec="ascii", exclude_categories=["Cc"])), st.integers(4, 40))
def test_a_folded_name_fits_and_loses_nothing(name: str, widest: int) -> None:
    name = name.strip()
    lines = fold(name, widest)
    assert all(len(line) <= widest for line in lines)
    assert "".join(lines).replace(" ", "") == name.replace(" ", "")
