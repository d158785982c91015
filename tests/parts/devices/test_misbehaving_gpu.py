"""Cells that break a real GPU's context: each costs itself only, and the GPU works afterwards."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from pytest_hwqueue.options.suite import plugin_name

ROOT = Path(__file__).parents[3]

pytestmark = pytest.mark.skipif(
    not torch.cuda.is_available() or torch.version.hip is not None,
    reason="there is no CUDA device",
)

HEAD = """
import contextlib, os, pathlib, signal
import torch

def capturing():
    return torch.cuda.is_current_stream_capturing()

def end(name):
    # Kills the processes of a program.
    for file in pathlib.Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # it ended just now
            if name.encode() in file.read_bytes().split(b"\\0")[0]:
                os.kill(int(file.parent.name), signal.SIGKILL)

def good():
    square = torch.ones(256, 256, device="cuda")
    return lambda: torch.mm(square, square)
"""
TOO_MUCH = 'torch.empty(10**12, device="cuda")'
GOOD = "hwq.measure(good(), streams=2)", "ok"

# By name, a test's lines and what its cell's status and reason say; None where there is no cell.
EAGER: dict[str, tuple[str, str | None]] = {
    "before": GOOD,
    "kernel_never_ends": (
        "hwq.measure(lambda: torch.cuda._sleep(10**14), streams=1)", "timeout"),
    "after_endless_kernel": GOOD,
    "illegal_address": (
        'values = torch.ones(10, device="cuda")\n'
        '    beyond = torch.tensor([10**9], device="cuda")\n'
        "    hwq.measure(lambda: values[beyond], streams=1)", "device-side assert"),
    "after_illegal_address": GOOD,
    "memory_before_measuring": (TOO_MUCH, None),
    "memory_while_measuring": (
        f"hwq.measure(lambda: {TOO_MUCH}, streams=1)", "out of memory"),
    # This test fails; its cell is sound.
    "memory_after_measuring": (f"{GOOD[0]}\n    {TOO_MUCH}", "ok"),
    "after_no_memory": GOOD,
}  # fmt: skip
GRAPH: dict[str, tuple[str, str | None]] = {
    "memory_in_capture": (
        f"hwq.measure(lambda: capturing() and {TOO_MUCH}, streams=1)", "out of memory"),
    "waits_in_capture": (
        "hwq.measure(lambda: capturing() and torch.cuda.synchronize(), streams=1)", "captur"),
    "killed_in_capture": (
        "hwq.measure(lambda: capturing() and os.kill(os.getpid(), signal.SIGKILL), streams=1)",
        "SIGKILL"),
    "after_killed_in_capture": GOOD,
}  # fmt: skip


def start(
    folder: Path, suite: dict[str, tuple[str, str | None]], *more: str
) -> subprocess.Popen[str]:
    """Run a suite on the GPU in a session of its own."""
    tests = [f"\ndef test_{name}(hwq):\n    {lines}\n" for name, (lines, _) in suite.items()]
    (folder / "test_it.py").write_text(HEAD + "".join(tests), encoding="utf-8")
    paths = [str(ROOT), os.environ.get("PYTHONPATH", "")]
    return subprocess.Popen(
        [*(sys.executable, "-m", "pytest", "-p", plugin_name(), "-p", "no:cacheprovider", "-q"),
         *("--rootdir=.", "test_it.py", "--hwq-device=cuda", "--hwq-samples=200"),
         *("--hwq-max-time=1", "--hwq-timeout=20", "--hwq-json=session.json", *more)],
        cwd=folder, env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))},
        text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip


def free_bytes() -> int:
    """Free memory of the GPU, once what has ended has been cleaned up."""
    time.sleep(2)
    return torch.cuda.mem_get_info()[0]


@pytest.mark.parametrize(
    ("dispatch", "suite", "outcome"),
    [("eager", EAGER, "5 failed, 4 passed"), ("graph", GRAPH, "3 failed, 1 passed")],
)
def test_what_breaks_a_context_or_a_capture_costs_its_own_cell(
    tmp_path: Path, dispatch: str, suite: dict[str, tuple[str, str | None]], outcome: str
) -> None:
    before_bytes = free_bytes()
    said, _ = start(tmp_path, suite, f"--hwq-dispatch={dispatch}").communicate(timeout=300)
    records = json.loads((tmp_path / "session.json").read_text())["records"]
    found = {
        each["nodeid"].split("::test_")[-1].split("[")[0]: (each["status"], each["reason"])
        for each in records
    }
    print(said, *found.items(), sep="\n")  # shown if this fails
    assert outcome in said
    for name, (_, told) in suite.items():
        status, reason = found.get(name, (None, None))
        assert told == status or (told and told in reason), name
    assert free_bytes() > before_bytes - 2**30


def test_the_next_session_measures_after_one_was_killed_or_is_done(tmp_path: Path) -> None:
    folders = [tmp_path / name for name in ("killed", "first", "second")]
    for folder in folders:
        folder.mkdir()
    killed, first, second = folders
    holder = start(killed, EAGER, "--hwq-dispatch=eager", "-k", "never_ends")
    time.sleep(12)  # its kernel runs, and its session has the lease
    assert holder.poll() is None
    holder.kill()
    holder.communicate()
    alone = ("--hwq-dispatch=eager", "-k", "test_before")
    others = [start(folder, EAGER, *alone) for folder in (first, second)]
    said = [each.communicate(timeout=120)[0] for each in others]
    print(*said, sep="\n")
    assert [each.returncode for each in others] == [0, 0]
    assert sum("waiting" in text for text in said) == 1


@pytest.mark.skipif(shutil.which("nvidia-cuda-mps-control") is None, reason="there is no MPS")
@pytest.mark.parametrize(
    ("killed", "outcome", "told"),
    [
        # The daemon starts another one for the next worker.
        ("nvidia-cuda-mps-server", "1 failed, 2 passed", "the MPS server and the MPS client"),
        ("nvidia-cuda-mps-control", "2 failed, 1 passed", "NotProven: mps: "),
    ],
)
def test_where_what_mps_consists_of_is_killed_first_nothing_else_is_called_mps(
    tmp_path: Path, killed: str, outcome: str, told: str
) -> None:
    suite = {"before": GOOD, "killed": (f'end("{killed}")\n    {GOOD[0]}', None), "after": GOOD}
    said, _ = start(tmp_path, suite, "--hwq-scheduler=mps").communicate(timeout=300)
    print(said)
    assert outcome in said
    assert told in " ".join(said.split())
    (tmp_path / "native").mkdir()
    alone = ("--hwq-dispatch=eager", "-k", "test_before")
    said, _ = start(tmp_path / "native", EAGER, *alone).communicate(timeout=120)
    assert "1 passed" in said
    programs = [file.read_bytes() for file in Path("/proc").glob("[0-9]*/cmdline")]
    assert not [each for each in programs if each.startswith(b"nvidia-cuda-mps")]
