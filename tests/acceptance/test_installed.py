"""What an installation alone can do: the suite is in the wheel, no clone is needed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

import pytest

FAST = ("--hwq-iterations=5", "--hwq-max-time=1", "--hwq-device=cpu", "--hwq-streams=1")


@pytest.fixture(autouse=True)
def _installed() -> None:
    try:
        origin = distribution("pytest-hwqueue").read_text("direct_url.json") or "{}"
    except PackageNotFoundError:
        pytest.skip("pytest-hwqueue is not installed here; tox installs its wheel")
    if json.loads(origin).get("dir_info", {}).get("editable"):
        pytest.skip("an editable installation is the clone itself; tox installs the wheel")


def _elsewhere() -> dict[str, str]:
    """An environment in which the clone is not importable."""
    return {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}


def test_the_suite_runs_from_the_package(tmp_path: Path) -> None:
    command = [
        sys.executable, "-m", "pytest", "--pyargs", "pytest_hwqueue.benchmarks", "-m", "P0",
        *FAST, "--hwq-json=session.json",
    ]  # fmt: skip
    done = subprocess.run(
        command, cwd=tmp_path, env=_elsewhere(), capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    records = json.loads((tmp_path / "session.json").read_text())["records"]
    assert [record["setting"]["name"] for record in records] == [
        "tiny_kernel_stress",
        "large_gemm_only",
    ]


def test_the_command_runs_a_workload(tmp_path: Path) -> None:
    hwq = Path(sys.executable).with_name("hwq")
    command = [str(hwq), "run", "large_gemm_only", "--device=cpu", "--streams=1", "--iterations=5"]
    done = subprocess.run(
        command, cwd=tmp_path, env=_elsewhere(), capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "hardware queues" in done.stdout


def test_the_reference_of_the_simulated_device_comes_with_the_package(tmp_path: Path) -> None:
    command = [
        sys.executable, "-m", "pytest", "--pyargs", "pytest_hwqueue.benchmarks",
        "-k", "large_gemm_only", "--hwq-device=sim:h200", "--hwq-compare=reference",
    ]  # fmt: skip
    done = subprocess.run(
        command, cwd=tmp_path, env=_elsewhere(), capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "no-baseline" not in done.stdout
    assert "scenario files not run" in done.stdout
