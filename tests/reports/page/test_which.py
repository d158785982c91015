"""Modes against goals and the Pareto front, of the records that are stored with the package."""

from __future__ import annotations

from pathlib import Path

import pytest

from pytest_hwqueue.reports.page.cells import find_records
from pytest_hwqueue.reports.page.render import Page, page_of, render_page
from pytest_hwqueue.reports.which.words import answers
from tests.reports.page.test_page import Parsed

STORED = Path(__file__).parents[3] / "baselines" / "nvidia-h200" / "co-location"


@pytest.fixture(scope="module")
def page() -> Page:
    return page_of(find_records([STORED / "fixed_priority"]), Path("report.html"))


def test_the_answer_comes_first(page: Page) -> None:
    assert page.verdict.sentence == "All goals were met under xsched:level=1,threshold=1."
    assert page.verdict.level == "good"
    (stored,) = find_records([STORED / "fixed_priority"]).tables
    (view,) = page.tables
    assert view.answers[-len(answers(stored.record)) :] == answers(stored.record)


def test_each_goal_has_the_tables_figure(page: Page) -> None:
    (stored,) = find_records([STORED / "fixed_priority"]).tables
    (view,) = page.tables
    for case, shown in zip(stored.record.cases, view.cases, strict=True):
        assert [goal.verdict for goal in case.goals] == [
            shown.goals[goal.goal].verdict for goal in case.goals
        ]
        for goal in case.goals:
            assert goal.value is not None
            assert shown.goals[goal.goal].text.startswith(f"{goal.value:.2f}")


def test_the_front_is_of_modes_that_no_other_beats(page: Page) -> None:
    (pareto,) = page.tables[0].paretos
    stored = find_records([STORED / "fixed_priority"]).tables[0].record
    cases = {case.id: case for case in stored.cases}
    assert pareto.chart is not None
    points = pareto.chart["data"]["values"]
    for point in points:
        case = cases[point["case"]]
        assert point["p99"] == case.tenant("foreground").p99_ms.value
        loss = case.tenant("background").throughput_loss
        assert point["loss"] == (0 if loss is None else 100 * (loss.value or 0.0))
        beaten = any(
            other["p99"] <= point["p99"]
            and other["loss"] <= point["loss"]
            and (other["p99"], other["loss"]) != (point["p99"], point["loss"])
            for other in points
        )
        assert point["front"] is not beaten


def test_a_mode_without_a_p99_is_left_out_with_the_reason() -> None:
    page = page_of(find_records([STORED / "standard_load"]), Path("report.html"))
    (pareto,) = page.tables[0].paretos
    assert pareto.chart is None
    assert "needs at least 368 requests, has 120" in pareto.left_out["native"]
    assert "No mode has both figures." in Parsed(render_page(page)).text


def test_tenants_lead_to_their_details(page: Page) -> None:
    rows = {details.row.key: details.row for details in page.details}
    for case in page.tables[0].cases:
        for tenant in case.tenants:
            assert rows[tenant.key].cell_id.split("[")[0].endswith(f".{tenant.name}")
