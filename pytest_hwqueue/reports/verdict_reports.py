"""Verdicts in pytest's reports: properties for JUnit, and reports that represent cells."""

from __future__ import annotations

import pytest

from pytest_hwqueue.reports.verdict_words import set_aside_of
from pytest_hwqueue.verdicts.judging import CellVerdict


def properties_of(judged: CellVerdict) -> list[tuple[str, object]]:
    """Return a verdict as a test's properties, named after the figure that was really judged.

    Args:
        judged: a verdict of any state.

    Returns:
        Names such as ``CELL.p99.verdict`` with their values; ``.by`` names what convicted, if not
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


def failed_report(nodeid: str, place: tuple[str, str], text: str) -> pytest.TestReport:
    """Return a failed report for a test without a function.

    Args:
        nodeid: its name in listings.
        place: file and name, for JUnit.
        text: why.

    """
    return pytest.TestReport(
        nodeid=nodeid,
        location=(place[0], None, place[1]),
        keywords={},
        outcome="failed",
        longrepr=text,
        when="call",
    )
