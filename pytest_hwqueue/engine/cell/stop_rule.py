"""When a loop over a cell ends: what all its passes are told, and how they find out."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace

from pytest_hwqueue.parts.devices.protocol import Device


@dataclass(frozen=True)
class StopRule:
    """When a loop ends: after ``turns``, or when a time is up, whichever comes first.

    Attributes:
        turns: iterations or windows, at most.
        time_ns: of the device's clock, at most.
        simulating_ns: wall time that a simulated device may take for it; None for ``time_ns``.

    """

    turns: int
    time_ns: int
    simulating_ns: int | None = None

    @property
    def wall_ns(self) -> int:
        """How much wall time simulating may take."""
        return self.time_ns if self.simulating_ns is None else self.simulating_ns

    @property
    def time_cap(self) -> str:
        """Says that a loop ended because the device's time was up."""
        return f"time cap of {self.time_ns / 1e9:.3g} s"

    def wall_cap(self, done: int, planned: int) -> str:
        """Return that a loop ended because simulating took too long."""
        return (
            f"wall-time cap of {self.wall_ns / 1e9:.3g} s, after {done} of {planned} "
            "iterations, which take this machine so long to simulate: raise --hwq-max-time, or "
            "measure less"
        )

    def fitting(self, turn_ns: int) -> int:
        """Return how many turns of that length there are, at least one."""
        return max(1, min(self.turns, self.time_ns // max(1, turn_ns)))

    def within(self, time_ns: int) -> StopRule:
        """Return the rule with less of the device's time; simulating may take as long."""
        least = max(1, min(self.time_ns, time_ns))
        return replace(self, time_ns=least, simulating_ns=self.wall_ns)

    def begin(self, device: Device) -> Stopping:
        """Start both clocks."""
        return Stopping(self, device)


class Stopping:
    """A rule whose loop has begun."""

    def __init__(self, rule: StopRule, device: Device) -> None:
        """Start the clocks of a rule, the device's and, if it is simulated, that of the wall."""
        self._deadline_ns = device.clock_ns() + rule.time_ns
        self._wall_deadline_ns: int | None = None
        if device.capabilities.virtual_time:
            self._wall_deadline_ns = time.monotonic_ns() + rule.wall_ns

    def time_is_up(self, now_ns: int) -> bool:
        """Whether the device's clock has reached the end."""
        return now_ns >= self._deadline_ns

    def simulated_too_long(self) -> bool:
        """Whether simulating takes too long; never so on a real device."""
        return self._wall_deadline_ns is not None and time.monotonic_ns() >= self._wall_deadline_ns
