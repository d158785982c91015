"""Cells that break a real GPU's context: each costs itself only, and the GPU works afterwards."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from pytest_hwqueue.suite import plugin_name

ROOT = Path(__file__).parents[2]

pytestmark = pytest.mark.skipif(
    not torch.cuda.is_available() or torch.version.hip is not None,
    reason="there is no CUDA device",
)

EAGER = """
import torch

def good():
    square = torch.ones(256, 256, device="cuda")
    return lambda: torch.mm(square, square)

def test_before(hwq):
    hwq.measure(good(), streams=2)

def test_kernel_never_ends(hwq):
    hwq.measure(lambda: torch.cuda._sleep(10**14), streams=1)

def test_after_endless_kernel(hwq):
    hwq.measure(good(), streams=2)

def test_illegal_address(hwq):
    values = torch.ones(10, device="cuda")
    beyond = torch.tensor([10**9], device="cuda")
    hwq.measure(lambda: values[beyond], streams=1)

def test_after_illegal_address(hwq):
    hwq.measure(good(), streams=2)

def test_memory_before_measuring(hwq):
    torch.empty(10**12, device="cuda")

def test_memory_while_measuring(hwq):
    hwq.measure(lambda: torch.empty(10**12, device="cuda"), streams=1)

def test_memory_after_measuring(hwq):
    hwq.measure(good(), streams=2)
    torch.empty(10**12, device="cuda")

def test_after_no_memory(hwq):
    hwq.measure(good(), streams=2)
"""

GRAPH = """
import os, signal
import torch

def capturing():
    return torch.cuda.is_current_stream_capturing()

def good():
    square = torch.ones(256, 256, device="cuda")
    return lambda: torch.mm(square, square)

def test_memory_in_capture(hwq):
    hwq.measure(lambda: capturing() and torch.empty(10**12, device="cuda"), streams=1)

def test_waits_in_capture(hwq):
    hwq.measure(lambda: capturing() and torch.cuda.synchronize(), streams=1)

def test_killed_in_capture(hwq):
    hwq.measure(lambda: capturing() and os.kill(os.getpid(), signal.SIGKILL), streams=1)

def test_after_killed_in_capture(hwq):
    hwq.measure(good(), streams=2)
"""


def command(folder: Path, suite: str, *more: str) -> list[str]:
    """Write the suite, and return the command of a session that runs it on the GPU."""
    (folder / "test_it.py").write_text(suite, encoding="utf-8")
    return [
        *(sys.executable, "-m", "pytest", "-p", plugin_name(), "-p", "no:cacheprovider", "-q"),
        *("--rootdir=.", "test_it.py", "--hwq-device=cuda", "--hwq-samples=200"),
        *("--hwq-max-time=1", "--hwq-timeout=20", "--hwq-json=session.json", *more),
    ]


def environment() -> dict[str, str]:
    paths = [str(ROOT), os.environ.get("PYTHONPATH", "")]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))}


def session(folder: Path, suite: str, *more: str) -> subprocess.CompletedProcess[str]:
    """Run a suite in a session of its own."""
    return subprocess.run(
        command(folder, suite, *more), cwd=folder, env=environment(), text=True, timeout=300,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False,
    )  # fmt: skip


def cells(folder: Path) -> dict[str, tuple[str, str]]:
    """Status and reason of each test's cell."""
    found: list[dict[str, Any]] = json.loads((folder / "session.json").read_text())["records"]
    return {
        each["nodeid"].split("::")[-1].split("[")[0]: (each["status"], each["reason"])
        for each in found
    }


def free_bytes() -> int:
    """Free memory of the GPU, once what has ended has been cleaned up."""
    time.sleep(2)
    return torch.cuda.mem_get_info()[0]


def test_what_breaks_a_context_costs_its_own_cell(tmp_path: Path) -> None:
    before_bytes = free_bytes()
    done = session(tmp_path, EAGER, "--hwq-dispatch=eager")
    found = cells(tmp_path)
    print(done.stdout, *found.items(), sep="\n")  # shown if this fails
    # The test that runs out of memory after its cell was measured fails; its cell is sound.
    assert "5 failed, 4 passed" in done.stdout
    good = ("test_before", "test_after_endless_kernel", "test_after_illegal_address",
            "test_memory_after_measuring", "test_after_no_memory")  # fmt: skip
    assert {found[name][0] for name in good} == {"ok"}
    assert found["test_kernel_never_ends"][0] == "timeout"
    assert "device-side assert" in found["test_illegal_address"][1]
    assert "out of memory" in found["test_memory_while_measuring"][1]
    assert "test_memory_before_measuring" not in found
    assert free_bytes() > before_bytes - 2**30


def test_what_breaks_in_a_capture_costs_its_own_cell(tmp_path: Path) -> None:
    before_bytes = free_bytes()
    done = session(tmp_path, GRAPH, "--hwq-dispatch=graph")
    found = cells(tmp_path)
    print(done.stdout, *found.items(), sep="\n")  # shown if this fails
    assert "3 failed, 1 passed" in done.stdout
    assert "out of memory" in found["test_memory_in_capture"][1]
    assert "captur" in found["test_waits_in_capture"][1]
    assert "SIGKILL" in found["test_killed_in_capture"][1]
    assert found["test_after_killed_in_capture"][0] == "ok"
    assert free_bytes() > before_bytes - 2**30


def test_the_next_session_measures_after_one_was_killed_or_is_done(tmp_path: Path) -> None:
    folders = [tmp_path / name for name in ("killed", "first", "second")]
    for folder in folders:
        folder.mkdir()
    killed, first, second = folders
    holder = subprocess.Popen(
        command(killed, EAGER, "--hwq-dispatch=eager", "-k", "never_ends"), cwd=killed,
        env=environment(), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    time.sleep(12)  # its kernel runs, and its session has the lease
    assert holder.poll() is None
    holder.kill()
    holder.wait()
    alone = ("--hwq-dispatch=eager", "-k", "test_before")
    others = [
        subprocess.Popen(
            command(folder, EAGER, *alone),
            cwd=folder,
            env=environment(),
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        for folder in (first, second)
    ]
    said = [each.communicate(timeout=120)[0] for each in others]
    print(*said, sep="\n")
    assert [each.returncode for each in others] == [0, 0]
    assert sum("waiting" in text for text in said) == 1
