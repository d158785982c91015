"""``--hwq-budget``: what is measured within a given time.

How much time is left is asked before every test, so each step costs the same however many tests
there are.

To keep a budget, nothing starts unless it is expected to end in time. Every test runs once, in
order, before any runs twice. A test that does not fit in the first round is left out of all rounds;
a later round runs whole or not at all, so that all cells of a comparison have the same number of
runs. Nothing is cut short once started, a round included.
"""

from __future__ import annotations

import re
import time
from collections import defaultdict
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from pytest_hwqueue.data.errors import RecordError, files
from pytest_hwqueue.data.metrics.numbers import duration
from pytest_hwqueue.data.safe_files import write_text
from pytest_hwqueue.plugin.checks import skip_refused
from pytest_hwqueue.plugin.keys import LEFT_OUT, REFUSED, SESSION, SETTINGS
from pytest_hwqueue.plugin.progress import Progress


class TimeLeft:
    """Runs of tests that are left, and what they should take.

    Args:
        runs: how many of each test are planned, by node id.
        earlier_s: how long tests took in an earlier session.

    Attributes:
        planned: how many runs there are in total.
        done: how many have ended, also of those that were not planned.
        took_s: how long the last run of each test took, in the order of their first runs.

    """

    def __init__(self, runs: Mapping[str, int], earlier_s: Mapping[str, float]) -> None:
        self._left = dict(runs)
        self._earlier_s = earlier_s
        self.planned = sum(runs.values())
        self.done = 0
        self.took_s: dict[str, float] = {}
        self._took_in_all_s = 0.0
        # Of the runs that are left: the time of those known, and the number of the others.
        self._known_s = 0.0
        self._unknown = 0
        for nodeid in runs:
            self._count(nodeid, 1)

    def expected_s(self, nodeid: str) -> float | None:
        """Return a run's expected time: its last one, or the mean of the others in this session."""
        known_s = self._known(nodeid)
        return self._mean_s() if known_s is None else known_s

    def in_all_s(self) -> float | None:
        """Return how long the runs that are left should take, or None if that is unknown."""
        if not self._unknown:
            return max(0.0, self._known_s)
        mean_s = self._mean_s()
        return None if mean_s is None else max(0.0, self._known_s) + self._unknown * mean_s

    def ended(self, nodeid: str, seconds: float) -> None:
        """Note that a run has ended."""
        self.done += 1
        self._count(nodeid, -1)
        self._took_in_all_s += seconds - self.took_s.get(nodeid, 0.0)
        self.took_s[nodeid] = seconds
        if self._left.get(nodeid, 0):
            self._left[nodeid] -= 1
        self._count(nodeid, 1)

    def _known(self, nodeid: str) -> float | None:
        return self.took_s.get(nodeid, self._earlier_s.get(nodeid))

    def _mean_s(self) -> float | None:
        return self._took_in_all_s / len(self.took_s) if self.took_s else None

    def _count(self, nodeid: str, sign: int) -> None:
        """Add what is left of a test to the totals, or take it away."""
        left = sign * self._left.get(nodeid, 0)
        known_s = self._known(nodeid)
        if known_s is None:
            self._unknown += left
        else:
            self._known_s += left * known_s


_FILE = "durations.tsv"
# Seconds and a node id; what replaces bytes that are no text is not part of one.
_ROW = re.compile(r"[0-9]{1,9}\.[0-9]{1,9}\t[^\ufffd]+")
_UNITS = (("h", 3600), ("min", 60), ("s", 1))
# Sessions of the same folder that are looked through for a test's duration, the newest first.
_EARLIER = 20


class Budget:
    """Times tests, estimates the time left, and decides what may still start.

    Attributes:
        progress: shows the time left.
        left_out: what did not start for lack of time, as text; part of the session's file.

    """

    def __init__(self, config: pytest.Config, items: Sequence[pytest.Item]) -> None:
        settings = config.stash[SETTINGS]
        self._config = config
        self._budget_s = settings.budget
        self._max_time_s = settings.max_time
        self._folder = config.invocation_params.dir / settings.dir
        # In order, each with the number of its planned runs.
        self._planned = {item.nodeid: 1 for item in items if REFUSED not in item.stash}
        self._runs = 1
        self._replicated: frozenset[str] = frozenset()
        self._ran: defaultdict[str, int] = defaultdict(int)
        self._earlier_s: dict[str, float] = {}
        self._left = TimeLeft(self._planned, self._earlier_s)
        self._began_s = time.monotonic()
        self._own_began_s = self._began_s
        self._unmeasured: set[str] = set()
        self.progress: Progress | None = None
        self.left_out: list[str] = config.stash.setdefault(LEFT_OUT, [])

    def replicate(self, items: Sequence[pytest.Item], runs: int) -> None:
        """Plan several runs of each of these tests, for `round_fits` and `running`."""
        self._runs = runs
        self._replicated = frozenset(item.nodeid for item in items)
        for nodeid in self._replicated & self._planned.keys():
            self._planned[nodeid] = runs
        self._left = TimeLeft(self._planned, self._earlier_s)

    def round_fits(self, run: int, nodeids: Sequence[str]) -> bool:
        """Whether all of these tests can run once more; if not, note it.

        Args:
            run: the round's number, from 1.
            nodeids: its tests.

        """
        if run == 1 or self._fits(sum(self._left.expected_s(each) or 0.0 for each in nodeids)):
            return True
        more = run > self._runs
        self.left_out += [
            f"{each}: not measured again, as the comparison wanted"
            if more
            else f"{each}: measured in {self._ran[each]} of {self._runs} runs"
            for each in nodeids
        ]
        return False

    def allows_causes(self) -> bool:
        """Whether there is time to explain failing tails; if not, note it."""
        if self._fits(0.0):
            return True
        self.left_out.append("causes of failing tails: not traced")
        return False

    @contextmanager
    def running(self, nodeid: str) -> Iterator[bool]:
        """Time a test's run during the ``with`` block; yield False if it must not start any more.

        Only a test's first run may be left out: a later run belongs to a round that has started and
        must measure every cell equally often.
        """
        may_begin = self._ran[nodeid] > 0 or self._may_begin(nodeid)
        if not may_begin:
            self._leave_out(nodeid)
        else:
            self._begins()
        began_s = time.monotonic()
        try:
            yield may_begin
        finally:
            if may_begin:
                self._ended(nodeid, time.monotonic() - began_s)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtestloop(self) -> Generator[None, object, object]:
        """Print the plan, and start counting time."""
        self._earlier_s = self._read()
        self._left = TimeLeft(self._planned, self._earlier_s)
        reporter = self._config.pluginmanager.get_plugin("terminalreporter")
        if reporter is not None and self._planned and reporter.verbosity >= 0:
            reporter.write_line(f"hwqueue: {self.plan()}")
        self._began_s = time.monotonic()
        return (yield)

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> None:
        """Have a test skipped that may no longer start."""
        nodeid = item.nodeid
        if nodeid not in self._planned:
            return
        if nodeid not in self._replicated and not self._may_begin(nodeid):
            self._leave_out(nodeid)
        if nodeid in self._unmeasured:
            skip_refused(item, f"left out: {self._option}")
        else:
            self._begins()
            self._own_began_s = time.monotonic()

    def pytest_runtest_logfinish(self, nodeid: str) -> None:
        """Note how long a test with a single run took."""
        skipped = nodeid in self._unmeasured
        if nodeid in self._planned and nodeid not in self._replicated and not skipped:
            self._ended(nodeid, time.monotonic() - self._own_began_s)

    def pytest_sessionfinish(self) -> None:
        """Save how long tests took with the session's records, for the next session's plan."""
        session, took_s = self._config.stash.get(SESSION, None), self._left.took_s
        if session is None or not session.folder.is_dir() or not took_s:
            return
        # Several processes of xdist share a folder.
        if hasattr(self._config, "workerinput"):
            return
        file = session.folder / _FILE
        try:
            _write(file, [f"{took:.3f}\t{node}" for node, took in took_s.items()])
        except RecordError as error:
            self._warn(str(error))

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Print what was left out."""
        if self.left_out:
            terminalreporter.write_line(f"hwqueue: left out by {self._option}:", yellow=True)
        for line in self.left_out:
            terminalreporter.write_line(f"  {line}")

    def plan(self) -> str:
        """Return one line on what will be measured and how long it should take."""
        tests, rounds = len(self._planned), self._left.planned
        what = f"{tests} test{'s' if tests > 1 else ''}"
        if rounds > tests:
            what += f" × {self._runs} runs"
        expected_s = self._left.in_all_s()
        if expected_s is not None:
            how = f"about {duration(expected_s)}, as they took last time"
        else:
            how = (
                f"not timed here yet: up to {duration(self._max_time_s)} of measuring each "
                f"(--hwq-max-time), {duration(self._max_time_s * rounds)} in all, and set-up"
            )
            if self._config.stash[SETTINGS].causes == "always":
                how += "; causes take up to as long again"
        if self._config.stash[SETTINGS].compare:
            how += "; what looks worse runs again"
        budget = "" if self._budget_s is None else f"; {self._option}"
        return f"{what}; {how}{budget}"

    @property
    def _option(self) -> str:
        seconds = self._budget_s or 0.0
        unit, factor = next(each for each in _UNITS if seconds % each[1] == 0 or each[1] == 1)
        return f"--hwq-budget={seconds / factor:g}{unit}"

    def _fits(self, seconds: float) -> bool:
        if self._budget_s is None:
            return True
        return time.monotonic() - self._began_s + seconds <= self._budget_s

    def _may_begin(self, nodeid: str) -> bool:
        # The first one always does: a session that measures nothing is of no use.
        return not self._left.took_s or self._fits(self._left.expected_s(nodeid) or 0.0)

    def _leave_out(self, nodeid: str) -> None:
        self._unmeasured.add(nodeid)
        self.left_out.append(f"{nodeid}: not measured")

    def _ended(self, nodeid: str, seconds: float) -> None:
        self._ran[nodeid] += 1
        self._left.ended(nodeid, seconds)

    def _begins(self) -> None:
        """Show how much is left while measuring."""
        if self.progress is not None:
            number, left_s = self._left.done + 1, self._left.in_all_s()
            text = f"{number}/{max(number, self._left.planned)}"
            left = "" if left_s is None else f", about {duration(left_s)} left"
            self.progress.outlook = text + left

    def _read(self) -> dict[str, float]:
        """Return how long each test took when an earlier session of this folder last ran it.

        A file with anything else in it is put aside: the next sessions read what was good of it.
        """
        sessions = sorted(self._folder.glob(f"*/{_FILE}"), key=lambda file: file.parent.name)
        found: dict[str, float] = {}
        for file in sessions[-_EARLIER:]:
            lines, problem = _lines(file)
            for line in lines:
                seconds, _, node = line.partition("\t")
                found[node] = float(seconds)
            if problem:
                self._warn(f"{file} is ignored and replaced: {problem}")
                try:
                    with files("replace", file):
                        file.rename(file.with_suffix(".bad"))
                    _write(file, lines)
                except RecordError as error:
                    self._warn(str(error))
        return found

    def _warn(self, text: str) -> None:
        reporter = self._config.pluginmanager.get_plugin("terminalreporter")
        if reporter is not None:
            reporter.write_line(f"hwqueue: {text}", yellow=True)


def _write(file: Path, lines: Sequence[str]) -> None:
    text = "".join(f"{line}\n" for line in lines)
    write_text(file, text)


def _lines(file: Path) -> tuple[list[str], str]:
    """Return the lines that hold a duration, and what is wrong with the others, or nothing."""
    if not file.is_file():
        # A pipe without a writer would be waited for.
        return [], "it is no regular file"
    try:
        read = file.read_bytes()
    except OSError as error:
        return [], str(error.strerror)
    lines, problem = [], ""
    for number, line in enumerate(read.decode(errors="replace").split("\n"), 1):
        if _ROW.fullmatch(line):
            lines.append(line)
        elif line:
            problem = problem or f"line {number} is no duration"
    return lines, problem
