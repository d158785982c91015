"""What a test sets in torch is its own: the next test is measured without it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from tests.conftest import RunInProcess, Sessions

FAST = ("--hwq-iterations=20", "--hwq-max-time=2", "--hwq-warmup=2", "--hwq-device=sim:h200",
        "--hwq-streams=2", "--hwq-json=s.json")  # fmt: skip
TESTS = """
import os, pytest, torch

@pytest.fixture
def leaking():
    torch.backends.cuda.enable_flash_sdp(False)

@pytest.fixture(autouse=True)
def process():
    with open("pids", "a") as file:
        print(os.getpid(), file=file)

def step():
    return sum(range(100))

def changes():
    torch.set_float32_matmul_precision("high")

def test_workload(hwq): hwq.run("large_gemm_only", dtype="tf32")
def test_puts_back(hwq, monkeypatch):
    monkeypatch.setattr(torch.backends.cudnn, "benchmark", True)
    hwq.measure(step)
def test_cell(hwq): hwq.measure(changes)
def test_body(hwq):
    hwq.measure(step, name="before")
    torch.backends.cudnn.allow_tf32 = False
    torch.set_default_dtype(torch.float64)
    hwq.measure(step, name="after")
def test_fixture(hwq, leaking): hwq.measure(step)
def test_no_grad(hwq):
    with torch.no_grad():
        hwq.measure(step)
class TestShared:
    @pytest.fixture(scope="class", autouse=True)
    def shared(self):
        torch.set_num_threads(torch.get_num_threads() + 1)
    def test_one(self, hwq): hwq.measure(step)
    def test_two(self, hwq): hwq.measure(step)
def test_last(hwq): hwq.measure(step)
"""
NOTE = "torch's settings changed in this test: "


def notes(folder: Path) -> list[str]:
    records: list[dict[str, Any]] = json.loads((folder / "s.json").read_text())["records"]
    return [
        next((each for each in record["notes"] if each.startswith(NOTE)), "") for record in records
    ]


def test_who_changes_torch_says_so_and_the_next_gets_a_fresh_process(
    sessions: Sessions, tmp_path: Path
) -> None:
    (tmp_path / "test_users.py").write_text(TESTS)
    sessions.result(tmp_path, *FAST).assert_outcomes(passed=9)
    pids = (tmp_path / "pids").read_text().split()
    workload, puts_back, cell, body, fixture, no_grad, one, two, last = pids
    # The suite's own workloads put back what they set, and cost no process.
    assert workload == puts_back == cell
    # A fixture of a class sets it for all tests of that class.
    assert no_grad == one == two
    assert len({cell, body, fixture, no_grad, last}) == 5

    found = notes(tmp_path)
    fresh = "; the next test gets a fresh process, unless this one puts them back"
    assert found[0] == ""
    assert found[1] == f"{NOTE}cudnn_benchmark False -> True{fresh}"
    assert found[2].startswith(f"{NOTE}float32_matmul_precision highest -> high, ")
    assert found[3] == ""
    assert found[4].startswith(f"{NOTE}default_dtype torch.float32 -> torch.float64, ")
    assert found[4].endswith(fresh)
    assert found[6:] == ["", "", "", ""]


def test_in_one_process_a_cell_says_that_the_next_has_what_it_set(
    pytester: pytest.Pytester, run_in_process: RunInProcess
) -> None:
    pytester.makepyfile(
        """
        import torch
        def test_mine(hwq):
            hwq.measure(lambda: None, name="before")
            torch.backends.mha.set_fastpath_enabled(False)
            hwq.measure(lambda: None, name="after")
            torch.backends.mha.set_fastpath_enabled(True)
        """
    )
    run_in_process(*FAST).assert_outcomes(passed=1)
    assert notes(pytester.path) == [
        "",
        f"{NOTE}mha_fastpath_enabled True -> False; what this process measures next has them, too "
        "(--hwq-isolation=none)",
    ]
