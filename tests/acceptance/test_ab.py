"""`hwq ab` for real: repositories, processes, exit status, and what is left behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from click.testing import CliRunner

from pytest_hwqueue.cli.ab import ab
from pytest_hwqueue.suite import plugin_name
from tests.interleaved.repositories import TEST, git

ROOT = Path(__file__).parents[2]
# Enough for the median of an effect that is far beyond the noise of a busy host; at this rate 5
# pairs are planned.
SHORT = (
    "--pairs", "3", "--rate", "20%", "--device", "cpu", "--iterations", "40", "--warmup", "1",
    "--isolation", "none", "--fail-on", "p50",
)  # fmt: skip


@pytest.fixture(name="project")
def _project(tmp_path: Path) -> Path:
    """A repository: the tag fast, and behind it on main the same product far slower."""
    folder = tmp_path / "project"
    folder.mkdir()
    (tmp_path / "scratch").mkdir()
    git(folder, "init", "-q", "-b", "main")
    (folder / ".gitignore").write_text(".hwqueue\n__pycache__\n")
    (folder / "test_product.py").write_text(TEST)
    (folder / "product.py").write_text("DELAY_S = 0.001\n")
    git(folder, "add", ".")
    git(folder, "commit", "-q", "-m", "fast")
    git(folder, "tag", "fast")
    (folder / "product.py").write_text("DELAY_S = 0.02\n")
    git(folder, "commit", "-q", "-a", "-m", "slow")
    return folder


def command(project: Path, *arguments: str) -> subprocess.Popen[str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("HWQ_")}
    return subprocess.Popen(
        [sys.executable, "-m", "pytest_hwqueue", "ab", *arguments],
        cwd=project, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        env={**kept, "PYTHONPATH": str(ROOT), "PYTHONSAFEPATH": "1",
             "TMPDIR": str(project.parent / "scratch")},
    )  # fmt: skip


def left_behind(project: Path) -> list[str]:
    stays = [path.name for path in (project.parent / "scratch").glob("hwq-ab-*")]
    worktrees = git(project, "worktree", "list", "--porcelain").count("worktree ")
    return stays + ["a worktree"] * (worktrees - 1) + git(project, "status", "-s").splitlines()


@pytest.mark.slow
def test_a_slower_version_is_a_regression(project: Path) -> None:
    process = command(project, "fast", "main", *SHORT, "--", "test_product.py")
    output, said = process.communicate(timeout=300)
    assert process.returncode == 1, output + said
    assert "Against fast: 1 regression" in output
    assert "P50 is worse" in output
    assert "A/A" not in said
    assert left_behind(project) == []
    (session,) = (project / ".hwqueue").glob("ab-*")
    found = json.loads((session / "ab.json").read_text())
    assert "".join(run["side"] for run in found["runs"]) == "ABBAABBAAB"
    assert {run["status"] for run in found["runs"]} == {0}
    commits = {side["name"]: side["commit"] for side in found["sides"]}
    assert commits == {
        "A": git(project, "rev-parse", "fast"),
        "B": git(project, "rev-parse", "main"),
    }
    # Each run says by itself which commit's code it has measured.
    for run in found["runs"]:
        (path,) = (session / run["records"]).glob("*/test_product*.json")
        assert json.loads(path.read_text())["git_commit"] == commits[run["side"]]


@pytest.mark.slow
def test_the_same_twice_passes(project: Path) -> None:
    process = command(
        project, "--a", "MARK=1", "--b", "MARK=1", *SHORT, "--min-effect", "50%", "--",
        "test_product.py",
    )  # fmt: skip
    output, said = process.communicate(timeout=300)
    assert process.returncode == 0, output + said
    assert "A/A: both sides are the same" in said
    assert "1 pass" in output


@pytest.mark.slow
def test_interrupted_it_leaves_what_was_measured_and_nothing_else(project: Path) -> None:
    (project / "product.py").write_text("DELAY_S = 0.5\n")
    process = command(project, "fast", ".", *SHORT, "--", "test_product.py")
    try:
        deadline = time.monotonic() + 120
        while not list((project / ".hwqueue").glob("*/02-b/*")) and time.monotonic() < deadline:
            time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        output, said = process.communicate(timeout=60)
    finally:
        process.kill()
        process.wait()
    assert process.returncode == 128 + signal.SIGINT, output + said
    git(project, "checkout", "-q", "product.py")
    assert left_behind(project) == []
    (session,) = (project / ".hwqueue").glob("ab-*")
    assert json.loads((session / "ab.json").read_text())["interrupted"]
    assert len(list((session / "01-a").glob("*/test_product*.json"))) == 1
    listed = subprocess.run(
        ["ps", "-eo", "args"], capture_output=True, text=True, check=True
    ).stdout  # fmt: skip
    assert str(session) not in listed


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("fast",), "name two sides, such as `hwq ab main .`"),
        ((), "name two sides"),
        (("fast", "nowhere"), "B: 'nowhere' is neither a commit, branch or tag"),
        (("fast", "main", "--pairs", "2"), "2 is not in the range x>=3"),
        (("fast", "main", "--fail-on", ","), "--fail-on"),
        (("fast", "main", "--rate", "30%"), "screen must be at least rate"),
        (("--a", "--runs 2"), "'--runs' is not valid; it is for the comparison as a whole"),
        (("--a", "--device cpu", "--b", "--device cuda"), "one device measures both sides"),
    ],
)
def test_wrong_usage_is_refused_before_anything_is_measured(
    project: Path, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...], says: str
) -> None:
    monkeypatch.chdir(project)
    result = CliRunner().invoke(ab, arguments, prog_name="hwq ab")
    assert result.exit_code == 2, result.output
    assert says in " ".join(result.output.split())
    assert not list((project / ".hwqueue").glob("*/01-a*"))
    assert left_behind(project) == []


def test_no_tests_on_one_side_is_found_before_anything_is_measured(project: Path) -> None:
    (project / "test_new.py").write_text("def test_new(hwq): hwq.measure(lambda: None)\n")
    process = command(project, "fast", ".", *SHORT, "--", "test_new.py")
    output, said = process.communicate(timeout=120)
    assert process.returncode == 2, output + said
    assert "A: pytest cannot collect the tests" in said
    assert "file or directory not found: test_new.py" in said
    assert not list((project / ".hwqueue").glob("*/01-a*"))


def against(
    project: Path, ref: str, *arguments: str, **environment: str
) -> subprocess.CompletedProcess[str]:
    """A session of the project's tests that is held against a commit."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("HWQ_")}
    return subprocess.run(
        [
            sys.executable, "-m", "pytest", "-p", plugin_name(),
            "-p", "no:cacheprovider", f"--hwq-against={ref}", "--hwq-pairs=3", "--hwq-rate=20%",
            "--hwq-device=cpu", "--hwq-iterations=40", "--hwq-warmup=1", "--hwq-fail-on=p50",
            *arguments,
        ],
        cwd=project, text=True, capture_output=True, check=False,
        env={**kept, "PYTHONPATH": f"{project}:{ROOT}", "TMPDIR": str(project.parent / "scratch"),
             **environment},
    )  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize(("ref", "status"), [("fast", 1), ("main", 0)])
def test_against_another_commit_in_a_session(project: Path, ref: str, status: int) -> None:
    done = against(project, ref, f"--junitxml={project.parent}/junit.xml")
    assert done.returncode == status, done.stdout + done.stderr
    failures = (project.parent / "junit.xml").read_text(encoding="utf-8").count("<failure")
    assert failures == status
    if status:
        assert "is a regression against" in done.stdout
    assert left_behind(project) == []


# Measured in the runs of a comparison alone, as a product may that its environment changes.
MORE = """
def test_more(hwq, request):
    if "/ab-" in str(request.config.getoption("hwq_dir")):
        hwq.measure(lambda: time.sleep(product.DELAY_S), streams=1, name="more")
    hwq.measure(lambda: None, streams=1)
"""


@pytest.mark.slow
def test_a_regression_that_the_runs_alone_measure_fails_its_test(project: Path) -> None:
    for branch in ("main", "fast"):
        git(project, "checkout", "-q", branch)
        with open(project / "test_product.py", "a", encoding="utf-8") as file:
            file.write(MORE)
        git(project, "commit", "-q", "-a", "-m", "more")
    git(project, "tag", "-f", "fast")
    git(project, "checkout", "-q", "main")
    done = against(project, "fast", "-k", "test_more", GITHUB_ACTIONS="true")
    assert done.returncode == 1, done.stdout + done.stderr
    assert "::error file=test_product.py" in done.stdout
    assert "FAILED test_product.py::test_more" in done.stdout
