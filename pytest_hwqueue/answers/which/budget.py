"""How long the search of one mode may take, by what it measures and not by a clock.

So a search that is continued ends where it would have, and a busy machine costs no rate a window.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from pytest_hwqueue.data.records.tenants import ColocationRecord

CONFIRMING_STARTS = 2
"""In so many fresh starts what was found at the edge is confirmed."""
FITS_S = 20.0
"""Where fewer requests than their percentiles need come in this time, windows are counted."""
MOST_WINDOWS = 8
"""So many then."""
# On an H200, tenants of 34 GiB take 2 to 3 s to start, set up and check, without their warm-up.
_START_S = 3.0
# The lead before a window, the warm-up before it, and the half of its grace that is mostly needed.
_BETWEEN_S = 1.5


@dataclass
class SearchBudget:
    """What the search of one mode may take, and has taken.

    Attributes:
        time_s: all it may take, starts included, unless windows are counted.
        warmup_s: of its tenants, after each start.
        spent_s: so far.
        windows: of the mode itself, so far.

    """

    time_s: float
    warmup_s: float
    spent_s: float = 0.0
    windows: int = 0
    _starts: set[str] = field(default_factory=set)

    @property
    def start_s(self) -> float:
        """What a start takes."""
        return _START_S + self.warmup_s

    def count(self, records: Sequence[ColocationRecord]) -> None:
        """Count windows that were measured, and their starts."""
        for record in records:
            if record.tenants_started and record.tenants_started not in self._starts:
                self._starts.add(record.tenants_started)
                self.spent_s += self.start_s
            self.spent_s += record.duration_s + _BETWEEN_S
            self.windows += 1

    def takes_s(self, windows_s: Sequence[float], starts: int) -> float:
        """Return what windows of such lengths take, in so many starts."""
        return sum(windows_s) + len(windows_s) * _BETWEEN_S + starts * self.start_s

    def allows(
        self, windows_s: Sequence[float], starts: int, *, kept_s: float = 0.0, counted: bool
    ) -> bool:
        """Whether windows may yet be measured.

        Args:
            windows_s: their lengths.
            starts: in how many.
            kept_s: time that is kept for later.
            counted: whether requests are so rare that windows are counted, and not their time.

        """
        if self.spent_s + self.takes_s(windows_s, starts) + kept_s <= self.time_s:
            return True
        return counted and self.windows + len(windows_s) <= MOST_WINDOWS
