"""A neighbour that keeps the kernel's network stack busy: iperf3 over loopback."""

from __future__ import annotations

import socket
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path

from pytest_hwqueue.noise.neighbour import NeighbourOrder, NeighbourProgram, NeighbourRound
from pytest_hwqueue.noise.programs import missing, run_program, version
from pytest_hwqueue.processes.services import ServiceFailed

_PROGRAM = "iperf3"
_ADDRESS = "127.0.0.1"
_STREAMS = 10
_TRIES = 3
_TAKEN = "Address already in use"

# Between what a quiet machine shows and what ten streams do: on two cores 0 and 400 to 2,500 MB/s,
# 0 to 5 and 7,000 to 56,000 softirqs a second, the lesser ones with cpu and disk running too.
_LEAST_BYTES_PER_S = 10_000_000
_LEAST_SOFTIRQS_PER_S = 1_000


class Network:
    """An iperf3 client and its own one-shot server, both on this machine."""

    name = "network"
    notes: Sequence[str] = ()

    def unavailable(self) -> str | None:
        """Return that iperf3 is missing, or None."""
        return missing(_PROGRAM)

    def version(self) -> str | None:
        """Return iperf3's version."""
        return version(_PROGRAM)

    @contextmanager
    def running(self, order: NeighbourOrder) -> Iterator[Sequence[NeighbourProgram]]:
        """Run the server, then the client."""
        with ExitStack() as stack:
            server, port = _serving(stack, order)
            command = [
                _PROGRAM, "-c", _ADDRESS, "-p", str(port), "-P", str(_STREAMS),
                "-t", str(order.seconds),
            ]  # fmt: skip
            client = stack.enter_context(run_program(f"{_PROGRAM}-client", command, order))
            yield [server, client]

    def shortfall(self, round_: NeighbourRound) -> str | None:
        """Judge by the bytes the client sent and by the softirqs of received packets."""
        if round_.done.handed_over_bytes is None:
            return "what iperf3's processes did cannot be read from /proc"
        rate = round_.done.handed_over_bytes / round_.duration_s
        if rate < _LEAST_BYTES_PER_S:
            return f"iperf3 sent {rate / 1e6:.1f} MB/s, below {_LEAST_BYTES_PER_S / 1e6:.0f} MB/s"
        if "softirqs" in round_.machine.missing:
            return None
        softirqs = round_.machine.softirqs.get("NET_RX", 0) / round_.duration_s
        if softirqs < _LEAST_SOFTIRQS_PER_S:
            return (
                f"{softirqs:.0f} NET_RX softirqs a second, below {_LEAST_SOFTIRQS_PER_S}: what "
                "iperf3 sent did not pass through this machine's network"
            )
        return None


def _serving(stack: ExitStack, order: NeighbourOrder) -> tuple[NeighbourProgram, int]:
    """Start the server and wait until it listens; return it and its port."""
    for tries_left in reversed(range(_TRIES)):
        port = _free_port()
        command = [
            _PROGRAM, "-s", "-1", "-B", _ADDRESS, "-p", str(port), "--forceflush",
        ]  # fmt: skip
        with ExitStack() as attempt:
            server = attempt.enter_context(run_program(f"{_PROGRAM}-server", command, order))
            try:
                server.service.wait_until(partial(_listens, server.service.log), "did not listen")
            except ServiceFailed as failed:
                # Somebody took the port between the look at it and iperf3's own.
                if tries_left and _TAKEN in str(failed):
                    continue
                raise
            stack.push(attempt.pop_all())
            return server, port
    raise AssertionError("the last try returns or raises")


def _listens(log: Path) -> bool:
    # Not by connecting: that would be the one client it serves.
    return "Server listening" in log.read_text(encoding="utf-8", errors="replace")


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind((_ADDRESS, 0))
        port: int = probe.getsockname()[1]
        return port
