"""A long session opens nothing that it does not close, and leaves no temporary file."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.conftest import Sessions

_CELLS = """
import pytest

@pytest.mark.parametrize("value", range(30))
def test_cell(hwq, value):
    hwq.measure(lambda: None)
"""
_PIECE = """
name: piece_{number}
duration: 20s
schedulers:
  threads: [stream-priority]
tenants:
  - {{name: high, workload: tiny_kernel_stress, arrival: "poisson: 1/s", priority: 1}}
  - {{name: low, workload: tiny_kernel_stress, arrival: "poisson: 0.5/s", priority: 0}}
"""
# In the session's process and in the worker's alike.
_CONFTEST = """
import os

def pytest_runtest_logreport(report):
    if report.when == "teardown":
        with open(f"{os.getpid()}.opened", "a") as file:
            print(len(os.listdir("/proc/self/fd")), file=file)
"""


@pytest.mark.slow
def test_nothing_stays_open(
    pytester: pytest.Pytester,
    sessions: Sessions,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    pytester.makeconftest(_CONFTEST)
    pytester.makepyfile(test_cells=_CELLS)
    for number in range(4):
        (pytester.path / f"piece_{number}.hwq.yaml").write_text(_PIECE.format(number=number))
    result = sessions.result(
        pytester.path, "--hwq-device=sim:h200", "--hwq-streams=1", "--hwq-iterations=20"
    )
    result.assert_outcomes(passed=34)
    files = list(pytester.path.glob("*.opened"))
    opened = sorted((list(map(int, file.read_text().split())) for file in files), key=len)
    # Scenarios run in the session's own process.
    assert [len(each) for each in opened] == [30, 34]
    for each in opened:
        assert max(each[15:30]) <= max(each[:15]), each
    assert max(opened[1][32:]) <= max(opened[1][30:32])
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []
