"""The noise `memory`: a program on each core that writes through more memory than caches hold.

hwq run relay --device cpu --noise memory --runs 6
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from pytest_hwqueue import (
    LoadEvidence,
    Neighbour,
    NeighbourOrder,
    NeighbourProgram,
    NeighbourRound,
    Noise,
    NoisePlaces,
)

_WRITE = """
import sys, time
block, end = bytearray(1 << 26), time.monotonic() + float(sys.argv[1])
while time.monotonic() < end:
    block[:] = bytes(len(block))
"""


def _programs(order: NeighbourOrder) -> Sequence[NeighbourProgram]:
    """One process for each core; each ends by itself, and with this process in any case."""
    command = [sys.executable, "-c", _WRITE, str(order.seconds)]
    return [NeighbourProgram(f"memory-{core}", command) for core in order.cores]


def _busy(round_: NeighbourRound) -> float | None:
    """Of the time that its processes ran or were ready to run, 1 per core is the most."""
    return None if round_.busy_cores is None else round_.busy_cores / round_.cores


def memory(places: NoisePlaces) -> Noise:
    """One process a core writes through 64 MiB of memory."""
    ran = LoadEvidence(_busy, 0.5, "its processes ran {:.2f} of the time per core")
    neighbour = Neighbour("memory", sys.executable, _programs, [ran], notes=["64 MiB a process"])
    return Noise("memory", [neighbour])
