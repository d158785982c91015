"""The worker process: a pytest session that runs single tests on command, and reports each.

It is started with the arguments of the session that it works for, collects the files it is given,
and lives as long as its device is sound. It sends reports and warnings back in pytest's own
serialised form, as xdist does.
"""

from __future__ import annotations

import faulthandler
import gc
import os
import queue
import signal
import socket
import sys
import threading
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest
from pydantic import TypeAdapter

from pytest_hwqueue.answers.versions.imports import report_now
from pytest_hwqueue.parts.processes.channel import Channel, Message, ProcessEnded, keep_output
from pytest_hwqueue.parts.processes.launched import LOOPBACK, host_store
from pytest_hwqueue.parts.processes.remote import remote
from pytest_hwqueue.parts.processes.unwatched import stop_coverage
from pytest_hwqueue.plugin import keys
from pytest_hwqueue.plugin.pytest_internals import (
    import_builtin_plugins,
    redirect_terminal,
    tear_down_to,
    terminal_file,
)
from pytest_hwqueue.plugin.session import RecordSink, attach_records
from pytest_hwqueue.plugin.worker.calls import SessionCalls, WorkerStart
from pytest_hwqueue.plugin.worker.services import Fitness
from pytest_hwqueue.plugin.worker.test_run import LISTED, packed

if TYPE_CHECKING:
    import warnings


# The fork server imports this module ahead.
import_builtin_plugins()

# How much captured output of a test goes with its report, at its beginning and at its end each.
_HALF_OF_OUTPUT = 500_000
_CONTAINER = pytest.StashKey[list[None]]()


class _Listed:
    """A worker's terminal: passes on to its log what is written, and keeps some for the session.

    Attributes:
        kept: what was written while ``keeps``.
        keeps: whether a test runs, and not pytest's reporter, of which the session has its own.

    """

    def __init__(self, file: Any) -> None:
        self._file = file
        self.kept = ""
        self.keeps = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)

    def write(self, text: str) -> int:
        """Write to the log, and keep the text."""
        if self.keeps:
            self.kept += text
        written: int = self._file.write(text)
        return written


class WorkerPlugin:
    """Runs the tests it is sent, one after the other."""

    def __init__(self, channel: Channel, start: WorkerStart) -> None:
        self._channel = channel
        self._answers: queue.SimpleQueue[Message] = queue.SimpleQueue()
        session = remote(SessionCalls, channel.send, self._answers.get)
        self._sink = RecordSink(start.records, start.command, session)
        self._start = start
        self._pid = os.getpid()
        self._listed: _Listed | None = None
        self._commands: queue.SimpleQueue[Message] = queue.SimpleQueue()
        threading.Thread(target=self._listen, name="hwq-commands", daemon=True).start()

    def _listen(self) -> None:
        while True:
            try:
                message = self._channel.receive()
            except ProcessEnded:
                # pytest has gone without saying so: leave nothing behind, whatever runs now.
                os.killpg(os.getpgrp(), signal.SIGKILL)
            else:
                assert message is not None
                answers = message["kind"] == "answer"
                (self._answers if answers else self._commands).put(message)
                if message["kind"] == "exit":
                    return

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        """Run single tests until asked to exit."""
        items = {keys.item_key(item): item for item in session.items}
        _keep_from_collector(session.items)
        # A conftest may have started it.
        stop_coverage()
        self._list_for_session()
        # pytest has put its own in place by now.
        _refuse_debugger()
        self._channel.send("ready")
        self._fitness = Fitness()
        promised: pytest.Item | None = None
        while (command := self._commands.get())["kind"] == "run":
            item = items.get(command["item"])
            if item is None:
                self._channel.send("missing")
                continue
            if promised is not None and promised is not item:
                # Fixtures were kept for a test that does not follow after all.
                tear_down_to(session, item)
            promised = items.get(command["next"])
            self._sink.key = command["key"]
            try:
                session.config.hook.pytest_runtest_protocol(item=item, nextitem=promised)
            except pytest.exit.Exception as error:
                self._sink.session.exits(error.msg, error.returncode)
                raise
            self._forget_reports()
            report_now()
            unfit = self._sink.retire_process or not self._fitness.is_left()
            self._channel.send("finished", retire=unfit)
        # Nobody reads a worker's summary, and for it some plugins do much: hypothesis's imports
        # hypothesis, which takes 0.6 s.
        if (reporter := self._reporter()) is not None:
            self._config.pluginmanager.unregister(reporter)
        return True

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item, call: pytest.CallInfo[None]
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        """Attach the test's records to its report."""
        if os.getpid() != self._pid:
            # A child that the test has forked, and that came out of the test: not one to report.
            os._exit(0)
        self._fitness.ran(call)
        report = yield
        attach_records(report, self._sink.take())
        return report

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_fixture_setup(
        self, fixturedef: pytest.FixtureDef[Any]
    ) -> Generator[None, object, object]:
        """Look at what a fixture that several tests share has changed."""
        value = yield
        self._fitness.fixture_is_set_up(fixturedef)
        return value

    def pytest_fixture_post_finalizer(self, fixturedef: pytest.FixtureDef[Any]) -> None:
        """Expect no longer what a fixture has changed."""
        self._fitness.fixture_is_torn_down(fixturedef)

    @pytest.hookimpl(wrapper=True, trylast=True)
    def pytest_runtest_call(self) -> Generator[None, None, None]:
        """Look at what a test leaves of its captured output."""
        with self._output_looked_at():
            yield

    @pytest.hookimpl(wrapper=True, trylast=True)
    def pytest_runtest_teardown(self) -> Generator[None, None, None]:
        """Look at what its teardown leaves."""
        with self._output_looked_at():
            yield

    @contextmanager
    def _output_looked_at(self) -> Iterator[None]:
        try:
            yield
        finally:
            self._fitness.look_at_output()

    def _list_for_session(self) -> None:
        """Keep what pytest lists as a test runs: its fixtures (--setup-show), its log lines."""
        config, reporter = self._config, self._reporter()
        live = config.getoption("log_cli_level") is not None or config.getini("log_cli")
        if reporter is not None and (live or config.option.setupshow):
            self._listed = _Listed(terminal_file(config))
            redirect_terminal(config, self._listed)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_logstart(self) -> Generator[None, None, None]:
        """Let the reporter write for the log alone."""
        yield
        if self._listed is not None:
            self._listed.kept, self._listed.keeps = "", True

    def _forget_reports(self) -> None:
        """Drop what this process's reporter has kept: the session has it, and prints it."""
        if (reporter := self._reporter()) is not None:
            reporter.stats.clear()

    def _reporter(self) -> Any:
        return self._config.pluginmanager.get_plugin("terminalreporter")

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> Generator[None, None, None]:
        """Send a report in pytest's serialised form."""
        config, listed = self._config, self._listed
        if listed is not None:
            listed.keeps = False
        # The reporter's look at it makes a test fail whose subtests do.
        yield
        report.sections = [(name, _shortened(text)) for name, text in report.sections]
        if listed is not None:
            setattr(report, LISTED, _shortened(listed.kept))
            listed.kept, listed.keeps = "", report.when != "teardown"
        data = config.hook.pytest_report_to_serializable(config=config, report=report)
        self._sink.session.report(packed(data))

    def pytest_warning_recorded(
        self,
        warning_message: warnings.WarningMessage,
        when: str,
        nodeid: str,
        location: tuple[str, int, str] | None,
    ) -> None:
        """Send a test's warning; the session shows warnings from collection itself."""
        if when == "runtest":
            self._sink.session.warning(
                str(warning_message.message),
                warning_message.category.__name__,
                warning_message.filename,
                warning_message.lineno,
                nodeid,
                location,
            )

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_cmdline_main(self, config: pytest.Config) -> Generator[None, int | None, int | None]:
        """Undo what the session's arguments ask of the session alone, before anything reads it."""
        _configure(config, self._start)
        return (yield)

    def pytest_configure(self, config: pytest.Config) -> None:
        """Keep the config; let the fixtures find the sink and what records say of this process."""
        self._config = config
        config.stash[keys.SINK] = self._sink
        config.stash[keys.ASSIGNMENT] = self._start.assignment
        config.stash[keys.PROVENANCE] = self._start.provenance


def _keep_from_collector(items: Sequence[pytest.Item]) -> None:
    """Have the garbage collector, which runs before each pass, leave the session's tests alone.

    It leaves alone what is there now. But pytest adds to two dicts of a test that runs, and a dict
    is looked at from its first container on: that of the test's attributes, which Python makes when
    it is first asked for, and its stash. Once 3,000 tests have run, 6,000 dicts take 0.5 ms of each
    collection; given a container now they take none.
    """
    for item in items:
        attributes = vars(item)
        assert attributes
        item.stash[_CONTAINER] = []
    gc.collect()
    gc.freeze()


def _refuse_debugger() -> None:
    """Let ``breakpoint()`` and ``pdb.set_trace()`` say what lets them work: a worker has no input.

    Another debugger, which PYTHONBREAKPOINT names, may need none.
    """
    import pdb

    def refuse(*_: object, **__: object) -> None:
        __tracebackhide__ = True
        pytest.fail(
            "a debugger cannot ask here, as the test is measured in a process of its own: give "
            "--hwq-isolation=none, --pdb or --trace"
        )

    pdb.set_trace = refuse
    pytest.set_trace = refuse


def _shortened(text: str) -> str:
    """Return captured output without its middle, if it is longer than anybody reads."""
    more = len(text) - 2 * _HALF_OF_OUTPUT
    if more <= 0:
        return text
    told = f"\n[pytest-hwqueue left out {more} characters of output here]\n"
    return f"{text[:_HALF_OF_OUTPUT]}{told}{text[-_HALF_OF_OUTPUT:]}"


def main() -> None:
    """Serve one pytest session; the arguments are the descriptors of the two pipes."""
    # A group of its own: the terminal's Ctrl-C goes to pytest, which ends the worker itself.
    # (Not a session of its own: the kernel would schedule it apart from its neighbours.)
    os.setpgrp()
    _serve(Channel.from_process(int(sys.argv[-2]), int(sys.argv[-1])))


def _serve(channel: Channel) -> None:
    stop_coverage()
    keep_output()
    faulthandler.register(signal.SIGUSR1, file=sys.stderr, all_threads=True)
    command = channel.receive()
    assert command is not None
    if command["kind"] == "host store":
        # Of several ranks, the first; the others connect once they have been told the port.
        listener = socket.create_server((LOOPBACK, 0))
        channel.send("store", port=listener.getsockname()[1])
        host_store(listener)
        command = channel.receive()
        assert command is not None
    start = TypeAdapter(WorkerStart).validate_python(command["start"])
    os.environ.update(start.environment)
    os.chdir(start.folder)
    status = pytest.main(start.arguments, [WorkerPlugin(channel, start)])
    distributed = sys.modules.get("torch.distributed")
    if distributed is not None and distributed.is_initialized():
        # A rank has failed: leaving the group in order would wait for it.
        sys.stdout.flush()
        os._exit(status)
    sys.exit(status)


def _configure(config: pytest.Config, start: WorkerStart) -> None:
    """Undo the configuration that belongs only to the session that the worker works for."""
    config.args = start.files
    off = [
        "maxfail", "usepdb", "trace", "collectonly",
        "distload", "looponfail",  # xdist
        # pytest-benchmark: the samples are mirrored by the session itself
        "benchmark_enable", "benchmark_only", "benchmark_skip",
    ]  # fmt: skip
    none = [
        "xmlpath", "numprocesses", "maxprocesses", "benchmark_json", "benchmark_save",
        "benchmark_autosave", "benchmark_compare", "benchmark_histogram",
    ]  # fmt: skip
    overrides: dict[str, Any] = {
        **dict.fromkeys(off, False), **dict.fromkeys(none), "basetemp": start.basetemp,
        "dist": "no", "tx": [], "benchmark_disable": True,
    }  # fmt: skip
    for name, value in overrides.items():
        if hasattr(config.option, name):
            setattr(config.option, name, value)
    # A test has a process already, and a child that it is forked into reports to nobody.
    if (forked := config.pluginmanager.get_plugin("pytest_forked")) is not None:
        config.pluginmanager.unregister(forked)
    # The convention by which plugins (pytest's own too) know a worker from the session itself.
    config.workerinput = {**start.workerinput, keys.WORKER_KEY: True}  # type: ignore[attr-defined]
