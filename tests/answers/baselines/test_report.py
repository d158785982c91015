"""What is printed of stored baselines: nothing is lost in a narrow terminal, nothing is markup."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from pytest_hwqueue.answers.baselines.report import (
    calibration_document,
    cells_document,
    move_document,
    moves_document,
    render_differences,
    runs_document,
    too_few_runs,
)
from pytest_hwqueue.data.document.document import Row, Table
from pytest_hwqueue.data.errors import BadInput
from pytest_hwqueue.data.metrics.numbers import REFUSED
from pytest_hwqueue.judge.baselines.folders import Move, MovedCell
from pytest_hwqueue.judge.baselines.runs import CellBaseline, FieldDifference, cell_of_record
from pytest_hwqueue.judge.calibrate import calibrate
from pytest_hwqueue.judge.runs import ProcessRun
from pytest_hwqueue.judge.verdict import GateSettings
from tests.answers.conftest import printed
from tests.conftest import make_record
from tests.stored_texts import assert_as_stored

SETTINGS = GateSettings()


def stored(*cells: tuple[str, Sequence[float]]) -> dict[str, CellBaseline]:
    """Cells whose runs' P99 are so many times 10 ms."""
    found = {}
    for name, factors in cells:
        plain = cell_of_record(make_record(name, n=1000), "s")
        runs = tuple(
            replace(plain.runs[0], p99_ns=round(1e7 * factor), session=str(number))
            for number, factor in enumerate(factors)
        )
        found[plain.header.cell.id] = CellBaseline(plain.header, runs)
    return found


def rows_of(cells: dict[str, CellBaseline]) -> Sequence[Row]:
    (table,) = cells_document("d/main", cells, ["p99"], SETTINGS).parts[1:2]
    assert isinstance(table, Table)
    return table.rows


def test_what_is_printed_is_as_stored_and_whole_in_a_narrow_terminal() -> None:
    long, markup = "workload_with_a_rather_long_name", "[bold]x[/bold]"
    cells = stored((long, [1.0, 1.01, 0.99, 1.02, 0.98, 1.0]), (markup, [1.0, 1.01]))
    now = stored((long, [1.1] * 6), (markup, [0.5] * 2))
    names = list(cells)
    when = ("2026-01-01T08:00:00", "a" * 40, "[red]why", 1.1, 1.2)
    move = Move(*when, [names[1]], {names[0]: MovedCell(1.1, 1.2), names[1]: MovedCell(None, None)})
    generator = np.random.default_rng(3)
    runs = [
        ProcessRun(math.exp(of_session + generator.normal(0, 0.03)), 1000, str(session))
        for session, of_session in enumerate(generator.normal(0, 0.02, 6))
        for _ in range(4)
    ]
    found = calibrate({names[0]: runs, names[1]: runs[:4]}, SETTINGS)
    documents = {
        "cells": cells_document("d/main", cells, ["p99"], SETTINGS),
        "move": move_document("d/main", move),
        "calibration": calibration_document(found, SETTINGS, ["c: of no use"]),
        "runs": runs_document("d/main", cells[names[1]]),
        "history": moves_document("d/main", [move], cells, now),
        "no history": moves_document("d/main", [], cells, now),
    }
    shown = []
    for name, document in documents.items():
        for width in (60, 120):
            text = printed(document, width)
            shown.append(f"===== {name}, {width} columns =====\n{text}")
            assert "…" not in text
            assert max(map(len, text.splitlines())) <= width
            if name in ("cells", "move") and width == 120:
                assert all(cell_id in text for cell_id in names)
    shown += [too_few_runs(each) for each in (cells.values(), [now[names[1]]] * 2)]
    driver = FieldDifference("driver_major", "environment", (570,), (None,))
    device = FieldDifference("device_name", "identity", ("A",), ("B",))
    # Equal differences of many cells are one line.
    shown.append(render_differences({"a": (device, driver), "b": (driver,)}))
    assert_as_stored(__file__, "baselines.txt", "\n".join(shown))
    assert too_few_runs(stored(("five", [1.0] * 5)).values()) == render_differences({}) == ""


def test_what_a_cell_can_find_is_what_its_noise_allows() -> None:
    z = np.random.default_rng(1).normal(size=10)
    z = (z - z.mean()) / z.std(ddof=1)
    cells = stored(*((f"sd{sd}", np.exp(sd * z).tolist()) for sd in (0.01, 0.1)))

    quiet, noisy = rows_of(cells)

    detected = [float(row.texts["detects"].strip("≥+ %")) for row in (quiet, noisy)]
    assert detected[0] < 20 < detected[1]
    assert quiet.below == []
    assert re.fullmatch(r"needs K = T = \d+ runs for \+20 %", "|".join(map(str, noisy.below)))
    assert noisy.texts["sd"] == "10.00 %"
    assert [str(row.figures["mean"][0]) for row in (quiet, noisy)] == ["10.0 ms", "10.0 ms"]


@pytest.mark.parametrize("factors", [[1.0], [1.0, 1.01]])
def test_few_runs_find_nothing_and_a_figure_that_no_cell_has_is_refused(
    factors: list[float],
) -> None:
    cells = stored(("a", factors))
    (row,) = rows_of(cells)
    assert row.texts["detects"] == str(REFUSED)
    assert "record 5" in row.below[-1]
    with pytest.raises(BadInput, match="no_ratio"):
        cells_document("d/main", cells, ["p99", "no_ratio"], SETTINGS)
