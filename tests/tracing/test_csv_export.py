"""The CSV, read back."""

from __future__ import annotations

import csv
from pathlib import Path

from pytest_hwqueue.metrics.cpu_events import Interrupt, OffCpu
from pytest_hwqueue.tracing.csv_export import COLUMNS, LaunchCall, SyncCall, write_csv

T0 = 10**15


def written(path: Path) -> list[dict[str, str]]:
    rows = write_csv(
        path,
        7,
        {8: "python"},
        launches=[
            LaunchCall(T0 + 50, "cudaLaunchKernel", 8, (1, 2, 3), (32, 1, 1), 0, 0x7F),
            LaunchCall(T0, "hipLaunchKernel", 9),
        ],
        syncs=[SyncCall(T0 + 60, T0 + 95, 8)],
        off_cpu=[
            OffCpu(8, 0, 1, T0 + 70, T0 + 90, "waited"),
            OffCpu(9, None, 0, T0 - 5, T0 + 10, None),
        ],
        interrupts=[Interrupt(8, 1, T0 + 20, T0 + 45, "softirq", 3, "NET_RX"),
                    Interrupt(8, 1, T0 + 30, T0 + 33, "vector", 236, "local_timer")],
    )  # fmt: skip
    with path.open(encoding="utf-8", newline="") as file:
        read = list(csv.DictReader(file))
    assert rows == len(read)
    return read


def test_rows_are_in_order_of_time_from_the_first(tmp_path: Path) -> None:
    rows = written(tmp_path / "trace.csv")
    assert [(int(row["timestamp_ns"]), row["event_type"]) for row in rows] == [
        (0, "hipLaunchKernel"),
        (10, "schedSwitch"),
        (20, "softirqEntry"),
        (30, "hardirqEntry"),
        (33, "hardirqExit"),
        (45, "softirqExit"),
        (50, "cudaLaunchKernel"),
        (60, "syncEnter"),
        (70, "schedSwitch"),
        (90, "schedSwitch"),
        (95, "syncExit"),
    ]
    assert tuple(rows[0]) == COLUMNS
    assert {row["pid"] for row in rows} == {"7"}


def test_what_is_known_stands_there_and_the_rest_is_empty(tmp_path: Path) -> None:
    rows = written(tmp_path / "trace.csv")
    unknown, launch = rows[0], rows[6]
    assert {key for key, value in unknown.items() if value} == {
        "timestamp_ns",
        "event_type",
        "pid",
        "tid",
    }
    assert [launch[f"grid_{axis}"] for axis in "xyz"] == ["1", "2", "3"]
    assert [launch[f"block_{axis}"] for axis in "xyz"] == ["32", "1", "1"]
    assert (launch["shared_mem"], launch["stream"], launch["comm"]) == ("0", "0x7f", "python")
    leaving, back = rows[8], rows[9]
    assert (leaving["last_offcpu_ns"], leaving["last_oncpu_ns"]) == (str(T0 + 70), "0")
    assert (back["last_offcpu_ns"], back["last_oncpu_ns"]) == ("0", str(T0 + 90))
    assert (leaving["cpu"], back["cpu"]) == ("0", "1")
    assert (rows[2]["duration_ns"], rows[5]["duration_ns"]) == ("", "25")
    assert (rows[3]["irq_num"], rows[3]["irq_name"]) == ("236", "local_timer")


def test_nothing_to_write_is_a_header(tmp_path: Path) -> None:
    assert write_csv(tmp_path / "empty.csv", 1, {}) == 0
    assert (tmp_path / "empty.csv").read_text() == ",".join(COLUMNS) + "\n"
