"""Holds new runs against a baseline, run by run: which cells want more, and the verdicts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from pytest_hwqueue.baselines.diff import Source, Unmatched
from pytest_hwqueue.baselines.runs import (
    CellBaseline,
    FieldDifference,
    condition_differences,
    soft_differences,
)
from pytest_hwqueue.gate.quantity import Quantity
from pytest_hwqueue.gate.runs import Run
from pytest_hwqueue.gate.settings import LEAST_FIRST_RUNS, GateSettings
from pytest_hwqueue.gate.suite_gate import SuiteGate, SuiteShift
from pytest_hwqueue.gate.verdict import State, Verdict
from pytest_hwqueue.verdicts.figures import Figure, figure, known_names


@dataclass(frozen=True)
class CellVerdict:
    """The verdict on one figure of one cell.

    Attributes:
        cell_id: of the cell.
        figure: name of the figure that was asked for, such as ``p99``.
        verdict: the gate's.
        differences: soft fields that are not the same in the runs of both sides.

    """

    cell_id: str
    figure: str
    verdict: Verdict
    differences: tuple[FieldDifference, ...] = ()


@dataclass(frozen=True)
class Judgement:
    """What a comparison found.

    Attributes:
        baseline: for people: DEVICE/NAME, or a path.
        verdicts: by cell id, then in the order in which figures were asked for.
        missing: cells of the baseline that were not measured.
        shift: how the suite moved as a whole; None where nothing was compared.
        compared: number of figures among which the error rate is divided.
        settings: of the gate.

    """

    baseline: str
    verdicts: tuple[CellVerdict, ...]
    missing: tuple[Unmatched, ...]
    shift: SuiteShift | None
    compared: int
    settings: GateSettings

    def count(self, state: State) -> int:
        """How many verdicts have this state."""
        return sum(each.verdict.state == state for each in self.verdicts)


class UnknownFigure(ValueError):
    """No cell has a figure of that name; the text lists those there are."""


class Judging:
    """One comparison, fed with new runs as they come.

    Args:
        baseline: the older side.
        figures: names of the figures to gate; see `figures.figure`.
        settings: of the gate.
        allow_environment: compare over other drivers, frameworks and clock policies.
        sentinel: id of a cell that does not contain the product.

    Raises:
        UnknownFigure: if no cell of the baseline has a figure of a name.
        ValueError: if the sentinel is not in the baseline.

    """

    def __init__(
        self,
        baseline: Source,
        figures: Sequence[str],
        settings: GateSettings,
        *,
        allow_environment: bool = False,
        sentinel: str | None = None,
    ) -> None:
        runs = [run for cell in baseline.cells.values() for run in cell.runs[:1]]
        known = known_names(runs)
        for name in figures:
            if runs and name not in known:
                raise UnknownFigure(
                    f"no cell of {baseline.label} has a figure {name!r}; there are "
                    f"{', '.join(known)}"
                )
        if sentinel is not None and sentinel not in baseline.cells:
            raise ValueError(f"the sentinel {sentinel!r} is no cell of {baseline.label}")
        self._baseline = baseline
        self._figures = tuple(dict.fromkeys(figures))
        self._settings = settings
        self._allow_environment = allow_environment
        self._sentinel = sentinel
        self._new: dict[str, CellBaseline] = {}
        self._blocking: dict[str, tuple[FieldDifference, ...]] = {}
        self._gate: SuiteGate | None = None
        self._gated: dict[str, Figure] = {}
        self._fed: dict[str, int] = {}

    @property
    def first_runs(self) -> int:
        """How many runs of each cell the first pass takes."""
        return self._settings.first_runs

    def add(self, cell: CellBaseline) -> None:
        """Take new runs of a cell."""
        cell_id = cell.header.cell.id
        known = self._new.get(cell_id)
        runs = (*known.runs, *cell.runs) if known else cell.runs
        header = known.header if known else cell.header
        self._new[cell_id] = CellBaseline(header, runs, cell.faults)
        stored = self._baseline.cells.get(cell_id)
        if stored is not None and cell_id not in self._blocking:
            self._blocking[cell_id] = tuple(
                each
                for each in condition_differences(stored.header, cell.header)
                if each.kind == "identity" or not self._allow_environment
            )

    def wanted(self) -> list[str]:
        """Return ids of the cells to run once more, those with the fewest runs first.

        To be asked when all cells have had their first runs; then after each round of one run of
        each cell wanted.
        """
        gate = self._fed_gate()
        return list(dict.fromkeys(_cell_of(key) for key, _ in gate.wanted()))

    def judgement(self, not_measured: Mapping[str, str] | None = None) -> Judgement:
        """Return what the runs so far amount to.

        Args:
            not_measured: why cells were not measured, by id, as far as known.

        """
        gate = self._fed_gate()
        verdicts = gate.verdicts()
        reasons = not_measured or {}
        missing = tuple(
            Unmatched(cell_id, reasons.get(cell_id, "not measured"))
            for cell_id in sorted(self._baseline.cells.keys() - self._new.keys())
        )
        judged = []
        for cell_id, new in sorted(self._new.items()):
            stored = self._baseline.cells.get(cell_id)
            soft = () if stored is None else soft_differences(stored, new)
            for name in self._figures:
                verdict = self._verdict(cell_id, name, verdicts)
                if verdict is not None:
                    judged.append(CellVerdict(cell_id, name, verdict, soft))
        return Judgement(
            self._baseline.label, tuple(judged), missing, gate.suite_shift(), gate.compared,
            self._settings,
        )  # fmt: skip

    def _verdict(self, cell_id: str, name: str, found: Mapping[str, Verdict]) -> Verdict | None:
        key = _key(cell_id, name)
        if key in found:
            return found[key]
        stored, new = self._baseline.cells.get(cell_id), self._new[cell_id].runs
        gated = figure(name, new if stored is None else stored.runs, new)
        if gated is None:
            return None
        runs = tuple(gated.run(run) for run in new)
        if stored is None:
            text = f"{cell_id} is not in {self._baseline.label}: store it with --hwq-save"
            return Verdict("no-baseline", "no-baseline", text, gated.quantity, new=runs)
        listed = "; ".join(map(str, self._blocking[cell_id]))
        text = f"the baseline's runs were made under other conditions: {listed}"
        if all(each.kind == "environment" for each in self._blocking[cell_id]):
            text += " (--hwq-allow-env compares all the same)"
        return Verdict("incomparable", "other-conditions", text, gated.quantity, new=runs)

    def _fed_gate(self) -> SuiteGate:
        if self._gate is None:
            self._gate = self._make_gate()
        for key, gated in self._gated.items():
            runs = self._new[_cell_of(key)].runs
            for run in runs[self._fed.get(key, 0) :]:
                self._gate.add(key, gated.run(run))
            self._fed[key] = len(runs)
        return self._gate

    def _make_gate(self) -> SuiteGate:
        """Fix what is gated, by the first pass: how many samples count, and which quantile."""
        baselines: dict[str, Sequence[Run]] = {}
        quantities: dict[str, Quantity] = {}
        for cell_id, new in self._new.items():
            stored = self._baseline.cells.get(cell_id)
            if stored is None or self._blocking[cell_id]:
                continue
            for name in self._figures:
                gated = figure(name, stored.runs, new.runs[: self.first_runs])
                if gated is None:
                    continue
                key = _key(cell_id, name)
                self._gated[key] = gated
                quantities[key] = gated.quantity
                baselines[key] = [gated.run(run) for run in stored.runs]
        sentinel = None
        if self._sentinel is not None:
            sentinel = _key(self._sentinel, self._figures[0])
            sentinel = sentinel if sentinel in baselines else None
        return SuiteGate(self._settings, baselines, quantities, sentinel)


def compare_sources(
    baseline: Source,
    new: Source,
    figures: Sequence[str],
    settings: GateSettings,
    *,
    allow_environment: bool = False,
    sentinel: str | None = None,
) -> Judgement:
    """Judge runs that were all measured before; cells that want more runs than there are say so.

    Where all cells have the same number of new runs, that number was chosen beforehand, and they
    are judged once, by all of them. Where it differs, cells were run again because they looked
    worse, and the looks at which that was decided count.

    Raises:
        UnknownFigure: if no cell of the baseline has a figure of a name.

    """
    counts = {len(cell.runs) for cell in new.cells.values()}
    if len(counts) == 1 and (runs := counts.pop()) >= LEAST_FIRST_RUNS:
        settings = replace(settings, first_runs=runs, looks=(runs,), weights=(1.0,))
    judging = Judging(
        baseline, figures, settings, allow_environment=allow_environment, sentinel=sentinel
    )
    for cell in new.cells.values():
        judging.add(cell)
    reasons = {left.cell_id: f"{left.status}: {left.reason}" for left in new.left_out}
    return judging.judgement(reasons)


def _key(cell_id: str, name: str) -> str:
    return f"{cell_id}\n{name}"


def _cell_of(key: str) -> str:
    return key.partition("\n")[0]
