"""The P99 of the urgent tenants from variant to variant of a scenario, under each scheduler."""

from __future__ import annotations

from dataclasses import dataclass

from pytest_hwqueue.which.file import WhichCase, WhichFigure, WhichFile


@dataclass(frozen=True)
class Trend:
    """A tenant's P99 over variants.

    Attributes:
        tenant: the most urgent of each variant.
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
    less = {choice.variant: choice.less_urgent for choice in found.choices}
    if len(variants) < 2 or not all(less.get(variant) for variant in variants):
        return []
    # A variant whose most urgent tenants are others has no place in the row.
    urgent = [
        {tenant.name: None for each, case in measured if each == variant for tenant in case.tenants
         if tenant.name not in less[variant]}
        for variant in variants
    ]  # fmt: skip
    shared = [name for name in urgent[0] if all(name in names for names in urgent)]
    rows = {name: _rows(name, measured) for name in shared}
    return [Trend(name, variants, each) for name, each in rows.items() if _any_value(each)]


def _rows(name: str, measured: list[tuple[str, WhichCase]]) -> dict[str, dict[str, WhichFigure]]:
    rows: dict[str, dict[str, WhichFigure]] = {}
    for variant, case in measured:
        for tenant in case.tenants:
            if tenant.name == name:
                row = rows.setdefault(case.id.removeprefix(f"{variant}-"), {})
                row[variant] = tenant.p99_ms
    return rows


def _any_value(rows: dict[str, dict[str, WhichFigure]]) -> bool:
    return any(p99.value is not None for row in rows.values() for p99 in row.values())
