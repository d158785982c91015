"""The protocol of neighbours: finding, starting and ending one, and showing that it ran."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from pytest_hwqueue.processes.services import Service
    from pytest_hwqueue.records.noise import Done, Machine


@dataclass(frozen=True)
class NeighbourOrder:
    """Instructions for a neighbour.

    Attributes:
        logs: folder for its programs' output in this round.
        seconds: after which its programs end by themselves; longer than the round.
        cores: the cores that its programs may use.

    """

    logs: Path
    seconds: int
    cores: tuple[int, ...]


@dataclass(frozen=True)
class NeighbourProgram:
    """A running program of a neighbour."""

    service: Service
    command: Sequence[str]


@dataclass(frozen=True)
class NeighbourRound:
    """What a neighbour did in a round, for judging it.

    Attributes:
        duration_s: of the round.
        cores: how many it was allowed.
        done: what its processes did.
        machine: the load caused by all processes together.

    """

    duration_s: float
    cores: int
    done: Done
    machine: Machine


class Neighbour(Protocol):
    """One or more programs that load the machine in one way."""

    @property
    def name(self) -> str:
        """Its name in records and messages."""

    @property
    def notes(self) -> Sequence[str]:
        """Facts about its settings that readers of the record should know."""

    def unavailable(self) -> str | None:
        """Return why it cannot run here and what to do, or None."""

    def version(self) -> str | None:
        """Return its program's version, or None if it does not report one."""

    def running(self, order: NeighbourOrder) -> AbstractContextManager[Sequence[NeighbourProgram]]:
        """Run it for the length of the ``with`` block.

        Its processes and files are removed afterwards, and also if this process dies, however it
        dies.

        Raises:
            ServiceFailed: if it cannot be started.

        """

    def shortfall(self, round_: NeighbourRound) -> str | None:
        """Return why it did not produce its load, or None if it did."""
