"""Baselines and the gate as users meet them: real sessions that save, compare, fail and report."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from jsonschema import Draft202012Validator

from pytest_hwqueue.baselines.store import Store
from pytest_hwqueue.reports.judgement_file import json_schema
from pytest_hwqueue.suite import plugin_name

if TYPE_CHECKING:
    from tests.conftest import RunInProcess, Sessions

# A kernel that always lasts as long: its P99 is known, and runs differ only by the noise planted.
TEST = """
import pytest

@pytest.mark.parametrize("length", ["short", "long"])
def test_mine(hwq, hwq_device, length):
    kernel = hwq_device.kernel_of(200_000 if length == "short" else 400_000)
    hwq.measure(kernel, streams=1)
"""
NOISE = "--hwq-sim-noise=run=0.03,jitter=0.02,seed={}"


class Project:
    """A folder with one test file, measured on a simulated device."""

    options = (
        "-p", "no:cacheprovider", "--hwq-warmup=2", "--hwq-device=sim:h200",
        "--hwq-iterations=320", "--hwq-causes=never",
    )  # fmt: skip

    def __init__(self, folder: Path, sessions: Sessions) -> None:
        self.folder = folder
        self.sessions = sessions
        (folder / "test_mine.py").write_text(TEST, encoding="utf-8")

    def run(self, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
        return self.sessions.run(self.folder, *self.options, *arguments, **variables)

    @property
    def store(self) -> Store:
        return Store(self.folder / "baselines")


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory, sessions: Sessions) -> Project:
    """A project whose baseline has been stored."""
    project = Project(tmp_path_factory.mktemp("project"), sessions)
    done = project.run("--hwq-save=main", "--hwq-runs=6", NOISE.format(1))
    assert done.returncode == 0, done.stdout
    assert "stored in sim-h200/main: 2 cells" in done.stdout
    assert "6 runs; sd" in done.stdout
    assert "all 6 runs come from one session" in done.stdout
    return project


def verdicts(file: Path) -> dict[str, str]:
    """The verdicts that JUnit tells, by property."""
    return {
        found.get("name", ""): found.get("value", "")
        for found in ElementTree.parse(file).iter("property")
        if found.get("name", "").endswith(".verdict")
    }


def test_each_run_is_a_process_and_a_line(project: Project) -> None:
    cells = project.store.read("main", "sim-h200").cells
    assert len(cells) == 2
    for cell in cells.values():
        assert len(cell.runs) == 6
        assert len({run.p99_ns for run in cell.runs}) == 6
        assert {run.n for run in cell.runs} == {320}


def test_unchanged_code_passes(project: Project) -> None:
    done = project.run("--hwq-compare=main", NOISE.format(2), "--junitxml=same.xml")
    assert done.returncode == 0, done.stdout
    assert "Against sim-h200/main: 2 pass" in done.stdout
    assert set(verdicts(project.folder / "same.xml").values()) == {"pass"}


def test_a_slowdown_fails_its_test_in_the_call_phase(project: Project) -> None:
    done = project.run(
        "--hwq-compare=main", NOISE.format(3), "--hwq-fault=slower:60", "-k", "long",
        "--hwq-causes=failing",
        "--junitxml=slower.xml", "--hwq-json=slower.json", "--hwq-markdown=slower.md",
        GITHUB_ACTIONS="true", GITHUB_STEP_SUMMARY=str(project.folder / "summary.md"),
    )  # fmt: skip
    assert done.returncode == pytest.ExitCode.TESTS_FAILED, done.stdout
    (suite,) = ElementTree.parse(project.folder / "slower.xml").iter("testsuite")
    assert (suite.get("failures"), suite.get("errors"), suite.get("tests")) == ("1", "0", "1")
    (failure,) = suite.iter("failure")
    text = failure.text or ""
    for part in ("test_mine", "P99", "regression", "baseline", "new", "convicted", "reproduce: "):
        assert part in text
    assert "--hwq-compare=main" in text
    # The run that explains it is none of those that are judged and kept.
    assert text.splitlines()[-1] == (
        "causes of the slowest 1 % in a traced run of its own (368 requests, level none): 100 % "
        "unexplained (100 % on the device)"
    )
    (verdict,) = verdicts(project.folder / "slower.xml").values()
    assert verdict == "regression"
    # The cell that was deselected is not forgotten.
    assert "not measured" in done.stdout
    assert "::error file=test_mine.py,line=" in done.stdout
    for file in ("slower.md", "summary.md"):
        assert "regression" in (project.folder / file).read_text(encoding="utf-8")
    session = json.loads((project.folder / "slower.json").read_text())
    (found,) = session["judgements"]
    Draft202012Validator(json_schema()).validate(found)
    assert (found["counts"]["regression"], found["exit_status"]) == (1, 1)
    assert [each["state"] for each in found["verdicts"]] == ["regression"]
    records = session["records"]
    # Screened with 2 runs, run again to 4 and 8, and convicted there.
    assert [record["run"] for record in records] == [1, 2, 3, 4, 5, 6, 7, 8]


@pytest.mark.slow
def test_on_the_host_device(tmp_path: Path, sessions: Sessions) -> None:
    project = Project(tmp_path, sessions)
    on_host = ("--hwq-device=cpu", "--hwq-iterations=300", "--hwq-max-time=5", "-k", "short")
    done = project.run("--hwq-save=main", "--hwq-runs=5", *on_host)
    assert done.returncode == 0, done.stdout
    same = project.run("--hwq-compare=main", *on_host)
    assert same.returncode == 0, same.stdout
    slower = project.run(
        "--hwq-compare=main", *on_host, "--hwq-fault=slower:900", "--junitxml=slower.xml"
    )
    assert slower.returncode == pytest.ExitCode.TESTS_FAILED, slower.stdout
    (suite,) = ElementTree.parse(tmp_path / "slower.xml").iter("testsuite")
    assert (suite.get("failures"), suite.get("errors")) == ("1", "0")
    (verdict,) = verdicts(tmp_path / "slower.xml").values()
    assert verdict == "regression"


@pytest.mark.parametrize(
    ("policy", "status"), [pytest.param("warn", 0, marks=pytest.mark.slow), ("fail", 1)]
)
def test_cells_that_are_missing_or_new_follow_the_policy(
    project: Project, policy: str, status: int
) -> None:
    options = (f"--hwq-on-missing={policy}", f"--hwq-on-no-baseline={policy}")
    done = project.run(
        "--hwq-compare=main", NOISE.format(4), "-k", "short", "--hwq-streams=1", *options,
        "--hwq-scheduler=native", "--hwq-dispatch=eager,graph", "--junitxml=new.xml",
    )  # fmt: skip
    assert done.returncode == status, done.stdout
    assert "no-baseline" in done.stdout
    assert "not measured" in done.stdout
    (suite,) = ElementTree.parse(project.folder / "new.xml").iter("testsuite")
    assert suite.get("failures") == ("2" if policy == "fail" else "0")


@pytest.mark.slow
def test_another_device_is_incomparable(project: Project) -> None:
    done = project.run("--hwq-compare=sim-h200/main", "-k", "short", "--hwq-device=cpu",
                       "--hwq-iterations=30", "--hwq-max-time=1")  # fmt: skip
    # The cell's name has another device too, so nothing of the baseline can be judged.
    assert done.returncode == pytest.ExitCode.USAGE_ERROR
    assert "device is sim:h200 in the baseline and cpu here" in done.stderr
    other = project.run(
        "--hwq-compare=main", "-k", "short", NOISE.format(5).replace("0.03", "0.04")
    )
    assert other.returncode == 1
    assert "incomparable" in other.stdout
    assert "noise is run=0.03,jitter=0.02 in one and run=0.04,jitter=0.02" in other.stdout.replace(
        "\n  ", " "
    )


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (("--hwq-compare=mian",), "'mian' is neither a baseline nor a file"),
        (
            ("--hwq-compare=main", "--hwq-fail-on=p98"),
            "no cell of sim-h200/main has a figure 'p98'",
        ),
        (("--hwq-compare=main", "--hwq-sentinel=x"), "the sentinel 'x' is no cell"),
        (("--hwq-compare=main", "--hwq-dispatch=graph"), "eager in the baseline and graph here"),
        (("--hwq-compare=main", "--hwq-runs=1"), "a comparison takes 2 new runs"),
        (("--hwq-save=../main",), "--hwq-save"),
        (("--hwq-runs=3", "--hwq-isolation=none"), "leave out --hwq-isolation=none"),
        (("--hwq-save=main", "-n2"), "leave out xdist's -n"),
    ],
)
def test_what_cannot_be_compared_is_refused_before_measuring(
    project: Project,
    run_in_process: RunInProcess,
    monkeypatch: pytest.MonkeyPatch,
    arguments: tuple[str, ...],
    reason: str,
) -> None:
    monkeypatch.chdir(project.folder)
    done = run_in_process(*project.options, "--hwq-isolation=process", *arguments)
    assert done.ret == pytest.ExitCode.USAGE_ERROR
    assert reason in done.stderr.str()
    assert "passed" not in done.stdout.str()


def test_a_damaged_baseline_is_an_error_and_not_an_absent_one(project: Project) -> None:
    (file, *_) = sorted((project.folder / "baselines/sim-h200/main").glob("*.jsonl"))
    whole = file.read_bytes()
    file.write_bytes(whole[: len(whole) // 2])
    try:
        done = project.run("--hwq-compare=main")
    finally:
        file.write_bytes(whole)
    assert done.returncode == pytest.ExitCode.USAGE_ERROR
    assert str(file.name) in done.stderr


def test_a_comparison_that_judges_nothing_is_no_success(project: Project) -> None:
    # Which streams a test of one's own measures on is known only when it has.
    (project.folder / "test_two.py").write_text(TEST.replace("streams=1", "streams=2"))
    try:
        done = project.run(
            "--hwq-compare=main", "--hwq-on-no-baseline=pass", "--hwq-runs=2", "test_two.py"
        )
    finally:
        (project.folder / "test_two.py").unlink()
    assert done.returncode == pytest.ExitCode.TESTS_FAILED, done.stdout
    assert "--hwq-compare=main judges no cell" in done.stdout
    assert "streams is 1 in the baseline and 2 here" in done.stdout


@pytest.mark.slow
def test_the_runs_asked_for_are_judged_at_one_look(project: Project) -> None:
    done = project.run(
        "--hwq-compare=main", NOISE.format(3), "--hwq-runs=5", "-k", "long",
        "--hwq-fault=slower:30", "--hwq-json=five.json",
    )  # fmt: skip
    assert done.returncode == pytest.ExitCode.TESTS_FAILED, done.stdout
    records = json.loads((project.folder / "five.json").read_text())["records"]
    assert len(records) == 5
    assert "6 baseline and 5 new runs" in " ".join(done.stdout.split())


@pytest.mark.slow
def test_a_run_is_measured_to_the_samples_of_its_baseline(project: Project) -> None:
    arguments = ["--hwq-runs=3", "--hwq-iterations=auto", NOISE.format(5), "-k", "short"]
    saved = project.run("--hwq-save=few", "--hwq-samples=400", *arguments)
    assert saved.returncode == 0, saved.stdout
    written = project.folder / "compared.json"
    compared = project.run("--hwq-compare=few", f"--hwq-json={written}", *arguments)
    assert compared.returncode == 0, compared.stdout
    records = json.loads(written.read_text(encoding="utf-8"))["records"]
    assert [record["iterations"] for record in records] == [400] * 3
    # Nothing that no verdict needs is measured.
    assert {record["metrics"]["timeline"] for record in records} == {None}


def test_faulty_runs_become_no_baseline(project: Project) -> None:
    done = project.run("--hwq-save=faulty", "--hwq-runs=1", "--hwq-fault=slower:10", "-k", "short")
    assert done.returncode == pytest.ExitCode.TESTS_FAILED
    assert "not stored as a baseline" in done.stdout
    assert not (project.folder / "baselines/sim-h200/faulty").exists()


def test_a_run_that_crashes_fails_its_test_once(project: Project) -> None:
    crashes = TEST.replace("measure(kernel", "measure(__import__('os').abort")
    file = project.folder / "test_mine.py"
    file.write_text(crashes, encoding="utf-8")
    try:
        done = project.run("--hwq-runs=3", "--hwq-json=crash.json", "-k", "short")
    finally:
        file.write_text(TEST, encoding="utf-8")
    assert done.returncode == pytest.ExitCode.TESTS_FAILED
    records = json.loads((project.folder / "crash.json").read_text())["records"]
    assert [(record["run"], record["status"]) for record in records] == [(1, "failed")]
    assert "1 failed" in done.stdout


@pytest.mark.parametrize("run", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_a_run_that_times_out_is_never_green(project: Project, run: int) -> None:
    """However slow the code became: also where its other runs are as fast as the baseline's."""
    hangs = f"""
    import os, time

    with open("began", "a") as began:
        began.write("x")
    if os.path.getsize("began") == {run}:
        kernel = lambda: time.sleep(600)
    hwq.measure"""
    file = project.folder / "test_mine.py"
    file.write_text(TEST.replace("    hwq.measure", hangs.lstrip("\n")), encoding="utf-8")
    try:
        done = project.run(
            "--hwq-compare=main", NOISE.format(6), "-k", "short", "--hwq-timeout=5",
            "--hwq-on-missing=pass", "--hwq-on-inconclusive=pass", "--hwq-json=hang.json",
            "--junitxml=hang.xml",
        )  # fmt: skip
    finally:
        file.write_text(TEST, encoding="utf-8")
        (project.folder / "began").unlink()
    assert done.returncode == pytest.ExitCode.TESTS_FAILED, done.stdout
    (suite,) = ElementTree.parse(project.folder / "hang.xml").iter("testsuite")
    assert (suite.get("failures"), suite.get("errors"), suite.get("tests")) == ("1", "0", "1")
    (failure,) = suite.iter("failure")
    assert "not finished within 5 s (--hwq-timeout)" in (failure.text or "")
    assert "pass" not in verdicts(project.folder / "hang.xml").values()
    records = json.loads((project.folder / "hang.json").read_text())["records"]
    # What failed is not run again.
    assert [record["status"] for record in records] == ["ok"] * (run - 1) + ["timeout"]


def test_what_was_stored_survives_a_kill(tmp_path: Path, sessions: Sessions) -> None:
    project = Project(tmp_path, sessions)
    process = subprocess.Popen(
        [sys.executable, "-m", "pytest", "-p", plugin_name(), *project.options,
         "--hwq-save=main", "--hwq-runs=50"],
        cwd=tmp_path, env=sessions.environment, stdout=subprocess.DEVNULL,
    )  # fmt: skip
    deadline = time.monotonic() + 120
    while stored(project) < 3 and time.monotonic() < deadline:
        time.sleep(0.1)
    process.send_signal(signal.SIGKILL)
    process.wait()
    before = stored(project)
    assert before >= 3
    done = project.run("--hwq-save=main", "--hwq-runs=1")
    assert done.returncode == 0, done.stdout
    assert stored(project) == before + 2


def stored(project: Project) -> int:
    """How many runs of all cells are stored; also while they are being written."""
    store: Any = project.store
    if not store.devices():
        return 0
    return sum(len(cell.runs) for cell in store.read("main", "sim-h200").cells.values())
