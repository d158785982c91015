"""How the ranks that measure a cell together stay in step; a single process always is."""

from __future__ import annotations

from typing import Protocol

from pytest_hwqueue.workloads.workload import Ranks


class RankSynchronisation(Protocol):
    """What measuring needs from the other ranks, outside every measured interval."""

    @property
    def ranks(self) -> Ranks:
        """This process's number, and how many there are."""

    def agreed(self, value: int) -> int:
        """Return the value that rank 0 passed: all ranks must do the same next."""

    def barrier(self) -> None:
        """Return when all ranks have come here."""


class OneRank:
    """One process."""

    ranks = Ranks()

    def agreed(self, value: int) -> int:
        """Return the value."""
        return value

    def barrier(self) -> None:
        """Return at once."""


ONE_RANK = OneRank()
