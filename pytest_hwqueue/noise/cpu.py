"""A neighbour that computes on all cores: stress-ng's Fourier transforms."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from pytest_hwqueue.noise.neighbour import NeighbourOrder, NeighbourProgram, NeighbourRound
from pytest_hwqueue.noise.programs import missing, run_program, version

_PROGRAM = "stress-ng"

# Each worker is on a core or waits for one all the time, whatever else runs: 1 per core is what
# it comes to. Short of half of it cores were idle that load on all cores would have filled.
_LEAST_PER_CORE = 0.5


class Cpu:
    """One worker per allowed core."""

    name = "cpu"
    notes: Sequence[str] = ()

    def unavailable(self) -> str | None:
        """Return that stress-ng is missing, or None."""
        return missing(_PROGRAM)

    def version(self) -> str | None:
        """Return stress-ng's version."""
        return version(_PROGRAM)

    @contextmanager
    def running(self, order: NeighbourOrder) -> Iterator[Sequence[NeighbourProgram]]:
        """Run stress-ng."""
        # Not 0, its word for all: it counts the machine's cores, not those of an affinity mask
        # or cpuset, and would crowd the few that are left.
        command = [
            _PROGRAM, "--cpu", str(len(order.cores)), "--cpu-method", "fft",
            "-t", str(order.seconds),
        ]  # fmt: skip
        with run_program(_PROGRAM, command, order) as started:
            yield [started]

    def shortfall(self, round_: NeighbourRound) -> str | None:
        """Judge by how long its workers ran or were ready to run.

        The machine's pressure would not show it: if the measured process mostly sleeps, nobody
        waits although every core is busy (1.6 % against 1.7 % without a neighbour, on two cores).
        """
        done = round_.done
        if done.on_cpu_s is None:
            return "what stress-ng's processes did cannot be read from /proc"
        per_core = (done.on_cpu_s + (done.waiting_s or 0.0)) / round_.duration_s / round_.cores
        if per_core < _LEAST_PER_CORE:
            return (
                f"stress-ng ran or was ready to run {per_core:.2f} of the time per core, below "
                f"{_LEAST_PER_CORE}; is it held back by a limit of its cgroup?"
            )
        return None
