"""A load generator of another project as a tenant's load: run in the window, its records read."""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path

from pytest_hwqueue.data.errors import HwqError, InvalidMeasurement, shortened
from pytest_hwqueue.data.metrics.overlap import most_at_once
from pytest_hwqueue.data.records.plan import ClientCommand, Server
from pytest_hwqueue.data.records.tenants import RequestFailure
from pytest_hwqueue.data.redaction import without_known
from pytest_hwqueue.engine.tenants.client_records import (
    NO_TOKEN,
    ClientLog,
    ClientRequest,
    read_client_log,
)
from pytest_hwqueue.engine.tenants.open_loop import Load, Reply, Window
from pytest_hwqueue.engine.tenants.server_variables import expand_url, fill
from pytest_hwqueue.engine.tenants.servers import (
    FOLDER,
    PORT,
    PYTHON,
    SECONDS,
    URL,
    host_and_port,
    secrets_of,
)
from pytest_hwqueue.parts.processes.guardian import Order, Stop
from pytest_hwqueue.parts.processes.scratch import scratch_folder
from pytest_hwqueue.parts.processes.services import Service, run_service, service_environment

_POLL_S = 0.02
# Clients write partial results where they are interrupted; then they are killed.
_PATIENCE_S = 10.0
# Of its records' times against the window's: as late as a tenant's own generator may be.
_MOST_STEP_NS = 1_000_000


@contextmanager
def running_client(
    server: Server, client: ClientCommand, seconds: float, within: Path
) -> Iterator[RunningClient]:
    """Start a server's client, and end it with the block.

    Args:
        server: where its requests go.
        client: what it is.
        seconds: length of the window.
        within: folder that the command starts in.

    Raises:
        ServiceFailed: if it cannot be started.

    """
    with scratch_folder() as folder:
        order = _order(client, server, seconds, Path(folder), within)
        with run_service("the client", Path(folder) / "client.log", order) as service:
            yield RunningClient(service, client, Path(folder), secrets_of(server))


class RunningClient:
    """A client that runs."""

    def __init__(
        self, service: Service, client: ClientCommand, folder: Path, secrets: Collection[str]
    ) -> None:
        self._service, self._client, self._folder = service, client, folder
        self._secrets = secrets
        self._ahead_ns = _wall_ahead_ns()

    def lead(self) -> None:
        """Wait until the window may begin.

        Raises:
            HwqError: if the client fails meanwhile.

        """
        until_ns = time.monotonic_ns() + round(self._client.lead_s * 1e9)
        while time.monotonic_ns() < until_ns and not self._has_ended():
            time.sleep(_POLL_S)

    def load(self, window: Window) -> Load:
        """Wait until the client has ended; return its requests that were due in a window.

        Those that it sent before or after, such as a warm-up's, do not count.

        Args:
            window: on the clock of `time.monotonic_ns`.

        Raises:
            HwqError: if it fails, goes on when the window's grace is over, writes no records, or
                sent nothing within the window.
            InvalidMeasurement: if the wall clock was set meanwhile, by which its records are.

        """
        while not self._has_ended():
            if time.monotonic_ns() > window.over_ns:
                raise HwqError(
                    f"the client had not ended {window.grace_ns / 1e9:g} s after the window: give "
                    f"it fewer requests or a shorter time ({SECONDS} is the window's), or the "
                    f"scenario a longer duration{self._said()}"
                )
            time.sleep(_POLL_S)
        stepped_ns = _wall_ahead_ns() - self._ahead_ns
        log = read_client_log(self._folder / self._client.records, self._client.format)
        if log.clock == "wall" and abs(stepped_ns) > _MOST_STEP_NS:
            raise InvalidMeasurement(
                f"the wall clock was set by {stepped_ns / 1e6:.3g} ms while the client ran, and "
                "its records go by it: keep it from being stepped, and measure again"
            )
        # Before it is shortened: half a secret is one, too.
        log = log._replace(
            requests=[_without_secrets(each, self._secrets) for each in log.requests]
        )
        return load_of(log, self._ahead_ns if log.clock == "wall" else 0, window)

    def _has_ended(self) -> bool:
        status = self._service.status
        if status:
            raise HwqError(f"the client ended with status {status}{self._said()}")
        return status is not None

    def _said(self) -> str:
        return f"; its last lines:\n{self._service.last_lines()}"


def load_of(log: ClientLog, ahead_ns: int, window: Window) -> Load:
    """Return a client's requests that were due and sent in a window, from its start.

    Args:
        log: its records.
        ahead_ns: how far its clock is ahead of the window's.
        window: on its own clock.

    Raises:
        HwqError: if there is none.

    """
    begin_ns = window.begin_ns + ahead_ns
    end_ns = begin_ns + window.duration_ns
    kept = [
        each
        for each in log.requests
        if begin_ns <= each.due_ns <= each.started_ns < end_ns and each.finished_ns > begin_ns
    ]
    if not kept:
        raise HwqError(
            f"the client sent none of its {len(log.requests)} requests within the window of "
            f"{window.duration_ns / 1e9:g} s: give the scenario a longer duration, or the client "
            "another lead"
        )
    if any(each.tokens is not None for each in kept):
        # As of our own requests.
        kept = [
            each if each.failure or each.tokens is not None else each._replace(failure=NO_TOKEN)
            for each in kept
        ]
    return Load(
        scheduled_ns=[each.due_ns - begin_ns for each in kept],
        started_ns=[each.started_ns - begin_ns for each in kept],
        finished_ns=[each.finished_ns - begin_ns for each in kept],
        failed=[
            RequestFailure(index=index, reason=each.failure, kind=each.failure)
            for index, each in enumerate(kept)
            if each.failure
        ],
        replies=[_reply(each, ahead_ns) for each in kept],
        most_at_once=most_at_once((each.started_ns, each.finished_ns) for each in kept),
    )


def _without_secrets(request: ClientRequest, secrets: Collection[str]) -> ClientRequest:
    return request._replace(failure=shortened(without_known(request.failure, secrets)))


def _reply(request: ClientRequest, ahead_ns: int) -> Reply | None:
    """Return when its tokens came, on the window's clock; None if it failed or nobody says."""
    tokens = request.tokens
    if tokens is None:
        return None
    answer_ns = tokens.answer_ns
    return Reply(
        first_ns=tokens.first_ns - ahead_ns,
        answer_ns=None if answer_ns is None else answer_ns - ahead_ns,
        last_ns=tokens.last_ns - ahead_ns,
        tokens=tokens.number,
        counted="client",
        done_ns=request.finished_ns - ahead_ns,
    )


def _wall_ahead_ns() -> int:
    """Return how far the wall clock is ahead of the monotonic one, read within a microsecond."""
    before_ns = time.monotonic_ns()
    wall_ns = time.time_ns()
    return wall_ns - (before_ns + time.monotonic_ns()) // 2


def _order(
    client: ClientCommand, server: Server, seconds: float, folder: Path, within: Path
) -> Order:
    url = expand_url(server.url)
    values = {
        URL: url,
        PORT: str(host_and_port(url)[1]),
        PYTHON: sys.executable,
        FOLDER: str(folder),
        SECONDS: f"{seconds:g}",
    }
    command = [fill(word, values) for word in client.command]
    stop = Stop(signal.SIGINT, patience_s=_PATIENCE_S)
    return Order(command, service_environment({}), stop, within=within)
