"""The CSV, read back."""

from __future__ import annotations

import csv
from pathlib import Path

from pytest_hwqueue.tracing.pictures import COLUMNS, Picture, write_csv

T0 = 10**15


def picture() -> Picture:
    drawn = Picture("CLOCK_MONOTONIC")
    row = drawn.track("process", "row")
    row.add(
        "cudaLaunchKernel", T0 + 50, T0 + 55, "call", tid=8, call=3, launch=2, kernels=1,
        grid=(1, 2, 3), block=(32, 1, 1), shared_mem=0, stream="0x7f",
    )  # fmt: skip
    row.add("hipLaunchKernel", T0, T0, "call", tid=9)
    row.add("waits", T0 + 60, T0 + 95, "wait", tid=8, request=1)
    row.add("waited", T0 + 70, T0 + 90, "switch", tid=8, cpu=0, back_on_cpu=1)
    row.add("off already", T0 - 5, T0 + 10, "switch", tid=9, cpu=None, back_on_cpu=0)
    for start, end, kind, number, name in (
        (20, 45, "softirq", 3, "NET_RX"), (30, 33, "vector", 236, "local_timer"),
    ):  # fmt: skip
        row.add(
            name, T0 + start, T0 + end, "interrupt",
            tid=8, cpu=1, kind=kind, number=number, interrupt=name,
        )  # fmt: skip
    row.add("gemm", T0 + 62, T0 + 92, "kernel", launch=2, call=3, request=1, stream="0x7f")
    drawn.counter("temperature", "°C", T0 + 100, 71)
    return drawn


def written(path: Path) -> list[dict[str, str]]:
    rows = write_csv(path, 7, {8: "python"}, picture())
    with path.open(encoding="utf-8", newline="") as file:
        read = list(csv.DictReader(file))
    assert rows == len(read)
    return read


def test_rows_are_in_order_of_time_on_the_clock_that_they_name(tmp_path: Path) -> None:
    rows = written(tmp_path / "trace.csv")
    assert [(int(row["timestamp_ns"]) - T0, row["event_type"]) for row in rows] == [
        (0, "hipLaunchKernel"),
        (10, "schedSwitch"),
        (20, "softirqEntry"),
        (30, "hardirqEntry"),
        (33, "hardirqExit"),
        (45, "softirqExit"),
        (50, "cudaLaunchKernel"),
        (60, "syncEnter"),
        (62, "kernel"),
        (70, "schedSwitch"),
        (90, "schedSwitch"),
        (95, "syncExit"),
        (100, "counter"),
    ]
    assert tuple(rows[0]) == COLUMNS
    assert {row["pid"] for row in rows} == {"7"}
    assert {row["clock"] for row in rows} == {"CLOCK_MONOTONIC"}


def test_what_is_known_stands_there_and_the_rest_is_empty(tmp_path: Path) -> None:
    rows = written(tmp_path / "trace.csv")
    unknown, launch, kernel = rows[0], rows[6], rows[8]
    assert {key for key, value in unknown.items() if value} == {
        "timestamp_ns", "event_type", "pid", "tid", "clock", "name", "duration_ns",
    }  # fmt: skip
    assert [launch[f"grid_{axis}"] for axis in "xyz"] == ["1", "2", "3"]
    assert [launch[f"block_{axis}"] for axis in "xyz"] == ["32", "1", "1"]
    assert (launch["shared_mem"], launch["stream"], launch["comm"]) == ("0", "0x7f", "python")
    assert (launch["launch"], launch["call"], launch["kernels"]) == ("2", "3", "1")
    assert (kernel["launch"], kernel["call"], kernel["request"]) == ("2", "3", "1")
    assert (kernel["name"], kernel["duration_ns"], kernel["tid"]) == ("gemm", "30", "")
    leaving, back = rows[9], rows[10]
    assert (leaving["last_offcpu_ns"], leaving["last_oncpu_ns"]) == (str(T0 + 70), "0")
    assert (back["last_offcpu_ns"], back["last_oncpu_ns"]) == ("0", str(T0 + 90))
    assert (leaving["cpu"], back["cpu"]) == ("0", "1")
    assert (rows[2]["duration_ns"], rows[5]["duration_ns"]) == ("", "25")
    assert (rows[3]["irq_num"], rows[3]["irq_name"]) == ("236", "local_timer")
    assert (rows[12]["name"], rows[12]["value"]) == ("temperature, °C", "71")


def test_nothing_to_write_is_a_header(tmp_path: Path) -> None:
    assert write_csv(tmp_path / "empty.csv", 1, {}, Picture("virtual")) == 0
    assert (tmp_path / "empty.csv").read_text() == ",".join(COLUMNS) + "\n"
