"""What was asked for by name and did not run fails the session; the rest may be skipped."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import pytest

from pytest_hwqueue.suite import plugin_name
from tests.interleaved.repositories import git

if TYPE_CHECKING:
    from tests.conftest import RunInProcess


@pytest.fixture
def run(pytester: pytest.Pytester, run_in_process: RunInProcess) -> RunInProcess:
    """Run tests that are parametrized as measuring ones are, but measure nothing."""
    pytester.makepyfile(
        test_mine="""
        import pytest

        def test_own(hwq_device, hwq_streams, hwq_dispatch):
            pass

        @pytest.mark.hwq_workload("hetero_kernels")
        @pytest.mark.P0
        def test_hetero(hwq_device, hwq_streams, hwq_scheduler, hwq_dispatch):
            pass

        @pytest.mark.hwq_workload("large_gemm_only")
        @pytest.mark.P0
        def test_large(hwq_device, hwq_streams, hwq_scheduler, hwq_dispatch, request):
            if hwq_streams == 7:
                pytest.skip("found out late")
        """
    )
    return partial(run_in_process, "--hwq-device=cpu")


ASKED = "hwqueue: --hwq-"


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        (
            ["--hwq-scheduler=native,stream-priority"],
            "scheduler=stream-priority: nothing of it ran: stream-priority needs an accelerator*",
        ),
        (
            ["--hwq-dispatch=eager,graph"],
            "dispatch=graph: nothing of it ran: graph dispatch needs an accelerator*",
        ),
        (
            ["--hwq-workload=hetero_kernels,large_gemm_only", "--hwq-streams=1"],
            "workload=hetero_kernels: nothing of it ran: hetero_kernels takes 2 to 128 streams*",
        ),
        (
            ["--hwq-workload=hetero_kernels,large_gemm_only", "--hwq-streams=7"],
            "workload=large_gemm_only: nothing of it ran: found out late",
        ),
        (
            ["--hwq-workload=hetero_kernels,moe"],
            "workload=moe: nothing of it ran: no test of it was selected",
        ),
    ],
)
def test_a_name_that_did_not_run_fails_the_session(
    run: RunInProcess, given: list[str], problem: str
) -> None:
    result = run(*given)
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.fnmatch_lines([f"{ASKED}{problem}"])
    assert result.parseoutcomes()["passed"] >= 1


@pytest.mark.parametrize("place", ["environment", "ini"])
def test_a_name_counts_wherever_it_was_given(
    pytester: pytest.Pytester, run: RunInProcess, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    if place == "ini":
        pytester.makeini("[pytest]\nhwq_dispatch = eager,graph")
    else:
        monkeypatch.setenv("HWQ_DISPATCH", "eager,graph")
    result = run()
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.fnmatch_lines([f"{ASKED}dispatch=graph: *"])
    # Named by its node id, one test is all that is asked for.
    alone = run("test_mine.py::test_own[cpu-s2-eager]", "--hwq-streams=2")
    assert alone.ret == pytest.ExitCode.OK


@pytest.mark.parametrize(
    "given",
    [
        # Nothing is named: what runs is the default.
        [],
        # Counts are no names: each workload takes those of its range.
        ["--hwq-streams=1,2"],
        ["--hwq-workload=hetero_kernels", "--hwq-streams=1,2"],
        ["--hwq-workload=hetero_kernels,large_gemm_only", "--hwq-streams=1,2"],
        ["--hwq-priority=P0", "--hwq-scheduler=native", "--hwq-dispatch=eager"],
    ],
)
def test_what_ran_in_part_or_was_not_named_is_fine(run: RunInProcess, given: list[str]) -> None:
    result = run(*given)
    assert result.ret == pytest.ExitCode.OK
    result.stdout.no_fnmatch_line(f"{ASKED}*")


def test_a_session_that_ended_early_has_its_own_reason(
    pytester: pytest.Pytester, run: RunInProcess
) -> None:
    pytester.makepyfile(test_before="def test_plain(): assert False")
    result = run("-x", "--hwq-scheduler=native,stream-priority")
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.no_fnmatch_line(f"{ASKED}*")


def test_a_scenarios_scheduler_must_run_if_it_was_named(
    pytester: pytest.Pytester, run: RunInProcess
) -> None:
    (pytester.path / "mine.hwq.yaml").write_text(
        "name: mine\nduration: 300ms\nwarmup: 100ms\nschedulers: [native, 'xsched:level=1']\n"
        "tenants:\n"
        "  - {name: one, workload: large_gemm_only, parameters: {mm_dim: 16}, arrival: closed}\n"
        "  - {name: two, workload: large_gemm_only, parameters: {mm_dim: 16}, arrival: closed}\n"
    )
    result = run("mine.hwq.yaml", "--hwq-isolation=process", "--hwq-scheduler=xsched,mps")
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.assert_outcomes(skipped=1)
    result.stdout.fnmatch_lines(
        [
            f"{ASKED}scheduler=xsched: nothing of it ran: xsched:level=1 needs an accelerator*",
            f"{ASKED}scheduler=mps: nothing of it ran: no test of it was selected",
        ]
    )


NEED_MEASURING = (
    "compare=reference", "against=HEAD", "save=main", "scheduler=native,mps", "noise=cpu",
    "workload=moe", "priority=P0", "fault=slower:20",
)  # fmt: skip


@pytest.fixture
def unit(pytester: pytest.Pytester, run_in_process: RunInProcess) -> RunInProcess:
    """Run a test that measures nothing, in a git repository."""
    pytester.makepyfile(test_unit="def test_plain(): pass")
    git(pytester.path, "init", "-q")
    git(pytester.path, "commit", "-q", "--allow-empty", "-m", "one")
    return partial(run_in_process, "--hwq-isolation=process")


@pytest.mark.parametrize("asked", NEED_MEASURING)
@pytest.mark.parametrize("place", ["option", "environment", "ini"])
def test_a_session_that_should_measure_and_has_nothing_to_measure_fails(
    pytester: pytest.Pytester,
    unit: RunInProcess,
    monkeypatch: pytest.MonkeyPatch,
    asked: str,
    place: str,
) -> None:
    name, _, value = asked.partition("=")
    given, says = [f"--hwq-{asked}"], f"--hwq-{asked}"
    if place == "environment":
        given, says = [], f"environment variable HWQ_{name.upper()}={value}"
        monkeypatch.setenv(f"HWQ_{name.upper()}", value)
    elif place == "ini":
        given, says = [], f"ini key hwq_{asked}"
        pytester.makeini(f"[pytest]\nhwq_{asked}")
    for selected in ([], ["-k", "no_such_test"]):
        result = unit(*given, *selected)
        assert result.ret == pytest.ExitCode.USAGE_ERROR
        result.stderr.fnmatch_lines([f"ERROR: {says}: no test was selected*: --hwq-{name}="])
    for promises_nothing in (f"--hwq-{name}=", "--collect-only", "--fixtures"):
        assert unit(*given, promises_nothing).ret == pytest.ExitCode.OK


@pytest.mark.parametrize("name", ["compare", "against", "scheduler=preload:"])
def test_a_name_that_does_not_exist_is_the_first_thing_said(unit: RunInProcess, name: str) -> None:
    option, _, kind = name.partition("=")
    result = unit(f"--hwq-{option}={kind}nowhere")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines([f"ERROR: --hwq-{option}: *nowhere*"])


def test_a_session_whose_tests_cannot_be_collected_says_that(
    pytester: pytest.Pytester, unit: RunInProcess
) -> None:
    result = unit("nowhere.py", "--hwq-save=main")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["ERROR: file or directory not found: nowhere.py"])
    pytester.makepyfile(test_broken="import nowhere")
    assert unit("--hwq-save=main").ret == pytest.ExitCode.INTERRUPTED


@pytest.mark.parametrize(
    ("given", "says"),
    [
        pytest.param(
            ["--hwq-workload=moe", "test_unit.py"], "--hwq-workload=moe: no test was selected*",
            marks=pytest.mark.slow,
        ),
        (["--hwq-device=sim:nowhere", "test_mine.py"], "nothing to measure: *nowhere*"),
    ],
)  # fmt: skip
def test_workers_of_xdist_refuse_once(
    pytester: pytest.Pytester, given: list[str], says: str
) -> None:
    pytester.makepyfile(test_unit="def test_plain(): pass", test_mine="def test_mine(hwq): pass")
    result = pytester.runpytest_subprocess("-p", plugin_name(), "-n2", *given)
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines([f"ERROR: {says}"])
