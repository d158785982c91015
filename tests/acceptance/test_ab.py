"""`hwq ab` for real: repositories, processes, exit status, and what is left behind."""

from __future__ import annotations

import json
import os
import re
import signal
import time
from pathlib import Path
from subprocess import Popen

import psutil
import pytest
from click.testing import CliRunner

from pytest_hwqueue.cli.main import main
from pytest_hwqueue.options.suite import plugin_name
from tests.acceptance.inner import ROOT, SHORT, commit, left_behind, new_repository, started
from tests.answers.versions.repositories import TEST, git

# Measured in the runs of a comparison alone, as a product may that its environment changes.
MORE = """
def test_more(hwq, request):
    if "/ab-" in str(request.config.getoption("hwq_dir")):
        hwq.measure(lambda: time.sleep(product.DELAY_S), streams=1, name="more")
    hwq.measure(lambda: None, streams=1)
"""
FAST, SLOW = "DELAY_S = 0.001\n", "DELAY_S = 0.02\n"


@pytest.fixture(name="project")
def _project(tmp_path: Path) -> Path:
    """A repository: the tag fast, and behind it on main the same product far slower."""
    folder = new_repository(tmp_path / "project")
    commit(folder, "fast", test_product=TEST, test_more=f"{TEST}{MORE}", product=FAST)
    git(folder, "tag", "fast")
    commit(folder, "slow", product=SLOW)
    return folder


def compared(project: Path, *sides: str) -> Popen[str]:
    return started(project, "pytest_hwqueue", "ab", *sides, *SHORT, "--", "test_product.py")


@pytest.mark.slow
def test_a_slower_version_is_a_regression(project: Path) -> None:
    process = compared(project, "fast", "main")
    output, said = process.communicate(timeout=300)
    assert process.returncode == 1, output + said
    assert "Against fast: 1 regression" in output
    assert re.search(r"P50 .*\bregression\b", output), output
    # The commits are the sides themselves.
    assert "git_commit" not in output
    assert "A/A" not in said
    assert left_behind(project) == []
    (session,) = (project / ".hwqueue").glob("ab-*")
    found = json.loads((session / "ab.json").read_text())
    assert "".join(run["side"] for run in found["runs"]) == "ABBAABBAAB"
    assert {run["status"] for run in found["runs"]} == {0}
    commits = {side["name"]: side["commit"] for side in found["sides"]}
    assert commits == {name: git(project, "rev-parse", ref) for name, ref in
                       (("A", "fast"), ("B", "main"))}  # fmt: skip
    # Each run says by itself which commit's code it has measured.
    for run in found["runs"]:
        (path,) = (session / run["records"]).glob("*/test_product*.json")
        assert json.loads(path.read_text())["git_commit"] == commits[run["side"]]


@pytest.mark.slow
def test_the_same_twice_passes(project: Path) -> None:
    sides = ("--a", "MARK=1", "--b", "MARK=1", "--min-effect", "50%")
    process = compared(project, *sides)
    output, said = process.communicate(timeout=300)
    assert process.returncode == 0, output + said
    assert "A/A: both sides are the same" in said
    assert "1 pass" in output


@pytest.mark.slow
def test_interrupted_it_leaves_what_was_measured_and_nothing_else(project: Path) -> None:
    (project / "product.py").write_text("DELAY_S = 0.5\n")
    process = compared(project, "fast", ".")
    try:
        deadline = time.monotonic() + 120
        while not list(project.glob(".hwqueue/*/02-b/*")) and time.monotonic() < deadline:
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
    assert len(list(session.glob("01-a/*/test_product*.json"))) == 1
    running = [each.info["cmdline"] or [] for each in psutil.process_iter(["cmdline"])]
    assert str(session) not in " ".join(word for line in running for word in line)


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
        (("--a", "CUDA_LAUNCH_BLOCKING=1", "--device", "sim:h200"), "sim:h200 does not model it"),
        (
            ("--a", "CUDA_LAUNCH_BLOCKING=1 --device sim:h200", "--b", "--device sim:h200"),
            "sim:h200 does not model it",
        ),
        # Tests that one side does not have.
        (("fast", ".", *SHORT, "--", "test_new.py"), "A: pytest cannot collect the tests"),
    ],
)
def test_wrong_usage_is_refused_before_anything_is_measured(
    project: Path, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...], says: str
) -> None:
    (project / "test_new.py").write_text("def test_new(hwq): hwq.measure(lambda: None)\n")
    monkeypatch.chdir(project)
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    result = CliRunner().invoke(main, ["ab", *arguments], prog_name="hwq")
    assert result.exit_code == 2, result.output
    said = " ".join(result.output.split())
    assert says in said
    assert "test_new.py" not in arguments or "file or directory not found: test_new.py" in said
    assert not list(project.glob(".hwqueue/*/01-a*"))
    # Only what pytest says of the tests is kept.
    assert (project / ".hwqueue").exists() is ("test_new.py" in arguments)
    assert left_behind(project) == []


@pytest.mark.slow
@pytest.mark.parametrize(
    ("ref", "test", "status", "new"),
    [("fast", "product", 1, []), ("main", "product", 0, ["test_new.py"]), ("fast", "more", 1, [])],
)
def test_against_another_commit_in_a_session(
    project: Path, ref: str, test: str, status: int, new: list[str]
) -> None:
    # The other commit does not have it.
    (project / "test_new.py").write_text("def test_new(hwq): hwq.measure(lambda: None)\n")
    process = started(
        project, "pytest", "-p", plugin_name(), "-p", "no:cacheprovider", f"--hwq-against={ref}",
        "--hwq-pairs=3", "--hwq-rate=20%", "--hwq-device=cpu", "--hwq-iterations=40",
        "--hwq-warmup=1", "--hwq-fail-on=p50", f"--junitxml={project.parent}/junit.xml",
        f"test_{test}.py::test_{test}", *new, GITHUB_ACTIONS="true", GITHUB_WORKSPACE=str(project),
        PYTHONPATH=f"{project}{os.pathsep}{ROOT}",
    )  # fmt: skip
    output, said = process.communicate(timeout=300)
    assert process.returncode == status, output + said
    failures = (project.parent / "junit.xml").read_text(encoding="utf-8").count("<failure")
    assert failures == status
    if status:
        assert "is a regression against" in output
        assert f"::error file=test_{test}.py" in output
        assert f"FAILED test_{test}.py::test_{test}" in output
    assert ("(A has no such test): test_new.py::test_new" in output) == bool(new)
    assert left_behind(project) == []


# Measures without a device that others may hold.
SIMULATED = """
def test_{}(hwq, hwq_device):
    hwq.measure(hwq_device.kernel_of(200_000), streams=1)
"""


def against_the_one_before(project: Path, *arguments: str) -> tuple[int, str]:
    process = started(
        project, "pytest", "-p", plugin_name(), "-p", "no:cacheprovider", "--hwq-against=HEAD~1",
        "--hwq-pairs=3", "--hwq-rate=20%", "--hwq-device=sim:h200", "--hwq-iterations=20",
        "--hwq-warmup=1", "--hwq-fail-on=p50", *arguments, COLUMNS="200",
        PYTHONPATH=f"{project}{os.pathsep}{ROOT}",
    )  # fmt: skip
    output, said = process.communicate(timeout=300)
    assert left_behind(project) == []
    return process.returncode, output + said


@pytest.mark.slow
def test_what_one_commit_cannot_run_is_missing_by_name_and_the_rest_stands(tmp_path: Path) -> None:
    project = new_repository(tmp_path / "project")
    commit(
        project, "broken", test_common=SIMULATED.format("common"),
        test_repaired=f"import gone\n{SIMULATED.format('repaired')}",
        test_names=SIMULATED.format("old_name") + "\ndef test_plain(): pass\n",
    )  # fmt: skip
    commit(
        project, "repaired", test_repaired=SIMULATED.format("repaired"),
        test_names=SIMULATED.format("new_name"),
    )  # fmt: skip
    named = ("test_common.py", "test_repaired.py", "test_names.py::test_new_name")
    for tests in (named, ("test_common.py", "test_repaired.py", "test_names.py")):
        status, output = against_the_one_before(project, *tests)
        assert status == 0, output
        assert "missing (test_repaired.py does not import in A: ModuleNotFoundError" in output
        assert "No module named 'gone'): test_repaired.py::test_repaired[" in output
        assert "missing (A has no such test): test_names.py::test_new_name[" in output
        renamed = "missing (B has no such test): test_names.py::test_old_name[" in output
        assert renamed == (tests != named)
        missing = 3 if renamed else 2
        assert f"Against HEAD~1: 1 pass, {missing} missing" in output


@pytest.mark.slow
def test_where_the_other_commit_cannot_be_measured_the_session_keeps_its_figures(
    tmp_path: Path,
) -> None:
    project = new_repository(tmp_path / "project")
    good = SIMULATED.format("common")
    commit(project, "broken", test_common=f"import gone\n{good}")
    commit(project, "repaired", test_common=good)
    status, output = against_the_one_before(project, "test_common.py")
    assert status == 1, output
    assert "1 failed, 1 passed" in output
    assert "A: pytest cannot collect the tests" in output
    assert "No module named 'gone'" in output
    assert "hardware queues" in output
    assert len(list(project.glob(".hwqueue/*/test_common*.json"))) == 1
