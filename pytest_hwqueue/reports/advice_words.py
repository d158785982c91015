"""Formats the result of ``hwq advise`` as text and JSON."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from pytest_hwqueue.metrics.numbers import counted, percent
from pytest_hwqueue.noise.advice import Bought, QuietShare
from pytest_hwqueue.noise.names import NONE
from pytest_hwqueue.reports.noise_advice import (
    Advice,
    MissingMeasurement,
    RemedyComparison,
    RemedyFigure,
)

SCHEMA = "pytest-hwqueue/advice/1"
_ORDER = ("won", "cost", "undecided")
_HOW = (
    "% are of the quiet figure: geometric means over runs of one session, each run against its own "
    "quiet turn, with the 95 % interval of paired runs; that of what was won is wider by what "
    "the quiet runs differ"
)


def advice_lines(advice: Advice) -> list[str]:
    """Return a line per figure of each comparison, gains first, and what is missing."""
    found = [
        (_ORDER.index(figure.bought.verdict), _line(comparison, figure))
        for comparison in advice.comparisons
        for figure in comparison.figures
    ]
    lines = [line for _, line in sorted(found, key=lambda each: each[0])]
    if lines:
        lines.append(_HOW)
    return lines + [_missing(each) for each in advice.not_measured]


def advice_text(advice: Advice, folders: Sequence[str], left_out: Sequence[str]) -> str:
    """Return the same as JSON, with its sources and what could not be read."""
    content: dict[str, Any] = {
        "schema": SCHEMA,
        "sessions": list(folders),
        "comparisons": [
            {
                **asdict(comparison),
                "figures": [
                    {**asdict(figure), "verdict": figure.bought.verdict}
                    for figure in comparison.figures
                ],
            }
            for comparison in advice.comparisons
        ],
        "not_measured": [asdict(each) for each in advice.not_measured],
        "left_out": list(left_out),
    }
    return json.dumps(content, indent=2, ensure_ascii=False) + "\n"


def _line(comparison: RemedyComparison, figure: RemedyFigure) -> str:
    shares = figure.bought
    where = "in the quiet" if comparison.noise == NONE else f"under {comparison.noise}"
    runs = counted(shares.rounds, "run")
    source = f"({comparison.cell}, session {comparison.session}, {runs})"
    subject = f"{where}, {comparison.remedy}"
    if shares.won.value is None and "won" in shares.refused:
        return (
            f"undecided: {subject}: {figure.name} is refused, since {shares.refused['won']} "
            f"{source}; measure again with `{comparison.again}`"
        )
    if shares.won.value is None:
        return (
            f"undecided: {subject}: there is no run in which all sides of {figure.name} were "
            f"measured and the noise was felt {source}; measure again with `{comparison.again}`"
        )
    if shares.verdict == "undecided":
        spans_0 = shares.refused.get("verdict", "the interval spans 0")
        reason = shares.refused.get("interval", spans_0)
        return (
            f"undecided: {subject}: {_change(figure, shares.won)}, {_lost(comparison, figure)}; "
            f"{reason} {source}; measure again with `{comparison.again}`"
        )
    if shares.verdict == "won" and _was_lost(shares):
        won, lost = _shown(shares.won), _shown(shares.lost)
        of = f"longer {figure.name}" if figure.higher_is_worse else f"lost {figure.name}"
        return f"{subject} won back {won} of {lost} {of} {source}"
    verb = "gained" if shares.verdict == "won" else "cost"
    change, lost = _change(figure, shares.won), _lost(comparison, figure)
    return f"{subject} {verb}: {change}, {lost} {source}"


def _was_lost(shares: Bought) -> bool:
    """Whether the noise cost anything to win back."""
    return shares.lost.interval is not None and shares.lost.interval[0] > 0


def _change(figure: RemedyFigure, won: QuietShare) -> str:
    assert won.value is not None
    more = won.value >= 0
    turned = won if more else won.negated()
    if figure.higher_is_worse:
        return f"{figure.name} {'shorter' if more else 'longer'} by {_shown(turned)}"
    return f"{_shown(turned)} {'more' if more else 'fewer'} {figure.name}"


def _lost(comparison: RemedyComparison, figure: RemedyFigure) -> str:
    """Return text on what the noise cost without the remedy."""
    if comparison.noise == NONE:
        return "without load"
    if figure.bought.lost.value is None:
        return f"where what the noise cost is refused, since {figure.bought.refused['value']}"
    lost = _shown(figure.bought.lost)
    if figure.higher_is_worse:
        return f"where the noise made {figure.name} longer by {lost}"
    return f"where the noise had cost {lost}"


def _shown(share: QuietShare) -> str:
    assert share.value is not None
    return str(percent(share.value, share.interval))


def _missing(missing: MissingMeasurement) -> str:
    cell = f" of {missing.cell}" if missing.cell else ""
    return f"not measured: {missing.what}{cell}: `{missing.command}`"
