"""Interleaved pairs of cells, and the looks at them."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import NormalDist

from pytest_hwqueue.baselines.runs import CellBaseline, add_runs, cell_of_record
from pytest_hwqueue.baselines.sources import Unmatched
from pytest_hwqueue.errors import BaselineError
from pytest_hwqueue.gate.calibrate import MOST_RUNS, can_convict, detectable_effect
from pytest_hwqueue.gate.settings import LEAST_FIRST_RUNS, GateSettings
from pytest_hwqueue.gate.verdict import Verdict
from pytest_hwqueue.metrics.dependence import student_quantile
from pytest_hwqueue.records.cell import Cell, RunRecord
from pytest_hwqueue.verdicts.judging import judged_once

# The parts of a cell's id besides its name.
_PARTS = ("device", "streams", "scheduler", "dispatch", "sync_mode", "variant")


class SideRuns:
    """One side's measurements.

    Args:
        session: name of the session that both sides' runs are part of.

    Attributes:
        cells: every started cell, by id.
        runs: successful ones, in the order measured.
        nodes: the test that measures a cell.
        failures: the first reason why a cell's runs cannot be used.

    """

    def __init__(self, session: str) -> None:
        self._session = session
        self.cells: dict[str, Cell] = {}
        self.runs: dict[str, CellBaseline] = {}
        self.nodes: dict[str, str] = {}
        self.failures: dict[str, str] = {}

    def add(self, records: Sequence[RunRecord]) -> None:
        """Take the records of one process run."""
        times = Counter(record.cell_id for record in records)
        for record in records:
            cell_id = record.cell_id
            self.cells.setdefault(cell_id, record.cell)
            self.nodes.setdefault(cell_id, record.nodeid)
            if record.status != "ok":
                self._fails(cell_id, f"{record.status}: {record.reason}".removesuffix(": "))
            elif times[cell_id] > 1:
                self._fails(
                    cell_id,
                    f"it is measured {times[cell_id]} times in one run: give each a name of its "
                    "own (hwq.measure(..., name=...))",
                )
            else:
                self._add_run(cell_id, record)

    def _add_run(self, cell_id: str, record: RunRecord) -> None:
        try:
            new = cell_of_record(record, self._session)
            known = self.runs.get(cell_id)
            self.runs[cell_id] = new if known is None else add_runs(known, new)
        except BaselineError as error:
            self._fails(cell_id, str(error))

    def _fails(self, cell_id: str, reason: str) -> None:
        self.failures.setdefault(cell_id, reason)


@dataclass(frozen=True)
class Pair:
    """One cell on both sides; the ids differ where the user has the sides differ."""

    old: str
    new: str
    label: str


def match(
    old: Mapping[str, Cell], new: Mapping[str, Cell], varied: Collection[str]
) -> tuple[list[Pair], list[Unmatched]]:
    """Match the cells of two sides by identity, never by position.

    Cells with one id are one cell. Where the user varies a part of the identity, and no value of
    that part is on both sides of a workload or test, cells are matched by the other parts.

    Args:
        old: cells by id.
        new: the same of the other side.
        varied: parts that the user varies, such as ``cell.scheduler``.

    Returns:
        the pairs, and the cells without a counterpart, both by id.

    """
    pairs, left = [], []
    for name in sorted({cell.name for cell in (*old.values(), *new.values())}):
        ours = {key: cell for key, cell in old.items() if cell.name == name}
        theirs = {key: cell for key, cell in new.items() if cell.name == name}
        parts = [
            part
            for part in _PARTS
            if f"cell.{part}" not in varied or _values(ours, part) & _values(theirs, part)
        ]
        by_key = [_by_key(side, parts) for side in (ours, theirs)]
        for key in sorted({*by_key[0], *by_key[1]}, key=str):
            a, b = (side.get(key, []) for side in by_key)
            if len(a) == len(b) == 1:
                pairs.append(Pair(a[0], b[0], _label(ours[a[0]], theirs[b[0]])))
                continue
            reason = f"measured by {'A' if a else 'B'} only"
            if a and b:
                reason = f"{len(a)} cells of A and {len(b)} of B differ only in what is varied"
            left += [Unmatched(cell_id, reason) for cell_id in dict.fromkeys((*a, *b))]
    return pairs, left


def _values(cells: Mapping[str, Cell], part: str) -> set[object]:
    return {getattr(cell, part) for cell in cells.values()}


def _by_key(cells: Mapping[str, Cell], parts: Iterable[str]) -> dict[tuple[object, ...], list[str]]:
    found: dict[tuple[object, ...], list[str]] = {}
    names = tuple(parts)
    for cell_id, cell in cells.items():
        found.setdefault(tuple(getattr(cell, name) for name in names), []).append(cell_id)
    return found


def _label(old: Cell, new: Cell) -> str:
    """Return the id of both, with both values where they differ: ``[cuda-s8-native→mps-eager]``."""
    if old.id == new.id:
        return old.id
    both = {}
    for part in _PARTS:
        one, other = getattr(old, part), getattr(new, part)
        both[part] = one if one == other else f"{one or 'default'}→{other or 'default'}"
    return old.model_copy(update=both).id


_EARLY_CONFIDENCE = 0.98


def looks(pairs: int) -> list[int]:
    """Return after how many pairs cells are judged: a sixth, at least 2, then doubling.

    Args:
        pairs: process runs per side of cells that are not acquitted earlier.

    """
    found = [min(pairs, max(LEAST_FIRST_RUNS, pairs // 6))]
    while found[-1] < pairs:
        found.append(min(pairs, 2 * found[-1]))
    return found


def acquitted_early(verdict: Verdict, detect: float) -> bool:
    """Whether a look before the last one acquits a figure.

    A figure is looked at several times, and each look would let 5 % of the worsenings of ``detect``
    pass; so these looks have to exclude it at 98 %.

    Args:
        verdict: of that look.
        detect: the worsening that matters, as a fraction.

    """
    if not verdict.history or verdict.history[-1].decision != "acquitted":
        return False
    if verdict.ratio is None or verdict.sd is None:
        return True
    worse = verdict.ratio if verdict.quantity.higher_is_worse else 1 / verdict.ratio
    pairs = len(verdict.new)
    error = verdict.sd * math.sqrt(2 / pairs)
    limit = math.log(worse) + student_quantile(_EARLY_CONFIDENCE, pairs - 1) * error
    return limit < math.log1p(detect)


def by_pairs(settings: GateSettings, pairs: int) -> GateSettings:
    """Return settings for one look by the differences of so many pairs of one session."""
    return replace(judged_once(settings, pairs), pairs=pairs, paired=True, tau=0.0)


def with_median(figures: Sequence[str]) -> tuple[str, ...]:
    """Return the figures to judge: P99 alone is joined by P50.

    The host's noise sits in the tail, where a few dozen runs cannot see a change of 20 %; in the
    median they can. Other figures are judged as named.
    """
    return ("p99", "p50") if tuple(figures) == ("p99",) else tuple(figures)


def detectable_by_pairs(
    sd: float, pairs: int, settings: GateSettings, compared: int
) -> float | None:
    """Return the smallest true worsening detected with ``settings.power``, as a fraction.

    It is the larger of two effects: the one needed not to be acquitted earlier, and the one that
    the look at all pairs detects (`detectable_effect`). A look before the last acquits
    only where ``settings.detect`` is excluded, so a worsening of that size stays whatever the
    noise. None if no cell could be convicted alone.

    Args:
        sd: standard deviation of the figure's logarithm between runs, without what pairs share.
        pairs: runs of each side.
        settings: of the gate.
        compared: number of figures that share the error rate.

    """
    once = by_pairs(settings, pairs)
    if not can_convict(pairs, pairs, once, compared):
        return None
    first = looks(pairs)[0]
    error, freedom = sd * math.sqrt(2 / first), first - 1
    # A look that acquits has excluded ``detect``, so its own error cannot be larger than this.
    most = math.log1p(settings.detect) / student_quantile(_EARLY_CONFIDENCE, freedom)
    seen = student_quantile(1 - settings.screen, freedom) * min(error, most)
    screened = min(math.expm1(seen + NormalDist().inv_cdf(settings.power) * error), settings.detect)
    return max(screened, detectable_effect(sd, pairs, once, compared))


def reach(sd: float, settings: GateSettings, compared: int) -> tuple[float | None, str]:
    """Return the smallest worsening that all pairs detect, and the pairs that the goal takes.

    Args:
        sd: see `detectable_by_pairs`.
        settings: of the gate.
        compared: number of figures that share the error rate.

    """

    def detects(worsening: float | None) -> bool:
        return worsening is not None and worsening <= settings.detect

    by_all = detectable_by_pairs(sd, settings.pairs, settings, compared)
    if detects(by_all):
        return by_all, ""
    more = range(settings.pairs + 1, MOST_RUNS + 1)
    needed = next(
        (n for n in more if detects(detectable_by_pairs(sd, n, settings, compared))), None
    )
    how_many = f"more than {MOST_RUNS}" if needed is None else str(needed)
    text = f"needs {how_many} pairs for {100 * settings.detect:+.3g} %"
    return by_all, text
