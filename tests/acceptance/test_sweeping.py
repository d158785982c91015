"""Sweeps: what is taken over by --resume, what is refused, and what is drawn at the end."""

from __future__ import annotations

import json
import os
import xml.etree.ElementTree as ElementTree
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from pytest_hwqueue import suite
from pytest_hwqueue.devices.fingerprint import CUDA_QUEUE_SETTINGS
from pytest_hwqueue.plugin.sweeping import depends_on
from pytest_hwqueue.reports import latency_plot, scaling_files
from pytest_hwqueue.settings.options import OPTIONS, Settings

if TYPE_CHECKING:
    from tests.conftest import RunInProcess, Sessions

MINE = "test_mine.py::test_mine[cpu-s{}-native-eager]"


@pytest.fixture(autouse=True)
def _own_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(Path(suite.__file__).parents[1]))
    for name in os.environ:
        if name.startswith(("HWQ_", "PYTEST_XDIST_")):
            monkeypatch.delenv(name)


class Project:
    """A folder in which one test is measured in sessions of its own."""

    def __init__(self, path: Path, run: Sessions) -> None:
        self.path, self._run = path, run

    def sweep(self, *more: str, streams: str = "1,2") -> pytest.RunResult:
        """Measure the test."""
        return self._run.result(
            self.path, "-p", "pytest_hwqueue.plugin.sweeping", "-rs", "--hwq-device=cpu",
            f"--hwq-streams={streams}", "--hwq-iterations=60", "--hwq-max-time=2",
            "--hwq-warmup=2", "--hwq-json=all.json", *more,
        )  # fmt: skip

    def sessions(self) -> list[Path]:
        """Return the folders of its sessions, oldest first."""
        return sorted(
            (self.path / ".hwqueue").glob("2*"),
            key=lambda folder: json.loads((folder / "session.json").read_text())["session"][
                "started"
            ],
        )

    def records(self) -> list[dict[str, Any]]:
        """Return the last session's records."""
        found: list[dict[str, Any]] = json.loads((self.path / "all.json").read_text())["records"]
        return found


@pytest.fixture
def project(pytester: pytest.Pytester, sessions: Sessions) -> Project:
    """A test that fails on two streams for as long as there is a file ``broken``."""
    pytester.makepyfile(
        test_mine="""
        import pathlib

        def test_mine(hwq, hwq_streams):
            def work():
                if hwq_streams == 2 and pathlib.Path("broken").exists():
                    raise RuntimeError("broken")

            hwq.measure(work, work={"calls": hwq_streams})
        """
    )
    return Project(pytester.path, sessions)


def test_resume_measures_what_failed_and_reports_all(project: Project) -> None:
    (project.path / "broken").touch()
    first = project.sweep()
    first.assert_outcomes(passed=1, failed=1)
    first.stdout.fnmatch_lines(["not every cell was measured: *--resume*"])
    (earlier,) = project.sessions()
    kept = {path.name: path.read_bytes() for path in earlier.glob("test_mine*.json")}

    (project.path / "broken").unlink()
    second = project.sweep("--hwq-resume", "--hwq-timeout=100")

    second.assert_outcomes(passed=1, skipped=1)
    second.stdout.fnmatch_lines(
        [f"*Measured in session {earlier.name}: 1 stream.",
         f"SKIPPED *measured in session {earlier.name}"]
    )  # fmt: skip
    assert "not every cell" not in second.stdout.str()
    later = project.sessions()[1]
    # The earlier session is as it was; the later has all cells, also for the next --resume.
    assert {path.name: path.read_bytes() for path in earlier.glob("test_mine*.json")} == kept
    assert len([*later.glob("test_mine*.json")]) == 2
    assert [record["nodeid"] for record in project.records()] == [MINE.format(n) for n in (1, 2)]
    assert [record["status"] for record in project.records()] == ["ok"] * 2
    note = f"measured in session {earlier.name}"
    assert [note in record["notes"] for record in project.records()] == [True, False]
    scaling = json.loads((project.path / "all.json").read_text())["scaling"]
    assert [point["streams"] for point in scaling[0]["scaling"]["points"]] == [1, 2]

    table = (later / "sweep" / "scaling.txt").read_text()
    assert f"Measured in session {earlier.name}: 1 stream." in table
    plot = later / "sweep" / "test_mine.py::test_mine.svg"
    second.stdout.fnmatch_lines(
        [f"scaling: {later}/sweep/scaling.txt", f"plot: {plot}".replace("[", "[[]")]
    )
    texts = "".join(ElementTree.fromstring(plot.read_text()).itertext())
    assert "calls/s" in texts
    assert "hollow: measured in an earlier session" in texts

    third = project.sweep("--hwq-resume")
    assert third.ret == pytest.ExitCode.USAGE_ERROR
    third.stderr.fnmatch_lines(
        [f"*--hwq-resume: nothing is left to measure: session {later.name} * has all 2 cells*"]
    )
    assert project.sessions() == [earlier, later]


@pytest.mark.slow
def test_resume_after_the_session_was_killed(project: Project, pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        test_mine="""
        import os, pathlib, signal

        def test_mine(hwq, hwq_streams):
            if hwq_streams == 2 and pathlib.Path("broken").exists():
                os.kill(os.getpid(), signal.SIGKILL)
            hwq.measure(lambda: None, work={"calls": hwq_streams})
        """
    )
    (project.path / "broken").touch()
    project.sweep("--hwq-isolation=none")
    (killed,) = project.sessions()
    assert len([*killed.glob("test_mine*.json")]) == 1
    # Killed again before it measures anything: what the first has measured is not lost.
    project.sweep("--hwq-resume", "--hwq-isolation=none")
    assert len(project.sessions()) == 2

    (project.path / "broken").unlink()
    last = project.sweep("--hwq-resume", "--hwq-isolation=none")

    last.assert_outcomes(passed=1, skipped=1)
    last.stdout.fnmatch_lines([f"*Measured in session {killed.name}: 1 stream."])


@pytest.mark.slow
def test_nothing_to_resume_is_refused_with_the_reason(project: Project) -> None:
    found = project.sweep("--hwq-resume")
    assert found.ret == pytest.ExitCode.USAGE_ERROR
    found.stderr.fnmatch_lines(["*--hwq-resume: there is no sweep in *.hwqueue"])
    assert not (project.path / ".hwqueue").exists()

    project.sweep(streams="1").assert_outcomes(passed=1)
    found = project.sweep("--hwq-resume", "--hwq-seed=7", streams="1,2")
    assert found.ret == pytest.ExitCode.USAGE_ERROR
    found.stderr.fnmatch_lines(["*differs: --hwq-seed was 0, now 7; --hwq-streams was 1, now 1,2"])


@pytest.mark.parametrize(("more", "ranks", "says"), [
    (["--hwq-runs=2"], "", "leave out --hwq-runs"),
    (["--hwq-save=x"], "", "leave out --hwq-runs"),
    (["-n", "2"], "", "leave out xdist's -n"),
    ([], "2", "the ranks of torchrun could skip different cells"),
])  # fmt: skip
def test_what_cannot_be_continued_is_refused(
    run_in_process: RunInProcess, monkeypatch: pytest.MonkeyPatch, more: list[str], ranks: str,
    says: str,
) -> None:  # fmt: skip
    if ranks:
        place = {"RANK": "0", "WORLD_SIZE": ranks, "MASTER_ADDR": "here", "MASTER_PORT": "1"}
        for name, value in place.items():
            monkeypatch.setenv(name, value)

    found = run_in_process(
        "-p", "pytest_hwqueue.plugin.sweeping", "--hwq-isolation=process", "--hwq-resume", *more
    )

    assert found.ret == pytest.ExitCode.USAGE_ERROR
    found.stderr.fnmatch_lines([f"*--hwq-resume: *{says}*"])


def settings(**changed: object) -> Settings:
    values = {option.field: option.parse(option.name, option.default) for option in OPTIONS}
    return Settings(**{**values, **changed})


def same(
    more: Mapping[str, object] | None = None,
    commit: str | None = "c",
    environment: Mapping[str, str] | None = None,
) -> dict[str, str]:
    return depends_on(settings(**(more or {})), commit, environment or {})


def test_a_sweep_depends_on_every_option_but_those_that_change_no_figure() -> None:
    free = {
        "dir", "json", "commit", "markdown", "report", "timeout", "lease_timeout", "budget",
    }  # fmt: skip

    for option in OPTIONS:
        changed = same({option.field: "something else"})
        assert (changed == same()) is (option.field in free), option.name


def test_a_sweep_depends_on_commit_and_the_runtimes_settings() -> None:
    assert same(commit="d") != same()
    assert same(environment={"UNRELATED": "1"}) == same()
    for name in (*CUDA_QUEUE_SETTINGS, "GPU_MAX_HW_QUEUES", "CUDA_VISIBLE_DEVICES"):
        assert same(environment={name: "1"}) != same()


def test_a_sweep_depends_on_what_is_not_committed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = same()
    (tmp_path / "test_more.py").write_text("")
    monkeypatch.setattr("pytest_hwqueue.plugin.sweeping.suite_path", lambda: tmp_path)
    with_other_suite = same()
    (tmp_path / "test_more.py").write_text("# changed")

    differing = {name for name, value in same().items() if value != with_other_suite[name]}

    assert differing == {"files of plugin and suite"}
    assert with_other_suite != before


def test_without_matplotlib_the_tables_are_still_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, make_record: Any
) -> None:
    monkeypatch.setattr(scaling_files, "can_plot", lambda: False)
    found = [
        make_record(
            seed=n, parts={"streams": n}, status="failed" if n == 4 else "ok",
            work_per_iteration={"products": n},
        )
        for n in (1, 2, 4)
    ]  # fmt: skip
    found.append(make_record("moe"))

    lines = scaling_files.write_scaling(tmp_path, found)

    assert lines == [
        f"scaling: {tmp_path}/scaling.txt", latency_plot.INSTALL,
        "moe: no scaling, measured at 1 count of streams",
    ]  # fmt: skip
    assert "hetero_kernels over streams" in (tmp_path / "scaling.txt").read_text()
    assert [path.name for path in tmp_path.iterdir()] == ["scaling.txt"]
