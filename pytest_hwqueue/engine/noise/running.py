"""Applies background load for one round, and verifies that it was active."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from pytest_hwqueue.data.records.cell import now
from pytest_hwqueue.data.records.noise import Done, NeighbourRecord, NoiseRound
from pytest_hwqueue.engine.noise import evidence
from pytest_hwqueue.engine.noise.neighbours import (
    Neighbour,
    NeighbourOrder,
    NeighbourProgram,
    NeighbourRound,
    Noise,
    started,
)
from pytest_hwqueue.engine.noise.pinning import Remedy, isolation, pinned
from pytest_hwqueue.parts.processes.process_table import processes_under
from pytest_hwqueue.parts.processes.services import Service, ServiceFailed

SETTLE_S = 1.0
"""How long neighbours run before a round begins."""

_NOTICED_WITHIN_S = 10.0


@dataclass
class _Running:
    """A neighbour that has settled, during one round."""

    neighbour: Neighbour
    version: str | None
    programs: Sequence[tuple[Service, NeighbourProgram]]

    def __post_init__(self) -> None:
        self._pids = self._processes()
        self._places = {pid: evidence.placement(pid) for pid in self._pids}
        self._before: dict[int, Done] = {}

    def begin(self) -> None:
        """Read its processes' totals."""
        self._before = evidence.read_processes(self._pids)

    def record(self) -> NeighbourRecord:
        """Return what it has done in the round so far."""
        # The known ones at once; to look for others takes long while the machine is loaded.
        after = evidence.read_processes(self._pids)
        after |= evidence.read_processes(set(self._processes()) - set(self._pids))
        return NeighbourRecord(
            name=self.neighbour.name,
            commands=[list(program.command) for _, program in self.programs],
            version=self.version,
            notes=list(self.neighbour.notes),
            placement=self._places.get(self.programs[0][0].pid),
            done=evidence.done_between(self._before, after),
        )

    def why_not_applied(self, round_: NoiseRound, did: NeighbourRound) -> str | None:
        """Return that it ended, ran in the wrong place, or did too little; else None."""
        try:
            for service, _ in self.programs:
                # Its guardian learns of its end a moment later than the kernel's tables show it.
                service.check(_NOTICED_WITHIN_S if evidence.has_ended(service.pid) else 0)
        except ServiceFailed as failed:
            return str(failed)
        reason = self.neighbour.shortfall(did)
        autogroup = round_.autogroup_enabled
        kept_free = round_.remedy.kept_free if round_.remedy else ()
        for place in self._places.values():
            if round_.measured is not None and place is not None:
                reason = evidence.misplaced(round_.measured, place, autogroup, kept_free) or reason
        return f"{self.neighbour.name}: {reason}" if reason else None

    def _processes(self) -> list[int]:
        guardians = [service.guardian_pid for service, _ in self.programs]
        return [pid for each in guardians for pid in processes_under(each)]


@dataclass
class RunningNoise:
    """A round of a running noise, with the ids of the ``measured`` processes; made by `running`.

    Neighbours end at ``until``, in s of `time.monotonic`.
    """

    noise: Noise
    measured: Sequence[int]
    order: NeighbourOrder
    neighbours: Sequence[_Running]
    remedies: Sequence[Remedy]
    until: float

    def __post_init__(self) -> None:
        self._autogroup = evidence.autogroup_enabled()
        self._own_place = evidence.placement(self.measured[0])
        self._started = now()
        for neighbour in self.neighbours:
            neighbour.begin()
        self._own = evidence.read_processes(self.measured)
        self._machine = evidence.read_machine()
        self._when = time.monotonic()

    def another_round(self) -> RunningNoise:
        """Begin another round with the same programs; this one goes on."""
        return replace(self, neighbours=[replace(each) for each in self.neighbours])

    def end_round(self) -> NoiseRound:
        """Return what happened since the noise settled; call it while the noise still runs."""
        end, machine_then = time.monotonic(), evidence.read_machine()
        duration_s = end - self._when
        machine = evidence.machine_between(self._machine, machine_then, duration_s)
        own = evidence.done_between(self._own, evidence.read_processes(self.measured))
        remedy = None
        if self.remedies:
            # Of several processes that of the first, with the threads of all.
            threads = sum(each.record.threads for each in self.remedies)
            remedy = self.remedies[0].record.model_copy(update={"threads": threads})
        round_ = NoiseRound(
            noise=self.noise.name,
            status="applied" if self.neighbours else "quiet",
            started=self._started,
            duration_s=duration_s,
            autogroup_enabled=self._autogroup,
            measured=self._own_place,
            measured_on_cpu_s=own.on_cpu_s,
            measured_run_delay_s=own.waiting_s,
            remedy=remedy,
            neighbours=[neighbour.record() for neighbour in self.neighbours],
            machine=machine,
        )
        reasons: list[str | None] = []
        if self.neighbours and end > self.until:
            outlasted = f"the round outlasted the neighbours, which had {self.order.seconds} s"
            reasons.append(outlasted)
        cores = len(self.order.cores)
        for neighbour, record in zip(self.neighbours, round_.neighbours, strict=True):
            did = NeighbourRound(duration_s, cores, record.done, machine)
            reasons.append(neighbour.why_not_applied(round_, did))
        reasons += [each.undone() for each in self.remedies]
        if reason := "; ".join(filter(None, reasons)):
            return round_.model_copy(update={"status": "not applied", "reason": reason})
        return round_


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
        NotProven: if the measured process could not be pinned or raised, or no core is left
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
        programs = [stack.enter_context(started(each, order)) for each in noise.neighbours]
        # After the neighbours: what a pinned process starts would be pinned too.
        remedies = (
            [stack.enter_context(pinned(pid, isolated)) for pid in pids] if noise.remedy else []
        )
        if programs:
            time.sleep(settle_s)
        for service, _ in (each for of_one in programs for each in of_one):
            service.check()
        neighbours = [
            _Running(*each) for each in zip(noise.neighbours, versions, programs, strict=True)
        ]
        yield RunningNoise(noise, pids, order, neighbours, remedies, until)
