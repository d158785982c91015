"""How long a session takes: said before, kept within a budget, and what is left out is listed."""

from __future__ import annotations

import json
import os
from functools import partial
from typing import TYPE_CHECKING

import pytest

from pytest_hwqueue.data.metrics.numbers import duration
from pytest_hwqueue.plugin import budget

if TYPE_CHECKING:
    from tests.conftest import RunInProcess, Sessions

# Six of half a second each.
TESTS = """
import pytest
from pytest_hwqueue.plugin.budget import time
@pytest.mark.parametrize("number", range(6))
def test_mine(hwq_device, number): time.sleep(0.5)
"""


def left_out(pytester: pytest.Pytester) -> list[str]:
    """What the session's file says."""
    found: list[str] = json.loads((pytester.path / "s.json").read_text())["session"]["left_out"]
    return found


class Clock:
    """Time that passes where a test sleeps, and not otherwise."""

    def __init__(self) -> None:
        self._now_s = 0.0

    def monotonic(self) -> float:
        return self._now_s

    def sleep(self, seconds: float) -> None:
        self._now_s += seconds


def test_what_does_not_fit_is_skipped_and_listed_and_the_next_session_knows_the_time(
    pytester: pytest.Pytester, run_in_process: RunInProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(budget, "time", Clock())
    pytester.makepyfile(test_mine=TESTS)
    run = partial(run_in_process, "--hwq-device=cpu", "--hwq-json=s.json")
    short = run("--hwq-budget=1.6s", "-rs")
    assert short.ret == pytest.ExitCode.OK
    assert short.parseoutcomes() == {"passed": 3, "skipped": 3}
    missing = [f"test_mine.py::test_mine[cpu-{number}]: not measured" for number in (3, 4, 5)]
    assert left_out(pytester) == missing
    short.stdout.fnmatch_lines(
        [
            "hwqueue: 6 tests; not timed here yet: up to 20 s of measuring each (--hwq-max-time), "
            "2 min in all, and set-up; --hwq-budget=1.6s",
            "hwqueue: left out by --hwq-budget=1.6s:",
            *(f"  {line}" for line in missing),
            "SKIPPED*left out: --hwq-budget=1.6s",
        ]
    )
    whole = run("--hwq-causes=always")
    assert whole.parseoutcomes() == {"passed": 6}
    whole.stdout.fnmatch_lines(
        ["hwqueue: 6 tests; not timed here yet: *, and set-up; causes take up to as long again"]
    )
    assert left_out(pytester) == []
    known = run("-k", "cpu-4 or cpu-5")
    known.stdout.fnmatch_lines(["hwqueue: 2 tests; about 1 s, as they took last time"])
    assert not any(line.startswith("hwqueue:") for line in run("-q").outlines)
    # The first test always runs.
    assert run("--hwq-budget=0.001s").parseoutcomes() == {"passed": 1, "skipped": 5}


# Time passes where a test spends it, and not otherwise.
CLOCK = """
from pathlib import Path
from types import SimpleNamespace
from pytest_hwqueue.plugin import budget
Path("spent").touch()
budget.time = SimpleNamespace(monotonic=lambda: sum(map(int, Path("spent").read_text().split())))
"""
SPENDS = """
import pytest
@pytest.mark.parametrize("number", range(2))
def test_mine(hwq_device, number):
    with open("spent", "r+") as file:
        # The first of the second round.
        file.write("30\\n" if len(file.readlines()) == 2 else "1\\n")
"""


@pytest.mark.slow  # tests/plugin/test_budget.py, in this process.
def test_runs_go_before_tests(pytester: pytest.Pytester, sessions: Sessions) -> None:
    pytester.makeconftest(CLOCK)
    pytester.makepyfile(test_mine=SPENDS)
    given = ("--hwq-device=cpu", "--hwq-runs=5", "--hwq-budget=20s", "--hwq-json=s.json")
    sessions.result(pytester.path, *given).assert_outcomes(passed=2)
    # A round that has begun is run whole, however slow it turns out to be.
    names = [f"test_mine.py::test_mine[cpu-{number}]" for number in range(2)]
    assert left_out(pytester) == [f"{name}: measured in 2 of 5 runs" for name in names]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("-n2", "it is one session's: leave out xdist's -n"),
        ("--hwq-against=HEAD", "--hwq-against measures*"),
    ],
)
def test_what_cannot_keep_a_budget_is_refused(
    run_in_process: RunInProcess, given: str, message: str
) -> None:
    result = run_in_process("--hwq-isolation=process", "--hwq-budget=1min", given)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines([f"ERROR: --hwq-budget=60s cannot be followed here: {message}"])


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.04, "0.0 s"), (2.0, "2 s"), (9.96, "10 s"), (1.54, "1.5 s"), (59.4, "59 s"), (60, "1 min"),
     (270, "4 min 30 s"), (3600, "1 h"), (3960, "1 h 6 min")],
)  # fmt: skip
def test_times_read_well(seconds: float, text: str) -> None:
    assert duration(seconds) == text


def test_what_an_earlier_session_left_ends_no_session_and_good_lines_still_count(
    pytester: pytest.Pytester, run_in_process: RunInProcess
) -> None:
    pytester.makepyfile(test_mine="def test_mine(hwq_device): pass")
    good = b"7200.000\ttest_mine.py::test_mine[cpu]\n"
    no_text = [b"\xff", b"0.500\ttest_plain.py::test_\xff\n", b"%s.0\tx\n" % (b"9" * 400)]
    files = [pytester.path / ".hwqueue" / f"2000010{day}" / "durations.tsv" for day in range(6)]
    for file in files:
        file.parent.mkdir(parents=True)
    for file, content in zip(files, [*no_text, b"0.1\n" + good + b"12."], strict=False):
        file.write_bytes(content)
    files[4].mkdir()
    os.mkfifo(files[5])
    result = run_in_process("--hwq-device=cpu")
    assert result.ret == pytest.ExitCode.OK
    whys = ["line 1 is no duration"] * 4 + ["it is no regular file"] * 2
    for file, why in zip(files, whys, strict=True):
        assert f"hwqueue: {file} is ignored and replaced: {why}" in result.outlines
    assert "hwqueue: 1 test; about 2 h, as they took last time" in result.outlines
    assert files[3].read_bytes() == good
    again = run_in_process("--hwq-device=cpu")
    assert again.ret == pytest.ExitCode.OK
    again.stdout.no_fnmatch_line("*durations.tsv*")
