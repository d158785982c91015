"""Compares new runs with a baseline, run by run: which cells want more, and the verdicts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import median
from typing import Annotated

from pydantic import Field

from pytest_hwqueue.data.errors import BadInput
from pytest_hwqueue.data.metrics.between_runs import RunSpread, spread_within
from pytest_hwqueue.data.metrics.contention import in_flight_words, kept_full
from pytest_hwqueue.data.metrics.numbers import counted, grouped
from pytest_hwqueue.judge.baselines.runs import (
    DEFINITION,
    CellBaseline,
    FieldDifference,
    StoredRun,
    condition_differences,
    soft_differences,
)
from pytest_hwqueue.judge.baselines.sources import Source, UnmatchedCell
from pytest_hwqueue.judge.figures import (
    PreparedFigure,
    ShortRun,
    prepare,
    require_known,
    seen_by_others,
    usual_length,
)
from pytest_hwqueue.judge.suite_gate import SuiteGate, SuiteShift
from pytest_hwqueue.judge.verdict import (
    LEAST_FIRST_RUNS,
    P50,
    P90,
    P95,
    GateSettings,
    State,
    Verdict,
    percent,
)


@dataclass(frozen=True)
class CellVerdict:
    """The verdict on one figure of one cell.

    Attributes:
        cell_id: of the cell.
        figure: name of the requested figure, such as ``p99``.
        verdict: the gate's.
        differences: soft fields that are not the same in the runs of both sides.
        short: runs that were set aside because they have far fewer samples than the others.
        remark: what else a reader should know, or empty.

    """

    cell_id: Annotated[str, Field(alias="cell")]
    figure: str
    verdict: Verdict
    differences: tuple[FieldDifference, ...] = ()
    short: tuple[ShortRun, ...] = ()
    remark: str = ""

    @property
    def judged(self) -> bool:
        """Whether runs were compared, whatever the outcome."""
        verdict = self.verdict
        compared = verdict.main is not None or verdict.companion is not None
        return compared and verdict.state != "incomparable"


@dataclass(frozen=True)
class Judgement:
    """The outcome of a comparison.

    Attributes:
        baseline: for people: DEVICE/NAME, or a path.
        verdicts: by cell id, then in the order in which figures were requested.
        missing: cells of the baseline that were not measured.
        shift: how the suite moved as a whole; None where nothing was compared.
        compared: number of figures that share the error rate.
        settings: of the gate.
        spreads: how far the baseline's runs differ within a session, by id of each cell that was
            compared.
        notes: what a reader should know of the comparison as a whole.

    """

    baseline: str
    verdicts: tuple[CellVerdict, ...]
    missing: tuple[UnmatchedCell, ...]
    shift: SuiteShift | None
    compared: int
    settings: GateSettings
    spreads: dict[str, RunSpread]
    notes: tuple[str, ...] = field(default=(), kw_only=True)

    def count(self, state: State) -> int:
        """How many verdicts are in this state."""
        return sum(each.verdict.state == state for each in self.verdicts)

    @property
    def judged(self) -> bool:
        """Whether any figure of any cell was compared."""
        return any(each.judged for each in self.verdicts)


class Judging:
    """One comparison, fed with new runs as they arrive.

    Args:
        baseline: the older side.
        figures: names of the figures to gate; see `figures.figure`.
        settings: of the gate.
        allow_environment: compare over other drivers, frameworks and clock policies.
        sentinel: id of a cell that does not contain the product.
        once: judge all cells at one look, by the runs given, and want no more.

    Raises:
        BadInput: if no cell of the baseline has a figure of a name, or the sentinel is none.

    """

    def __init__(
        self,
        baseline: Source,
        figures: Sequence[str],
        settings: GateSettings,
        *,
        allow_environment: bool = False,
        sentinel: str | None = None,
        once: bool = False,
    ) -> None:
        runs = [run for cell in baseline.cells.values() for run in cell.runs[:1]]
        require_known(figures, runs, baseline.label)
        if sentinel is not None and sentinel not in baseline.cells:
            raise BadInput(f"the sentinel {sentinel!r} is no cell of {baseline.label}")
        self._baseline = baseline
        self._figures = tuple(dict.fromkeys(figures))
        self._settings = settings
        self._allow_environment = allow_environment
        self._sentinel = sentinel
        self._once = once
        self._new: dict[str, CellBaseline] = {}
        self._blocking: dict[str, tuple[FieldDifference, ...]] = {}
        # Why a cell's latency is none of as many streams as it names, by id.
        self._uncontended: dict[str, str] = {}
        # What the runs so far amount to; None since the last one was added.
        self._gate: SuiteGate | None = None
        self._prepared: dict[str, PreparedFigure] = {}

    def add(self, cell: CellBaseline) -> None:
        """Take new runs of a cell."""
        cell_id = cell.header.cell.id
        self._gate = None
        known = self._new.get(cell_id)
        runs = (*known.runs, *cell.runs) if known else cell.runs
        header = known.header if known else cell.header
        self._new[cell_id] = CellBaseline(header, runs, cell.faults)
        stored = self._baseline.cells.get(cell_id)
        short = [] if stored is None else [_short_of_streams(stored, self._baseline.label)]
        short.append(_short_of_streams(self._new[cell_id], "this session"))
        self._uncontended[cell_id] = "; ".join(filter(None, short))
        if stored is not None and cell_id not in self._blocking:
            self._blocking[cell_id] = tuple(
                each
                for each in condition_differences(stored.header, cell.header)
                if each.kind == "identity" or not self._allow_environment
            )

    def wanted(self) -> list[str]:
        """Return ids of the cells to run once more, those with the fewest runs first.

        To be asked when all cells have had their first runs; then after each round of one run of
        each cell wanted. For a run that was set aside for being short another one is wanted; few
        are, see `set_aside_short`, so this comes to an end.
        """
        return list(dict.fromkeys(_cell_of(key) for key, _ in self._fed_gate().wanted()))

    @property
    def convicts(self) -> bool:
        """Whether a regression is certain, whatever runs are added."""
        return self._fed_gate().convicts

    def judgement(self, not_measured: Mapping[str, str] | None = None) -> Judgement:
        """Return the judgement on the runs so far.

        Args:
            not_measured: why cells were not measured, by id, as far as known.

        """
        gate = self._fed_gate()
        verdicts = gate.verdicts()
        reasons = not_measured or {}
        missing = tuple(
            UnmatchedCell(cell_id, reasons.get(cell_id, "not measured"))
            for cell_id in sorted(self._baseline.cells.keys() - self._new.keys())
        )
        judged = [
            found
            for cell_id in sorted(self._new)
            for name in self._figures
            if (found := self._verdict(cell_id, name, verdicts, gate)) is not None
        ]
        return Judgement(
            self._baseline.label, tuple(judged), missing, gate.suite_shift(), gate.compared,
            self._settings, self._spreads(),
        )  # fmt: skip

    def _comparable(self) -> Iterator[tuple[str, CellBaseline]]:
        """Return the cells measured that the baseline has under the same conditions."""
        for cell_id in self._new:
            stored = self._baseline.cells.get(cell_id)
            if stored is not None and not self._blocking[cell_id]:
                yield cell_id, stored

    def _spreads(self) -> dict[str, RunSpread]:
        found = {}
        for cell_id, stored in self._comparable():
            sessions = grouped((run.session, run.p99_ns) for run in stored.runs if run.p99_ns)
            if spread := spread_within([*sessions.values()]):
                found[cell_id] = spread
        return found

    def _verdict(
        self, cell_id: str, name: str, found: Mapping[str, Verdict], gate: SuiteGate
    ) -> CellVerdict | None:
        key = _key(cell_id, name)
        stored, new = self._baseline.cells.get(cell_id), self._new[cell_id]
        soft = () if stored is None else soft_differences(stored, new)
        if key in found and stored is not None:
            prepared = self._prepared[key]
            verdict = found[key]
            if verdict.reason == "blind":
                allowing = gate.allowing[key].main
                best = seen_by_others(
                    name, stored.runs, new.runs, allowing, gate.compared, pace=new.header.has_pace
                )
                verdict = replace(verdict, advice="; ".join(filter(None, (verdict.advice, best))))
            if verdict.reason == "runs-missing" and not verdict.history:
                verdict = _of_few_runs(verdict, prepared, stored.runs, new.runs)
            short = self._uncontended.get(cell_id)
            # What got worse stays worse, whatever kept streams from their work.
            if short and prepared.figure.source == "latency" and verdict.state != "regression":
                verdict = replace(
                    verdict, state="inconclusive", reason="not-contended", sentence=short, advice=""
                )
            return CellVerdict(cell_id, name, verdict, soft, prepared.short, prepared.remark)
        blocking = self._blocking.get(cell_id, ())
        if stored is not None and not blocking:
            return None
        alone = prepare(name, (), new.runs, pace=new.header.has_pace)
        if alone is None:
            return None
        listed = "; ".join(map(str, blocking))
        text = f"the baseline's runs were made under other conditions: {listed}"
        if stored is None:
            text = f"{cell_id} is not in {self._baseline.label}: store it with --hwq-save"
        elif any(each.field.startswith(DEFINITION) for each in blocking):
            text = (
                f"the baseline's figures are of another definition: {listed}; record it again: "
                "measure it with --hwq-save in place of --hwq-compare"
            )
        elif all(each.kind == "environment" for each in blocking):
            text += " (--hwq-allow-env compares all the same)"
        else:
            text += "; store a baseline of these conditions with --hwq-save"
        verdict = Verdict(
            "no-baseline" if stored is None else "incomparable",
            "no-baseline" if stored is None else "other-conditions",
            text,
            alone.figure.quantity,
            new=alone.new,
        )
        return CellVerdict(cell_id, name, verdict, soft)

    def _fed_gate(self) -> SuiteGate:
        """Judge the runs there are, from the first on.

        Anew after every round: a run shorter than all before has the others cut to its length.
        Each look stays exact, since how long the runs are says nothing of which are new.
        """
        if self._gate is not None:
            return self._gate
        self._prepared = {}
        for cell_id, stored in self._comparable():
            new = self._new[cell_id]
            for name in self._figures:
                prepared = prepare(name, stored.runs, new.runs, pace=new.header.has_pace)
                if prepared is not None:
                    self._prepared[_key(cell_id, name)] = prepared
        sentinel = None
        if self._sentinel is not None:
            key = _key(self._sentinel, self._figures[0])
            sentinel = key if key in self._prepared else None
        settings = self._settings
        if self._once:
            # Runs that were set aside are missing from every cell, so that all share one look.
            counts = [len(each.new) for each in self._prepared.values()]
            settings = judged_once(settings, max(LEAST_FIRST_RUNS, min(counts, default=0)))
        gate = SuiteGate(
            settings,
            {key: each.baseline for key, each in self._prepared.items()},
            {key: each.figure.quantity for key, each in self._prepared.items()},
            sentinel,
            {key for key in self._prepared if self._baseline.cells[_cell_of(key)].sessionless},
        )
        for key, each in self._prepared.items():
            for run in each.new:
                gate.add(key, run)
        self._gate = gate
        return gate


def _short_of_streams(cell: CellBaseline, where: str) -> str:
    """Return why a cell's latency is no contended one on all its streams; empty if it is."""
    streams = cell.header.cell.streams
    known = [run.in_flight for run in cell.runs if run.in_flight is not None]
    usual = median(known) if known else float(streams)
    if kept_full(usual, streams):
        return ""
    return (
        f"{in_flight_words(usual, streams)} in runs of {where}: launching was measured, and no "
        "contention of so many streams; graph dispatch keeps them at work"
    )


def compare_sources(
    baseline: Source,
    new: Source,
    figures: Sequence[str],
    settings: GateSettings,
    *,
    allow_environment: bool = False,
    sentinel: str | None = None,
) -> Judgement:
    """Judge stored runs; cells that need more runs than there are say so.

    Where all cells have the same number of new runs, that number was chosen beforehand, and they
    are judged once, by all of them. Where it differs, cells were run again because they looked
    worse, and the looks at which that was decided count.

    Raises:
        BadInput: if no cell of the baseline has a figure of a name.

    """
    counts = {len(cell.runs) for cell in new.cells.values()}
    once = len(counts) == 1 and min(counts) >= LEAST_FIRST_RUNS
    judging = Judging(
        baseline, figures, settings, allow_environment=allow_environment, sentinel=sentinel,
        once=once,
    )  # fmt: skip
    for cell in new.cells.values():
        judging.add(cell)
    return judging.judgement({left.cell_id: left.reason for left in new.left_out})


def planned_samples(baseline: Source) -> dict[str, int]:
    """Return the number of latency samples per run of a baseline, by cell id.

    It is the median over the cell's runs, without those far shorter than the others: the length
    that a run to be judged should reach.
    """
    return {
        cell_id: usual_length([run.n for run in cell.runs])
        for cell_id, cell in baseline.cells.items()
    }


def judged_once(settings: GateSettings, runs: int) -> GateSettings:
    """Return settings for one look by so many new runs, their number chosen beforehand.

    Args:
        settings: of the gate.
        runs: new runs of each cell, at least 2.

    """
    return replace(settings, first_runs=runs, looks=(runs,), weights=(1.0,))


_RUNS = 5
"""To advise. With five on both sides the gate sees most of what matters."""


def _of_few_runs(
    verdict: Verdict, prepared: PreparedFigure, old: Sequence[StoredRun], new: Sequence[StoredRun]
) -> Verdict:
    """Return the verdict on too few new runs, with what the samples of one show beside one."""
    why = (
        f"no verdict: {counted(len(new), 'new run')}, which "
        f"{'does' if len(new) == 1 else 'do'} not show what runs differ by; measure both sides "
        f"with --runs {_RUNS}"
    )
    if len(old) != 1 or len(new) != 1:
        return replace(verdict, sentence=why)
    change = prepared.figure.change(old[0], new[0])
    if change.value is None:
        lower = _of_lower(prepared, old[0], new[0])
        return replace(verdict, sentence=f"{why}; no change: {change.refused}{lower}")
    shown = "the change has the interval that each run's own samples give"
    if change.interval is None:
        shown = f"the change has no interval by samples: {change.refused}"
    return replace(verdict, sentence=f"{why}; {shown}", by_samples=change)


def _of_lower(prepared: PreparedFigure, old: StoredRun, new: StoredRun) -> str:
    """Return the change of the highest lower percentile for which the samples suffice, as text."""
    figure = prepared.figure
    wanted = figure.quantity.quantile
    if figure.kind not in ("latency", "pace") or wanted is None:
        return ""
    for quantity in (P95, P90, P50):
        if quantity.quantile is not None and quantity.quantile < wanted:
            change = replace(figure, quantity=quantity).change(old, new)
            if change.value is not None and change.interval is not None:
                low, high = (percent(end - 1) for end in change.interval)
                return f"; {quantity.label} {percent(change.value - 1)} [{low}, {high}] by samples"
    return ""


def _key(cell_id: str, name: str) -> str:
    return f"{cell_id}\n{name}"


def _cell_of(key: str) -> str:
    return key.partition("\n")[0]
