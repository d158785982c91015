"""The noise `memory`: a program on each core that writes through more memory than caches hold.

hwq run relay --device cpu --noise memory --runs 6
"""

from __future__ import annotations

import platform
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager

from pytest_hwqueue import (
    Neighbour,
    NeighbourOrder,
    NeighbourProgram,
    NeighbourRound,
    Noise,
    NoisePlaces,
    run_program,
)

_WRITE = """
import sys, time
block, end = bytearray(1 << 26), time.monotonic() + float(sys.argv[1])
while time.monotonic() < end:
    block[:] = bytes(len(block))
"""


class Memory:
    """One process for each core that it may use."""

    name = "memory"
    notes: Sequence[str] = ("64 MiB a process",)

    def unavailable(self) -> str | None:
        """Nothing is needed but Python."""
        return None

    def version(self) -> str:
        """Python's."""
        return platform.python_version()

    @contextmanager
    def running(self, order: NeighbourOrder) -> Iterator[Sequence[NeighbourProgram]]:
        """Run the processes; `run_program` bounds their time, and ends them in any case."""
        command = [sys.executable, "-c", _WRITE, str(order.seconds)]
        with ExitStack() as stack:
            yield [
                stack.enter_context(run_program(f"memory-{core}", command, order))
                for core in order.cores
            ]

    def shortfall(self, round_: NeighbourRound) -> str | None:
        """Judge by the time its processes ran or were ready to run: 1 per core is the most."""
        done = round_.done
        if done.on_cpu_s is None:
            return "what its processes did cannot be read from /proc"
        share = (done.on_cpu_s + (done.waiting_s or 0.0)) / round_.duration_s / round_.cores
        return None if share >= 0.5 else f"its processes ran {share:.2f} of the time per core"


def memory(places: NoisePlaces) -> Noise:
    """One process a core writes through 64 MiB of memory."""
    neighbour: Neighbour = Memory()
    return Noise("memory", (neighbour,))
