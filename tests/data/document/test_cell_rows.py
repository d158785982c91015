"""Rows of launching calls: the driver's figures, or whose they are in their place."""

from __future__ import annotations

from pathlib import Path

import pytest

from pytest_hwqueue.data.document.cell_rows import CellRows
from pytest_hwqueue.data.document.document import Row
from pytest_hwqueue.data.document.notes import Notes
from pytest_hwqueue.parts.workloads.registry import workload_class
from tests.parts.devices.simulated.test_truth_launching import planted
from tests.parts.workloads.cells import measured


def rows(folder: Path, interpreter_ns: int) -> list[Row]:
    device = planted(folder, driver_ns=5000, interpreter_ns=interpreter_ns)
    record = measured(workload_class("launch_contention"), 8, device, dispatch="graph")
    return CellRows(record, "it", Notes()).rows({"workload": "launch_contention"}, True)


def lines(row: Row) -> list[str]:
    return [line if isinstance(line, str) else " · ".join(map(str, line)) for line in row.below]


def test_a_row_of_the_driver_has_its_figures_and_how_they_were_taken(tmp_path: Path) -> None:
    head, *series = rows(tmp_path, 100)
    assert {"p50", "p99", "throughput"} <= head.figures.keys()
    assert not head.style
    assert [row.texts["workload"].strip() for row in series] == ["control", "iteration"]
    below = " ".join(lines(series[-1]))
    assert "launched by 8 threads at once, 7.98 of them inside a call" in below
    assert "0 % of P99 without the driver, too" in below


def test_a_row_of_the_interpreter_says_so_in_place_of_the_drivers_figures(tmp_path: Path) -> None:
    head, *series = rows(tmp_path, 4000)
    assert not any(head.figures.get(key) for key in ("p50", "p99", "throughput"))
    assert head.style == "yellow"
    assert lines(head)[0].startswith("interpreter: 63.9 % of this P99 is there without the driver")
    names = [row.texts["workload"].strip() for row in series]
    assert names == ["interpreter", "control", "iteration"]
    assert all({"p50", "p99"} <= row.figures.keys() for row in series)
    assert "63.9 % of P99 without the driver, too" in " ".join(lines(series[-1]))


def test_a_row_whose_latency_nothing_explains_is_still_an_error(tmp_path: Path) -> None:
    device = planted(tmp_path, driver_ns=5000, interpreter_ns=100)
    record = measured(workload_class("launch_contention"), 2, device, dispatch="graph")
    assert record.samples is not None
    metrics = record.metrics.model_copy(update={"latency": None})
    samples = record.samples.model_copy(update={"launching": None})
    broken = record.model_copy(update={"metrics": metrics, "samples": samples})
    (head,) = CellRows(broken, "it", Notes()).rows({"workload": "launch_contention"}, True)
    assert (head.style, lines(head)) == ("red", ["no latency was recorded"])


@pytest.mark.parametrize(("by", "words"), [("processes", "launched by 8 processes at once")])
def test_processes_are_called_so(tmp_path: Path, by: str, words: str) -> None:
    device = planted(tmp_path, driver_ns=5000, interpreter_ns=100)
    record = measured(workload_class("launch_contention"), 8, device, dispatch="graph")
    assert record.samples is not None
    assert record.samples.launching is not None
    assert str(record.samples.launching.model_copy(update={"by": by})).startswith(words)


@pytest.mark.parametrize(
    ("changed", "has_waits"),
    [
        ({"launchers": 8, "launches": 800, "most_held": 100}, True),
        ({"launchers": 64, "launches": 6400, "most_held": 12}, True),
        ({"launchers": 4, "launches": 400, "most_held": 200}, False),
        ({"launchers": 4, "launches": 3200, "most_held": 800, "by": "processes"}, False),
        # There no rate of the driver is given.
        ({"launchers": 64, "launches": 6400, "most_held": 12, "refused": "cores: few"}, False),
        ({"launchers": 64, "launches": 6400, "most_held": 12, "clock_ns": None}, False),
    ],
)
def test_a_rate_with_waits_in_it_says_so(
    tmp_path: Path, changed: dict[str, object], has_waits: bool
) -> None:
    device = planted(tmp_path, driver_ns=5000, interpreter_ns=100)
    record = measured(workload_class("launch_contention"), 8, device, dispatch="graph")
    assert record.samples is not None
    assert record.samples.launching is not None
    found = record.samples.launching.model_copy(update={"clock_ns": 70, **changed})
    assert str(found).endswith("; the rate has their waits for their streams in it") == has_waits
