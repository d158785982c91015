"""``env``: variables are proven in what processes were started with, and by the driver's word."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from pytest_hwqueue.cli.main import main
from pytest_hwqueue.data.errors import NotProven
from pytest_hwqueue.data.records.cell import read_record
from pytest_hwqueue.parts.schedulers.inside_evidence import InsideEvidence
from pytest_hwqueue.parts.schedulers.syntax import TenantRequest, open_scheduler

MODE = "env:CUDA_MODULE_LOADING=EAGER,DEPTH=4"


@pytest.fixture(name="started")
def started_process() -> Iterator[subprocess.Popen[bytes]]:
    mode = open_scheduler(MODE)
    environment = {**os.environ, **mode.environment(TenantRequest("high"))}
    code = "import sys; print(flush=True); sys.stdin.read()"
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()
        yield process


def evidence(loading: str | None) -> dict[str, InsideEvidence]:
    return {"high": InsideEvidence([], [0], module_loading=loading)}


def test_a_process_that_was_started_with_the_variables_is_proven(
    started: subprocess.Popen[bytes],
) -> None:
    mode, pids = open_scheduler(MODE), {"high": started.pid}
    proof = mode.proof(pids, evidence("eager"))
    assert proof.mode == MODE
    assert proof.evidence == "set in what high was started with; the driver loads modules eager"
    # A device without that driver.
    assert mode.proof(pids, evidence(None)).evidence.endswith("; nothing tells the effect")


def test_what_the_driver_did_not_take_is_not_proven(started: subprocess.Popen[bytes]) -> None:
    with pytest.raises(NotProven, match="tenant high loads modules lazy"):
        open_scheduler(MODE).proof({"high": started.pid}, evidence("lazy"))


@pytest.mark.parametrize(
    ("text", "said"),
    [("env:DEPTH=5", "DEPTH '4'"), ("env:DEPHT=4", "DEPHT 'unset'")],
)
def test_a_process_without_the_variable_is_not_proven(
    started: subprocess.Popen[bytes], text: str, said: str
) -> None:
    with pytest.raises(NotProven, match=said):
        open_scheduler(text).proof({"high": started.pid}, evidence(None))


def test_a_process_that_has_ended_is_not_proven() -> None:
    with subprocess.Popen([sys.executable, "-c", ""]) as process:
        pass
    with pytest.raises(NotProven, match="was started with cannot be read"):
        open_scheduler(MODE).proof({"high": process.pid}, evidence(None))


def test_a_mode_without_a_variable_is_pointless() -> None:
    assert "name a variable" in str(open_scheduler("env").unavailable("cpu", [TenantRequest("a")]))


def test_a_test_runs_under_each_value(tmp_path: Path) -> None:
    result = CliRunner().invoke(main, [
        "run", "tiny_kernel_stress", "--device", "cpu", "--size", "tiny", "--streams", "1",
        "--scheduler", "env:DEPTH=1|2", "--iterations", "50", "--dir", str(tmp_path),
    ])  # fmt: skip
    assert result.exit_code == 0, result.output
    records = [read_record(path) for path in sorted(tmp_path.rglob("tiny_*.json"))]
    assert [record.cell.scheduler for record in records] == ["env:DEPTH=1", "env:DEPTH=2"]
    for record in records:
        assert record.scheduler_proof is not None
        assert record.scheduler_proof.evidence.startswith("set in what cell was started with")
