"""What a person sees at the end of a session, at 80 and 120 columns."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from rich.cells import cell_len

from pytest_hwqueue.data.records.files import RECORDS_FOLDER

if TYPE_CHECKING:
    from tests.conftest import RunInProcess

SUITE = Path(__file__).resolve().parents[2] / "benchmarks" / "test_latency_sensitive.py"
ARGUMENTS = (
    str(SUITE), "--import-mode=importlib", "--hwq-device=sim:h200", "--hwq-size=tiny",
    "--hwq-workload=large_gemm_only", "-p", "no:cacheprovider", "--hwq-samples=400",
)  # fmt: skip


def tables(result: pytest.RunResult) -> list[str]:
    """The lines of our tables."""
    start = next(n for n, line in enumerate(result.outlines) if " hardware queues " in line)
    return result.outlines[start + 1 : -1]


@pytest.mark.parametrize("columns", [80, 120])
def test_a_session_has_a_line_for_each_cell(
    pytester: pytest.Pytester,
    run_in_process: RunInProcess,
    monkeypatch: pytest.MonkeyPatch,
    columns: int,
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    result = run_in_process(*ARGUMENTS, "--hwq-streams=1,4,8")
    assert result.ret == 0
    lines = tables(result)
    records = next(n for n, line in enumerate(lines) if line.startswith("records: "))
    assert max(map(cell_len, lines[:records])) <= columns
    assert lines[0].startswith(("3 cells of ", "3 cells on simulated"))
    for streams in (1, 4, 8):
        (line,) = (line for line in lines if line.startswith(f"large_gemm_only s{streams} "))
        # So few windows on 8 streams leave P99 no interval, and its place says so.
        assert re.search(r" \d+ .* \[(—|[\d.]+, [\d.]+)\] .*\d", line)
        assert streams == 8 or "—" not in line
    # With a line for the streams in flight, and one for the device's limits.
    assert records < 19
    assert any(line.startswith("of the device's limits: ") for line in lines)
    assert "details: -v" in lines[records]
    assert (pytester.path / RECORDS_FOLDER / ".gitignore").exists()


def test_a_cell_without_a_baseline_has_its_share_of_the_devices_limits(
    run_in_process: RunInProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    (option,) = (each for each in ARGUMENTS if each.startswith("--hwq-size"))
    arguments = [each for each in ARGUMENTS if each != option]
    result = run_in_process(
        *arguments, "--hwq-compare=reference", "--hwq-streams=2,4", "--hwq-isolation=process"
    )
    assert result.ret == 0
    lines = tables(result)
    # Of the cell that is compared only what its verdict needs is measured.
    (line,) = (line for line in lines if line.startswith("of the device's limits: "))
    (share,) = re.findall(r"([\d.]+ % matrix fp32) \(large_gemm_only\)", line)
    (said,) = (line for line in lines if line.startswith("no baseline in sim-h200/reference"))
    assert said.endswith(
        f"share of the device's nearest limit: large_gemm_only[sim:h200-s2-native-graph] ({share})"
    )


@pytest.mark.slow
def test_a_comparison_adds_the_change_and_expands_what_did_not_pass(
    run_in_process: RunInProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    short = (*ARGUMENTS, "--hwq-streams=4", "--hwq-isolation=process", "--hwq-causes=never")
    assert run_in_process(*short, "--hwq-save=main", "--hwq-runs=4").ret == 0
    slower = run_in_process(*short, "--hwq-compare=main", "--hwq-fault=slower:30")
    assert slower.ret == 1
    lines = tables(slower)
    (line,) = (line for line in lines if line.startswith("large_gemm_only "))
    assert re.search(r"\] .* \+\d\d\.\d$", line)
    assert any(re.match(r"large_gemm_only\[.* regression$", line) for line in lines)
