"""One tenant process as its parent sees it: started, followed, and ended on every way out."""

from __future__ import annotations

import os
import queue
import signal
import subprocess
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path

from pytest_hwqueue.processes.channel import Channel, ChannelClosed, Message
from pytest_hwqueue.processes.post_mortem import ending, last_lines, stacks
from pytest_hwqueue.processes.starting import ForkServer, start_process

_DYING_S = 5.0
_LAST_LINES = 30


class TenantProcess:
    """A process that runs one tenant, or several in threads; its messages go to an inbox.

    Args:
        tenants: the names of those who live in it.
        environment: all of its environment.
        log: file that takes what it writes.
        inbox: that several processes share, so that their parent waits for all at once: who sent
            a message, and the message; None when its process has gone.
        server: forks it where its environment is the server's.

    """

    def __init__(
        self,
        tenants: Sequence[str],
        environment: Mapping[str, str],
        log: Path,
        inbox: queue.SimpleQueue[tuple[TenantProcess, Message | None]],
        server: ForkServer | None = None,
    ) -> None:
        self.tenants = tuple(tenants)
        self.log = log
        # Why it was ended from here; empty while it has not been.
        self.stopped = ""
        self._inbox = inbox
        read_here, write_there = os.pipe()
        read_there, write_here = os.pipe()
        try:
            self._process = start_process(
                server, "pytest_hwqueue.tenancy.tenant", environment, log, (read_there, write_there)
            )
        except BaseException:
            os.close(read_here)
            os.close(write_here)
            raise
        finally:
            os.close(read_there)
            os.close(write_there)
        self._channel = Channel(read_here, write_here)
        self._reader = threading.Thread(target=self._read, name="hwq-tenant", daemon=True)
        self._reader.start()

    @property
    def pid(self) -> int:
        """The process's id."""
        return self._process.pid

    def send(self, kind: str, **content: object) -> None:
        """Send a command; one that has gone cannot be told, and the inbox says that it has."""
        try:
            self._channel.send(kind, **content)
        except ChannelClosed:
            return

    def finish(self, timeout_s: float) -> None:
        """Ask the process to exit, and end it if it does not."""
        self.send("exit")
        try:
            self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            self.kill(f"did not exit within {timeout_s:g} s of being asked to")

    def kill(self, why: str) -> None:
        """End the process and everything that it has started; nothing if it has ended."""
        if self._process.poll() is None:
            self.stopped = why
        try:
            os.killpg(self._process.pid, signal.SIGKILL)
        except ProcessLookupError:
            # Until the process has made its own group, the group does not exist.
            if self._process.poll() is None:
                os.kill(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def close(self) -> None:
        """Give up the channel; the process must have ended."""
        self._reader.join(_DYING_S)
        if not self._reader.is_alive():
            self._channel.close()

    def how_it_ended(self) -> str:
        """Wait for its end, which must be near, and say what it was."""
        try:
            status = self._process.wait(_DYING_S)
        except subprocess.TimeoutExpired:
            self.kill("closed its channel without exiting")
        if self.stopped:
            return f"stopped: {self.stopped}"
        return ending(status)

    @property
    def ended_well(self) -> bool:
        """Whether it has exited by itself, with status 0."""
        return self._process.poll() == 0 and not self.stopped

    def dump_stacks(self) -> str:
        """Have the process write all its threads' stacks to its log; return them."""
        return stacks(self.pid, self.log)

    def last_lines(self) -> str:
        """The last lines that the process wrote."""
        return last_lines(self.log, _LAST_LINES)

    def _read(self) -> None:
        while True:
            try:
                message = self._channel.receive()
            except ChannelClosed:
                self._inbox.put((self, None))
                return
            self._inbox.put((self, message))
