"""Judges a whole suite: which cells want more runs, and all verdicts at the end."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median

from pytest_hwqueue.gate.cell_gate import CellGate, can_be_convicted
from pytest_hwqueue.gate.conclude import conclude
from pytest_hwqueue.gate.runs import ProcessRun
from pytest_hwqueue.gate.sessions import Allowing, with_session_effect
from pytest_hwqueue.gate.statistics import rejected
from pytest_hwqueue.gate.verdict import P99, GateSettings, Quantity, Verdict, percent


@dataclass(frozen=True)
class SuiteShift:
    """How the suite as a whole shifted in its first pass.

    A ratio above 1 is worse: 1.03 is 3 % worse, in latency or in throughput. ``of_machine`` says
    that the sentinel, which does not contain the product, moved the same way.
    """

    ratio: float
    cells: int
    sentinel_ratio: float | None
    of_machine: bool


class SuiteGate:
    """Judges the cells of one suite. Nothing depends on the order in which cells are given.

    The error rate is divided among the cells that can be convicted: those whose baseline can be
    compared and has 3 runs. That number is fixed before the first new run.

    ``allowing`` has each cell's settings, with the session effect that its verdict allows for, by
    figure.

    Args:
        settings: of the gate.
        baselines: the baseline's runs by cell; a cell gated for two quantities is two cells. Runs
            that have ``iteration_ns`` give their cell a companion, which is not a separate cell:
            `CellGate` says when it can convict.
        quantities: of the cells' values; P99 for cells not listed.
        sentinel: the key of a cell that does not contain the product (a fixed kernel), if any.

    Raises:
        ValueError: if the sentinel is not among the baselines.
    """

    def __init__(
        self,
        settings: GateSettings,
        baselines: Mapping[str, Sequence[ProcessRun]],
        quantities: Mapping[str, Quantity] | None = None,
        sentinel: str | None = None,
    ) -> None:
        if sentinel is not None and not baselines.get(sentinel):
            raise ValueError(f"the sentinel cell {sentinel!r} has no baseline")
        self.settings = settings
        self._quantities = quantities or {}
        self._sentinel = sentinel
        self._family = {
            key for key, runs in baselines.items() if can_be_convicted(runs, self._quantity(key))
        }
        self.allowing = with_session_effect(
            baselines, {key: self._quantity(key) for key in baselines}, settings
        )
        self._cells = {key: self._cell(key, runs) for key, runs in baselines.items()}
        self._open = {key for key, cell in self._cells.items() if cell.wanted}

    @property
    def compared(self) -> int:
        """How many cells share the error rate."""
        return max(1, len(self._family))

    def add(self, key: str, run: ProcessRun) -> None:
        """Take one more new run of a cell; one without a baseline is accepted but not judged."""
        if key not in self._cells:
            self._cells[key] = self._cell(key, ())
        cell = self._cells[key]
        cell.add(run)
        if not cell.wanted:
            self._open.discard(key)

    def wanted(self) -> list[tuple[str, int]]:
        """Return the undecided cells, and how many runs each needs for its next judgement.

        The cells with the fewest runs come first. Run them round-robin, one run of each in turn, so
        that machine drift affects all alike; ask again when each has had its run. Nothing is wanted
        once the first pass has shown that the machine itself has changed.
        """
        waiting = [(len(self._cells[key].new), key) for key in self._open]
        first_pass = any(runs < self.settings.first_runs for runs, _ in waiting)
        if waiting and not first_pass and self._shifted():
            return []
        return [(key, self._cells[key].wanted) for _, key in sorted(waiting)]

    @property
    def convicts(self) -> bool:
        """Whether a cell is a regression whatever the others will show, alone in its suite."""
        return any(
            cell.history[-1].decision == "convicted"
            for cell in self._cells.values()
            if cell.history and not cell.refused
        )

    def suite_shift(self) -> SuiteShift | None:
        """Return the median change over the cells' first passes, or ``None`` if there are none.

        Only first passes count: later runs of flagged cells were requested because the first ones
        looked worse. The sentinel is not part of the median.
        """
        changes = {key: _first_change(cell) for key, cell in self._cells.items()}
        own = [v for key, v in changes.items() if v is not None and key != self._sentinel]
        if not own:
            return None
        shift = median(own)
        sentinel = changes[self._sentinel] if self._sentinel is not None else None
        limit = math.log1p(self.settings.suite_shift)
        return SuiteShift(
            ratio=math.exp(shift),
            cells=len(own),
            sentinel_ratio=None if sentinel is None else math.exp(sentinel),
            of_machine=sentinel is not None
            and min(abs(shift), abs(sentinel)) > limit
            and (shift > 0) == (sentinel > 0),
        )

    def verdicts(self) -> dict[str, Verdict]:
        """Return every cell's verdict, by sorted key.

        All compared cells are judged together, so one more run anywhere may change any of them.
        """
        p_values = {key: self._cells[key].p for key in self._family}
        found = rejected(p_values, self.settings.rate, self.compared)
        verdicts = {key: conclude(cell, key in found) for key, cell in sorted(self._cells.items())}
        shift = self._shifted()
        if not shift or shift.sentinel_ratio is None:
            return verdicts
        sentence = (
            f"the machine has changed: the suite by {percent(shift.ratio - 1)} (median of "
            f"{shift.cells} cells), the sentinel by {percent(shift.sentinel_ratio - 1)}; record a "
            "new baseline or compare old and new in one session"
        )
        return {
            key: replace(v, state="incomparable", reason="suite-shift", sentence=sentence)
            if v.ratio is not None
            else v
            for key, v in verdicts.items()
        }

    def _shifted(self) -> SuiteShift | None:
        shift = self.suite_shift() if self._sentinel is not None else None
        return shift if shift and shift.of_machine else None

    def _quantity(self, key: str) -> Quantity:
        return self._quantities.get(key, P99)

    def _cell(self, key: str, baseline: Sequence[ProcessRun]) -> CellGate:
        own = self.allowing.get(key, Allowing(self.settings, self.settings))
        return CellGate(baseline, self._quantity(key), own.main, self.compared, own.companion)


def _first_change(cell: CellGate) -> float | None:
    """Return the logarithm of the first pass's worsening, or ``None`` without one."""
    if cell.refused or not cell.history:
        return None
    change = math.log(cell.history[0].ratio)
    return change if cell.quantity.higher_is_worse or cell.main is None else -change
