"""Sessions of several ranks, and how many a test needs."""

from __future__ import annotations

import faulthandler
import io
import json
import os
import tempfile
import threading
import time
from collections.abc import Callable, Generator
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from pytest_hwqueue.data.records.kinds import capabilities_of
from pytest_hwqueue.data.safe_files import open_output
from pytest_hwqueue.parts.devices.kinds import visible_accelerators
from pytest_hwqueue.parts.processes.launched import LaunchedRank, connect, launched_rank
from pytest_hwqueue.parts.workloads.registry import Declaration, declaration
from pytest_hwqueue.plugin.keys import SETTINGS, parameters_of
from pytest_hwqueue.plugin.pytest_internals import redirect_terminal
from pytest_hwqueue.plugin.reading import check_ranked, read_settings, wrong_usage

if TYPE_CHECKING:
    from torch.distributed import Store  # type: ignore[attr-defined]

# Keys of the ranks' store.
_FINISHED = "finished"
# How long other ranks may take to end after this one: their last test may have waited.
_FINISHING_S = 120.0
_STACKS_S = 5.0
_LONGEST_SESSION = timedelta(weeks=1)
_LOOK_S = 0.1
_MOST_NAMED = 5


def join_ranks(config: pytest.Config) -> RankedSession | None:
    """Join the sessions of all ranks that a launcher has started; None if it started one.

    Only rank 0 says what was measured, and writes files of this plugin's.

    Raises:
        pytest.UsageError: for an option that ranks cannot follow, or if they do not meet.

    """
    with wrong_usage():
        launched = launched_rank(os.environ)
        if launched is None:
            return None
        check_ranked(config, config.stash[SETTINGS])
    where = f"{launched.address}:{launched.port}"
    with wrong_usage(
        f"rank {launched.rank} of {launched.size} does not meet the others at {where} "
        "(MASTER_ADDR, MASTER_PORT): start all ranks, or unset RANK and WORLD_SIZE", RuntimeError,
    ):  # fmt: skip
        # If the launcher hosts no store, all ranks' workers meet in rank 0's.
        session = RankedSession(launched, connect(launched, "session", keep=True), config)
    # However the session ends, also before it has this as a plugin.
    config.add_cleanup(session.close)
    if launched.rank > 0:
        for name in ("hwq_json", "hwq_markdown", "hwq_report", "hwq_save"):
            # Empty, not None: else the environment or the ini file counts.
            setattr(config.option, name, "")
        config.stash[SETTINGS] = read_settings(config)
        _be_quiet(config, session.log)
    return session


class RankedSession:
    """Ends the sessions of all ranks together: with failure if one has failed.

    A launcher that sees one rank fail ends the others, which may be about to report; a launcher
    whose ranks have all succeeded waits for those of other nodes.
    """

    def __init__(self, launched: LaunchedRank, store: Store, config: pytest.Config) -> None:
        self._launched, self._store = launched, store
        self._others = [rank for rank in range(launched.size) if rank != launched.rank]
        settings = config.stash[SETTINGS]
        self._finishing_s = min(_FINISHING_S, settings.timeout)
        self._folder = config.invocation_params.dir / settings.dir
        self._failed: list[str] = []
        self._problems: list[str] = []
        self._over = threading.Event()
        self._answering: threading.Thread | None = None
        if launched.rank > 0:
            # Rank 0 is the one that asks.
            self._answering = threading.Thread(
                target=self._tell_stacks, name="hwq-ranks", daemon=True
            )
            self._answering.start()

    @property
    def log(self) -> Path:
        """Where a rank other than the first writes what it says."""
        return _log(self._folder, self._launched.rank)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Note what fails."""
        if report.failed:
            self._failed.append(f"{report.nodeid} ({report.when})")

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> Generator[None, object, object]:
        """Wait for all ranks; the first decides, by what all have come to."""
        ended = (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED)
        first = self._launched.rank == 0
        if first and session.exitstatus in ended:
            self._gather()
            if self._problems:
                session.exitstatus = pytest.ExitCode.TESTS_FAILED
        result = yield
        status = int(session.exitstatus)
        if first:
            self._store.set(_FINISHED, str(status))
            return result
        said = {"status": status, "failed": self._failed}
        self._store.set(_ended(self._launched.rank), json.dumps(said))
        if status in ended:
            session.exitstatus = self._of_the_first()
        return result

    def _of_the_first(self) -> int:
        """Wait for rank 0, which may have to wait for the last rank; return its exit status."""
        try:
            self._store.wait([_FINISHED], timedelta(seconds=2 * self._finishing_s + _STACKS_S))
            return int(self._store.get(_FINISHED))
        except RuntimeError:  # it has gone without a word
            return pytest.ExitCode.TESTS_FAILED

    def close(self) -> None:
        """End the thread that answers: in a call of the store at Python's end it would abort."""
        if self._answering is not None:
            self._over.set()
            with suppress(RuntimeError):  # the store is gone, and the thread with it
                self._store.set(_asked(self._launched.rank), "nobody asks any more")
            # Not without end: the network may be gone.
            self._answering.join(_STACKS_S)

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Say which ranks have failed, and where those hang that have not ended."""
        for problem in self._problems:
            terminalreporter.write_line(f"hwqueue: {problem}", red=True)

    def _gather(self) -> None:
        """Wait for the others' ends; note what went wrong."""
        if hung := self._missing(_ended, self._finishing_s):
            for rank in self._others:
                self._store.set(_asked(rank), "asked for")
            silent = self._missing(_stacks, _STACKS_S)
            for rank in self._others:
                where = "" if rank in silent else self._store.get(_stacks(rank)).decode()
                if rank in hung:
                    self._problems.append(
                        f"rank {rank} has not ended {self._finishing_s:g} s after rank 0; it does "
                        f"not run the same tests, or hangs here:\n{where or 'no thread answers'}"
                    )
        for rank in self._others:
            if rank not in hung:
                self._note(rank, json.loads(self._store.get(_ended(rank))))

    def _note(self, rank: int, said: dict[str, Any]) -> None:
        if said["status"] == pytest.ExitCode.OK:
            return
        named = said["failed"][:_MOST_NAMED]
        more = len(said["failed"]) - len(named)
        what = ", ".join(named) or f"exit status {said['status']}"
        self._problems.append(
            f"rank {rank} failed: {what}{f' and {more} more' if more else ''}; what it said: "
            f"{_log(self._folder, rank)}"
        )

    def _missing(self, key: Callable[[int], str], patience_s: float) -> list[int]:
        """Wait until all other ranks have set a key; return those that have not in time."""
        deadline = time.monotonic() + patience_s
        while missing := [rank for rank in self._others if not self._store.check([key(rank)])]:
            if time.monotonic() > deadline:
                break
            time.sleep(_LOOK_S)
        return missing

    def _tell_stacks(self) -> None:
        """Answer once, in a thread of its own, where this session's threads are."""
        with suppress(RuntimeError):  # the session that hosts the store has ended
            store = connect(self._launched, "session")
            # A look once a second would be seen by tests that count Python's objects.
            store.wait([_asked(self._launched.rank)], _LONGEST_SESSION)
            if self._over.is_set():
                return
            with tempfile.TemporaryFile("w+", encoding="utf-8") as file:
                faulthandler.dump_traceback(file, all_threads=True)
                file.seek(0)
                store.set(_stacks(self._launched.rank), file.read())


def _ended(rank: int) -> str:
    return f"ended/{rank}"


def _asked(rank: int) -> str:
    return f"asked/{rank}"


def _stacks(rank: int) -> str:
    return f"stacks/{rank}"


def _log(folder: Path, rank: int) -> Path:
    return folder / f"rank-{rank}.log"


def _be_quiet(config: pytest.Config, file: Path) -> None:
    """Have the rest of what a session says written to a file."""
    file.parent.mkdir(parents=True, exist_ok=True)
    # By lines: a launcher that sees another rank fail ends this one at once.
    output = io.TextIOWrapper(open_output(file), encoding="utf-8", line_buffering=True)
    config.add_cleanup(output.close)
    redirect_terminal(config, output)
    config.get_terminal_writer().hasmarkup = False


_ON_THE_HOST = 2


def ranks_needed(item: pytest.Item) -> int:
    """Return how many ranks to start for a test: more than 1 only if it has collectives.

    Under torchrun it is 1: every rank that torchrun started runs the test in its own worker.
    """
    if launched_rank(os.environ) is not None:
        return 1
    device = str(parameters_of(item).get("hwq_device", ""))
    return ranks_together(workload_of(item), device, item.config.stash[SETTINGS].ranks)


def ranks_together(workload: Declaration | None, device: str, asked: int | None) -> int:
    """Return how many ranks run a workload, whoever starts them; by default one per accelerator.

    Args:
        workload: what they run; None for a user's own code.
        device: its label.
        asked: the value of ``--hwq-ranks``.

    """
    launched = launched_rank(os.environ)
    if launched is not None:
        return launched.size
    if workload is None or not workload.collective:
        return 1
    if asked is not None:
        return asked
    can = capabilities_of(device)
    if can.host:
        return _ON_THE_HOST
    return max(1, visible_accelerators()[1]) if can.several_ranks else 1


def local_device(label: str) -> str:
    """Return the device that a rank opens for the requested one: that of its local rank."""
    launched = launched_rank(os.environ)
    if launched is None or label not in ("cuda", "hip") or visible_accelerators()[1] == 1:
        return label
    return f"{label}:{launched.local_rank}"


def workload_of(item: pytest.Item) -> Declaration | None:
    """Return the suite's workload that a test's mark names, or None.

    Raises:
        pytest.UsageError: if there is no such workload.

    """
    mark = item.get_closest_marker("hwq_workload")
    if mark is None:
        return None
    with wrong_usage(f"{item.nodeid}: mark hwq_workload", TypeError):
        return declaration(*mark.args)
