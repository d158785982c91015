"""Runs measuring tests in a worker process, so that a crash or a hang costs only one cell."""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable, Sequence
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING

import pytest

from pytest_hwqueue.data.errors import INTERRUPTED_BEFORE, BadInput, NotProven, on_one_line
from pytest_hwqueue.parts.processes.channel import ProcessEnded
from pytest_hwqueue.parts.processes.launched import connect, launched_rank, tell_failure
from pytest_hwqueue.parts.processes.measured_process import MeasuredProcess
from pytest_hwqueue.parts.processes.starting import worker_environment
from pytest_hwqueue.plugin.keys import ASSIGNMENT, FORK_SERVER, SETTINGS, Assignment, item_key
from pytest_hwqueue.plugin.ranks import ranks_needed
from pytest_hwqueue.plugin.session import MeasuringSession, provenance
from pytest_hwqueue.plugin.worker.local_ranks import (
    MAIN,
    STARTING_S,
    LocalRanks,
    Start,
    have_collect,
    worker_input,
)
from pytest_hwqueue.plugin.worker.services import SchedulerServices, mode_of_worker, worker_of
from pytest_hwqueue.plugin.worker.test_run import ItemRun, Worker

if TYPE_CHECKING:
    from pytest_hwqueue.plugin.progress import Progress
    from pytest_hwqueue.plugin.worker.calls import WorkerStart

# The worker is this package before it is a pytest session, so its asserts are never rewritten;
# where warnings are errors, pytest's word about it would end every worker.
_ALREADY_IMPORTED = "ignore:Module already imported:pytest.PytestAssertRewriteWarning"


class Isolation:
    """Hands tests to a worker, and starts a fresh one when the last has become unfit.

    A scheduler mode that needs an environment gets its own worker. Its services run as long as its
    tests follow one another, even if workers come and go.
    """

    def __init__(
        self,
        config: pytest.Config,
        session: MeasuringSession,
        items: Sequence[pytest.Item],
        progress: Progress,
        only_traced: bool = False,
        start: Start = MeasuredProcess.start,
    ) -> None:
        self._config = config
        self._start_process = start
        self._session = session
        self._progress = progress
        self._only_traced = only_traced
        self._files = list(dict.fromkeys(str(item.path) for item in items))
        self._child: Worker | None = None
        self._child_ranks = 1
        self._tests = 0
        self._launched = launched_rank(os.environ)
        self._services: SchedulerServices | None = None
        self._started = 0
        self._services_started = 0
        self.begin_round(1, items)

    def begin_round(self, run: int, items: Sequence[pytest.Item]) -> None:
        """Measure these tests next, in this order and in a fresh process, as run number ``run``."""
        self.close()
        self._run = run
        self._follows = {item.nodeid: follows for item, follows in pairwise(items)}

    def run(
        self, item: pytest.Item, report: Callable[[pytest.TestReport], None] | None = None
    ) -> None:
        """Run one test in the worker; turn every outcome into reports, as if it had run here.

        Args:
            item: the test.
            report: called with each of its reports; by default they go to pytest.

        """
        # Its number names the test to all ranks, whose sessions run the same ones in order.
        self._tests += 1
        name = f"test-{self._tests}"
        emit = report or (lambda made: item.ihook.pytest_runtest_logreport(report=made))
        tell = partial(self._tell, name)
        run = ItemRun(item, self._session, self._progress, self._run, emit, tell)
        try:
            services = self._ready_services(mode_of_worker(item))
            child = self._ready_child(services, ranks_needed(item))
            child.send("run", item=item_key(item), next=self._next(item), key=name)
            retire = run.follow(child, services)
        except ProcessEnded as died:
            running, worker = self._services, self._child
            ended = running.problem(worker.pid) if running and worker else ""
            because = f"{ended}; so " if ended else ""
            self._drop_child(run, f"{because}the worker process {died}")
            if ended:
                self.close()
        except (NotProven, BadInput) as error:
            self._drop_child(run, on_one_line(error))
            self.close()
        except BaseException:
            # Ctrl-C above all: the worker is in a group of its own and must be ended from here.
            self._drop_child(run, INTERRUPTED_BEFORE, failed_test=False)
            raise
        else:
            if run.scheduler_ended:
                # Without it the worker may never come to its own end.
                child.kill("its scheduler has ended")
                self.close()
            elif retire or run.cut_short:
                self._finish_child()
        finally:
            self._progress.clear()

    def close(self) -> None:
        """End the worker, if one runs, and then its scheduler's services."""
        try:
            self._finish_child()
        finally:
            services, self._services = self._services, None
            if services is not None:
                services.close()

    def _finish_child(self) -> None:
        child, self._child = self._child, None
        if child is not None:
            child.finish(STARTING_S)
            child.close()

    def _ready_services(self, text: str | None) -> SchedulerServices:
        if self._services is None or self._services.text != text:
            self.close()
            if text is not None:
                self._services_started += 1
                self._progress.show(f"starting what {text} needs")
            config = self._config
            paths = config.stash[SETTINGS].scheduler_paths(config.invocation_params.dir)
            folder = self._session.folder / f"scheduler-{self._services_started}"
            self._services = SchedulerServices(text, paths, folder)
        return self._services

    def _ready_child(self, services: SchedulerServices, ranks: int) -> Worker:
        if ranks != self._child_ranks:
            self._finish_child()
        if self._child is None:
            self._started += 1
            self._child_ranks = ranks
            what = "the worker process" if ranks == 1 else f"{ranks} ranks"
            self._progress.show(f"starting {what}")
            folder, environment = self._session.folder, worker_environment(os.environ)
            log = folder / f"worker-{self._started}.log"
            environment.update(services.environment)
            start = self._start(services.notes)
            server = self._config.stash.get(FORK_SERVER, None)
            if ranks == 1:
                self._child = self._start_process(server, MAIN, environment, log)
                have_collect(self._child, start)
            else:
                self._child = LocalRanks(server, environment, log, ranks, self._start_process)
                self._child.have_collect(start)
        return self._child

    def _start(self, notes: Sequence[str]) -> WorkerStart:
        """Return what a worker must collect, and what its records say about this session."""
        from pytest_hwqueue.plugin.worker.calls import WorkerStart

        config = self._config
        # Captured at Python's level only: what a dying process writes below it stays in the log.
        more = ["--capture=sys", "-W", _ALREADY_IMPORTED]
        # pytest adds them to its own arguments; the variable itself is not for workers, as `hwq`
        # keeps it from its sessions.
        added = shlex.split(os.environ.get("PYTEST_ADDOPTS", ""))
        if config.pluginmanager.hasplugin("pytest_cov"):
            more.append("--no-cov")
        basetemp = config.getoption("basetemp", None)
        asked = config.stash.get(ASSIGNMENT, Assignment())
        return WorkerStart(
            arguments=[*added, *map(str, config.invocation_params.args), *more],
            folder=config.invocation_params.dir,
            files=self._files,
            records=self._session.folder,
            command=self._session.command,
            assignment=Assignment(
                self._run, notes, self._only_traced, dict(asked.planned), asked.compared_devices
            ),
            provenance=provenance(config),
            workerinput=worker_input(config),
            basetemp=f"{basetemp}-hwq-{os.getpid()}-{self._started}" if basetemp else None,
            environment={},
        )

    def _tell(self, test: str, reason: str, detail: str) -> None:
        """Inform the other ranks, if a launcher has started them, of this rank's failure."""
        launched = self._launched
        if launched is not None:
            tell_failure(connect(launched, test), launched.rank, reason, detail)

    def _next(self, item: pytest.Item) -> str | None:
        follows = self._follows.get(item.nodeid)
        if follows is None or worker_of(follows) != worker_of(item):
            return None
        return item_key(follows)

    def _drop_child(self, run: ItemRun, reason: str, *, failed_test: bool = True) -> None:
        child, self._child = self._child, None
        last_lines = ""
        if child is not None:
            child.kill("no longer fit")
            last_lines = child.last_lines()
            child.close()
        run.ended("failed", reason, last_lines, failed_test=failed_test)
