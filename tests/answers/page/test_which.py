"""Modes against goals and the Pareto front, of the records that are stored with the package."""

from __future__ import annotations

from pathlib import Path

import pytest

from pytest_hwqueue.answers.page.cells import find_records
from pytest_hwqueue.answers.page.render import page_of, render_page
from pytest_hwqueue.answers.which.file import WhichFile
from pytest_hwqueue.answers.which.words import headline
from pytest_hwqueue.data.document.document import Chart, Paragraph, Table
from tests.answers.page.test_page import Parsed

ROOT = Path(__file__).parents[3]
if (ROOT / "PKG-INFO").exists():
    pytest.skip("a source distribution has only the reference baselines", allow_module_level=True)
STORED = ROOT / "baselines" / "nvidia-h200" / "co-location"


def test_the_answer_comes_first_and_goals_and_the_front_have_the_tables_figures() -> None:
    found = find_records([STORED / "high_load-mps"])
    page = page_of(found, Path("report.html"))
    assert page.headline.sentence == "All goals were met under mps-partition:low=80%."
    assert page.headline.level == "good"
    (stored,) = found.results
    (document,) = page.answers
    table = stored.record
    assert isinstance(table, WhichFile)
    (choice,) = table.choices
    assert document.parts[1] == Paragraph(headline(table, choice), "bold")
    tables = [part for part in document.parts if isinstance(part, Table)]
    _, goals, tenants = (each.rows for each in tables)
    judged = {case.id: case.goals for case in table.cases if case.goals}
    assert [row.texts["case"] for row in goals] == list(judged)
    for row in goals:
        for goal in judged[row.texts["case"]]:
            assert row.texts[goal.goal].startswith(f"{goal.verdict} {goal.figure:.3g}")
    # Each tenant's name leads to its cell.
    cells = {details.cell.key: details.cell.shown.cell_id for details in page.details}
    for row in tenants:
        of_tenant = cells[row.links["tenant"]].split("[")[0]
        assert of_tenant.endswith(f".{row.texts['tenant']}")
    # The front is of modes that no other beats.
    (front,) = (part for part in document.parts if isinstance(part, Chart))
    assert front.spec is not None
    cases = {case.id: case for case in table.cases}
    points = front.spec["data"]["values"]
    measured = {point["case"]: (point["p99"], point["loss"]) for point in points}
    for point in points:
        case = cases[point["case"]]
        loss = case.tenant("low").throughput_loss
        p99, lost = measured[point["case"]]
        assert p99 == case.tenant("high").p99_ms.value
        assert lost == (0 if loss is None else 100 * (loss.value or 0.0))
        others = measured.values()
        beaten = any(a <= p99 and b <= lost and (a, b) != (p99, lost) for a, b in others)
        assert point["front"] is not beaten


def test_a_mode_without_a_p99_is_left_out_with_the_reason() -> None:
    page = page_of(find_records([STORED / "standard_load"]), Path("report.html"))
    (front,) = (part for part in page.answers[0].parts if isinstance(part, Chart))
    assert front.spec is None
    assert (
        "has 120 requests, worth 93 independent ones at least; 1000 suffice"
        in front.left_out["native"]
    )
    assert "No mode has both figures." in Parsed(render_page(page)).text
