"""A session of many cells holds none of their records, in memory or in ``session.json``."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from tests.conftest import slow

if TYPE_CHECKING:
    from tests.conftest import RunInProcess, Sessions

CELLS = 6
MODULE = f"""
import pytest
@pytest.mark.parametrize("value", range({CELLS}))
def test_cell(hwq, value, request):
    hwq.measure(lambda: None)
    # The worker keeps no more than the report of this test's set-up.
    kept = request.config.pluginmanager.get_plugin("terminalreporter").stats
    assert sum(map(len, kept.values())) == 1
"""
# Counts the records that live in the session's process, when each test has been reported.
CONFTEST = """
import gc
held = []
def pytest_runtest_logfinish():
    from pytest_hwqueue.data.records.cell import RunRecord
    gc.collect()
    held.append(sum(isinstance(each, RunRecord) for each in gc.get_objects()))
def pytest_terminal_summary(terminalreporter):
    terminalreporter.write_line(f"held: {held}")
"""
FAST = (
    "--hwq-device=sim:h200", "--hwq-streams=1", "--hwq-iterations=20", "--hwq-json=out.json",
)  # fmt: skip


@pytest.mark.parametrize("runs", [slow(1), 2])
def test_records_are_on_disk_and_nowhere_else(
    pytester: pytest.Pytester, sessions: Sessions, runs: int
) -> None:
    pytester.makepyfile(MODULE)
    pytester.makeconftest(CONFTEST)
    result = sessions.result(pytester.path, *FAST, *([f"--hwq-runs={runs}"] * (runs > 1)))
    result.assert_outcomes(passed=CELLS)
    assert f"held: {[0] * CELLS}" in result.outlines

    (file,) = pytester.path.glob(".hwqueue/*/session.json")
    session = json.loads(file.read_text())
    assert session["schema"] == "pytest-hwqueue/session-files/2"
    assert session["records"] == []
    assert len(set(session["files"])) == len(session["files"]) == CELLS * runs
    # The user's file has them all, in the same order.
    whole = json.loads((pytester.path / "out.json").read_text())
    assert whole["schema"] == "pytest-hwqueue/session/2"
    assert whole["session"] == session["session"]
    stored = [json.loads((file.parent / name).read_text()) for name in session["files"]]
    assert [(each["cell"], each["started"]) for each in whole["records"]] == [
        (each["cell_id"], each["started"]) for each in stored
    ]


def test_a_record_lost_before_the_end_fails_the_session(
    pytester: pytest.Pytester, run_in_process: RunInProcess
) -> None:
    pytester.makepyfile(
        """
        from pathlib import Path
        def test_one(hwq): hwq.measure(lambda: None)
        def test_two(hwq):
            hwq.measure(lambda: None)
            next(Path(".hwqueue").glob("*/*test_one*.json")).unlink()
        """
    )
    result = run_in_process(*FAST)
    result.assert_outcomes(passed=2)
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.fnmatch_lines(["hwqueue: measured, but lost since: cannot read *test_one*"])
    assert len(json.loads((pytester.path / "out.json").read_text())["records"]) == 1


def test_ctrl_c_while_tables_are_written_ends_in_one_line(
    pytester: pytest.Pytester, run_in_process: RunInProcess
) -> None:
    pytester.makepyfile("def test_one(hwq): hwq.measure(lambda: None)")
    pytester.makeconftest("def pytest_terminal_summary(): raise KeyboardInterrupt")
    result = run_in_process(*FAST)
    assert result.ret == pytest.ExitCode.INTERRUPTED
    result.stderr.fnmatch_lines(
        ["Exit: interrupted while the session was reported; records: */.hwqueue/*"]
    )
    (file,) = pytester.path.glob(".hwqueue/*/session.json")
    assert json.loads(file.read_text())["session"]["finished"]


# Each costs a function and shapes that no other has.
COSTED_ANEW = """
import gc
import pytest
import torch
seen = []
@pytest.mark.parametrize("value", range(6))
def test_cell(hwq, value):
    hwq.measure(lambda: torch.empty(value + 1) + 1)
    gc.collect()
    seen.append(len(gc.get_objects()))
    assert value < 4 or seen[-1] <= seen[-2]
"""


def test_what_a_worker_collects_garbage_among_does_not_grow(
    pytester: pytest.Pytester, sessions: Sessions
) -> None:
    pytester.makepyfile(COSTED_ANEW)
    sessions.result(pytester.path, *FAST).assert_outcomes(passed=6)


SCENARIO = """\
name: NAME
duration: 100ms
schedulers: {threads: [native, stream-priority]}
tenants: [{name: high, workload: large_gemm_only, arrival: "constant: 100/s", priority: 1}]
goals: [high.throughput >= 1/s]
"""
# Likewise; a file's tests share what was measured, the next file's need none of it.
COUNTS_COLOCATIONS = CONFTEST.replace("records.cell", "records.tenants").replace(
    "RunRecord", "ColocationRecord"
)


def test_records_of_tenants_are_kept_for_one_file_at_a_time(
    pytester: pytest.Pytester, run_in_process: RunInProcess
) -> None:
    for name in ("one", "two", "three"):
        (pytester.path / f"{name}.hwq.yaml").write_text(SCENARIO.replace("NAME", name))
    pytester.makeconftest(COUNTS_COLOCATIONS)
    result = run_in_process("--hwq-isolation=process", "--hwq-device=sim:h200", "--hwq-size=tiny")
    # Of its first test until its second is done.
    assert "held: [1, 0, 1, 0, 1, 0]" in result.outlines, result.outlines
    result.assert_outcomes(passed=6)
