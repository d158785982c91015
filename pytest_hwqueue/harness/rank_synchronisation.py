"""Keeps the ranks that measure a cell together in step; a single process always is."""

from __future__ import annotations

from typing import Protocol

from pytest_hwqueue.workloads.workload import Ranks


class RankSynchronisation(Protocol):
    """What measuring needs from the other ranks, outside measured intervals."""

    @property
    def ranks(self) -> Ranks:
        """This process's rank, and the number of ranks."""

    def agreed(self, value: int) -> int:
        """Return the value that rank 0 passed: all ranks must do the same next."""

    def barrier(self) -> None:
        """Return once all ranks have arrived here."""


class OneRank:
    """One process."""

    ranks = Ranks()

    def agreed(self, value: int) -> int:
        """Return the value."""
        return value

    def barrier(self) -> None:
        """Return at once."""


ONE_RANK = OneRank()
