"""What a person sees at the end of a session, at 80 and 120 columns."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from rich.cells import cell_len

from pytest_hwqueue.records.files import RECORDS_FOLDER
from pytest_hwqueue.settings.options import OPTIONS

SUITE = Path(__file__).resolve().parents[2] / "benchmarks" / "test_latency_sensitive.py"
ARGUMENTS = (
    str(SUITE), "--import-mode=importlib", "--hwq-device=sim:h200", "--hwq-size=tiny",
    "--hwq-workload=large_gemm_only", "-p", "no:cacheprovider",
)  # fmt: skip


@pytest.fixture(autouse=True)
def _no_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    for option in OPTIONS:
        monkeypatch.delenv(option.variable, raising=False)


def tables(result: pytest.RunResult) -> list[str]:
    """The lines of our tables."""
    start = next(n for n, line in enumerate(result.outlines) if " hardware queues " in line)
    return result.outlines[start + 1 : -1]


@pytest.mark.parametrize("columns", [80, 120])
def test_a_session_has_a_line_for_each_cell(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, columns: int
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    result = pytester.runpytest_subprocess(
        *ARGUMENTS, "--hwq-streams=1,4,8", "--hwq-isolation=none"
    )
    assert result.ret == 0
    lines = tables(result)
    records = next(n for n, line in enumerate(lines) if line.startswith("records: "))
    assert max(map(cell_len, lines[:records])) <= columns
    assert lines[0].startswith("3 cells of ") or lines[0].startswith("3 cells on simulated")
    for streams in (1, 4, 8):
        (line,) = (line for line in lines if line.startswith(f"large_gemm_only s{streams} "))
        assert re.search(r" 1000 .* \[[\d.]+, [\d.]+\] .*\d", line)
    assert records < 16
    assert "details: -v" in lines[records]
    assert (pytester.path / RECORDS_FOLDER / ".gitignore").exists()


@pytest.mark.slow
def test_a_comparison_adds_the_change_and_expands_what_did_not_pass(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    short = (*ARGUMENTS, "--hwq-streams=4", "--hwq-samples=400")
    assert pytester.runpytest_subprocess(*short, "--hwq-save=main", "--hwq-runs=4").ret == 0
    slower = pytester.runpytest_subprocess(
        *short, "--hwq-compare=main", "--hwq-fault=slower:30", "--hwq-causes=never"
    )
    assert slower.ret == 1
    lines = tables(slower)
    (line,) = (line for line in lines if line.startswith("large_gemm_only "))
    assert re.search(r"\] .* \+\d\d\.\d$", line)
    assert any(re.match(r"large_gemm_only\[.* regression$", line) for line in lines)
