"""`hwq sweep`: which workloads, on how many streams."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from click.testing import CliRunner, Result

from pytest_hwqueue import suite
from pytest_hwqueue.cli.main import main
from pytest_hwqueue.workloads.registry import WORKLOADS


def invoke(*arguments: str) -> Result:
    return CliRunner().invoke(main, arguments, prog_name="hwq", env={"COLUMNS": "200"})


def plugin_options(started: list[list[str]]) -> list[str]:
    (command,) = started
    return [argument for argument in command if argument.startswith("--hwq-")]


def test_all_means_every_mark(started: list[list[str]]) -> None:
    assert invoke("sweep", "all").exit_code == 0

    assert plugin_options(started) == ["--hwq-streams=1,2,4,8,16", "--hwq-priority=P0,P1,P2,P3"]
    # A file that cannot be imported costs no other file's cells.
    assert {"pytest_hwqueue.plugin.session_reports", "--continue-on-collection-errors", "-rs"} <= {
        *started[0]
    }


def test_all_of_some_marks(started: list[list[str]]) -> None:
    assert invoke("sweep", "all", "--priority", "P1", "--streams", "4,8").exit_code == 0

    assert plugin_options(started) == ["--hwq-streams=4,8", "--hwq-priority=P1"]


def test_all_has_no_parameters_of_its_own(started: list[list[str]]) -> None:
    result = invoke("sweep", "all", "--mm-dim", "64")

    assert result.exit_code == 4
    assert "options where it is named alone" in result.output
    assert not started


def test_all_selects_every_workload_and_nothing_else(tmp_path: Path) -> None:
    found = subprocess.run(
        [sys.executable, "-m", "pytest_hwqueue", "sweep", "all", "--streams", "4", "--device",
         "sim:h200", "--", "--collect-only", "-q"],
        cwd=tmp_path, capture_output=True, text=True, timeout=180, check=False,
        env={**suite.pytest_environment(), "PYTHONPATH": str(Path(suite.__file__).parents[1])},
    )  # fmt: skip

    assert found.returncode == 0, found.stdout + found.stderr
    tests = [line for line in found.stdout.splitlines() if "::" in line]
    assert sorted(line.partition("[")[0].rpartition("::test_")[2] for line in tests) == sorted(
        WORKLOADS
    )
