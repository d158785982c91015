"""What was asked for by name and did not run fails the session; the rest may be skipped."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import pytest

from pytest_hwqueue.options.suite import plugin_name
from tests.answers.versions.repositories import git

if TYPE_CHECKING:
    from tests.conftest import RunInProcess

# Parametrized as measuring tests are, but they measure nothing.
TESTS = """
import pytest
def test_own(hwq_device, hwq_streams, hwq_dispatch): pass
@pytest.mark.hwq_workload("hetero_kernels")
@pytest.mark.P0
def test_hetero(hwq_device, hwq_streams, hwq_scheduler, hwq_dispatch): pass
@pytest.mark.hwq_workload("large_gemm_only")
@pytest.mark.P0
def test_large(hwq_device, hwq_streams, hwq_scheduler, hwq_dispatch):
    if hwq_streams == 7:
        pytest.skip("found out late")
"""
SCENARIO = """
name: mine
duration: 300ms
schedulers: [native, 'xsched:level=1']
tenants: [{name: one, workload: large_gemm_only}, {name: two, workload: large_gemm_only}]
"""
BOTH = "--hwq-workload=hetero_kernels,large_gemm_only"


def says(result: pytest.RunResult, *problems: str) -> None:
    """A session fails with these problems alone, or passes without any."""
    failed = pytest.ExitCode.TESTS_FAILED if problems else pytest.ExitCode.OK
    assert result.ret == failed
    told = [line for line in result.outlines if line.startswith("hwqueue: --hwq-")]
    assert len(told) == len(problems)
    if problems:
        result.stdout.fnmatch_lines([f"hwqueue: --hwq-{problem}" for problem in problems])


@pytest.fixture
def run(pytester: pytest.Pytester, run_in_process: RunInProcess) -> RunInProcess:
    pytester.makepyfile(test_mine=TESTS)
    return partial(run_in_process, "--hwq-device=cpu")


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ("--hwq-scheduler=native,stream-priority",
         "scheduler=stream-priority: nothing of it ran: stream-priority needs an accelerator*"),
        ("--hwq-dispatch=eager,graph",
         "dispatch=graph: nothing of it ran: graph dispatch needs an accelerator*"),
        (f"{BOTH} --hwq-streams=1",
         "workload=hetero_kernels: nothing of it ran: hetero_kernels takes 2 to 128 streams*"),
        (f"{BOTH} --hwq-streams=7",
         "workload=large_gemm_only: nothing of it ran: found out late"),
        ("--hwq-workload=hetero_kernels,moe",
         "workload=moe: nothing of it ran: no test of it was selected"),
        # Nothing is named: what runs is the default.
        ("", None),
        # Counts are no names: each workload takes those of its range.
        ("--hwq-streams=1,2", None),
        (f"{BOTH} --hwq-streams=1,2", None),
        ("--hwq-priority=P0 --hwq-scheduler=native --hwq-dispatch=eager", None),
        # Named by its node id, one test is all that is asked for.
        ("--hwq-dispatch=eager,graph test_mine.py::test_own[cpu-s2-eager] --hwq-streams=2", None),
    ],
)  # fmt: skip
def test_a_name_that_did_not_run_fails_the_session(
    run: RunInProcess, given: str, problem: str | None
) -> None:
    result = run(*given.split())
    says(result, *([problem] if problem else []))
    assert result.parseoutcomes()["passed"] >= 1


def test_a_name_counts_wherever_it_was_given_unless_the_session_ended_early(
    pytester: pytest.Pytester, run: RunInProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patched:
        patched.setenv("HWQ_DISPATCH", "eager,graph")
        says(run(), "dispatch=graph: *")
    pytester.makeini("[pytest]\nhwq_dispatch = eager,graph")
    says(run(), "dispatch=graph: *")
    pytester.makepyfile(test_before="def test_plain(): assert False")
    early = run("-x")
    assert early.ret == pytest.ExitCode.TESTS_FAILED
    early.stdout.no_fnmatch_line("hwqueue: --hwq-*")


def test_a_scenarios_scheduler_must_run_if_it_was_named(
    pytester: pytest.Pytester, run: RunInProcess
) -> None:
    (pytester.path / "mine.hwq.yaml").write_text(SCENARIO)
    result = run("mine.hwq.yaml", "--hwq-isolation=process", "--hwq-scheduler=xsched,mps")
    result.assert_outcomes(skipped=1)
    says(
        result,
        "scheduler=xsched: nothing of it ran: xsched:level=1 needs an accelerator*",
        "scheduler=mps: nothing of it ran: no test of it was selected",
    )


@pytest.fixture
def unit(pytester: pytest.Pytester, run_in_process: RunInProcess) -> RunInProcess:
    """Run a test that measures nothing, in a git repository."""
    pytester.makepyfile(test_unit="def test_plain(): pass")
    git(pytester.path, "init", "-q")
    git(pytester.path, "commit", "-q", "--allow-empty", "-m", "one")
    return partial(run_in_process, "--hwq-isolation=process")


@pytest.mark.parametrize(
    ("asked", "place"),
    [
        ("save=main", "option"), ("save=main", "environment"), ("save=main", "ini"),
        ("compare=reference", "option"), ("against=HEAD", "environment"), ("noise=cpu", "option"),
        ("scheduler=native,mps", "ini"), ("workload=moe", "environment"), ("priority=P0", "ini"),
        ("fault=slower:20", "option"), ("cache=cold", "option"),
    ],
)  # fmt: skip
def test_a_session_that_should_measure_and_has_nothing_to_measure_fails(
    pytester: pytest.Pytester, unit: RunInProcess, monkeypatch: pytest.MonkeyPatch,
    asked: str, place: str,
) -> None:  # fmt: skip
    name, _, value = asked.partition("=")
    given, source = [f"--hwq-{asked}"], f"--hwq-{asked}"
    if place == "environment":
        given, source = [], f"environment variable HWQ_{name.upper()}={value}"
        monkeypatch.setenv(f"HWQ_{name.upper()}", value)
    elif place == "ini":
        given, source = [], f"ini key hwq_{asked}"
        pytester.makeini(f"[pytest]\nhwq_{asked}")
    for selected in ([], ["-k", "no_such_test"]):
        result = unit(*given, *selected)
        assert result.ret == pytest.ExitCode.USAGE_ERROR
        result.stderr.fnmatch_lines([f"ERROR: {source}: no test was selected*: --hwq-{name}="])
    promise_nothing = [f"--hwq-{name}=", *(["--collect-only", "--fixtures"] * (name == "save"))]
    for more in promise_nothing:
        assert unit(*given, more).ret == pytest.ExitCode.OK


def test_what_is_wrong_with_the_names_or_files_is_the_first_thing_said(
    pytester: pytest.Pytester, unit: RunInProcess
) -> None:
    for given, told in (
        (["--hwq-compare=nowhere"], "--hwq-compare: *nowhere*"),
        (["--hwq-against=nowhere"], "--hwq-against: *nowhere*"),
        (["--hwq-scheduler=preload:nowhere"], "--hwq-scheduler: *nowhere*"),
        (["nowhere.py", "--hwq-save=main"], "file or directory not found: nowhere.py"),
    ):
        result = unit(*given)
        assert result.ret == pytest.ExitCode.USAGE_ERROR
        result.stderr.fnmatch_lines([f"ERROR: {told}"])
    pytester.makepyfile(test_broken="import nowhere")
    assert unit("--hwq-save=main").ret == pytest.ExitCode.INTERRUPTED


def test_workers_of_xdist_refuse_once(pytester: pytest.Pytester) -> None:
    pytester.makepyfile("def test_mine(hwq): pass")
    without = ("-p", "no:hypothesispytest")
    given = ("-p", plugin_name(), *without, "-n2", "--hwq-device=cuda:99")
    result = pytester.runpytest_subprocess(*given)
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(["ERROR: nothing to measure: *cuda:99*"])
