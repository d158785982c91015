"""Reports in a real browser: sorted, filtered, opened, zoomed, and compared with the records."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from pytest_hwqueue.answers.page.cells import find_records
from pytest_hwqueue.answers.page.render import page_of, write_page
from pytest_hwqueue.data.document.document import Chart
from pytest_hwqueue.data.metrics.timeline import Kernel, Timeline
from pytest_hwqueue.data.records.cell import RunRecord, write_record
from pytest_hwqueue.data.records.timelines import TimelineData, write_kept
from tests.answers.conftest import make
from tests.browser.conftest import Open

STORED = Path(__file__).parents[2] / "baselines" / "nvidia-h200"
HOSTILE = "<img src=x onerror=alert(1)> & <b>gemm</b>"
SHORT = 100
# The only cell with a timeline.
TRACED = "tiny_kernel_stress[cuda-s1-native-graph]"

WriteReport = Callable[[Path], Path]


@pytest.fixture(scope="module")
def records() -> list[RunRecord]:
    """Cells with different figures; one is refused its P99, one failed."""
    return [
        make(streams=1, median_ns=400_000, seed=1),
        make(streams=8, median_ns=2_000_000, seed=2),
        make(streams=16, median_ns=900_000, seed=3, n=SHORT),
        make("large_gemm_only", status="failed", reason="out of memory"),
        *(make("hetero_kernels", run=run, seed=run, tags={"small": 5e6}) for run in (1, 2, 3)),
    ]


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory, records: list[RunRecord]) -> Path:
    """Return a report of a session, with a timeline of 3000 kernels."""
    folder = tmp_path_factory.mktemp("report") / "session"
    folder.mkdir()
    kept = TimelineData()
    kept.add("work on all streams", _timeline(3000))
    file = write_kept(folder, "kept", kept)
    for index, record in enumerate(records):
        update = {"timelines": file} if index == 0 else {}
        write_record(folder, record.model_copy(update=update))
    return _written(folder)


def _timeline(kernels: int) -> Timeline:
    found = (
        Kernel(n % 4, n, HOSTILE if n % 2 else "add", None, 0, 10_000 * n + 500, 10_000 * n + 9_500)
        for n in range(kernels)
    )
    return Timeline(tuple(found), 4, None)


def _written(folder: Path) -> Path:
    file = folder.parent / f"{folder.name}.html"
    write_page(file, page_of(find_records([folder]), file))
    return file


def test_rows_sort_by_number_and_refused_ones_come_last(
    open_report: Open, report: Path, records: list[RunRecord]
) -> None:
    by_id = {record.cell_id: record for record in records}
    with open_report(report) as opened:
        page = opened.page
        for least_last in (True, False):
            page.get_by_role("button", name="P99").click()
            ids = page.locator("#table tbody th a").all_text_contents()
            given = [by_id[each].metrics.latency for each in ids]
            found = [latency.p99.value for latency in given if latency is not None]
            values = [value for value in found if value is not None]
            assert len(values) == 3
            assert values == sorted(values, reverse=least_last)
            assert [latency is None or latency.p99.value is None for latency in given] == [
                False, False, False, True, True,
            ]  # fmt: skip
        head = page.locator("thead th", has=page.get_by_role("button", name="P99"))
        assert head.get_attribute("aria-sort") == "ascending"


def test_rows_are_filtered_by_words_and_by_state(open_report: Open, report: Path) -> None:
    with open_report(report) as opened:
        page = opened.page
        shown = page.locator("#table tbody tr:visible")
        page.get_by_label("Filter by name").fill("tiny s16")
        assert shown.count() == 1
        assert page.locator("#count").text_content() == "1 of 5 cells"
        page.get_by_label("Filter by name").fill("")
        page.get_by_role("button", name="failed").click()
        assert shown.count() == 4
        assert "out of memory" not in "".join(shown.all_text_contents())


def test_a_cells_charts_have_the_records_samples(
    open_report: Open, report: Path, records: list[RunRecord]
) -> None:
    with open_report(report) as opened:
        opened.page.get_by_role("link", name="tiny_kernel_stress[cuda-s8").click()
        latency = records[1].metrics.latency
        assert latency is not None
        shown = opened.page.locator(".tiles div", has_text="P99").first.text_content()
        assert shown is not None
        number = re.search(r"P99\s*([\d.]+) ms", shown)
        assert number is not None
        assert float(number[1]) == pytest.approx(latency.p99, rel=0.005)
        drawn = opened.drawn("[data-chart='Samples in order']", "run")
        order = {each["x"]: each["y"] for each in drawn}
        samples = dict(enumerate(ns / 1e6 for ns in records[1].judged_ns()))
        assert order == pytest.approx(samples)
        survival = opened.drawn("[data-chart=Distribution]", "curve")
        assert max(each["x"] for each in survival) == pytest.approx(latency.max)
        assert min(each["y"] for each in survival) == pytest.approx(1 / latency.n)


def test_runs_are_thin_and_pooled_is_thick(
    open_report: Open, report: Path, records: list[RunRecord]
) -> None:
    with open_report(report) as opened:
        opened.page.get_by_role("link", name="hetero_kernels").click()
        drawn = opened.drawn("[data-chart=Distribution]", "curve")
        widths = {each["curve"]: each["width"] for each in drawn}
        assert widths == {"run 1": 1, "run 2": 1, "run 3": 1, "all runs pooled": 3.5}
        slowest = max(ns for record in records[4:] for ns in record.judged_ns())
        assert max(each["x"] for each in drawn) == pytest.approx(slowest / 1e6)


def test_the_timeline_has_every_kernel_and_zooms(open_report: Open, report: Path) -> None:
    timeline = _timeline(3000)
    with open_report(report) as opened:
        page = opened.page
        page.get_by_role("link", name=TRACED).click()
        bars = opened.drawn(".timeline .plot", "kernel")
        starts = [kernel.start_ns - 500 for kernel in timeline.kernels]
        assert sorted(round(bar["start"] * 1e6) for bar in bars) == starts
        assert {bar["kernel"] for bar in bars} == {HOSTILE, "add"}
        page.locator("[data-act=all]").click()
        where = page.locator(".where")
        assert where.text_content() == "30 ms from 0 ms"
        for _ in range(6):
            page.locator("[data-act=in]").click()
        assert where.text_content() == "0.4687 ms from 14.76 ms"
        # Now a kernel is wide enough to be pointed at.
        tooltip = page.locator("#vg-tooltip-element.visible")
        area = page.locator(".timeline svg.marks")
        area.scroll_into_view_if_needed()
        box = area.bounding_box()
        assert box is not None
        told = ""
        for x in range(100, 400, 4):
            page.mouse.move(box["x"] + x, box["y"] + 47)
            if tooltip.count() and HOSTILE in (told := tooltip.inner_text()):
                break
        assert all(word in told for word in (HOSTILE, "stream", "ready", "start", "end"))
        assert page.locator(".legend li", has_text=HOSTILE).count() == 1


def test_a_drag_zooms_too(open_report: Open, report: Path) -> None:
    with open_report(report) as opened:
        page = opened.page
        page.get_by_role("link", name=TRACED).click()
        opened.drawn(".timeline .plot")
        before = page.locator(".where").text_content()
        area = page.locator(".timeline svg.marks")
        area.scroll_into_view_if_needed()
        box = area.bounding_box()
        assert box is not None
        page.mouse.move(box["x"] + 0.2 * box["width"], box["y"] + 80)
        page.mouse.down()
        page.mouse.move(box["x"] + 0.4 * box["width"], box["y"] + 80, steps=5)
        page.mouse.up()
        page.wait_for_function(
            "before => document.querySelector('.where').textContent !== before", arg=before
        )


def test_the_keyboard_opens_and_leaves_a_cell(open_report: Open, report: Path) -> None:
    with open_report(report) as opened:
        page = opened.page
        link = page.get_by_role("link", name="tiny_kernel_stress[cuda-s8")
        link.focus()
        page.keyboard.press("Enter")
        page.wait_for_selector("#details article")
        assert page.evaluate("document.activeElement.tagName") == "H1"
        assert not page.locator("#table").is_visible()
        page.keyboard.press("Escape")
        page.wait_for_selector("#table", state="visible")
        assert page.evaluate("document.activeElement.textContent").startswith("tiny_kernel_stress")


def test_light_and_dark_follow_the_system_until_chosen(open_report: Open, report: Path) -> None:
    ground = "getComputedStyle(document.body).backgroundColor"
    with open_report(report) as light, open_report(report, scheme="dark") as dark:
        colours = light.page.evaluate(ground), dark.page.evaluate(ground)
        assert colours[0] != colours[1]
        dark.page.get_by_role("button", name="Switch between light and dark").click()
        assert dark.page.evaluate(ground) == colours[0]


# 320 pixels are what a window of 1280 has at 400 %.
@pytest.mark.parametrize("fragment", ["", "#cell-0", "#cell-4"])
@pytest.mark.parametrize("width", [320, 390, 1280, 2560])
def test_nothing_scrolls_sideways(
    open_report: Open, report: Path, width: int, fragment: str
) -> None:
    with open_report(report, fragment, width=width) as opened:
        if fragment:
            opened.drawn("[data-chart='Samples in order']")
        assert opened.page.evaluate("document.documentElement.scrollWidth") <= width


@pytest.mark.parametrize("kind", ["co-location/fixed_priority", "co-location/partition", "noise"])
def test_stored_records_open(open_report: Open, tmp_path: Path, kind: str) -> None:
    file = tmp_path / "report.html"
    page = page_of(find_records([STORED / kind]), file)
    write_page(file, page)
    with open_report(file) as opened:
        for answer in page.answers:
            charts = [part for part in answer.parts if isinstance(part, Chart)]
            # Of tenants that are alike none is urgent, and there is no front.
            assert len(charts) == ("priority" in kind)
            if not charts:
                continue
            (front,) = charts
            assert front.spec is not None
            shown = {each["case"]: each["p99"] for each in opened.drawn(".answer .plot", "case")}
            points = front.spec["data"]["values"]
            assert shown == {point["case"]: point["p99"] for point in points}
        opened.page.locator("#table tbody th a").last.click()
        opened.drawn("[data-chart=Distribution]")


def test_a_thousand_cells_draw_nothing_until_one_is_opened(
    open_report: Open, tmp_path: Path, records: list[RunRecord]
) -> None:
    folder = tmp_path / "session"
    for number in range(1000):
        record = records[number % 2]
        cell = record.cell.model_copy(update={"variant": f"n={number}"})
        write_record(folder, record.model_copy(update={"cell": cell, "cell_id": cell.id}))
    file = _written(folder)
    with open_report(file) as opened:
        page = opened.page
        assert page.locator("#count").text_content() == "1000 cells"
        # What would take long waits for its reader: charts, and every cell's details.
        assert page.evaluate("window.vegaEmbed === undefined")
        assert page.evaluate("document.querySelectorAll('#details *, svg.marks').length") == 0
        page.get_by_role("button", name="P99").click()
        page.get_by_label("Filter by name").fill("n=999")
        assert page.locator("#table tbody tr:visible").count() == 1
