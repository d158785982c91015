"""What is printed of stored baselines: nothing is lost in a narrow terminal, nothing is markup."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from io import StringIO

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from pytest_hwqueue.baselines.folders import Move, MovedCell
from pytest_hwqueue.baselines.runs import CellBaseline, FieldDifference, cell_of_record
from pytest_hwqueue.gate.calibrate import calibrate
from pytest_hwqueue.gate.runs import ProcessRun
from pytest_hwqueue.gate.verdict import GateSettings
from pytest_hwqueue.reports.baselines import (
    change,
    describe_cells,
    print_cells,
    print_history,
    print_move,
    print_runs,
    share,
    too_few_runs,
)
from pytest_hwqueue.reports.calibration import print_calibration, render_differences
from pytest_hwqueue.verdicts.judging import UnknownFigure
from tests.conftest import make_record

SETTINGS = GateSettings()
LONG = "workload_with_a_rather_long_name"


def stored(name: str, factors: Sequence[float], sessions: Sequence[str] = ()) -> CellBaseline:
    """A cell whose runs' P99 are ``factors`` times 10 ms."""
    plain = cell_of_record(make_record(name, n=1000), "s")
    runs = tuple(
        replace(
            plain.runs[0], p99_ns=round(1e7 * factor),
            session=sessions[number] if sessions else str(number),
        )
        for number, factor in enumerate(factors)
    )  # fmt: skip
    return CellBaseline(plain.header, runs)


def by_id(*cells: CellBaseline) -> dict[str, CellBaseline]:
    return {cell.header.cell.id: cell for cell in cells}


def printed(draw: Callable[[Console], None], width: int = 200) -> str:
    file = StringIO()
    draw(Console(file=file, width=width, highlight=False))
    return file.getvalue()


def joined(text: str) -> str:
    """All that stands in a table's columns, without the lines' breaks: one text a column."""
    lines = [line.strip("│┃").split("│") for line in text.splitlines() if line[:1] in "│┃"]
    return "|".join(
        "".join(line[column].strip() for line in lines if len(line) > column)
        for column in range(max(map(len, lines)))
    )


@pytest.mark.parametrize("width", [60, 80, 200])
def test_names_and_numbers_stay_whole_in_a_narrow_terminal(width: int) -> None:
    cell = stored(LONG, [1.0, 1.01, 0.99, 1.02, 0.98, 1.0])
    cell_id = cell.header.cell.id
    cells = {cell_id: cell}
    rows = describe_cells(cells, ["p99"], SETTINGS)
    move = Move(
        "2026-01-01T08:00:00", "a" * 40, "why", 1.1, 1.2, [], {cell_id: MovedCell(1.1, 1.2)}
    )
    found = calibrate({cell_id: [ProcessRun(1.0, 1000, "a"), ProcessRun(1.1, 1000, "a")]}, SETTINGS)

    for text in (
        printed(lambda console: print_cells("d/main", rows, SETTINGS, console), width),
        printed(lambda console: print_move("d/main", move, console), width),
        printed(lambda console: print_calibration(found, SETTINGS, [], console), width),
    ):
        assert cell_id in joined(text)
        assert "…" not in text
        assert max(map(len, text.splitlines())) <= width


def test_names_are_no_markup() -> None:
    cell = stored("[bold]x[/bold]", [1.0] * 5)
    cell_id = cell.header.cell.id
    rows = describe_cells({cell_id: cell}, ["p99"], SETTINGS)
    move = Move("2026", None, "[red]why", None, None, ["[x]"], {cell_id: MovedCell(None, None)})
    cells = {cell_id: cell}

    assert cell_id in printed(lambda c: print_cells("d/main", rows, SETTINGS, c))
    assert cell_id in printed(lambda c: print_runs("d/main", cell, c))
    assert cell_id in printed(lambda c: print_move("d/main", move, c))
    assert "[red]why" in printed(lambda c: print_history("d/main", [move], cells, cells, c))


def test_what_a_cell_can_find_is_what_its_noise_allows() -> None:
    z = np.random.default_rng(1).normal(size=10)
    z = (z - z.mean()) / z.std(ddof=1)
    cells = by_id(*(stored(f"sd{sd}", np.exp(sd * z).tolist()) for sd in (0.01, 0.1)))

    quiet, noisy = describe_cells(cells, ["p99"], SETTINGS)

    assert quiet.stored.detectable is not None
    assert noisy.stored.detectable is not None
    assert quiet.stored.detectable < 0.2 < noisy.stored.detectable
    assert quiet.notes == ()
    (note,) = noisy.notes
    assert re.fullmatch(r"needs K = T = \d+ runs for \+20 %", note)
    assert noisy.stored.sd == pytest.approx(0.1, rel=1e-4)
    assert quiet.mean == pytest.approx(1e7)


def test_a_figure_that_no_cell_has_is_refused() -> None:
    with pytest.raises(UnknownFigure, match="no_ratio"):
        describe_cells(by_id(stored("a", [1.0])), ["p99", "no_ratio"], SETTINGS)


@pytest.mark.parametrize("factors", [[1.0], [1.0, 1.01]])
def test_few_runs_say_how_many_are_needed(factors: list[float]) -> None:
    (row,) = describe_cells(by_id(stored("a", factors)), ["p99"], SETTINGS)

    assert row.stored.detectable is None
    assert "record 5" in row.notes[-1]


def test_the_farthest_cell_from_the_anchor_is_named_in_either_direction() -> None:
    anchor = by_id(stored("a", [1.0] * 3), stored("b", [1.0] * 3))
    now = by_id(stored("a", [1.1] * 3), stored("b", [0.5] * 3))

    text = printed(lambda console: print_history("d/main", [], anchor, now, console))

    assert "d/main was never moved." in text
    assert f"farthest: {list(now)[1]} -50.0 %" in text
    assert "-20.0 % against the anchor (median of 2 cells)" in text


@pytest.mark.parametrize(("counts", "says"), [
    ((5, 10), ""),
    ((10, 4), "1 cell with fewer than 5 runs"),
    ((1, 2), "2 cells with fewer than 5 runs"),
])  # fmt: skip
def test_too_few_runs_are_counted(counts: tuple[int, int], says: str) -> None:
    text = too_few_runs([stored("a", [1.0] * count) for count in counts])

    assert text.startswith(says)
    assert bool(text) == bool(says)


@given(st.floats(1e-3, 1e3))
def test_a_change_has_a_sign_and_is_that_of_the_ratio(ratio: float) -> None:
    text = change(ratio)

    assert text[0] in "+-"
    assert float(text.removesuffix(" %")) == pytest.approx(100 * (ratio - 1), abs=0.051)


def test_what_is_not_there_is_told_by_a_sign() -> None:
    assert change(None) == share(None) == "—"


def test_calibration_recommends_the_rounded_tau_and_tells_its_source() -> None:
    generator = np.random.default_rng(3)
    runs = [
        ProcessRun(math.exp(of_session + generator.normal(0, 0.03)), 1000, str(session))
        for session, of_session in enumerate(generator.normal(0, 0.02, 6))
        for _ in range(4)
    ]
    found = calibrate({"a": runs, "b": runs[:4]}, SETTINGS)

    text = printed(lambda c: print_calibration(found, SETTINGS, ["c: of no use"], c))

    assert found.tau is not None
    value = f"{100 * found.tau:.3g}%"
    assert f"Recommended tau: {value} (--tau {value}, or hwq_tau = {value}" in text
    assert "from 1 cell." in text
    assert "left out: c: of no use" in text
    assert "hwq run P0" not in text


def test_equal_differences_of_many_cells_are_one_line() -> None:
    driver = FieldDifference("driver_major", "environment", (570,), (None,))
    device = FieldDifference("device_name", "identity", ("A",), ("B",))

    text = render_differences({"a": (device, driver), "b": (driver,)})

    assert text.splitlines()[1:] == [
        "  device_name: A → B (a; another measurement, never compared)",
        "  driver_major: 570 → not known (2 cells; compared only with --allow-env)",
    ]
    assert render_differences({}) == ""
