"""Every record says where it comes from: the version, the commit, and whether it was changed."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from click.testing import CliRunner

from pytest_hwqueue import __version__
from pytest_hwqueue.cli.main import main
from pytest_hwqueue.judge.baselines.runs import soft_fields
from pytest_hwqueue.judge.baselines.store import Store
from tests.acceptance.inner import records_in

if TYPE_CHECKING:
    from tests.conftest import RunInProcess, Sessions

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


def provenance(record: dict[str, Any]) -> tuple[Any, ...]:
    return record["version"], record["git_commit"], record["git_dirty"]


def commit(folder: Path) -> str:
    git(folder, "init", "--quiet")
    git(folder, "add", ".")
    git(folder, "commit", "--quiet", "-m", "first")
    return git(folder, "rev-parse", "HEAD")


def test_every_record_says_where_it_comes_from(
    pytester: pytest.Pytester, sessions: Sessions, run_in_process: RunInProcess,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    folder = pytester.path
    (folder / "test_mine.py").write_text(TEST, encoding="utf-8")
    head = commit(folder)
    (folder / "test_mine.py").write_text(f"{TEST}\n", encoding="utf-8")
    done = sessions.run(folder, *OPTIONS, "--hwq-json=session.json")
    assert done.returncode == pytest.ExitCode.TESTS_FAILED, done.stdout
    mine, killed = records_in(folder / "session.json")
    assert provenance(mine) == provenance(killed) == (__version__, head, True)
    assert mine["fingerprint"]["soft"]["git_commit"] == head
    assert (mine["status"], killed["status"]) == ("ok", "failed")
    # What cannot be is refused before anything is measured.
    needs_save = run_in_process(*OPTIONS, "--hwq-isolation=process", "--hwq-save-records")
    assert "give --hwq-save" in needs_save.stderr.str()
    monkeypatch.setenv("HWQ_COMMIT", SHA)
    another = run_in_process(*OPTIONS)
    assert f"has commit {head} checked out" in another.stderr.str()
    assert needs_save.ret == another.ret == pytest.ExitCode.USAGE_ERROR


def test_a_baseline_keeps_records_on_request(tmp_path: Path, sessions: Sessions) -> None:
    """Also: the commit of a copy without a repository is the one that is stated."""
    (tmp_path / "test_mine.py").write_text(TEST, encoding="utf-8")
    save = ("--hwq-save=main", "--hwq-runs=2", "-k", "not killed", "--hwq-save-records")
    done = sessions.run(tmp_path, *OPTIONS, *save, f"--hwq-commit={SHA}-dirty")
    assert done.returncode == 0, done.stdout
    assert len(list(tmp_path.glob("baselines/sim-h200/main/records/*/*.json"))) == 2
    (cell,) = Store(tmp_path / "baselines").read("main", "sim-h200").values()
    for run in cell.runs:
        soft = soft_fields(cell.header, run)
        found = soft["hwqueue_version"], soft["git_commit"], soft["git_dirty"]
        assert found == (__version__, SHA, True)
        assert run.commit == SHA


@pytest.mark.parametrize("repository", [True, False])
def test_tables_of_schedulers_say_it_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, repository: bool
) -> None:
    """The tree is that of the scenario file, wherever the command is started."""
    tree = tmp_path / "tree"
    tree.mkdir()
    (tree / "mine.hwq.yaml").write_text(SCENARIO, encoding="utf-8")
    head, dirty = (commit(tree), []) if repository else (SHA, ["--commit", f"{SHA}-dirty"])
    monkeypatch.chdir(tmp_path)
    options = ("--device", "sim:h200", "--rounds", "1", "--causes", *dirty)
    done = CliRunner().invoke(main, ["which", "tree/mine.hwq.yaml", *options])
    assert done.exit_code == 0, done.output
    files = list((tmp_path / ".hwqueue").rglob("*.json"))
    # The table, each tenant alone, the two together, and these once more, traced.
    assert len(files) == 5
    for file in files:
        data = json.loads(file.read_text(encoding="utf-8"))
        assert provenance(data) == (__version__, head, not repository)
        assert data["fingerprint"]["soft"]["git_commit"] == head
