"""The tables of a session under noise have what the traced pass saw, and say what was not kept."""

from __future__ import annotations

from dataclasses import replace
from itertools import accumulate
from pathlib import Path

from pytest_hwqueue.data.document.notes import Notes
from pytest_hwqueue.data.metrics.cpu_events import Interrupt, OffCpu, interrupt_times, launch_pairs
from pytest_hwqueue.data.records.cell import RunRecord, read_record
from pytest_hwqueue.data.records.noise import Causes
from tools.noise_table import _interrupt_rows, _traced_rows

STORED = Path(__file__).parents[2] / "baselines" / "nvidia-h200" / "noise" / "causes"
US = 1000


def planted(record: RunRecord) -> RunRecord:
    """A record whose traced pass saw 2000 gaps of 10 µs, and 1000 of 500 with a switch."""
    gaps = [500 * US if place % 3 == 0 else 10 * US for place in range(3000)]
    at = list(accumulate(gaps, initial=0))
    off_cpu = [OffCpu(1, 0, 0, each, each + US, "preempted") for each in at[:-1:3]]
    interrupts = [
        Interrupt(1, 0, begin * US, end * US, "softirq", 3, "NET_RX", "hardirq eth0")
        for begin, end in ((0, 10), (100, 130))
    ]
    data = {
        "launch_pairs": launch_pairs({1: at}, off_cpu),
        "interrupts": [*interrupt_times(interrupts, 4_000_000)],
    }
    assert record.causes is not None
    causes = Causes.model_validate(dict(record.causes) | data)
    return record.model_copy(update={"causes": causes})


def test_gaps_have_three_percentiles_a_side_and_interrupts_a_row_a_type() -> None:
    record = planted(read_record(next(STORED.glob("*beside-cpu*.json"))))
    notes = Notes()
    (row,) = _traced_rows({"cpu": [record]}, notes)
    assert row[:5] == [
        "cpu",
        "2,000 / 1,000",
        "10.0 / 10.0 / 10.0",
        "500 / 500 / 500",
        "490 [490, 490]",
    ]
    (types,) = _interrupt_rows({"cpu": [record]}, notes)
    assert types == ["cpu", "softirq", "NET_RX", "2", "0.0400", "20.0", "30.0", "1.00 %",
        "hardirq eth0 2",
    ]  # fmt: skip


def test_what_a_record_did_not_keep_is_refused() -> None:
    record = planted(read_record(next(STORED.glob("*beside-cpu*.json"))))
    causes = record.causes
    assert causes is not None
    assert causes.launch_pairs is not None
    assert causes.interrupts is not None
    kept = {
        "launch_pairs": replace(causes.launch_pairs, gaps_without_switch={}),
        "interrupts": [replace(each, max_ns=None) for each in causes.interrupts],
    }
    record = record.model_copy(update={"causes": causes.model_copy(update=kept)})
    notes = Notes()
    (row,) = _traced_rows({"cpu": [record]}, notes)
    assert row[2].endswith(" / — / —")
    rows = _interrupt_rows({"cpu": [record]}, notes)
    assert {each[6] for each in rows} == {"—"}
    said = notes.lines(len(rows))
    assert "P90 and P99 of gaps refused for the cell: they were not kept" in said
    assert any(line.startswith("max refused for") for line in said)
