"""Groups a session's runs by cell, and picks the run that represents each cell."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from pytest_hwqueue.records.cell import RunRecord


@dataclass(frozen=True)
class CellRuns:
    """All runs of one cell, at least one, in the order measured."""

    runs: tuple[RunRecord, ...]

    @property
    def measured(self) -> tuple[RunRecord, ...]:
        """The successful runs."""
        return tuple(
            run for run in self.runs if run.status == "ok" and run.metrics.latency is not None
        )

    @property
    def bad(self) -> tuple[RunRecord, ...]:
        """The failed runs."""
        return tuple(run for run in self.runs if run.status != "ok")

    @property
    def percentile(self) -> Literal["p99", "p50"] | None:
        """The percentile that ranks the runs: P99, or P50 if not all have a P99."""
        names: tuple[Literal["p99", "p50"], ...] = ("p99", "p50")
        for name in names:
            if self.measured and all(_value_ms(run, name) is not None for run in self.measured):
                return name
        return None

    @property
    def count(self) -> str:
        """How many runs succeeded, such as ``5``, or ``4 of 5`` if others failed."""
        good, every = len(self.measured), len(self.runs)
        return str(good) if good == every else f"{good} of {every}"

    @property
    def values_ms(self) -> list[float]:
        """That percentile of each successful run, in milliseconds."""
        name = self.percentile
        values = [_value_ms(run, name) for run in self.measured] if name else []
        return [value for value in values if value is not None]

    @property
    def middle(self) -> RunRecord:
        """The run whose percentile is the median of the runs; the lower of two in the middle.

        Without a percentile it is the first successful run, and without any the last failed one.
        """
        if not self.measured:
            return self.runs[-1]
        values = self.values_ms
        if not values:
            return self.measured[0]
        order = sorted(range(len(values)), key=values.__getitem__)
        return self.measured[order[(len(order) - 1) // 2]]


def gather(records: Sequence[RunRecord]) -> list[CellRuns]:
    """Group runs by cell, in the order in which cells were first measured.

    A test that measures one cell twice in every run counts as two cells here.
    """
    seen: dict[tuple[str, str, int], int] = {}
    cells: dict[tuple[str, str, int], list[RunRecord]] = {}
    for record in records:
        in_run = (record.nodeid, record.cell_id, record.run)
        turn = seen[in_run] = seen.get(in_run, 0) + 1
        cells.setdefault((record.nodeid, record.cell_id, turn), []).append(record)
    return [CellRuns(tuple(runs)) for runs in cells.values()]


def _value_ms(run: RunRecord, percentile: Literal["p99", "p50"]) -> float | None:
    return None if run.metrics.latency is None else getattr(run.metrics.latency, percentile)
