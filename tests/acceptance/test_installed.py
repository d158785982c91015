"""What an installation alone can do: the suite is in the wheel, no clone is needed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

import pytest

from tests.acceptance.inner import records_in


@pytest.fixture(autouse=True)
def _installed() -> None:
    try:
        origin = distribution("pytest-hwqueue").read_text("direct_url.json") or "{}"
    except PackageNotFoundError:
        pytest.skip("pytest-hwqueue is not installed here; tox installs its wheel")
    if json.loads(origin).get("dir_info", {}).get("editable"):
        pytest.skip("an editable installation is the clone itself; tox installs the wheel")


def run(folder: Path, *command: str) -> str:
    """Run a command where the clone is not importable."""
    done = subprocess.run(
        command, cwd=folder, capture_output=True, text=True, check=False,
        env={name: value for name, value in os.environ.items() if name != "PYTHONPATH"},
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_command_the_suite_and_its_reference_come_with_the_package(tmp_path: Path) -> None:
    hwq = str(Path(sys.executable).with_name("hwq"))
    assert run(tmp_path, hwq, "help", "tenant").startswith("tenant: a model, a workload,")
    suite = ("--pyargs", "pytest_hwqueue.benchmarks", "--collect-only", "-q")
    collected = run(tmp_path, sys.executable, "-m", "pytest", *suite, "--hwq-device=sim:h200")
    assert "::test_large_gemm_only[sim:h200-" in collected
    assert "scenario files not run" in collected
    output = run(
        tmp_path, hwq, "run", "large_gemm_only", "--device=sim:h200", "--compare=reference",
        "--json=session.json",
    )  # fmt: skip
    assert "hardware queues" in output
    assert "no-baseline" not in output
    names = {each["setting"]["name"] for each in records_in(tmp_path / "session.json")}
    assert names == {"large_gemm_only"}
