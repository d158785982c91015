"""Modes against goals and the Pareto front, of the records that are stored with the package."""

from __future__ import annotations

from pathlib import Path

from pytest_hwqueue.reports.page.cells import find_records
from pytest_hwqueue.reports.page.render import page_of, render_page
from pytest_hwqueue.reports.which.words import answers
from tests.reports.page.test_page import Parsed

STORED = Path(__file__).parents[3] / "baselines" / "nvidia-h200" / "co-location"


def test_the_answer_comes_first_and_goals_and_the_front_have_the_tables_figures() -> None:
    found = find_records([STORED / "fixed_priority"])
    page = page_of(found, Path("report.html"))
    assert page.verdict.sentence == "All goals were met under xsched:level=1,threshold=1."
    assert page.verdict.level == "good"
    (stored,) = found.tables
    (view,) = page.tables
    assert view.answers[-len(answers(stored.record)) :] == answers(stored.record)
    rows = {details.row.key: details.row for details in page.details}
    for case, shown in zip(stored.record.cases, view.cases, strict=True):
        for goal in case.goals:
            assert goal.value is not None
            assert shown.goals[goal.goal].verdict == goal.verdict
            assert shown.goals[goal.goal].text.startswith(f"{goal.value:.2f}")
        for tenant in shown.tenants:
            assert rows[tenant.key].cell_id.split("[")[0].endswith(f".{tenant.name}")
    # The front is of modes that no other beats.
    (pareto,) = view.paretos
    assert pareto.chart is not None
    cases = {case.id: case for case in stored.record.cases}
    points = pareto.chart["data"]["values"]
    measured = {point["case"]: (point["p99"], point["loss"]) for point in points}
    for point in points:
        case = cases[point["case"]]
        loss = case.tenant("background").throughput_loss
        p99, lost = measured[point["case"]]
        assert p99 == case.tenant("foreground").p99_ms.value
        assert lost == (0 if loss is None else 100 * (loss.value or 0.0))
        others = measured.values()
        beaten = any(a <= p99 and b <= lost and (a, b) != (p99, lost) for a, b in others)
        assert point["front"] is not beaten


def test_a_mode_without_a_p99_is_left_out_with_the_reason() -> None:
    page = page_of(find_records([STORED / "standard_load"]), Path("report.html"))
    (pareto,) = page.tables[0].paretos
    assert pareto.chart is None
    assert "needs at least 368 requests, has 120" in pareto.left_out["native"]
    assert "No mode has both figures." in Parsed(render_page(page)).text
