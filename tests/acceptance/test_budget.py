"""How long a session takes: said before, kept within a budget, and what is left out is listed."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING

import pytest

from pytest_hwqueue.metrics.numbers import duration
from pytest_hwqueue.plugin import budget

if TYPE_CHECKING:
    from tests.conftest import RunInProcess, Sessions


@pytest.fixture
def project(pytester: pytest.Pytester) -> pytest.Pytester:
    """Tests of half a second each."""
    pytester.makepyfile(
        test_mine="""
        import time
        import pytest

        @pytest.mark.parametrize("number", range(6))
        def test_mine(hwq_device, number):
            time.sleep(0.5)
        """
    )
    return pytester


def left_out(project: pytest.Pytester) -> list[str]:
    """What the session's file says."""
    found: list[str] = json.loads((project.path / "s.json").read_text())["session"]["left_out"]
    return found


IN_PROCESS = ("--hwq-isolation=none", "--hwq-json=s.json")


def test_what_does_not_fit_is_skipped_and_listed(
    project: pytest.Pytester, sessions: Sessions
) -> None:
    given = ("--hwq-device=cpu", *IN_PROCESS, "--hwq-budget=1.6s", "-rs")
    result = sessions.result(project.path, *given)
    outcomes = result.parseoutcomes()
    assert outcomes["passed"] + outcomes["skipped"] == 6
    # Half a second each: the third ends before 1.6 s on no machine that needs any time besides.
    assert 1 <= outcomes["passed"] <= 3
    assert result.ret == pytest.ExitCode.OK
    last = "test_mine.py::test_mine[cpu-5]"
    result.stdout.fnmatch_lines(
        [
            "hwqueue: 6 tests; not timed here yet: up to 20 s of measuring each (--hwq-max-time), "
            "2 min in all, and set-up; --hwq-budget=1.6s",
            "hwqueue: left out by --hwq-budget=1.6s:",
            f"  {last}: not measured",
            "SKIPPED*left out: --hwq-budget=1.6s",
        ],
        consecutive=False,
    )
    assert left_out(project)[-1] == f"{last}: not measured"
    assert len(left_out(project)) == outcomes["skipped"]


class Clock:
    """Time that passes where a test sleeps, and not otherwise."""

    def __init__(self) -> None:
        self._now_s = 0.0

    def monotonic(self) -> float:
        return self._now_s

    def sleep(self, seconds: float) -> None:
        self._now_s += seconds


def test_the_first_test_always_runs_and_the_next_session_knows_its_time(
    project: pytest.Pytester, run_in_process: RunInProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(budget, "time", Clock())
    project.makepyfile(
        test_mine=(project.path / "test_mine.py").read_text()
        .replace("import time", "from pytest_hwqueue.plugin.budget import time")
    )  # fmt: skip

    def run(*more: str) -> pytest.RunResult:
        return run_in_process("--hwq-device=cpu", *IN_PROCESS, *more)

    first = run("--hwq-budget=0.001s")
    assert first.parseoutcomes() == {"passed": 1, "skipped": 5}
    whole = run()
    assert whole.parseoutcomes() == {"passed": 6}
    whole.stdout.fnmatch_lines(["hwqueue: 6 tests; not timed here yet: *"])
    assert left_out(project) == []
    known = run("-k", "cpu-1 or cpu-2")
    known.stdout.fnmatch_lines(["hwqueue: 2 tests; about 1 s, as they took last time"])
    assert not any(line.startswith("hwqueue:") for line in run("-q").outlines)


# Time passes where a test spends it, and not otherwise.
CLOCK = """
    from pathlib import Path
    from types import SimpleNamespace
    from pytest_hwqueue.plugin import budget

    def seconds():
        spent = Path("spent")
        return float(sum(map(int, spent.read_text().split()))) if spent.exists() else 0.0

    budget.time = SimpleNamespace(monotonic=seconds)
"""
SPENDS = """
    import pytest

    @pytest.mark.parametrize("number", range(3))
    def test_mine(hwq_device, number):
        with open("spent", "a+") as file:
            file.seek(0)
            # The first of the second round.
            file.write("30\\n" if len(file.readlines()) == 3 else "1\\n")
"""


def test_runs_go_before_tests(pytester: pytest.Pytester, sessions: Sessions) -> None:
    pytester.makeconftest(CLOCK)
    pytester.makepyfile(test_mine=SPENDS)
    given = ("--hwq-device=cpu", "--hwq-runs=5", "--hwq-budget=20s", "--hwq-json=s.json")
    result = sessions.result(pytester.path, *given)
    result.assert_outcomes(passed=3)
    # A round that has begun is run whole, however slow it turns out to be.
    names = [f"test_mine.py::test_mine[cpu-{number}]" for number in range(3)]
    assert left_out(pytester) == [f"{name}: measured in 2 of 5 runs" for name in names]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (
            ["-n2"],
            "--hwq-budget=60s cannot be followed here: it is one session's: leave out xdist's -n",
        ),
        (
            ["--hwq-against=HEAD"],
            "--hwq-budget=60s cannot be followed here: --hwq-against measures*",
        ),
    ],
)
def test_what_cannot_keep_a_budget_is_refused(
    run_in_process: RunInProcess, given: list[str], message: str
) -> None:
    result = run_in_process("--hwq-isolation=process", "--hwq-budget=1min", *given)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines([f"ERROR: {message}"])


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.04, "0.0 s"), (2.0, "2 s"), (9.96, "10 s"), (1.54, "1.5 s"), (59.4, "59 s"), (60, "1 min"),
     (270, "4 min 30 s"), (3600, "1 h"), (3960, "1 h 6 min")],
)  # fmt: skip
def test_times_read_well(seconds: float, text: str) -> None:
    assert duration(seconds) == text


@pytest.mark.parametrize(
    ("bad", "why"),
    [
        (b"\xff", "line 1 is no duration"),
        (b"0.500\ttest_plain.py::test_\xff\n", "line 1 is no duration"),
        (b"%s.0\tx\n" % (b"9" * 400), "line 1 is no duration"),
        ("folder", "it is no regular file"),
        ("pipe", "it is no regular file"),
    ],
)
def test_what_an_earlier_session_left_ends_no_session(
    pytester: pytest.Pytester, run_in_process: RunInProcess, bad: bytes | str, why: str
) -> None:
    pytester.makepyfile("def test_mine(hwq_device): pass")
    known = pytester.mkdir(".hwqueue") / "20000101" / "durations.tsv"
    known.parent.mkdir()
    if bad == "folder":
        known.mkdir()
    elif bad == "pipe":
        os.mkfifo(known)
    elif isinstance(bad, bytes):
        known.write_bytes(bad)
    result = run_in_process("--hwq-device=cpu")
    assert result.ret == pytest.ExitCode.OK
    result.stdout.fnmatch_lines([f"hwqueue: {known} is ignored and replaced: {why}"])
    again = run_in_process("--hwq-device=cpu")
    assert again.ret == pytest.ExitCode.OK
    again.stdout.no_fnmatch_line("*durations.tsv*")


def test_good_lines_of_a_file_with_a_bad_one_still_count(
    pytester: pytest.Pytester, run_in_process: RunInProcess
) -> None:
    pytester.makepyfile(test_mine="def test_mine(hwq_device): pass")
    known = pytester.mkdir(".hwqueue") / "20000101" / "durations.tsv"
    known.parent.mkdir()
    good = "7200.000\ttest_mine.py::test_mine[cpu]\n"
    known.write_text(f"0.1\n{good}12.")
    result = run_in_process("--hwq-device=cpu")
    result.stdout.fnmatch_lines(["hwqueue: 1 test; about 2 h, as they took last time"])
    assert known.read_text() == good
