"""The page's verdict."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from pytest_hwqueue.capacity.result import CapacityFile
from pytest_hwqueue.metrics.numbers import counted
from pytest_hwqueue.reports.capacity import answers
from pytest_hwqueue.reports.page.cells import PageCell
from pytest_hwqueue.reports.verdict_words import (
    by_severity,
    change_of,
    counts_of,
    missing_by_reason,
    not_in_baseline,
    settings_line,
    shift_line,
)
from pytest_hwqueue.reports.which.words import headlines
from pytest_hwqueue.verdicts.judging import Judgement
from pytest_hwqueue.which.file import WhichFile

Level = Literal["bad", "warn", "good", "plain"]
_WORST: tuple[Level, ...] = ("bad", "warn", "good", "plain")


@dataclass(frozen=True)
class Verdict:
    """The sentence, how it is coloured, and what belongs to it."""

    level: Level
    sentence: str
    more: list[str] = field(default_factory=list)


def verdict_of(
    judgements: Sequence[Judgement], tables: Sequence[WhichFile],
    capacities: Sequence[CapacityFile], cells: Sequence[PageCell],
) -> Verdict:  # fmt: skip
    """Return the verdict: of the comparison, else an answer, else what was measured."""
    if judgements:
        found = [_of_judgement(judgement) for judgement in judgements]
        found.sort(key=lambda each: _WORST.index(each.level))
        more = [line for each in found for line in each.more]
        return Verdict(found[0].level, "; ".join(each.sentence for each in found), more)
    if tables:
        return _of_tables(tables)
    if capacities:
        return Verdict("plain", "; ".join(answers(each)[0] for each in capacities))
    measured = sum(bool(cell.runs.measured) for cell in cells)
    bad = len(cells) - measured
    if bad:
        sentence = f"{bad} of {counted(len(cells), 'cell')} came to no figures"
        return Verdict("bad", f"{sentence}; nothing was compared with a baseline.")
    return Verdict(
        "plain", f"{counted(measured, 'cell')} measured; nothing was compared with a baseline."
    )


def _of_judgement(judgement: Judgement) -> Verdict:
    counts = counts_of(judgement)
    worse = [each for each in judgement.verdicts if each.verdict.state == "regression"]
    more = [
        f"missing ({reason}): {', '.join(cells)}"
        for reason, cells in missing_by_reason(judgement).items()
    ]
    unknown = not_in_baseline(judgement)
    if unknown:
        more.append(f"no baseline: {', '.join(unknown)}")
    if judgement.shift is not None:
        more.append(shift_line(judgement.shift))
    more.append(settings_line(judgement.settings, judgement.compared))
    if worse:
        first = by_severity(worse)[0]
        change = change_of(first.verdict)
        # A failed request or a slower iteration convicts without a ratio of the figure itself.
        by = f" {change}" if first.verdict.ratio is not None else ""
        figure = f"{first.verdict.quantity.label} of {first.cell_id}{by}"
        among = f"{figure} among others" if len(worse) > 1 else figure
        return Verdict("bad", f"Worse than {judgement.baseline}: {counts}; {among}.", more)
    if not judgement.judged:
        return Verdict("bad", f"Nothing could be compared with {judgement.baseline}.", more)
    undecided = judgement.count("inconclusive") + judgement.count("incomparable")
    if undecided or judgement.missing:
        return Verdict(
            "warn", f"No regression shown against {judgement.baseline}, but not all is decided: "
            f"{counts}.", more,
        )  # fmt: skip
    return Verdict("good", f"No regression against {judgement.baseline}: {counts}.", more)


def _of_tables(tables: Sequence[WhichFile]) -> Verdict:
    sentences = [
        f"{table.scenario}: {sentence}" if len(tables) > 1 else sentence
        for table in tables
        for sentence in headlines(table)
    ]
    if not sentences:
        return Verdict("warn", "No scheduler was measured.")
    choices = [choice for table in tables for choice in table.choices]
    met = sum(bool(choice.met) for choice in choices)
    level: Level = "good" if met == len(choices) else "warn"
    if len(sentences) == 1:
        return Verdict(level, sentences[0])
    return Verdict(
        level, f"In {met} of {len(choices)} cases a scheduler meets all goals.", sentences
    )
