"""A session's time: the estimate beforehand, the time left, and ``--hwq-budget``.

To keep a budget, nothing starts unless it is expected to end in time. Every test runs once, in
order, before any runs twice. A test that does not fit in the first round is left out of all rounds;
a later round runs whole or not at all, so that all cells of a comparison have the same number of
runs. Nothing is cut short once started, a round included.
"""

from __future__ import annotations

import re
import time
import warnings
from collections import defaultdict
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from pytest_hwqueue.metrics.numbers import duration
from pytest_hwqueue.plugin.state import LEFT_OUT, REFUSED, SETTINGS
from pytest_hwqueue.reports.progress import Progress

_FILE = "durations.tsv"
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
        self._planned = [item.nodeid for item in items if REFUSED not in item.stash]
        self._runs = 1
        self._replicated: frozenset[str] = frozenset()
        self._ran: defaultdict[str, int] = defaultdict(int)
        self._took_s: dict[str, float] = {}
        self._earlier_s: dict[str, float] = {}
        self._began_s = time.monotonic()
        self._own_began_s = self._began_s
        self._unmeasured: set[str] = set()
        self.progress: Progress | None = None
        self.left_out: list[str] = config.stash.setdefault(LEFT_OUT, [])

    def replicate(self, items: Sequence[pytest.Item], runs: int) -> None:
        """Plan several runs of each of these tests, for `round_fits` and `running`."""
        self._runs = runs
        self._replicated = frozenset(item.nodeid for item in items)

    def round_fits(self, run: int, nodeids: Sequence[str]) -> bool:
        """Whether all of these tests can run once more; if not, note it.

        Args:
            run: the round's number, from 1.
            nodeids: its tests.

        """
        if run == 1 or self._fits(sum(self._expected_s(each) or 0.0 for each in nodeids)):
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
        reporter = self._config.pluginmanager.get_plugin("terminalreporter")
        if reporter is not None and self._planned and reporter.verbosity >= 0:
            reporter.write_line(f"hwqueue: {self.plan()}")
        self._began_s = time.monotonic()
        return (yield)

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> bool | None:
        """Skip a test that may no longer start."""
        nodeid = item.nodeid
        if nodeid not in self._planned:
            return None
        if nodeid not in self._replicated and not self._may_begin(nodeid):
            self._leave_out(nodeid)
        if nodeid not in self._unmeasured:
            self._begins()
            self._own_began_s = time.monotonic()
            return None
        where = (str(item.path), item.location[1] or 0, f"Skipped: left out: {self._option}")
        report = pytest.TestReport(
            nodeid=nodeid, location=item.location, keywords={}, outcome="skipped", longrepr=where,
            when="setup",
        )  # fmt: skip
        item.ihook.pytest_runtest_logstart(nodeid=nodeid, location=item.location)
        item.ihook.pytest_runtest_logreport(report=report)
        item.ihook.pytest_runtest_logfinish(nodeid=nodeid, location=item.location)
        return True

    def pytest_runtest_logfinish(self, nodeid: str) -> None:
        """Note how long a test with a single run took."""
        skipped = nodeid in self._unmeasured
        if nodeid in self._planned and nodeid not in self._replicated and not skipped:
            self._ended(nodeid, time.monotonic() - self._own_began_s)

    def pytest_sessionfinish(self) -> None:
        """Save how long tests took with the session's records, for the next session's plan."""
        folder = self._session_folder()
        # Several processes of xdist share a folder.
        if folder is None or not self._took_s or hasattr(self._config, "workerinput"):
            return
        lines = [f"{seconds:.3f}\t{node}\n" for node, seconds in self._took_s.items()]
        try:
            (folder / _FILE).write_text("".join(lines), encoding="utf-8")
        except OSError as error:
            warnings.warn(f"cannot write {folder / _FILE}: {error.strerror}", stacklevel=1)

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Print what was left out."""
        if self.left_out:
            terminalreporter.write_line(f"hwqueue: left out by {self._option}:", yellow=True)
        for line in self.left_out:
            terminalreporter.write_line(f"  {line}")

    def plan(self) -> str:
        """Return one line on what will be measured and how long it should take."""
        tests, rounds = len(self._planned), self._rounds()
        what = f"{tests} test{'s' if tests > 1 else ''}"
        if rounds > tests:
            what += f" × {self._runs} runs"
        expected_s = self._expected_of_all_s()
        if expected_s is not None:
            how = f"about {duration(expected_s)}, as they took last time"
        else:
            how = (
                f"not timed here yet: up to {duration(self._max_time_s)} of measuring each "
                f"(--hwq-max-time), {duration(self._max_time_s * rounds)} in all, and set-up"
            )
        if self._config.stash[SETTINGS].compare:
            how += "; what looks worse runs again"
        budget = "" if self._budget_s is None else f"; {self._option}"
        return f"{what}; {how}{budget}"

    @property
    def _option(self) -> str:
        seconds = self._budget_s or 0.0
        unit, factor = next(each for each in _UNITS if seconds % each[1] == 0 or each[1] == 1)
        return f"--hwq-budget={seconds / factor:g}{unit}"

    def _rounds(self) -> int:
        """Return how many runs of tests are planned in total."""
        return sum(self._runs if each in self._replicated else 1 for each in self._planned)

    def _expected_of_all_s(self) -> float | None:
        """Return how long the planned runs should still take, or None if unknown."""
        left_s = 0.0
        for nodeid in self._planned:
            runs = self._runs if nodeid in self._replicated else 1
            runs -= min(runs, self._ran[nodeid])
            expected_s = self._expected_s(nodeid)
            if runs and expected_s is None:
                return None
            left_s += runs * (expected_s or 0.0)
        return left_s

    def _expected_s(self, nodeid: str) -> float | None:
        """Return a run's expected time: its last one, or the mean of the others in this session."""
        for known_s in (self._took_s, self._earlier_s):
            if nodeid in known_s:
                return known_s[nodeid]
        return sum(self._took_s.values()) / len(self._took_s) if self._took_s else None

    def _fits(self, seconds: float) -> bool:
        if self._budget_s is None:
            return True
        return time.monotonic() - self._began_s + seconds <= self._budget_s

    def _may_begin(self, nodeid: str) -> bool:
        # The first one always does: a session that measures nothing is of no use.
        return not self._took_s or self._fits(self._expected_s(nodeid) or 0.0)

    def _leave_out(self, nodeid: str) -> None:
        self._unmeasured.add(nodeid)
        self.left_out.append(f"{nodeid}: not measured")

    def _ended(self, nodeid: str, seconds: float) -> None:
        self._ran[nodeid] += 1
        self._took_s[nodeid] = seconds

    def _begins(self) -> None:
        if self.progress is not None:
            self.progress.outlook = self._outlook()

    def _outlook(self) -> str:
        """Show how much is left while measuring."""
        done = sum(self._ran.values())
        left_s = self._expected_of_all_s()
        text = f"{done + 1}/{max(done + 1, self._rounds())}"
        return text if left_s is None else f"{text}, about {duration(left_s)} left"

    def _session_folder(self) -> Path | None:
        for name in ("hwqueue-measuring", "hwqueue-scenarios"):
            plugin = self._config.pluginmanager.get_plugin(name)
            folder: Path | None = getattr(getattr(plugin, "session", None), "folder", None)
            if folder is not None and folder.is_dir():
                return folder
        return None

    def _read(self) -> dict[str, float]:
        """Return how long each test took when an earlier session of this folder last ran it."""
        files = sorted(self._folder.glob(f"*/{_FILE}"), key=lambda file: file.parent.name)
        found: dict[str, float] = {}
        for file in files[-_EARLIER:]:
            for line in file.read_text(encoding="utf-8").splitlines():
                # A line that was cut off tells nothing; the others do.
                if (row := re.fullmatch(r"(\d+\.\d+)\t(.+)", line)) is not None:
                    found[row[2]] = float(row[1])
        return found
