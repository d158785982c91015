"""Verdicts in words."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from statistics import fmean

from pytest_hwqueue.baselines.runs import FieldDifference
from pytest_hwqueue.gate.runs import ProcessRun
from pytest_hwqueue.gate.suite_gate import SuiteShift
from pytest_hwqueue.gate.verdict import GateSettings, Quantity, State, Verdict, percent
from pytest_hwqueue.metrics.numbers import (
    REFUSED,
    PrintedFigure,
    counted,
    milliseconds,
    rate,
    time_unit,
    times,
)
from pytest_hwqueue.verdicts.figures import ShortRun
from pytest_hwqueue.verdicts.judging import CellVerdict, Judgement

SEVERITY: tuple[State, ...] = (
    "regression", "incomparable", "inconclusive", "improvement", "no-baseline", "pass",
)  # fmt: skip
"""States in the order of a report: what needs a reader comes first."""

MOST_PASSES = 20
"""More passes than this are summarised in one line."""

_NOUNS = ("regression", "improvement")
_NS_PER_MS = 1e6


def figure_value(quantity: Quantity, value: float, like: float) -> PrintedFigure:
    """Format a run's figure in its unit.

    Args:
        quantity: what the value is.
        value: finite and above 0.
        like: unit or scale as this value would have.

    """
    if quantity.unit == "ns":
        return milliseconds(value / _NS_PER_MS, time_unit(like))
    return rate(value, quantity.unit, like=like) if quantity.unit else times(value)


def mean_value(runs: Sequence[ProcessRun]) -> float | None:
    """Return the geometric mean over runs, or None if there are none or one lacks the figure."""
    values = [run.value for run in runs]
    if not values or not all(math.isfinite(value) and value > 0 for value in values):
        return None
    return math.exp(fmean(map(math.log, values)))


def change_of(verdict: Verdict) -> PrintedFigure:
    """Return the change and its interval in signed percent, or as refused."""
    if verdict.ratio is None:
        return REFUSED
    interval = ""
    if verdict.interval is not None:
        low, high = (_signed(end - 1) for end in verdict.interval)
        interval = f"[{low}, {high}]"
    return PrintedFigure(_signed(verdict.ratio - 1), "%", interval)


def least_detected(quantity: Quantity, detectable: float | None) -> str:
    """Return the smallest worsening detected as a change: ``≥ +8.7 %``, or ``≤ -8.0 %``."""
    if detectable is None:
        return ""
    if quantity.higher_is_worse:
        return f"≥ {percent(detectable)}"
    return f"≤ {percent(1 / (1 + detectable) - 1)}"


def lower_figure(judged: CellVerdict) -> str:
    """Return a remark if a lower figure was gated than requested, else an empty string."""
    gated = judged.verdict.quantity
    if not gated.demoted_from or judged.verdict.reason == "demoted":
        return ""
    return f"{gated.label} stands in for {gated.demoted_from}, for which runs are too short"


def set_aside_of(judged: CellVerdict) -> str:
    """Return which runs were excluded from a verdict and why, or an empty string."""
    return "; ".join(filter(None, (judged.verdict.set_aside_words, short_words(judged.short))))


def short_words(short: Sequence[ShortRun]) -> str:
    """Return which runs were set aside for being short, such as
    ``baseline run 3 (session a) has 290 samples of the usual 1000, set aside``."""
    return f"{'; '.join(map(str, short))}, set aside" if short else ""


def aside_lines(verdicts: Iterable[CellVerdict]) -> list[str]:
    """Return a line per verdict that excludes some of the runs."""
    named = ((judged, set_aside_of(judged)) for judged in verdicts)
    return [
        f"{judged.cell_id}, {judged.verdict.quantity.label}: {words}"
        for judged, words in named
        if words
    ]


def remarks_of(judged: CellVerdict, *, brief: bool = False) -> list[str]:
    """Return the remarks that accompany a verdict's sentence, each at most once.

    Args:
        judged: a verdict.
        brief: whether conditions that differ are named without their values.

    """
    verdict = judged.verdict
    remarks = [
        lower_figure(judged),
        "" if verdict.set_aside_words in verdict.sentence else verdict.set_aside_words,
        short_words(judged.short),
        verdict.assumes,
        "" if verdict.advice in verdict.sentence else verdict.advice,
        judged.remark,
        different_fields([judged]) if brief else also_different(judged.differences),
    ]
    return [each for each in remarks if each]


def different_fields(verdicts: Iterable[CellVerdict]) -> str:
    """Return the names of soft conditions that differ, or an empty string."""
    fields = dict.fromkeys(each.field for judged in verdicts for each in judged.differences)
    return f"also different (values: -v): {', '.join(fields)}" if fields else ""


def also_different(differences: Sequence[FieldDifference]) -> str:
    """Return soft conditions that differ, such as ``also different: torch_version 2.10 / 2.11``.

    Returns:
        An empty string if none does.

    """
    if not differences:
        return ""

    def say(values: tuple[object, ...]) -> str:
        return " or ".join("not known" if value is None else str(value) for value in values)

    listed = (f"{each.field} {say(each.a)} / {say(each.b)}" for each in differences)
    return f"also different: {', '.join(listed)}"


def by_severity(verdicts: Iterable[CellVerdict]) -> list[CellVerdict]:
    """Sort verdicts by state, otherwise as they are."""
    return sorted(verdicts, key=lambda judged: SEVERITY.index(judged.verdict.state))


def counts_of(judgement: Judgement) -> str:
    """Return the number of verdicts in each state, such as ``2 regressions, 11 pass``."""
    found = [(judgement.count(state), state) for state in SEVERITY]
    parts = [
        counted(count, state) if state in _NOUNS else f"{count} {state}"
        for count, state in found
        if count
    ]
    if judgement.missing:
        parts.append(f"{len(judgement.missing)} missing")
    return ", ".join(parts) or "nothing was compared"


def passes_in_short(passes: Sequence[Verdict], settings: GateSettings) -> str:
    """Return one sentence for unlisted passes, saying what they could have missed.

    Args:
        passes: at least one.
        settings: of the gate.

    """
    reach = [verdict.detectable for verdict in passes if verdict.detectable is not None]
    parts = [f"{counted(len(passes), 'figure')} passed"]
    if reach:
        parts.append(f"the least worsening that each can detect is {percent(max(reach))} or less")
    weak = sum(effect > settings.detect for effect in reach)
    if weak:
        parts.append(f"{weak} cannot detect {100 * settings.detect:+.3g} %")
    blind = len(passes) - len(reach)
    if blind:
        parts.append(f"{blind} can detect none, having too small a baseline")
    return "; ".join(parts)


def shift_line(shift: SuiteShift) -> str:
    """Return how the suite shifted as a whole."""
    text = (
        f"suite as a whole: {percent(shift.ratio - 1)} (median of {counted(shift.cells, 'figure')} "
        "at the first pass; + is worse)"
    )
    if shift.sentinel_ratio is not None:
        text += f", sentinel {percent(shift.sentinel_ratio - 1)}"
    return f"{text}: the machine itself has changed" if shift.of_machine else text


def settings_line(settings: GateSettings, compared: int) -> str:
    """Return the gate's settings in one line."""
    return (
        f"rate {_plain(settings.rate)} over {counted(compared, 'figure')}, min effect "
        f"{_plain(settings.min_effect)}, tau {tau_words(settings)}"
    )


def tau_words(settings: GateSettings) -> str:
    """Return what sessions may differ by; ``auto`` if the baseline shows it."""
    return "auto" if settings.allows_for_sessions else _plain(settings.tau)


def not_in_baseline(judgement: Judgement) -> list[str]:
    """Return the ids of the cells that have no baseline, each once."""
    found = (each.cell_id for each in judgement.verdicts if each.verdict.state == "no-baseline")
    return list(dict.fromkeys(found))


def missing_by_reason(judgement: Judgement) -> dict[str, list[str]]:
    """Return the ids of the cells that were not measured, by reason."""
    found: dict[str, list[str]] = {}
    for each in judgement.missing:
        found.setdefault(each.reason, []).append(each.cell_id)
    return found


def _signed(fraction: float) -> str:
    return percent(fraction).removesuffix(" %")


def _plain(fraction: float) -> str:
    return f"{100 * fraction:.3g} %"


def properties_of(judged: CellVerdict) -> list[tuple[str, object]]:
    """Return a verdict as a test's properties, named after the figure that was really judged.

    Args:
        judged: a verdict of any state.

    Returns:
        Names such as ``CELL.p99.verdict`` with their values; ``.by`` names what is worse, if not
        the figure itself, and the time per iteration in ``CELL.iteration_time.ratio``.

    """
    verdict = judged.verdict
    name = f"{judged.cell_id}.{verdict.quantity.name}"
    found: list[tuple[str, object]] = [
        (f"{name}.verdict", verdict.state), (f"{name}.reason", verdict.reason),
    ]  # fmt: skip
    for field in ("ratio", "p", "detectable"):
        value = getattr(verdict, field)
        if value is not None:
            found.append((f"{name}.{field}", round(value, 6)))
    if verdict.by and verdict.by != verdict.quantity.name:
        found.append((f"{name}.by", verdict.by))
    aside = set_aside_of(judged)
    if aside:
        found.append((f"{name}.set_aside", aside))
    companion = verdict.companion
    if companion is not None:
        name = f"{judged.cell_id}.{companion.quantity.name}"
        found.append((f"{name}.ratio", round(companion.ratio, 6)))
    return found
