"""xserver: started, asked, watched.

Seen in XSched 1.2.0: it leaves its System V message queue behind unless it is stopped by SIGINT or
SIGQUIT, and nobody schedules clients that find a queue without a server. It continues without HTTP
if its port is taken. A request takes 44 ms on a kept-alive connection, 0.35 ms on a new one.
"""

from __future__ import annotations

import ctypes
import http.client
import json
import signal
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import permutations
from pathlib import Path

import psutil

from pytest_hwqueue.data.errors import NotProven, translated
from pytest_hwqueue.parts.processes.guardian import Order, Stop
from pytest_hwqueue.parts.processes.process_table import TcpPort
from pytest_hwqueue.parts.processes.services import (
    Service,
    ServiceFailed,
    free_port,
    run_service,
    service_environment,
)
from pytest_hwqueue.parts.schedulers.declaration import POLICIES
from pytest_hwqueue.parts.schedulers.syntax import SchedulerPaths

_NAME = "xserver"
_SERVER_KEY = 1
_IPC_RMID = 0
_LOOPBACK = "127.0.0.1"
_ANSWER_S = 5.0
_DYING_S = 2.0
_SETTINGS = ("level", "threshold", "batch_size")


@dataclass(frozen=True)
class XQueueSettings:
    """How a stream is scheduled; threshold and batch in commands."""

    level: int
    threshold: int
    batch: int

    def __str__(self) -> str:
        """Return all three, in words."""
        return f"level {self.level}, threshold {self.threshold}, batch {self.batch}"


@dataclass(frozen=True)
class XQueue:
    """A stream as xserver knows it; ``ready`` has commands waiting or running."""

    pid: int
    handle: int
    settings: XQueueSettings
    ready: bool
    suspended: bool


@dataclass(frozen=True)
class Report:
    """What xserver knows at one moment: its clients' process ids, and their XQueues."""

    processes: frozenset[int]
    queues: tuple[XQueue, ...]


class XServer:
    """A running xserver, reached by its port on loopback."""

    def __init__(self, port: int, service: Service | None = None) -> None:
        self.port = port
        self.clients: set[int] = set()
        self._service = service

    def check(self, within_s: float = 0) -> None:
        """Raise ServiceFailed if it was started here and has ended, or ends ``within_s``."""
        if self._service is not None:
            self._service.check(within_s)

    def require_own_port(self) -> None:
        """Raise NotProven if it was started here, and others listen on its port, or it does not."""
        if self._service is not None:
            self._service.require_listening(TcpPort(_LOOPBACK, self.port))

    def report(self) -> Report:
        """Ask for all processes and XQueues.

        Raises:
            NotProven: if it does not answer (ServiceFailed if it has ended), or in another format.

        """
        report = parse_report(self._get("/xqueues", _DYING_S))
        self.clients |= report.processes
        return report

    def policy(self) -> int:
        """Ask for the number of its policy."""
        said = "xserver's answer to /policy is not understood"
        with translated(NotProven, said, ValueError, KeyError, TypeError):
            return int(json.loads(self._get("/policy", 0))["policy"])

    def _get(self, path: str, dying_s: float) -> str:
        # A new connection each time, and http.client: no proxy of the environment applies.
        connection = http.client.HTTPConnection(_LOOPBACK, self.port, timeout=_ANSWER_S)
        try:
            connection.request("GET", path)
            return connection.getresponse().read().decode()
        except (OSError, http.client.HTTPException) as error:
            # Its connections end a little before it is known to have.
            self.check(dying_s)
            raise NotProven(
                f"xserver does not answer on port {self.port} of {_LOOPBACK}: {error}"
            ) from None
        finally:
            connection.close()


@contextmanager
def serve(root: Path, policy: str, folder: Path, paths: SchedulerPaths) -> Iterator[XServer]:
    """Run ``<root>/bin/xserver`` on a free port; stop it by SIGINT.

    If it is killed nevertheless, the queues that it and its clients left are removed.

    Args:
        root: where XSched is installed.
        policy: by its name.
        folder: of its log.
        paths: where message queues are shown, and what finds other servers.

    Raises:
        ServiceFailed: if another server, or a leftover of one, blocks it; if it does not start, or
            does not answer with its policy.
        NotProven: if another program answers on its port.

    """
    refuse_other(_table(paths), _living_servers(paths))
    port = free_port()
    command = [str(root / "bin" / _NAME), policy, str(port)]
    clients: set[int] = set()
    order = Order(command, service_environment({}), Stop(signal.SIGINT), contending=None)
    try:
        with run_service(_NAME, folder / f"{_NAME}.log", order) as service:
            server = XServer(port, service)
            clients = server.clients
            service.wait_until(lambda: _answers(server), "did not answer over HTTP")
            # Where its port is taken it lives on without HTTP, and another answers.
            server.require_own_port()
            if server.policy() != POLICIES[policy]:
                raise ServiceFailed(
                    f"xserver was started with policy {policy} (number {POLICIES[policy]}), and "
                    f"answers with policy number {server.policy()}: is it of XSched 1.2?"
                )
            yield server
    finally:
        _remove_left_behind(clients, paths)


def refuse_other(table: str, servers: Sequence[int]) -> None:
    """Refuse if another xserver runs, or one has left its queue behind.

    Args:
        table: text of /proc/sysvipc/msg.
        servers: process ids of the living programs called xserver.

    Raises:
        ServiceFailed: saying which, and how to remove it.

    """
    if _SERVER_KEY not in parse_queues(table):
        return
    if servers:
        raise ServiceFailed(
            f"another xserver (process {servers[0]}) runs here and would get our tenants too; if "
            f"it is yours, stop it with: kill -INT {servers[0]}"
        )
    raise ServiceFailed(
        "an xserver that was killed has left its System V message queue (key 1) behind: tenants "
        "would be scheduled by nobody. No xserver lives here; remove the queue with: ipcrm -Q 1"
    )


def parse_queues(table: str) -> dict[int, int]:
    """Return the identifiers of System V message queues by key, of /proc/sysvipc/msg.

    It has a heading, then lines that begin with key and identifier.
    """
    rows = (line.split() for line in table.splitlines()[1:])
    return {int(row[0]): int(row[1]) for row in rows if row}


def parse_report(text: str) -> Report:
    """Read xserver's answer to ``GET /xqueues``.

    Raises:
        NotProven: if it is not in the format of XSched 1.2.

    """
    try:
        answer = json.loads(text)
        return Report(
            frozenset(int(each["pid"]) for each in answer["processes"]),
            tuple(
                XQueue(
                    int(each["pid"]),
                    int(each["handle"]),
                    XQueueSettings(*(int(each[name]) for name in _SETTINGS)),
                    ready=bool(each["ready"]),
                    suspended=bool(each["suspended"]),
                )
                for each in answer["xqueues"]
            ),
        )
    except (ValueError, KeyError, TypeError) as error:
        raise NotProven(
            f"xserver's answer to /xqueues is not in the format of XSched 1.2: {error!r}"
        ) from None


def _answers(server: XServer) -> bool:
    try:
        server.policy()
    except NotProven:  # One that has ended, too: whoever waits looks for that.
        return False
    return True


def _remove_left_behind(clients: set[int], paths: SchedulerPaths) -> None:
    """Remove the queues of our server and its clients that have ended; none existed before."""
    if _living_servers(paths):
        return
    library = ctypes.CDLL(None)
    for key, identifier in parse_queues(_table(paths)).items():
        if key == _SERVER_KEY or (key in clients and not psutil.pid_exists(key)):
            library.msgctl(identifier, _IPC_RMID, None)


def _table(paths: SchedulerPaths) -> str:
    return paths.queues.read_text(encoding="ascii") if paths.queues.exists() else ""


def _living_servers(paths: SchedulerPaths) -> list[int]:
    return [each.pid for each in paths.programs((_NAME,))]


class ServerWatch:
    """What samples of xserver showed, by process and XQueue.

    Attributes:
        samples: how many were taken.
        contended: number in which both tenants of a pair had work.
        held: number in which the first tenant had work but was suspended while the second had work.

    """

    def __init__(self) -> None:
        self.samples = 0
        self.contended: Counter[tuple[str, str]] = Counter()
        self.held: Counter[tuple[str, str]] = Counter()
        # By process and handle: the last seen, and how often it was ready and suspended, or not.
        self._queues: dict[tuple[int, int], XQueue] = {}
        self._states: defaultdict[tuple[int, int], Counter[tuple[bool, bool]]] = defaultdict(
            Counter
        )

    def remember(self, report: Report) -> None:
        """Keep a report's XQueues: those of a process that ends are gone from the next."""
        for queue in report.queues:
            self._queues[queue.pid, queue.handle] = queue

    def add(self, report: Report, pids: Mapping[str, int]) -> None:
        """Count a sample of these tenants (name to process id)."""
        self.samples += 1
        self.remember(report)
        names = {pid: name for name, pid in pids.items()}
        ready, held = set(), set()
        for queue in report.queues:
            self._states[queue.pid, queue.handle][queue.ready, queue.suspended] += 1
            if queue.ready and queue.pid in names:
                ready.add(names[queue.pid])
                if queue.suspended:
                    held.add(names[queue.pid])
        for low, high in permutations(ready, 2):
            self.contended[low, high] += 1
            if low in held:
                self.held[low, high] += 1

    def queues(self, pid: int) -> list[XQueue]:
        """The XQueues that a process had."""
        return [queue for (owner, _), queue in self._queues.items() if owner == pid]

    def counts(self, pids: Mapping[str, int]) -> dict[str, int]:
        """Return all counts by name; omit what was never seen.

        XQueues never seen with work are only counted: libraries open streams in reserve.
        """
        if not self.samples:
            return {}
        counts = {"samples": self.samples}
        for name, pid in pids.items():
            never = 0
            for number, queue in enumerate(self.queues(pid)):
                states = self._states[pid, queue.handle]
                if not any(ready for ready, _ in states):
                    never += 1
                    continue
                for (ready, suspended), count in sorted(states.items()):
                    what = ("ready" if ready else "idle") + (" suspended" if suspended else "")
                    counts[f"{name} XQueue {number} {what}"] = count
            if never:
                counts[f"{name} XQueues never seen with work"] = never
        for (low, high), count in sorted(self.held.items()):
            counts[f"{low} ready and suspended while {high} ready"] = count
        return counts
