"""Which tests run and in which order, and what is refused before any of them is measured.

How a session that was asked for names ends, tests/acceptance/test_requested.py says.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from pytest_hwqueue.plugin.keys import REFUSED
from pytest_hwqueue.plugin.selection import (
    AskedFor,
    refuse_impossible,
    refuse_shared_cells,
    refuse_unmeasured,
)

from .conftest import Collect, Configure

SUITE = """
import pytest
def test_plain(): pass
@pytest.mark.P0
@pytest.mark.hwq_workload("hetero_kernels")
def test_hetero(hwq): pass
@pytest.mark.P1
@pytest.mark.hwq_workload("moe")
def test_moe(hwq): pass
@pytest.mark.P1
def test_own(hwq): pass
"""


def kept(items: Sequence[pytest.Item]) -> list[str]:
    """Return the functions of the tests that a session still has."""
    return [item.originalname for item in items[0].session.items]  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("", ["test_plain", "test_hetero", "test_moe", "test_own"]),
        ("--hwq-priority=P0", ["test_hetero"]),
        ("--hwq-priority=P1", ["test_moe", "test_own"]),
        ("--hwq-priority=P0,P1", ["test_hetero", "test_moe", "test_own"]),
        ("--hwq-workload=moe", ["test_moe"]),
        ("--hwq-workload=moe,hetero_kernels --hwq-priority=P0", ["test_hetero"]),
    ],
)
def test_priorities_and_workloads_select_what_measures(
    collect: Collect, given: str, expected: list[str]
) -> None:
    items = collect(SUITE, "--hwq-device=sim:h200", *given.split())
    assert kept(items) == expected


def test_a_workload_that_does_not_exist_is_refused_by_the_option(
    collect: Collect, capsys: pytest.CaptureFixture[str]
) -> None:
    collect(SUITE, "--hwq-device=sim:h200", "--hwq-workload=moo")
    assert "--hwq-workload: " in capsys.readouterr().err


MODES = ("--hwq-device=cuda", "--hwq-streams=8", "--hwq-scheduler=native,mps,stream-priority")


def test_tests_that_need_one_worker_follow_each_other(collect: Collect) -> None:
    text = "def test_a(hwq): pass\ndef test_plain(): pass\ndef test_b(hwq): pass\n"
    items = collect(text, *MODES)
    assert [item.name for item in items[0].session.items] == [
        "test_a[cuda-s8-native-eager]", "test_a[cuda-s8-stream-priority-eager]",
        "test_b[cuda-s8-native-eager]", "test_plain", "test_b[cuda-s8-stream-priority-eager]",
        "test_a[cuda-s8-mps-eager]", "test_b[cuda-s8-mps-eager]",
    ]  # fmt: skip
    # In one process there is no worker to begin.
    items = collect(text, *MODES[:2], "--hwq-scheduler=native,stream-priority",
                    "--hwq-isolation=none")  # fmt: skip
    assert [item.name[:6] for item in items[0].session.items] == [
        "test_a", "test_a", "test_p", "test_b", "test_b"
    ]  # fmt: skip


def test_what_cannot_run_is_skipped_with_its_reason(collect: Collect) -> None:
    items = collect(SUITE, "--hwq-device=cpu", "--hwq-dispatch=eager,graph", "--hwq-streams=4")
    reasons = {item.name: item.stash.get(REFUSED, None) for item in items}
    assert reasons["test_own[cpu-s4-native-eager]"] is None
    said = reasons["test_own[cpu-s4-native-graph]"]
    assert said is not None
    assert "graph dispatch needs an accelerator" in said
    assert any(mark.name == "skip" for item in items for mark in item.iter_markers())


def test_a_session_in_which_nothing_can_be_measured_is_refused(collect: Collect) -> None:
    (possible, *_), impossible = (
        collect("def test_it(hwq): pass\n", "--hwq-device=cpu", f"--hwq-dispatch={mode}")
        for mode in ("eager", "graph")
    )
    refuse_impossible(possible.config, [possible])
    with pytest.raises(pytest.UsageError, match="graph dispatch needs an accelerator"):
        refuse_impossible(impossible[0].config, impossible)
    # One that can is enough.
    refuse_impossible(possible.config, [possible, *impossible])


def test_bad_parameters_are_refused_by_the_tests_workloads(collect: Collect) -> None:
    def of(workload: str, parameter: str) -> list[pytest.Item]:
        text = f"import pytest\n@pytest.mark.hwq_workload('{workload}')\ndef test_it(hwq): pass\n"
        return collect(text, "--hwq-device=sim:h200", f"--hwq-param={parameter}")

    items = of("large_gemm_only", "mm_dim=64")
    refuse_impossible(items[0].config, items)
    for workload, parameter, said in (
        ("large_gemm_only", "mm_dim=many", "mm_dim"),
        ("moe", "mm_dim=64", "--hwq-param.*the parameters are moe: "),
    ):
        items = of(workload, parameter)
        with pytest.raises(pytest.UsageError, match=said):
            refuse_impossible(items[0].config, items)


def test_coverage_by_testmon_is_refused_where_workers_measure(collect: Collect) -> None:
    for mode, refused in (("process", True), ("none", False)):
        items = collect("def test_it(hwq): pass\n", "--hwq-device=cpu", f"--hwq-isolation={mode}")
        config: Any = items[0].config
        config.testmon_config = SimpleNamespace(collect=True)
        if refused:
            with pytest.raises(pytest.UsageError, match=r"--testmon: .*add --no-testmon"):
                refuse_impossible(config, items)
            config.testmon_config.collect = False
        refuse_impossible(config, items)


def test_tests_that_share_a_cell_are_refused_by_their_places(collect: Collect) -> None:
    text, device = "def test_it(hwq): pass\ndef test_b(hwq): pass\n", "--hwq-device=sim:h200"
    items = collect(text, device)
    refuse_shared_cells(items)
    again = collect(text, device)
    with pytest.raises(pytest.UsageError, match=r"^test_mine.py::test_it: two tests cannot") as one:
        refuse_shared_cells([*items, again[0]])
    assert str(items[0].path) in str(one.value)
    assert "more)" not in str(one.value)
    with pytest.raises(pytest.UsageError, match=r"\(and 1 more\); give one of them another name"):
        refuse_shared_cells([*items, *again])


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("--hwq-save=main --hwq-scheduler=mps",
         r"^--hwq-save=main, --hwq-scheduler=mps: no test was selected that measures .*: "
         r"--hwq-save= --hwq-scheduler=$"),
        # A name that does not exist comes first.
        ("--hwq-save=main --hwq-scheduler=moo", "^--hwq-scheduler: .*moo"),
        ("--hwq-compare=absent", "absent"),
    ],
)  # fmt: skip
def test_a_session_without_a_test_that_measures_says_what_needs_one(
    configure: Configure, given: str, said: str
) -> None:
    words = given.split()
    asked = [(word[6:].partition("=")[0], word) for word in words]
    with pytest.raises(pytest.UsageError, match=said):
        refuse_unmeasured(configure("--hwq-device=cpu", *words), asked)


def report(nodeid: str, outcome: Any, when: Any = "call", why: Any = None) -> pytest.TestReport:
    location = (nodeid, 1, nodeid)
    return pytest.TestReport(nodeid, location, {}, outcome, why, when)


SKIPPED = ("test_mine.py", 3, "Skipped: no GPU")


@pytest.mark.parametrize(
    ("reports", "status", "problem"),
    [
        ([("a", "passed"), ("b", "passed")], 0, None),
        ([("a", "skipped", "setup", SKIPPED), ("b", "passed")], 0, None),
        ([("a", "skipped", "setup", SKIPPED), ("b", "skipped", "setup", SKIPPED)], 0, "no GPU"),
        ([("a", "skipped", "setup", SKIPPED), ("b", "skipped", "call", "late")], 0, "no GPU; late"),
        # A test that broke has run, and one whose set-up alone passed has not.
        ([("a", "failed", "setup"), ("b", "skipped", "setup", SKIPPED)], 1, None),
        ([("a", "passed", "setup"), ("a", "skipped", "call", "late"),
          ("b", "skipped", "setup", SKIPPED)], 0, "late; no GPU"),
        ([("a", "skipped", "setup", SKIPPED), ("a", "failed", "teardown"),
          ("b", "skipped", "setup", SKIPPED)], 1, None),
        # The session ended before it was b's turn.
        ([("a", "skipped", "setup", SKIPPED)], 1, None),
        ([("a", "skipped", "setup", SKIPPED), ("b", "skipped", "setup", SKIPPED)], 2, None),
    ],
)  # fmt: skip
def test_a_name_of_which_nothing_ran_fails_the_session(
    configure: Configure, reports: Any, status: int, problem: str | None
) -> None:
    config = configure("--hwq-device=cpu", "--hwq-scheduler=native")
    items: Any = [
        SimpleNamespace(
            nodeid=name, callspec=SimpleNamespace(params={"hwq_scheduler": "native"}),
            get_closest_marker=lambda _: None,
        )
        for name in "ab"
    ]  # fmt: skip
    asked = AskedFor(config, items)
    for each in reports:
        asked.pytest_runtest_logreport(report(*each))
    session: Any = SimpleNamespace(exitstatus=status)
    asked.pytest_sessionfinish(session, status)
    expected = [f"--hwq-scheduler=native: nothing of it ran: {problem}"] if problem else []
    assert asked.problems == expected
    assert session.exitstatus == (pytest.ExitCode.TESTS_FAILED if problem else status)
    lines: list[tuple[str, Any]] = []
    reporter: Any = SimpleNamespace(write_line=lambda line, **how: lines.append((line, how)))
    asked.pytest_terminal_summary(reporter)
    assert lines == [(f"hwqueue: {said}", {"red": True}) for said in expected]


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ("--hwq-scheduler=native,mps", True),
        ("--hwq-workload=moe", True),
        ("--hwq-dispatch=auto,graph", True),
        ("--hwq-dispatch=auto", False),
        ("", False),
        # A node id may well leave some of the names without tests.
        ("--hwq-scheduler=mps test_mine.py::test_it", False),
    ],
)
def test_a_name_without_a_test_counts_where_it_was_given_with_no_test_named(
    configure: Configure, pytester: pytest.Pytester, given: str, problem: bool
) -> None:
    pytester.makepyfile(test_mine="def test_it(): pass")
    asked = AskedFor(configure("--hwq-device=cpu", *given.split()), [])
    session: Any = SimpleNamespace(exitstatus=0)
    asked.pytest_sessionfinish(session, 0)
    found = [each for each in asked.problems if each.endswith("no test of it was selected")]
    assert bool(found) == problem == bool(asked.problems)
