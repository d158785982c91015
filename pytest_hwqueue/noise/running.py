"""Applies background load for one round, and verifies that it was active."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from pytest_hwqueue.noise.load_evidence import (
    ProcessReading,
    done_between,
    has_ended,
    machine_between,
    processes_under,
    read_machine,
    read_processes,
)
from pytest_hwqueue.noise.neighbour import (
    Neighbour,
    NeighbourOrder,
    NeighbourProgram,
    NeighbourRound,
)
from pytest_hwqueue.noise.opening import Noise
from pytest_hwqueue.noise.pinning import Remedy, isolation, pinned
from pytest_hwqueue.noise.placement import autogroup_enabled, misplaced, placement
from pytest_hwqueue.processes.services import ServiceFailed
from pytest_hwqueue.records.cell import now
from pytest_hwqueue.records.noise import NeighbourRecord, NoiseRound, Placement, RemedyRecord

SETTLE_S = 1.0
"""How long neighbours run before a round begins."""

_NOTICED_WITHIN_S = 10.0


class RunningNeighbour:
    """A running neighbour, with the processes it has after settling."""

    def __init__(
        self, neighbour: Neighbour, version: str | None, started: Sequence[NeighbourProgram]
    ) -> None:
        self._neighbour, self._version, self._started = neighbour, version, started
        self._pids = self._processes()
        places = {pid: placement(pid) for pid in self._pids}
        self._first = places.get(started[0].service.pid)
        self._places = [place for place in places.values() if place is not None]
        self._before: dict[int, ProcessReading] = {}

    def afresh(self) -> RunningNeighbour:
        """Return the same neighbour for another round."""
        return RunningNeighbour(self._neighbour, self._version, self._started)

    def begin_round(self) -> None:
        """Read its processes' totals at the start of a round."""
        self._before = read_processes(self._pids)

    def record(self) -> NeighbourRecord:
        """Return what it has done in the round so far."""
        # The known ones at once; to look for others takes long while the machine is loaded.
        after = read_processes(self._pids)
        after |= read_processes(set(self._processes()) - set(self._pids))
        return NeighbourRecord(
            name=self._neighbour.name,
            commands=[list(each.command) for each in self._started],
            version=self._version,
            notes=list(self._neighbour.notes),
            placement=self._first,
            done=done_between(self._before, after),
        )

    def why_not_applied(
        self,
        round_: NeighbourRound,
        measured: Placement | None,
        autogroup: bool | None,
        kept_free: Sequence[int],
    ) -> str | None:
        """Return that it ended, ran in the wrong place, or did too little; else None."""
        try:
            for each in self._started:
                # Its guardian learns of its end a moment later than the kernel's tables show it.
                each.service.check(_NOTICED_WITHIN_S if has_ended(each.service.pid) else 0)
        except ServiceFailed as failed:
            return str(failed)
        reason = self._neighbour.shortfall(round_)
        for place in self._places:
            if measured is not None:
                reason = misplaced(measured, place, autogroup, kept_free) or reason
        return f"{self._neighbour.name}: {reason}" if reason else None

    def _processes(self) -> list[int]:
        return [pid for each in self._started for pid in processes_under(each.service.guardian_pid)]


class RunningNoise:
    """A running noise, with the ids of the ``measured`` processes; made by `running`."""

    def __init__(
        self,
        noise: Noise,
        measured: Sequence[int],
        order: NeighbourOrder,
        neighbours: Sequence[RunningNeighbour],
        remedies: Sequence[Remedy],
        until: float,
    ) -> None:
        self._noise, self._measured, self._order = noise, measured, order
        self._neighbours, self._remedies, self._until = neighbours, remedies, until
        self._autogroup = autogroup_enabled()
        self._own_place = placement(measured[0])
        self._started = now()
        for neighbour in neighbours:
            neighbour.begin_round()
        self._own = read_processes(measured)
        self._machine = read_machine()
        self._when = time.monotonic()

    def another_round(self) -> RunningNoise:
        """Begin another round with the same programs; this one goes on."""
        neighbours = [each.afresh() for each in self._neighbours]
        given = (self._noise, self._measured, self._order, neighbours, self._remedies, self._until)
        return RunningNoise(*given)

    def end_round(self) -> NoiseRound:
        """Return what happened since the noise settled; call it while the noise still runs."""
        end, machine_then = time.monotonic(), read_machine()
        duration_s = end - self._when
        machine = machine_between(self._machine, machine_then, duration_s)
        own = done_between(self._own, read_processes(self._measured))
        remedy = _together(self._remedies)
        records = [neighbour.record() for neighbour in self._neighbours]
        reasons = [
            neighbour.why_not_applied(
                NeighbourRound(duration_s, len(self._order.cores), record.done, machine),
                self._own_place,
                self._autogroup,
                remedy.kept_free if remedy else (),
            )
            for neighbour, record in zip(self._neighbours, records, strict=True)
        ]
        if self._neighbours and end > self._until:
            outlasted = f"the round outlasted the neighbours, which had {self._order.seconds} s"
            reasons.insert(0, outlasted)
        reasons += [each.undone() for each in self._remedies]
        reason = "; ".join(each for each in reasons if each is not None)
        return NoiseRound(
            noise=self._noise.name,
            status="not applied" if reason else "applied" if self._neighbours else "quiet",
            reason=reason,
            started=self._started,
            duration_s=duration_s,
            autogroup_enabled=self._autogroup,
            measured=self._own_place,
            measured_on_cpu_s=own.on_cpu_s,
            measured_run_delay_s=own.waiting_s,
            remedy=remedy,
            neighbours=records,
            machine=machine,
        )


@contextmanager
def running(
    noise: Noise,
    measured: int | Sequence[int],
    logs: Path,
    seconds: int,
    settle_s: float = SETTLE_S,
) -> Iterator[RunningNoise]:
    """Run a noise during the ``with`` block; enter it once the measured process is warm.

    Everything started ends with the block, and with this process, however it dies.

    Args:
        noise: must be available.
        measured: ids of the measured processes; may include this one.
        logs: folder for the programs' output in this round.
        seconds: after which the programs end by themselves; longer than ``settle_s`` and the round.
        settle_s: how long they run before the block begins.

    Raises:
        ServiceFailed: if a program cannot be started, or has ended before it settled.
        RemedyRefused: if the measured process could not be pinned or raised, or no core is left
            for neighbours that must stay off it.

    """
    pids = [measured] if isinstance(measured, int) else list(measured)
    isolated = isolation(pids) if noise.remedy == "isolated" else None
    cores = sorted(os.sched_getaffinity(0)) if isolated is None else isolated.neighbours
    order = NeighbourOrder(logs, seconds, tuple(cores))
    # Before there is any noise: asking starts programs too.
    versions = [neighbour.version() for neighbour in noise.neighbours]
    with ExitStack() as stack:
        until = time.monotonic() + seconds
        started = [stack.enter_context(each.running(order)) for each in noise.neighbours]
        # After the neighbours: what a pinned process starts would be pinned too.
        remedies = (
            [stack.enter_context(pinned(pid, isolated)) for pid in pids] if noise.remedy else []
        )
        if started:
            time.sleep(settle_s)
        for program in (program for programs in started for program in programs):
            program.service.check()
        neighbours = [
            RunningNeighbour(*each)
            for each in zip(noise.neighbours, versions, started, strict=True)
        ]
        yield RunningNoise(noise, pids, order, neighbours, remedies, until)


def _together(remedies: Sequence[Remedy]) -> RemedyRecord | None:
    """Return the remedy of the first of several processes, and the number of threads of all."""
    if not remedies:
        return None
    threads = sum(remedy.record.threads for remedy in remedies)
    return remedies[0].record.model_copy(update={"threads": threads})
