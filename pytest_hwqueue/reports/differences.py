"""Formats the conditions in which the two sides of a comparison differ."""

from __future__ import annotations

from pytest_hwqueue.baselines.diff import Source
from pytest_hwqueue.baselines.runs import FieldDifference, condition_differences
from pytest_hwqueue.metrics.numbers import counted

_MEANING = {
    "identity": "another measurement, never compared",
    "environment": "compared only with --allow-env",
}


def hard_differences(old: Source, new: Source) -> dict[str, tuple[FieldDifference, ...]]:
    """Return the conditions that differ, by id of each cell on both sides."""
    found = {
        cell_id: condition_differences(old.cells[cell_id].header, new.cells[cell_id].header)
        for cell_id in sorted(old.cells.keys() & new.cells.keys())
    }
    return {cell_id: differences for cell_id, differences in found.items() if differences}


def render_differences(found: dict[str, tuple[FieldDifference, ...]]) -> str:
    """Return a line per field and pair of values, with the number of cells; empty if none.

    Args:
        found: from `hard_differences`.

    """
    cells: dict[tuple[str, str, str, str], list[str]] = {}
    for cell_id, differences in found.items():
        for each in differences:
            key = (each.field, _in_words(each.a), _in_words(each.b), each.kind)
            cells.setdefault(key, []).append(cell_id)
    if not cells:
        return ""
    lines = ["Conditions that differ (baseline → test):"]
    for (field, a, b, kind), ids in cells.items():
        where = ids[0] if len(ids) == 1 else counted(len(ids), "cell")
        lines.append(f"  {field}: {a} → {b} ({where}; {_MEANING[kind]})")
    return "\n".join(lines)


def _in_words(values: tuple[object, ...]) -> str:
    return " or ".join("not known" if value is None else str(value) for value in values)
