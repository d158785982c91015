"""Baselines and the gate as users meet them: real sessions that save, compare, fail and report."""

from __future__ import annotations

import json
import shutil
import subprocess
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from jsonschema import Draft202012Validator

from pytest_hwqueue.judge.baselines.store import Store
from pytest_hwqueue.judge.file import json_schema
from tests.acceptance.inner import records_in

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
        self.tests = folder / "test_mine.py"
        self.tests.write_text(TEST, encoding="utf-8")
        self.store = Store(folder / "baselines")

    def run(self, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
        return self.sessions.run(
            self.folder, *self.options, "--junitxml=junit.xml", "--hwq-json=session.json",
            *arguments, **variables,
        )  # fmt: skip

    def passes(self, *arguments: str) -> str:
        done = self.run(*arguments)
        assert done.returncode == 0, done.stdout
        return done.stdout

    def fails(self, *arguments: str, **variables: str) -> str:
        done = self.run(*arguments, **variables)
        assert done.returncode == pytest.ExitCode.TESTS_FAILED, done.stdout
        return done.stdout

    @contextmanager
    def with_tests(self, text: str) -> Iterator[None]:
        """Have other tests in the same file."""
        self.tests.write_text(text, encoding="utf-8")
        yield
        self.tests.write_text(TEST, encoding="utf-8")

    def records(self) -> list[dict[str, Any]]:
        return records_in(self.folder / "session.json")

    def junit(self) -> tuple[str, list[str], list[str]]:
        """Tests that failed and were in error of all; what the failures say; the verdicts."""
        tree = ElementTree.parse(self.folder / "junit.xml")
        (suite,) = tree.iter("testsuite")
        outcome = "{failures} failed, {errors} in error of {tests}".format_map(suite.attrib)
        verdicts = [
            found.get("value", "")
            for found in tree.iter("property")
            if found.get("name", "").endswith(".verdict")
        ]
        return outcome, [each.text or "" for each in tree.iter("failure")], verdicts


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory, sessions: Sessions) -> Project:
    """A project whose baseline has been stored."""
    project = Project(tmp_path_factory.mktemp("project"), sessions)
    output = project.passes("--hwq-save=main", "--hwq-runs=6", NOISE.format(1))
    assert "stored in sim-h200/main: 2 cells" in output
    assert "6 runs; sd" in output
    # A model's sessions do not differ, unless they are given noise of their own.
    assert "come from one session" not in output
    cells = project.store.read("main", "sim-h200")
    assert len(cells) == 2
    assert not list(project.folder.glob("baselines/*/main/records"))
    for cell in cells.values():
        assert len({run.p99_ns for run in cell.runs}) == len(cell.runs) == 6
        assert {run.n for run in cell.runs} == {320}
    return project


# What a test calls itself once it has measured; the verdict on its cell is another matter.
OUTCOMES = """
import pytest

def measured(hwq, hwq_device):
    hwq.measure(hwq_device.kernel_of(200_000), streams=1)

@pytest.mark.xfail(strict=False)
def test_xpassed(hwq, hwq_device): measured(hwq, hwq_device)
@pytest.mark.xfail(strict=False)
def test_xfailed(hwq, hwq_device):
    measured(hwq, hwq_device)
    assert False
def test_skipped(hwq, hwq_device):
    measured(hwq, hwq_device)
    pytest.skip("known")
def test_failed(hwq, hwq_device):
    measured(hwq, hwq_device)
    assert False
"""


def test_a_regression_reaches_the_exit_status_whatever_its_test_calls_itself(
    tmp_path: Path, sessions: Sessions
) -> None:
    project = Project(tmp_path, sessions)
    project.tests.write_text(OUTCOMES, encoding="utf-8")
    output = project.fails("--hwq-save=main", "--hwq-runs=6", COLUMNS="200")
    assert "test_failed[sim:h200-s8-native-eager] failed after it had measured" in output
    assert "not stored in main" in output
    stored = project.store.read("main", "sim-h200").values()
    assert [len(cell.runs) for cell in stored] == [6, 6, 6]

    project.tests.write_text(OUTCOMES.replace("200_000", "400_000"), encoding="utf-8")
    # Each counts as a failure of its own, of which one is enough.
    output = project.fails("--hwq-compare=main", "-k", "not test_failed", "-rA", COLUMNS="200")
    assert "3 failed, 1 skipped, 1 deselected, 1 xfailed, 1 xpassed" in output
    for name in ("xpassed", "xfailed", "skipped"):
        assert f"main::test_mine.py::test_{name}[sim:h200-s8-native-eager]" in output
    texts = project.junit()[1]
    assert ["P99 is a regression" in text for text in texts] == [True] * 3


def test_a_slowdown_fails_its_test_in_the_call_phase_and_unchanged_code_passes(
    project: Project,
) -> None:
    with project.with_tests(TEST.replace("400_000", "640_000")):
        output = project.fails(
            "--hwq-compare=main", NOISE.format(3), "--hwq-causes=failing",
            "--hwq-markdown=slower.md",
            GITHUB_ACTIONS="true", GITHUB_WORKSPACE=str(project.folder),
            GITHUB_STEP_SUMMARY=str(project.folder / "summary.md"),
        )  # fmt: skip
    outcome, (text,), verdicts = project.junit()
    assert outcome == "1 failed, 0 in error of 2"
    assert verdicts == ["pass", "regression"]
    for part in ("test_mine", "P99 is a regression", "baseline", "new", "earlier looks: ",
                 "reproduce: ", "--hwq-compare=main"):  # fmt: skip
        assert part in text
    # The run that explains it is none of those that are judged and kept.
    assert text.splitlines()[-1] == (
        "causes of the slowest 1 % in a traced run of its own (368 requests, level none): 100 % "
        "unexplained (100 % on the device)"
    )
    assert "Against sim-h200/main: 1 regression, 1 pass" in output
    assert "::error file=test_mine.py,line=" in output
    for file in ("slower.md", "summary.md"):
        assert "regression" in (project.folder / file).read_text(encoding="utf-8")
    (found,) = json.loads((project.folder / "session.json").read_text())["judgements"]
    Draft202012Validator(json_schema()).validate(found)
    assert (found["counts"]["regression"], found["exit_status"]) == (1, 1)
    assert sorted(each["state"] for each in found["verdicts"]) == ["pass", "regression"]
    # Screened with 2 runs, run again to 4 and 8, and convicted there.
    runs = {name: [each["run"] for each in project.records() if name in each["nodeid"]]
            for name in ("short", "long")}  # fmt: skip
    assert runs == {"short": [1, 2], "long": [1, 2, 3, 4, 5, 6, 7, 8]}


@pytest.mark.slow
def test_causes_are_sought_in_the_three_cells_that_got_worst(
    tmp_path: Path, sessions: Sessions
) -> None:
    project = Project(tmp_path, sessions)
    tests = TEST.replace('["short", "long"]', "[1, 2, 3, 4]")
    length = '200_000 if length == "short" else 400_000'
    project.tests.write_text(tests.replace(length, "100_000 * length"), encoding="utf-8")
    project.passes("--hwq-save=four", "--hwq-runs=6")
    slower = tests.replace(length, "100_000 * length + 10_000 * length**2")
    project.tests.write_text(slower, encoding="utf-8")
    project.fails("--hwq-compare=four", "--hwq-runs=6", "--hwq-causes=failing")
    outcome, texts, _ = project.junit()
    assert outcome == "4 failed, 0 in error of 4"
    found = [text.splitlines()[-1].partition(": ")[0] for text in texts]
    # No run of a kernel that always lasts as long has a slower 1 %.
    assert found == ["causes", *["causes of the slowest requests are not known"] * 3]


@pytest.mark.slow  # tests/plugin/test_regression.py, in this process.
def test_a_session_that_fails_measures_no_more_of_what_is_in_doubt(project: Project) -> None:
    slower = TEST.replace("200_000", "320_000").replace("400_000", "424_000")
    with project.with_tests(slower):
        output = project.fails("--hwq-compare=main", NOISE.format(3))
    assert project.junit()[2] == ["regression", "inconclusive"]
    assert "not decided yet, 7 more new runs are needed to judge" in " ".join(output.split())
    assert max(each["run"] for each in project.records()) == 8


@pytest.mark.slow
def test_on_the_host_device(tmp_path: Path, sessions: Sessions) -> None:
    project = Project(tmp_path, sessions)
    on_host = ("--hwq-device=cpu", "--hwq-iterations=300", "--hwq-max-time=5", "-k", "short")
    project.passes("--hwq-save=main", "--hwq-runs=5", *on_host)
    project.passes("--hwq-compare=main", *on_host)
    project.fails("--hwq-compare=main", *on_host, "--hwq-fault=slower:900")
    assert project.junit()[0] == "1 failed, 0 in error of 1"
    assert project.junit()[2] == ["regression"]


@pytest.mark.parametrize("policy", [pytest.param("warn", marks=pytest.mark.slow), "fail"])
def test_cells_that_are_missing_or_new_follow_the_policy(project: Project, policy: str) -> None:
    output = (project.fails if policy == "fail" else project.passes)(
        "--hwq-compare=main", NOISE.format(4), "-k", "short", "--hwq-streams=1",
        "--hwq-scheduler=native", "--hwq-dispatch=eager,graph",
        f"--hwq-on=missing:{policy},no-baseline:{policy}",
    )  # fmt: skip
    assert "no-baseline" in output
    assert "not measured" in output
    assert project.junit()[0].startswith("2 failed" if policy == "fail" else "0 failed")


@pytest.mark.slow
def test_another_device_is_incomparable(project: Project) -> None:
    done = project.run("--hwq-compare=sim-h200/main", "-k", "short", "--hwq-device=cpu",
                       "--hwq-iterations=30", "--hwq-max-time=1")  # fmt: skip
    # The cell's name has another device too, so nothing of the baseline can be judged.
    assert done.returncode == pytest.ExitCode.USAGE_ERROR
    assert "device is sim:h200 in the baseline and cpu here" in done.stderr
    other = project.fails(
        "--hwq-compare=main", "-k", "short", NOISE.format(5).replace("0.03", "0.04")
    )
    assert "incomparable" in other
    said = "noise is run=0.03,jitter=0.02 in one and run=0.04,jitter=0.02"
    assert said in other.replace("\n  ", " ")


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ("--hwq-compare=mian", "'mian' is neither a baseline nor a file"),
        ("--hwq-compare=main --hwq-fail-on=p98", "no cell of sim-h200/main has a figure 'p98'"),
        ("--hwq-compare=main --hwq-sentinel=x", "the sentinel 'x' is no cell"),
        ("--hwq-compare=main --hwq-dispatch=graph", "eager in the baseline and graph here"),
        ("--hwq-compare=main --hwq-runs=1", "a comparison takes 2 new runs"),
        ("--hwq-save=../main", "--hwq-save"),
        ("--hwq-runs=3 --hwq-isolation=none", "leave out --hwq-isolation=none"),
        ("--hwq-save=main -n2", "leave out xdist's -n"),
        # Damaged, and not absent.
        ("--hwq-compare=torn", ".jsonl is damaged: it is cut off"),
    ],
)
def test_what_cannot_be_compared_is_refused_before_measuring(
    project: Project, run_in_process: RunInProcess, monkeypatch: pytest.MonkeyPatch,
    arguments: str, reason: str,
) -> None:  # fmt: skip
    monkeypatch.chdir(project.folder)
    torn = project.folder / "baselines/sim-h200/torn"
    shutil.copytree(torn.with_name("main"), torn, dirs_exist_ok=True)
    (file, *_) = sorted(torn.glob("*.jsonl"))
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])
    done = run_in_process(*project.options, "--hwq-isolation=process", *arguments.split())
    assert done.ret == pytest.ExitCode.USAGE_ERROR
    assert reason in done.stderr.str()
    assert "passed" not in done.stdout.str()


def test_a_comparison_that_judges_nothing_is_no_success(project: Project) -> None:
    # Which streams a test of one's own measures on is known only when it has.
    with project.with_tests(TEST.replace("streams=1", "streams=2")):
        output = project.fails(
            "--hwq-compare=main", "--hwq-on=no-baseline:pass", "--hwq-runs=2", "-k", "short"
        )
    assert "--hwq-compare=main judges no cell" in output
    assert "streams is 1 in the baseline and 2 here" in output


@pytest.mark.slow
def test_the_runs_asked_for_are_judged_at_one_look(project: Project) -> None:
    output = project.fails(
        "--hwq-compare=main", NOISE.format(3), "--hwq-runs=5", "-k", "long", "--hwq-fault=slower:30"
    )
    assert len(project.records()) == 5
    assert "6 baseline and 5 new runs" in " ".join(output.split())


@pytest.mark.slow
def test_a_run_is_measured_to_the_samples_of_its_baseline(project: Project) -> None:
    arguments = ["--hwq-runs=3", "--hwq-iterations=auto", NOISE.format(5), "-k", "short"]
    project.passes("--hwq-save=few", "--hwq-samples=400", *arguments)
    project.passes("--hwq-compare=few", *arguments)
    # Nothing that no verdict needs is measured.
    assert [(each["iterations"], each["metrics"]["timeline"]) for each in project.records()] == [
        (400, None)
    ] * 3


def test_faulty_runs_become_no_baseline(project: Project) -> None:
    output = project.fails("--hwq-save=faulty", "--hwq-runs=1", "--hwq-fault=slower:10")
    assert "not stored as a baseline" in output
    assert not (project.folder / "baselines/sim-h200/faulty").exists()


FAILS = """
    if length == "short":
        kernel = __import__("os").abort
    else:
        with open("began", "a") as began:
            began.write("x")
        if __import__("os").path.getsize("began") == {run}:
            kernel = lambda: __import__("time").sleep(600)
    hwq.measure"""


@pytest.mark.parametrize("run", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_a_run_that_crashes_or_times_out_fails_its_test_once(project: Project, run: int) -> None:
    """However slow the code became: also where its other runs are as fast as the baseline's."""
    (project.folder / "began").unlink(missing_ok=True)
    with project.with_tests(TEST.replace("\n    hwq.measure", FAILS.format(run=run))):
        output = project.fails(
            "--hwq-compare=main", NOISE.format(6), "--hwq-timeout=2", "--hwq-on=missing:pass",
            "--hwq-on=inconclusive:pass",
        )  # fmt: skip
    outcome, texts, verdicts = project.junit()
    assert outcome == "2 failed, 0 in error of 2"
    assert "2 failed" in output
    assert any("not finished within 2 s (--hwq-timeout)" in text for text in texts)
    assert "pass" not in verdicts
    # What failed is not run again.
    assert [(each["run"], each["status"]) for each in project.records()] == [
        (1, "failed"), *[(number, "ok") for number in range(1, run)], (run, "timeout")
    ]  # fmt: skip
