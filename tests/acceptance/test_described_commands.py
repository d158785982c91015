"""The commands of the experiments that this project reproduces, as their authors typed them.

Only the device and sizes are added: here they run on the CPU, with gloo in place of NCCL.
"""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow
TINY = "--device cpu --size tiny"
OVERLAP = (
    "comms_compute_overlap --mode comms_compute --mm-dim 128,128,128 --num-compute 10 "
    "--comp-dtype bfloat16 --comm-size 1M --num-coll 1 --comm-dtype bfloat16 --compute-streams 2 "
    "--real-collectives --async-op --backend gloo"
)


def module(command: str, folder: Path, *before: str, status: int = 0) -> str:
    """Run the module's command there, which ends with this status; return its output."""
    done = subprocess.run(
        [*(before or (sys.executable,)), "-m", "pytest_hwqueue", *shlex.split(command)],
        cwd=folder, capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == status, done.stdout + done.stderr
    return done.stdout


@pytest.mark.parametrize(
    ("command", "told"),
    [
        ("list", "comms_compute_overlap"),
        (f"run hetero_kernels --streams 8 --iterations 50 {TINY}", "1 passed"),
        (
            f"sweep hetero_kernels --streams 1,2,4,8,16 --iterations 50 {TINY}",
            "hetero_kernels takes 2 to 128 streams",
        ),
        (f"run-priority P0 --iterations 50 {TINY}", "3 passed"),
        (f"profile hetero_kernels --streams 8 --iterations 50 {TINY}", "open in Perfetto"),
        (f"run tiny_kernel_stress --sync-mode none --iterations 100 {TINY}", "sync mode none"),
        (f"run {OVERLAP} --ranks 2 --iterations 50 {TINY}", "comp_dtype=bf16"),
        (
            f'run {OVERLAP} --process-groups "[0],[1]" --ranks 2 --iterations 50 {TINY}',
            "process_groups=[0],[1]",
        ),
        *(
            (f"run comms_compute_overlap --mode {mode} --iterations 50 {TINY}", f"mode={mode}")
            for mode in ("compute_only", "comms_only")
        ),
    ],
)
def test_a_command_runs(command: str, told: str, tmp_path: Path) -> None:
    assert told in module(command, tmp_path)


def test_results_are_written_and_compared(tmp_path: Path) -> None:
    for name in ("a", "b"):
        measured = "run large_gemm_only --sync-mode per_iteration --iterations 100 --warmup 10"
        module(f"{measured} --output {name}.json {TINY}", tmp_path)
        (record,) = json.loads((tmp_path / f"{name}.json").read_bytes())["records"]
        assert record["cell"].startswith("large_gemm_only[")
        # The process's; an accelerator's also are what torch allocated and reserved.
        assert record["metrics"]["memory_bytes"]["process_peak"] > 0
    # One run each has no verdict, which is an error of its own, and shows a change all the same.
    said = module("compare --baseline a.json --test b.json", tmp_path, status=2)
    assert "large_gemm_only" in said
    assert re.search(r"P(95|90|50) [+-][\d.]+ % \[[+-]", " ".join(said.split())), said


def test_a_profile_is_written_into_a_folder(tmp_path: Path) -> None:
    module(f"run large_gemm_only --iterations 50 --profile --profile-dir traces/ {TINY}", tmp_path)
    (trace,) = (tmp_path / "traces").iterdir()
    assert json.loads(trace.read_bytes())["traceEvents"]


def test_ranks_of_torchrun_run_it(tmp_path: Path) -> None:
    torchrun = (sys.executable, "-m", "torch.distributed.run", "--nproc_per_node=2")
    groups = '--process-groups "[0],[1]"'
    said = module(f"run {OVERLAP} {groups} --iterations 50 {TINY}", tmp_path, *torchrun)
    assert "1 passed" in said
