"""What a checkout alone can do: only the dependencies are installed, neither we nor test tools."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from tests.acceptance.inner import ROOT, records_in

# The package itself, and what only tests need.
ABSENT = ("pytest_hwqueue", "hypothesis", "_hypothesis", "xdist", "pytest_xdist", "jsonschema")


@pytest.fixture(scope="module")
def dependencies(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of installed packages without ours, and without those that only tests need."""
    folder = tmp_path_factory.mktemp("dependencies")
    for installed in Path(sysconfig.get_path("purelib")).iterdir():
        wanted = not installed.name.startswith(ABSENT) and installed.suffix != ".pth"
        if wanted and installed.name != "__pycache__":
            (folder / installed.name).symlink_to(installed)
    return folder


def run(dependencies: Path, start: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run Python code in the checkout; as with a command, the current folder is no import path."""
    environment = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("HWQ_", "PYTEST_", "PYTHON"))
    }
    path = f"import sys; sys.path.remove(''); {start}"
    return subprocess.run(
        [sys.executable, "-S", "-c", path, *arguments], cwd=ROOT,
        env={**environment, "PYTHONPATH": str(dependencies)},
        capture_output=True, text=True, check=False,
    )  # fmt: skip


def test_the_suite_runs_and_its_results_compare(dependencies: Path, tmp_path: Path) -> None:
    lacks = run(dependencies, "import pytest_hwqueue")
    assert "No module named 'pytest_hwqueue'" in lacks.stderr
    done = run(
        dependencies, "import pytest; sys.exit(pytest.main())", "benchmarks",
        "--hwq-device=sim:h200", "--hwq-workload=tiny_kernel_stress", "--hwq-iterations=5",
        f"--hwq-dir={tmp_path}/records", f"--hwq-json={tmp_path}/session.json",
        f"--benchmark-json={tmp_path}/1.json", "-p", "no:cacheprovider",
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert [record["status"] for record in records_in(tmp_path / "session.json")] == ["ok"]
    shutil.copy(tmp_path / "1.json", tmp_path / "2.json")
    start = "from pytest_benchmark.cli import main; main()"
    compared = run(dependencies, start, "compare", f"{tmp_path}/1.json", f"{tmp_path}/2.json")
    assert compared.returncode == 0, compared.stderr
    assert compared.stdout.count("test_tiny_kernel_stress[sim:h200") == 2
