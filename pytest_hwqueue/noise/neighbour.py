"""What a neighbour must do: be found, be started, be ended, show that it loaded the machine."""

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
class Order:
    """What a neighbour is told.

    Attributes:
        logs: folder for what its programs write; of this round alone.
        seconds: after which its programs end by themselves; longer than the round.
        cores: that its programs may use; where it loads all, it loads these.

    """

    logs: Path
    seconds: int
    cores: tuple[int, ...]


@dataclass(frozen=True)
class Started:
    """A running program of a neighbour."""

    service: Service
    command: Sequence[str]


@dataclass(frozen=True)
class Round:
    """What a neighbour is judged by.

    Attributes:
        duration_s: of the round.
        cores: how many it was ordered to use.
        done: by the neighbour's processes.
        machine: what all processes together made the machine feel.

    """

    duration_s: float
    cores: int
    done: Done
    machine: Machine


class Neighbour(Protocol):
    """A program, or several, that load the machine in one way."""

    @property
    def name(self) -> str:
        """What records and messages call it."""

    @property
    def notes(self) -> Sequence[str]:
        """What a reader of the record should know of its settings."""

    def unavailable(self) -> str | None:
        """Why it cannot run here, and what to do; None if it can."""

    def version(self) -> str | None:
        """What its program says of its version; None if there is nothing to ask."""

    def running(self, order: Order) -> AbstractContextManager[Sequence[Started]]:
        """Run it for the length of the ``with`` block.

        It and all its files are gone afterwards, and so they are when this process dies, however
        it dies.

        Raises:
            ServiceFailed: if it cannot be started.

        """

    def shortfall(self, round_: Round) -> str | None:
        """Why what it did is not the load it stands for; None if it is."""
