"""The P99 of the urgent tenants from variant to variant of a scenario, under each scheduler."""

from __future__ import annotations

from dataclasses import dataclass

from pytest_hwqueue.which.file import WhichCase, WhichFigure, WhichFile


@dataclass(frozen=True)
class Trend:
    """A tenant's P99 over variants.

    Attributes:
        tenant: in all these variants, and less urgent than another in none.
        variants: those with figures, in the file's order.
        rows: by scheduler (``threads-native``, ``solo high``), then by variant; a case without
            figures is missing.

    """

    tenant: str
    variants: list[str]
    rows: dict[str, dict[str, WhichFigure]]


def trends(found: WhichFile) -> list[Trend]:
    """Return the trends; none without a P99, a second variant, or less urgent tenants."""
    measured = [
        (case.variant, case)
        for case in found.cases
        if case.status == "ok" and case.variant is not None
    ]
    variants = list(dict.fromkeys(variant for variant, _ in measured))
    less_urgent = {name for choice in found.choices for name in choice.less_urgent}
    names = dict.fromkeys(tenant.name for _, case in measured for tenant in case.tenants)
    if len(variants) < 2 or not less_urgent:
        return []
    found_of = {name: _rows(name, measured) for name in names if name not in less_urgent}
    return [
        Trend(name, variants, rows)
        for name, rows in found_of.items()
        if {variant for row in rows.values() for variant in row} == set(variants)
        and any(p99.value is not None for row in rows.values() for p99 in row.values())
    ]


def _rows(name: str, measured: list[tuple[str, WhichCase]]) -> dict[str, dict[str, WhichFigure]]:
    rows: dict[str, dict[str, WhichFigure]] = {}
    for variant, case in measured:
        for tenant in case.tenants:
            if tenant.name == name:
                row = rows.setdefault(case.id.removeprefix(f"{variant}-"), {})
                row[variant] = tenant.p99_ms
    return rows
