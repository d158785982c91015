"""Every record says where it comes from: the version, the commit, and whether it was changed."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from pytest_hwqueue import __version__
from pytest_hwqueue.baselines.runs import soft_fields
from pytest_hwqueue.baselines.store import Store

if TYPE_CHECKING:
    from tests.conftest import Sessions

# The second dies of a signal: its record is written by the session, not by its worker.
TEST = """
import os, signal

def test_mine(hwq, hwq_device):
    hwq.measure(hwq_device.kernel_of(200_000), streams=2)

def test_killed(hwq):
    hwq.measure(lambda: os.kill(os.getpid(), signal.SIGKILL), streams=1)
"""
SHA = "0" * 40
SCENARIO = """
name: mine
description: two tenants on a simulated device
duration: 1s
ci_duration: 1s
schedulers: {processes: [native]}
tenants:
  - {name: urgent, workload: tiny_kernel_stress, parameters: {rounds: 2}, arrival: "poisson: 500/s",
     priority: 1}
  - {name: low, workload: large_gemm_only, parameters: {mm_dim: 8192}, arrival: closed, priority: 0}
goals: [urgent.latency_p99_ms < 1000]
"""
OPTIONS = (
    "-p", "no:cacheprovider", "--hwq-warmup=2", "--hwq-device=sim:h200", "--hwq-iterations=60",
)  # fmt: skip


def git(folder: Path, *arguments: str) -> str:
    identity = ("-c", "user.name=a", "-c", "user.email=a@b")
    return subprocess.run(
        ["git", *identity, *arguments], cwd=folder, check=True, capture_output=True, text=True
    ).stdout.strip()


def session_records(folder: Path) -> dict[str, Any]:
    (path,) = (folder / ".hwqueue").glob("*/session.json")
    records = [
        json.loads((path.parent / name).read_text(encoding="utf-8"))
        for name in json.loads(path.read_text(encoding="utf-8"))["files"]
    ]
    return {record["nodeid"].partition("::")[2].partition("[")[0]: record for record in records}


def provenance(record: dict[str, Any]) -> tuple[Any, ...]:
    return record["version"], record["git_commit"], record["git_dirty"]


def test_every_record_says_where_it_comes_from(tmp_path: Path, sessions: Sessions) -> None:
    (tmp_path / "test_mine.py").write_text(TEST, encoding="utf-8")
    git(tmp_path, "init", "--quiet")
    git(tmp_path, "add", "test_mine.py")
    git(tmp_path, "commit", "--quiet", "-m", "first")
    commit = git(tmp_path, "rev-parse", "HEAD")
    (tmp_path / "test_mine.py").write_text(f"{TEST}\n", encoding="utf-8")

    done = sessions.run(tmp_path, *OPTIONS)
    assert done.returncode == pytest.ExitCode.TESTS_FAILED, done.stdout
    records = session_records(tmp_path)
    assert records.keys() == {"test_mine", "test_killed"}
    for record in records.values():
        assert provenance(record) == (__version__, commit, True)
    assert records["test_mine"]["fingerprint"]["soft"]["git_commit"] == commit
    assert records["test_killed"]["status"] == "failed"

    # Another commit than the one stated is refused before anything is measured.
    refused = sessions.run(tmp_path, *OPTIONS, HWQ_COMMIT=SHA)
    assert refused.returncode == pytest.ExitCode.USAGE_ERROR
    assert f"has commit {commit} checked out" in refused.stderr + refused.stdout


def test_a_baseline_keeps_records_on_request(tmp_path: Path, sessions: Sessions) -> None:
    """Also: the commit of a copy without a repository is the one that is stated."""
    (tmp_path / "test_mine.py").write_text(TEST, encoding="utf-8")
    save = ("--hwq-save=main", "--hwq-runs=2", "-k", "not killed")
    alone = sessions.run(tmp_path, *OPTIONS, "--hwq-save-records", "-k", "not killed")
    assert alone.returncode == pytest.ExitCode.USAGE_ERROR
    assert "give --hwq-save" in alone.stderr + alone.stdout

    small = sessions.run(tmp_path, *OPTIONS, *save, f"--hwq-commit={SHA}-dirty")
    assert small.returncode == 0, small.stdout
    folder = tmp_path / "baselines" / "sim-h200" / "main"
    assert not (folder / "records").exists()
    (cell,) = Store(tmp_path / "baselines").read("main", "sim-h200").cells.values()
    for run in cell.runs:
        soft = soft_fields(cell.header, run)
        found = soft["hwqueue_version"], soft["git_commit"], soft["git_dirty"]
        assert found == (__version__, SHA, True)
        assert run.commit == SHA

    large = sessions.run(tmp_path, *OPTIONS, *save, "--hwq-save-records")
    assert large.returncode == 0, large.stdout
    assert len(list(folder.glob("records/*/*.json"))) == 2
    assert len(Store(tmp_path / "baselines").read("main", "sim-h200").cells) == 1


@pytest.mark.parametrize("repository", [True, False])
def test_tables_of_schedulers_say_it_too(tmp_path: Path, repository: bool) -> None:
    """The tree is that of the scenario file, wherever the command is started."""
    tree = tmp_path / "tree"
    tree.mkdir()
    (tree / "mine.hwq.yaml").write_text(SCENARIO, encoding="utf-8")
    commit, dirty = SHA, ["--commit", f"{SHA}-dirty"]
    if repository:
        git(tree, "init", "--quiet")
        git(tree, "add", ".")
        git(tree, "commit", "--quiet", "-m", "first")
        commit, dirty = git(tree, "rev-parse", "HEAD"), []
    done = subprocess.run(
        [sys.executable, "-m", "pytest_hwqueue", "which", "tree/mine.hwq.yaml", "--device",
         "sim:h200", "--rounds", "1", "--causes", *dirty],
        cwd=tmp_path, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    files = list((tmp_path / ".hwqueue").rglob("*.json"))
    # The table, each tenant alone, the two together, and these once more, traced.
    assert len(files) == 5
    for file in files:
        data = json.loads(file.read_text(encoding="utf-8"))
        assert provenance(data) == (__version__, commit, not repository)
        assert data["fingerprint"]["soft"]["git_commit"] == commit
