"""The protocol of a neighbour: it can be found, started and ended, and shows that it ran."""

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
        logs: folder for its programs' output, for this round alone.
        seconds: after which its programs end by themselves; longer than the round.
        cores: that its programs may use.

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
    """What a neighbour did in a round, for its judgement.

    Attributes:
        duration_s: of the round.
        cores: how many it was allowed.
        done: by the neighbour's processes.
        machine: the load that all processes together caused.

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
        """What a reader of the record should know about its settings."""

    def unavailable(self) -> str | None:
        """Return why it cannot run here and what to do, or None."""

    def version(self) -> str | None:
        """Return its program's version, or None if it does not report one."""

    def running(self, order: NeighbourOrder) -> AbstractContextManager[Sequence[NeighbourProgram]]:
        """Run it for the length of the ``with`` block.

        It and all its files are gone afterwards, and so they are when this process dies, however
        it dies.

        Raises:
            ServiceFailed: if it cannot be started.

        """

    def shortfall(self, round_: NeighbourRound) -> str | None:
        """Return why it did not produce its load, or None if it did."""
