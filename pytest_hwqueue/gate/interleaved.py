"""Old and new code interleaved in one session: the comparison that session effects cannot fool."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Literal

from pytest_hwqueue.gate.cell_gate import CellGate, can_be_convicted
from pytest_hwqueue.gate.conclude import conclude
from pytest_hwqueue.gate.multiplicity import rejected
from pytest_hwqueue.gate.quantity import P99, Quantity
from pytest_hwqueue.gate.runs import ProcessRun
from pytest_hwqueue.gate.settings import GateSettings
from pytest_hwqueue.gate.verdict import Verdict


def interleaved_order(pairs: int) -> list[Literal["old", "new"]]:
    """Return the order in which old and new are run: old new, new old, old new, ...

    A drift that is steady over four runs falls on both sides alike (ABBA).

    Raises:
        ValueError: if ``pairs`` is below 1.
    """
    if pairs < 1:
        raise ValueError(f"pairs must be 1 or more, is {pairs}")
    order: list[Literal["old", "new"]] = []
    for pair in range(pairs):
        order += ["old", "new"] if pair % 2 == 0 else ["new", "old"]
    return order


def judge_interleaved(
    sides: Mapping[str, tuple[Sequence[ProcessRun], Sequence[ProcessRun]]],
    settings: GateSettings,
    cells: int | None = None,
    quantities: Mapping[str, Quantity] | None = None,
    sign_flips: bool = False,
) -> dict[str, Verdict]:
    """Judge cells by the old and new runs of one session, at one look.

    The baseline is this session's old runs only, no session term is needed, and the whole rate
    is spent at this look.

    Args:
        sides: old and new runs by cell, each side in the order measured.
        settings: of the gate; ``pairs`` new runs are judged.
        cells: among how many the rate is divided, where cells were picked from a greater suite
            because they looked worse; those of ``sides`` if not given.
        quantities: what each cell's values are; P99 where it says nothing.
        sign_flips: swap old and new within pairs instead of relabelling all runs. It keeps the
            rate under a strong drift, and needs more pairs (14 for 100 cells).

    Raises:
        ValueError: if a cell's runs come from several sessions; with ``sign_flips``, if the
            pairs are incomplete or too few to convict; if ``cells`` is below the cells given.
    """
    quantity_of = {key: (quantities or {}).get(key, P99) for key in sides}
    family = {key for key, (old, _) in sides.items() if can_be_convicted(old, quantity_of[key])}
    among = max(1, len(family)) if cells is None else cells
    once = replace(
        settings, first_runs=settings.pairs, looks=(settings.pairs,), weights=(1.0,), tau=0.0
    )
    judged = {}
    for key, (old, new) in sorted(sides.items()):
        sessions = {run.session for run in (*old, *new)}
        if len(sessions) > 1:
            raise ValueError(f"interleaved runs of {key} come from {len(sessions)} sessions")
        if sign_flips:
            _require_pairs(key, len(old), len(new), once, among)
        cell = CellGate(old, quantity_of[key], once, among, paired=sign_flips)
        for run in new:
            cell.add(run)
        judged[key] = cell
    found = rejected({key: judged[key].p for key in family}, settings.rate, among)
    return {key: conclude(cell, key in found) for key, cell in judged.items()}


def _require_pairs(key: str, old: int, new: int, settings: GateSettings, cells: int) -> None:
    if not old == new == settings.pairs:
        raise ValueError(
            f"sign flips of {key} need {settings.pairs} pairs, has {old} old and {new} new runs"
        )
    needed = next(p for p in range(1, 64) if 2.0**-p <= settings.rate / cells)
    if settings.pairs < needed:
        raise ValueError(
            f"sign flips need at least {needed} pairs to convict one of {cells} cells, "
            f"GateSettings.pairs is {settings.pairs}"
        )
