"""How the processes that measure a cell together stay in step; a process alone is always."""

from __future__ import annotations

from typing import Protocol

from pytest_hwqueue.workloads.protocol import Ranks


class InStep(Protocol):
    """What measuring needs of the other processes, outside of every measured interval."""

    @property
    def ranks(self) -> Ranks:
        """This process's number, and how many there are."""

    def agreed(self, value: int) -> int:
        """Return the value that rank 0 called this with: all must do the same next."""

    def barrier(self) -> None:
        """Return when all processes have come here."""


class Alone:
    """One process."""

    ranks = Ranks()

    def agreed(self, value: int) -> int:
        """Return the value."""
        return value

    def barrier(self) -> None:
        """Return at once."""


ALONE = Alone()
