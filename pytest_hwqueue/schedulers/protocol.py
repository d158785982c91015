"""What a scheduler mode must do; every mode proves that it is active, or the result is an error."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from pytest_hwqueue.devices.protocol import StreamPool


@dataclass(frozen=True)
class Proof:
    """Evidence that the mode is active, for the record.

    Attributes:
        mode: as it was asked for.
        evidence: what was seen, in words.
        device_priorities: of all streams, in the device's own numbers.
        effective: whether less urgent work was seen to be held up for more urgent work; None
            where that cannot be seen from outside, or was not looked for.
        counts: how often what was seen, by name; of samples where not said otherwise.

    """

    mode: str
    evidence: str
    device_priorities: tuple[int, ...]
    effective: bool | None = None
    counts: Mapping[str, int] = field(default_factory=dict)


class Scheduler(Protocol):
    """A way to create the streams of a cell."""

    @property
    def mode(self) -> str:
        """Its name on the command line and in cell names."""

    def unavailable(self, device_kind: str, urgency: Sequence[int]) -> str | None:
        """Why the mode cannot be used, or would change nothing; None if it can."""

    def priorities(self, urgency: Sequence[int]) -> list[int]:
        """Priority of each stream (0 normal, larger more urgent), given what its work deserves."""

    def proof(self, pool: StreamPool, urgency: Sequence[int]) -> Proof:
        """Show that the mode is active on these streams.

        Raises:
            NotProven: if it is not, saying what was expected and what was seen.

        """
