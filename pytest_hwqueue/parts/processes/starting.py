"""Starts measuring processes: forked from a server that has imported torch, or started anew.

Both kinds run the same main function with the same arguments, environment and output. A process is
forked only if its environment is the server's: libraries read variables when they are loaded.
"""

from __future__ import annotations

import hashlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Literal

from pytest_hwqueue.data.errors import HwqError
from pytest_hwqueue.data.safe_files import open_output
from pytest_hwqueue.parts.processes import fork_loop
from pytest_hwqueue.parts.processes.fork_loop import LATE
from pytest_hwqueue.parts.processes.guardian import Order, Stop
from pytest_hwqueue.parts.processes.scratch import SCRATCH, new_scratch

Main = Literal[
    "pytest_hwqueue.plugin.worker.process",
    "pytest_hwqueue.engine.tenants.tenant",
    "pytest_hwqueue.engine.cell.launching_processes",
]

# Variables of the session that would change what a process does that it starts.
_NOT_FOR_WORKERS = ("PYTEST_CURRENT_TEST", "PYTEST_ADDOPTS")

_MAIN = (
    "import importlib, json, sys; sys.path[{}:] = json.loads(sys.argv[1]); "
    "importlib.import_module(sys.argv[2]).main()"
)
_PACKAGES = str(Path(__file__).parents[3])
# Variable in which a process finds the server that was started for it.
_HANDED_OVER = "PYTEST_HWQUEUE_FORK_SERVER"
# Longest time for the server to import what it has to.
_READY_S = 180.0
# Longest time for the server to end its forks.
_ENDING_S = 10.0


def python_command(module: str, *arguments: object, alone: bool = False) -> list[str]:
    """Return the command that runs ``main()`` of a module.

    Args:
        module: its name.
        arguments: the last ones of ``sys.argv`` there.
        alone: the module needs the standard library only, and starts in some 20 ms; else it finds
            what this process finds.

    """
    options = ["-I", "-S"] if alone else []
    path = [_PACKAGES] if alone else sys.path
    text = _MAIN.format("len(sys.path)" if alone else "")
    return [
        sys.executable, *options, "-c", text, json.dumps(path), module, *map(str, arguments)
    ]  # fmt: skip


class ForkServer:
    """A process that has imported torch but opened no device; its forks start quickly."""

    def __init__(
        self, environment: Mapping[str, str], ahead: Sequence[tuple[str, str]] = ()
    ) -> None:
        """Start the server; it imports while this process continues.

        Args:
            environment: the whole environment of the server and of its forks.
            ahead: what it imports besides torch and the harness, as in `registry.ahead`.

        """
        self._environment = _digest(environment)
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with closing(theirs), tempfile.TemporaryFile() as output:
            self._process: subprocess.Popen[bytes] | None = subprocess.Popen(
                python_command(fork_loop.__name__, theirs.fileno(), json.dumps(ahead)),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=dict(environment),
                pass_fds=(theirs.fileno(),),
            )

    @classmethod
    def handed_over(cls) -> ForkServer | None:
        """Return the server that this process's parent started for it, or None."""
        parent, _, rest = os.environ.pop(_HANDED_OVER, "").partition(":")
        if parent != str(os.getppid()):
            return None
        descriptor, _, environment = rest.partition(":")
        server = cls.__new__(cls)
        server._environment = environment
        server._socket = socket.socket(fileno=int(descriptor))
        server._socket.set_inheritable(False)
        server._process = None
        return server

    @contextmanager
    def handing_over(self) -> Iterator[tuple[dict[str, str], tuple[int, ...]]]:
        """Hand the server over to a process started in the ``with`` block.

        Yields what that process needs: an environment variable, and descriptors to keep open.
        """
        descriptor = self._socket.fileno()
        text = f"{os.getpid()}:{descriptor}:{self._environment}"
        yield {_HANDED_OVER: text}, (descriptor,)
        # The server ends when nobody has this end of its socket any more.
        self._socket.close()

    def fits(self, environment: Mapping[str, str]) -> bool:
        """Whether a process with this environment can be forked."""
        return _digest(environment) == self._environment

    def fork(
        self, main: Main, environment: Mapping[str, str], log: Path, descriptors: tuple[int, int]
    ) -> ForkedProcess:
        """Fork a process; its environment must fit.

        Raises:
            HwqError: if the server has gone.

        """
        reader, writer = os.pipe()
        own = {name: text for name, text in environment.items() if name.startswith(LATE)}
        request = json.dumps({"main": main, "path": sys.path, "environment": own}).encode()
        try:
            with open_output(log) as output:
                passed = [*descriptors, output.fileno(), writer]
                socket.send_fds(self._socket, [request], passed)
        except OSError as error:
            os.close(reader)
            raise HwqError(str(error)) from None
        finally:
            os.close(writer)
        return ForkedProcess(reader)

    def close(self) -> None:
        """End the server and its forks."""
        self._socket.close()
        if self._process is not None:
            # While it imports, it is ended by the signal; then it looks at its socket.
            self._process.terminate()
            try:
                self._process.wait(_ENDING_S)
            except (subprocess.TimeoutExpired, KeyboardInterrupt):
                # A session that ends has nothing else left that Ctrl-C could end.
                self._process.kill()
                self._process.wait()


class ForkedProcess:
    """A process with a parent that ends all it leaves; has the interface of `subprocess.Popen`.

    Attributes:
        pid: its process id.
        parent_pid: that of its parent.

    """

    def __init__(self, reader: int, guardian: subprocess.Popen[bytes] | None = None) -> None:
        """Wait for its process id.

        Args:
            reader: where its parent says it, and its exit status.
            guardian: above its parent, if that is there for it alone; None for the fork server.

        Raises:
            HwqError: if the server ended instead, or did not get ready.

        """
        self._reader = reader
        self._guardian = guardian
        self._status: int | None = None
        try:
            self.parent_pid, self.pid = self._numbers(_READY_S)
        except (subprocess.TimeoutExpired, ValueError):
            os.close(reader)
            if guardian is not None:
                guardian.kill()
                guardian.communicate()
            raise HwqError("the process's parent ended, or did not get ready") from None

    def poll(self) -> int | None:
        """Return its exit status, negative for a signal; None while it runs."""
        try:
            return self.wait(0)
        except subprocess.TimeoutExpired:
            return None

    def wait(self, timeout: float | None = None) -> int:
        """Wait for its exit status; subprocess.TimeoutExpired if it still runs after seconds."""
        if self._status is None:
            # Where the server was killed, nobody knows how its processes end.
            (self._status,) = self._numbers(timeout) or [-signal.SIGKILL]
            os.close(self._reader)
            if self._guardian is not None:
                # Its stdin after that: it would say that it is asked to stop.
                self._guardian.wait()
                self._guardian.communicate()
        return self._status

    def stop(self, within_s: float) -> int:
        """Have its guardian stop it in its own way; return its exit status.

        Raises:
            subprocess.TimeoutExpired: if it still runs after seconds.

        """
        assert self._guardian is not None
        assert self._guardian.stdin is not None
        self._guardian.stdin.close()
        return self.wait(within_s)

    def _numbers(self, timeout: float | None) -> list[int]:
        """Read a line; none if the server has gone, TimeoutExpired if none comes in seconds."""
        ready = select.poll()
        ready.register(self._reader, select.POLLIN)
        if timeout is not None and not ready.poll(timeout * 1000):
            raise subprocess.TimeoutExpired("a measuring process", timeout)
        # It is written at once.
        line = b""
        while not line.endswith(b"\n"):
            data = os.read(self._reader, 1)
            if not data:
                return []
            line += data
        return [*map(int, line.split())]


def start_process(
    server: ForkServer | None,
    main: Main,
    environment: Mapping[str, str],
    log: Path,
    descriptors: tuple[int, int],
) -> ForkedProcess:
    """Start a process that runs ``main()`` of a module.

    Args:
        server: forks it if its environment is the server's; None starts it anew.
        main: the module.
        environment: its whole environment but for `SCRATCH`.
        log: file for its output.
        descriptors: stay open in the process; their numbers there are its last two arguments.

    """
    if server is not None and server.fits(environment):
        # What ended the server ends a process started anew too, and its log then says why.
        with suppress(HwqError):
            return server.fork(main, environment, log, descriptors)
    return start_reaped(python_command(main, *descriptors), environment, log, descriptors)


def start_reaped(
    command: Sequence[str],
    environment: Mapping[str, str],
    log: Path,
    descriptors: Sequence[int] = (),
) -> ForkedProcess:
    """Start a program; when it ends, or this process does, so does all that it has started.

    Args:
        command: the program and its arguments.
        environment: its whole environment but for `SCRATCH`.
        log: file for its output.
        descriptors: stay open in the program.

    """
    folder = new_scratch()
    order = Order(
        command,
        {**environment, SCRATCH: str(folder)},
        Stop(signal.SIGKILL, patience_s=0),
        descriptors=descriptors,
        folder=folder,
    )
    return start_guarded(order, log)


def start_guarded(
    order: Order, log: Path, environment: Mapping[str, str] | None = None
) -> ForkedProcess:
    """Start a program with a guardian of its own, which also stops it when this process dies.

    Args:
        order: what to start, and how it is stopped.
        log: file for its output, and for the guardian's.
        environment: the guardian's; this process's by default.

    Raises:
        HwqError: if it cannot be started; the log says why.

    """
    reader, writer = os.pipe()
    try:
        with open_output(log) as output:
            guardian = subprocess.Popen(
                python_command("pytest_hwqueue.parts.processes.guardian", alone=True),
                stdin=subprocess.PIPE,
                stdout=writer,
                stderr=output,
                env=environment,
                pass_fds=order.descriptors,
                start_new_session=order.contending is None,
            )
    except BaseException:
        os.close(reader)
        raise
    finally:
        os.close(writer)
    assert guardian.stdin is not None
    # A line of a pipe, as an environment may be longer than an argument may.
    with suppress(BrokenPipeError):
        guardian.stdin.write(f"{json.dumps(order, default=str)}\n".encode())
        guardian.stdin.flush()
    return ForkedProcess(reader, guardian)


def worker_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the environment for processes that a session starts, without its own variables."""
    return {
        name: value
        for name, value in environment.items()
        if name not in _NOT_FOR_WORKERS and not name.startswith("PYTEST_XDIST_")
    }


def _digest(environment: Mapping[str, str]) -> str:
    """Return a digest that differs between environments in which libraries load differently."""
    found = {name: text for name, text in environment.items() if not name.startswith(LATE)}
    return hashlib.sha256(json.dumps(found, sort_keys=True).encode()).hexdigest()
