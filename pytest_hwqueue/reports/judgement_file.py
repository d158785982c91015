"""A comparison as JSON: the verdicts and every figure behind them, with a published schema."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any, Final, Literal, get_args

from pydantic import Field

from pytest_hwqueue.baselines.runs import FieldDifference
from pytest_hwqueue.gate.runs import ProcessRun
from pytest_hwqueue.gate.verdict import Companion, Decision, State
from pytest_hwqueue.metrics.estimate import PlainData
from pytest_hwqueue.verdicts.judging import CellVerdict, Judgement

SCHEMA: Final = "pytest-hwqueue/judgement/1"


class RunFigure(PlainData):
    """The gated figure of one process run."""

    value: float | None = Field(description="in ns, per second, or a ratio; null: the run has none")
    n: int = Field(description="samples behind it")
    session: str
    failed: int = Field(description="requests that failed, besides the samples")
    iteration_ns: float | None = Field(None, description="mean time per iteration of the run")


class LookFigures(PlainData):
    """The numbers seen when the cell was judged after so many new runs."""

    new_runs: int
    ratio: float
    p_t: float = Field(description="of the t-test without a session term, which acquits")
    p_exact: float | None = Field(description="of the permutation test; null: not asked")
    p_worse: float = Field(description="what this look can convict with")
    p_failures: float
    decision: Decision
    p_companion: float = Field(description="what the time per iteration can convict with")
    upper: float | None = Field(description="one-sided 97.5 % upper limit of the worsening")


class Difference(PlainData):
    """A condition that is not the same on both sides; null among the values: not known."""

    field: str
    kind: Literal["identity", "environment", "soft"]
    baseline: list[Any]
    test: list[Any]


class SetAsideRun(PlainData):
    """A run far from all others, excluded from the judgement."""

    side: Literal["baseline", "new"]
    number: int = Field(description="among the runs listed of its side, from 1")
    session: str
    factor: float = Field(description="times worse than the runs kept; below 1: better")


class ShortRunFigures(PlainData):
    """A run with far fewer samples than the others; it is not listed among the runs."""

    side: Literal["baseline", "new"]
    number: int = Field(description="in the order measured, from 1")
    session: str
    n: int
    usual: int = Field(description="samples of the other runs (median)")


class CompanionFigures(PlainData):
    """The time per iteration, which is judged where the figure cannot be."""

    quantity: str
    on_trial: bool = Field(description="whether it could convict")
    ratio: float
    interval: tuple[float, float]
    p: float
    sd: float
    upper: float
    detectable: float | None
    set_aside: list[SetAsideRun]


class VerdictFigures(PlainData):
    """The verdict on one figure of one cell."""

    cell: str = Field(description="the cell's id")
    figure: str = Field(description="the requested figure")
    quantity: str = Field(description="the one that was gated: a lower quantile where n is small")
    demoted_from: str = Field("", description="label of the quantile that it stands in for")
    higher_is_worse: bool
    state: State
    reason: str = Field(description="a stable code")
    sentence: str
    ratio: float | None = Field(description="new over baseline; null: not compared")
    interval: tuple[float, float] | None = Field(description="95 %, of the ratio")
    p: float | None
    sd: float | None = Field(description="between runs, of the figure's logarithm")
    detectable: float | None = Field(description="least worsening found, as a fraction")
    advice: str
    assumes: str
    remark: str = Field("", description="what else a reader should know")
    by: str = Field("", description="what convicted; empty if nothing did")
    upper: float | None = Field(
        None, description="one-sided 97.5 % upper limit of the worsening, which a pass holds below "
        "the setting `detect`"
    )  # fmt: skip
    set_aside: list[SetAsideRun] = Field(default_factory=list)
    short: list[ShortRunFigures] = Field(default_factory=list)
    companion: CompanionFigures | None = None
    baseline: list[RunFigure]
    test: list[RunFigure]
    looks: list[LookFigures]
    differences: list[Difference]


class MissingCell(PlainData):
    """A cell of the baseline that the other side lacks."""

    cell: str
    reason: str


class Shift(PlainData):
    """How the suite shifted as a whole; ratios above 1 are worse."""

    ratio: float
    cells: int
    sentinel_ratio: float | None
    of_machine: bool


class JudgementFile(PlainData):
    """A comparison of two sources of runs."""

    schema_: Literal["pytest-hwqueue/judgement/1"] = Field(SCHEMA, alias="schema")
    baseline: str
    test: str
    exit_status: int
    counts: dict[State, int]
    compared: int = Field(description="figures among which the error rate is divided")
    settings: dict[str, Any] = Field(description="of the gate")
    shift: Shift | None
    missing: list[MissingCell]
    verdicts: list[VerdictFigures]


def judgement_file(
    judgement: Judgement,
    new: str,
    status: int,
    hard: Mapping[str, tuple[FieldDifference, ...]],
) -> JudgementFile:
    """Return a comparison as a file's content.

    Args:
        judgement: what it found.
        new: label of the newer side.
        status: the resulting exit status.
        hard: conditions that differ, by cell id.

    """
    return JudgementFile(
        schema=SCHEMA,
        baseline=judgement.baseline,
        test=new,
        exit_status=status,
        counts={state: judgement.count(state) for state in get_args(State)},
        compared=judgement.compared,
        settings=asdict(judgement.settings),
        shift=None if judgement.shift is None else Shift(**asdict(judgement.shift)),
        missing=[MissingCell(cell=each.cell_id, reason=each.reason) for each in judgement.missing],
        verdicts=[_verdict(each, hard.get(each.cell_id, ())) for each in judgement.verdicts],
    )


def judgement_text(
    judgement: Judgement,
    new: str,
    status: int,
    hard: Mapping[str, tuple[FieldDifference, ...]],
) -> str:
    """Return a comparison as JSON; the arguments are those of `judgement_file`."""
    return judgement_file(judgement, new, status, hard).model_dump_json(by_alias=True) + "\n"


def json_schema() -> dict[str, Any]:
    """Return the JSON Schema of the file."""
    return JudgementFile.model_json_schema(by_alias=True)


def _verdict(judged: CellVerdict, hard: tuple[FieldDifference, ...]) -> VerdictFigures:
    verdict = judged.verdict
    return VerdictFigures(
        cell=judged.cell_id,
        figure=judged.figure,
        quantity=verdict.quantity.name,
        demoted_from=verdict.quantity.demoted_from,
        higher_is_worse=verdict.quantity.higher_is_worse,
        state=verdict.state,
        reason=verdict.reason,
        sentence=verdict.sentence,
        ratio=verdict.ratio,
        interval=verdict.interval,
        p=verdict.p,
        sd=verdict.sd,
        detectable=verdict.detectable,
        advice=verdict.advice,
        assumes=verdict.assumes,
        remark=judged.remark,
        by=verdict.by,
        upper=verdict.upper,
        set_aside=[SetAsideRun(**asdict(run)) for run in verdict.set_aside],
        short=[ShortRunFigures(**asdict(run)) for run in judged.short],
        companion=None if verdict.companion is None else _companion(verdict.companion),
        baseline=[_run(run) for run in verdict.baseline],
        test=[_run(run) for run in verdict.new],
        looks=[LookFigures(**asdict(look)) for look in verdict.history],
        differences=[
            Difference(field=each.field, kind=each.kind, baseline=list(each.a), test=list(each.b))
            for each in (*hard, *judged.differences)
        ],
    )


def _companion(companion: Companion) -> CompanionFigures:
    return CompanionFigures(**{**asdict(companion), "quantity": companion.quantity.name})


def _run(run: ProcessRun) -> RunFigure:
    value = run.value if math.isfinite(run.value) else None
    return RunFigure(
        value=value,
        n=run.n,
        session=run.session,
        failed=run.failed,
        iteration_ns=run.iteration_ns,
    )
