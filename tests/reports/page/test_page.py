"""The report says what the records hold, in one file: nothing else, and nothing unescaped."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from pytest_hwqueue.devices.fingerprint import Fingerprint
from pytest_hwqueue.harness.summary import scaling_of
from pytest_hwqueue.metrics.numbers import time_unit
from pytest_hwqueue.records.cell import RunRecord, Samples, SchedulerProof, write_record
from pytest_hwqueue.records.tenants import record_path, write_colocation
from pytest_hwqueue.reports.cell_rows import percentile
from pytest_hwqueue.reports.drawing import Spec
from pytest_hwqueue.reports.page import render as needed
from pytest_hwqueue.reports.page.cells import find_records, page_cells
from pytest_hwqueue.reports.page.render import Page, page_of, render_page
from pytest_hwqueue.reports.tables import saturation
from pytest_hwqueue.schedulers.native import Native
from pytest_hwqueue.schedulers.syntax import SchedulerPaths, parse_scheduler
from pytest_hwqueue.tenancy.colocation import colocate
from pytest_hwqueue.tenancy.spec import Colocation, TenantSpec
from pytest_hwqueue.verdicts.judging import Judgement
from tests.reports.conftest import make
from tests.reports.page.conftest import HOSTILE, folder_of, html, page_for, with_timeline
from tests.reports.test_noise_losses import rounds

MOST_BYTES = 1_000_000
VOID = {"meta", "link", "input", "br", "path"}


class Parsed(HTMLParser):
    """The elements of a page, its text outside of scripts, and what scripts hold by their ids."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.open: list[tuple[str, dict[str, str | None]]] = []
        self.scripts: list[tuple[dict[str, str | None], str]] = []
        self.words: list[str] = []
        self.links: list[str] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        self.links += [value for name in ("src", "href") if (value := given.get(name)) is not None]
        if tag == "script":
            self.scripts.append((given, ""))
        if tag not in VOID:
            self.open.append((tag, given))

    def handle_endtag(self, tag: str) -> None:
        assert self.open[-1][0] == tag, (self.open[-3:], tag)
        self.open.pop()

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert tag in VOID

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1][0] == "script":
            given, before = self.scripts[-1]
            self.scripts[-1] = (given, before + data)
        elif not self.open or self.open[-1][0] != "style":
            self.words.append(data)

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.words).split())

    @property
    def data(self) -> dict[str, Any]:
        found = (each for each in self.scripts if each[0].get("type") == "application/json")
        return {str(given["id"]): json.loads(text) for given, text in found}


def columns(chart: Spec, name: str) -> list[Any]:
    """Return a field of the rows that a chart consists of."""
    layers = (layer["data"]["values"] for layer in chart["layer"])
    return next([row[name] for row in rows] for rows in layers if name in rows[0])


def test_a_row_has_the_records_figures_to_the_digit(tmp_path: Path) -> None:
    record = make()
    page = page_for(tmp_path, record)
    (details,) = page.details
    latency = record.metrics.latency
    assert latency is not None
    assert latency.p99 is not None
    unit = time_unit((latency.p50 or 0) * 1e6, [latency.max * 1e6])
    shown = details.row.figures["p99"]
    assert f"{shown.text} {shown.interval}" == str(percentile(latency, "p99", unit))
    assert shown.value == latency.p99
    assert details.row.n == str(latency.n)
    assert details.row.throughput is not None
    assert details.row.throughput.value == record.metrics.throughput[0].value
    assert columns(details.charts["order"], "ns") == [record.latency_ns()]


def test_a_refused_figure_shows_the_reason_and_no_number(tmp_path: Path) -> None:
    record = make(n=100)
    text = html(tmp_path, record)
    assert record.metrics.latency is not None
    reason = record.metrics.latency.refused["p99"]
    parsed = Parsed(text)
    assert f"refused {reason}" in parsed.text
    assert not re.search(r"\bNaN\b|\bnull\b|\bNone\b|\bundefined\b", parsed.text)
    # Nor does a chart draw a line where there is no P99.
    assert "P50 " in str(parsed.data["cell-0-data"]["survival"])
    assert "P99 " not in str(parsed.data["cell-0-data"]["survival"])


def test_a_failed_cell_says_why(tmp_path: Path) -> None:
    failed = make(status="failed", stage="set-up", reason="out of memory: take less")
    parsed = Parsed(html(tmp_path, failed, make("other")))
    assert "1 of 2 cells came to no figures" in parsed.text
    assert "run 1 failed in stage set-up: out of memory: take less" in parsed.text


def test_simulated_is_written_where_a_simulated_figure_is(tmp_path: Path) -> None:
    measured = Parsed(html(tmp_path, make()))
    assert "simulated" not in measured.text.lower()
    model = Fingerprint(
        hard={"device_name": "simulated NVIDIA H200", "device_kind": "sim"}, soft={}
    )
    modelled = make("modelled", cell={"device": "sim:h200"}, fingerprint=model)
    text = html(tmp_path, modelled)
    both = Parsed(text)
    assert "Simulated. Figures marked so are a model's" in both.text
    drawn = [both.data[name] for name in ("cell-0-data", "cell-1-data")]
    for name in ("survival", "order"):
        assert sorted("SIMULATED" in str(charts[name]) for charts in drawn) == [False, True]
    # Its line in the table, and its details.
    assert text.count('<span class="chip sim">simulated</span>') == 1
    assert text.count('<span class="pill simulated">simulated</span>') == 1


def test_names_that_look_like_elements_stay_text(tmp_path: Path) -> None:
    closing = "</script><script>alert('data')</script><!--"
    proof = SchedulerProof(mode=closing, evidence=HOSTILE, device_priorities=[0])
    record = make(
        f"tests/test_mine.py::test_it[{HOSTILE}]", notes=[closing], command=f"pytest '{closing}'",
        scheduler_proof=proof, n=50, family=None, work={f"{HOSTILE} kernels": 4.0},
    )  # fmt: skip
    record = with_timeline(tmp_path / "session", record)
    plain = Parsed(html(tmp_path, make()))
    parsed = Parsed(html(tmp_path, record))
    # The same scripts as any report with two cells: no text became one of them.
    own = [(given, text) for given, text in parsed.scripts if not given.get("type")]
    assert own == [(given, text) for given, text in plain.scripts if not given.get("type")]
    assert not parsed.open
    assert HOSTILE in parsed.text
    assert closing in parsed.text
    drawn = [data for name, data in parsed.data.items() if data and "timelines" in data]
    names = [param["value"] for data in drawn for each in data["timelines"]
             for param in each["params"] if param["name"] == "names"]  # fmt: skip
    assert names == [[HOSTILE]]


def test_the_file_is_complete_and_small(session_records: list[RunRecord], tmp_path: Path) -> None:
    text = html(tmp_path, *session_records)
    parsed = Parsed(text)
    data = sum(len(body) for given, body in parsed.scripts if given.get("type"))
    packed = next(body for given, body in parsed.scripts if given.get("id") == "vega")
    assert len(text.encode()) - data + len(packed) < MOST_BYTES
    assert [link for link in parsed.links if not link.startswith("#")] == []
    assert "default-src 'none'" in text


def test_timelines_have_ready_start_and_end_of_each_kernel(tmp_path: Path) -> None:
    record = with_timeline(tmp_path / "session", make(), "gemm")
    (details,) = page_for(tmp_path, record).details
    (chart,) = details.charts["timelines"]
    (timeline,) = chart["data"]["values"]
    assert {"name": "streams", "value": ["stream 0", "stream 1"]} in chart["params"]
    assert timeline["start"] == [0, 1000, 2000, 3000]
    assert timeline["end"] == [900, 1900, 2900, 3900]
    # Enqueued 490 ns and 980 ns before the first two start; then behind the stream's one before.
    assert timeline["ready"] == [-500, -490, 900, 1900]
    assert chart["description"] == "work on all streams (4 kernels)"


def test_a_timeline_that_is_gone_says_so(tmp_path: Path) -> None:
    record = with_timeline(tmp_path / "session", make())
    folder = folder_of(tmp_path, record)
    assert record.timelines is not None
    (folder / record.timelines.file).unlink()
    (details,) = page_of(find_records([folder]), tmp_path / "report.html").details
    assert details.charts["timelines"] == []
    assert "cannot read" in details.timelines[0][1]


def test_what_was_run_again_explains_its_own_session_alone(tmp_path: Path) -> None:
    for name in ("traced", "not"):
        folder = tmp_path / name
        write_record(folder, make(name))
        write_record(folder, make())
        (folder / "session.json").write_text("{}")
    again = tmp_path / "traced" / "causes"
    write_record(again, with_timeline(again, make()))
    cells = page_cells(find_records([tmp_path]), [], {}, "")
    explained = [(cell.session, cell.shown.cell.name) for cell in cells if cell.timelines]
    assert explained == [("traced", "tiny_kernel_stress")]


def test_tenants_traced_in_one_session_explain_no_other(tmp_path: Path) -> None:
    tenants = (TenantSpec("a", workload="tiny_kernel_stress", parameters={"rounds": 2}),)
    plan = Colocation("mix", tenants, duration_s=0.1, warmup_s=0, device="sim:h200")
    native = Native(parse_scheduler("native"), SchedulerPaths())
    for session, folder, traced in (
        ("one", "scenarios", False), ("one", "scenarios/traced", True),
        ("two", "scenarios", False), ("which", ".", False), ("which", "traced", True),
    ):  # fmt: skip
        place = tmp_path / session / folder
        record = colocate(plan, native, lambda *_: None, place, traced=traced)
        write_colocation(record_path(place, record.id), record)
        if session != "which":
            (tmp_path / session / "session.json").write_text("{}")
    cells = page_cells(find_records([tmp_path]), [], {}, "")
    explained = {cell.session: cell.causes is not None for cell in cells}
    assert explained == {"one": True, "two": False, "which": True}


def test_what_was_compared_comes_first(
    judgement: Judgement, session_records: list[RunRecord], tmp_path: Path
) -> None:
    found = find_records([folder_of(tmp_path, *session_records)])
    page = page_of(found, tmp_path / "report.html", judgements=[judgement])
    assert page.verdict.level == "bad"
    assert page.verdict.sentence.startswith("Worse than nvidia-h200/main: 2 regressions")
    rows = {each.row.cell_id: each.row for each in page.details}
    worse = rows["tiny_kernel_stress[cuda-s8-native-graph]"]
    judged = next(each for each in judgement.verdicts if each.cell_id == worse.cell_id)
    assert worse.state == "regression"
    assert worse.change is not None
    assert judged.verdict.ratio is not None
    assert worse.change.text == f"{100 * (judged.verdict.ratio - 1):+.1f} %"
    assert page.states.index("regression") < page.states.index("pass")
    assert "missing (failed: out of memory): resnet" in " ".join(page.verdict.more)
    Parsed(render_page(page))


def test_runs_of_a_cell_share_a_row_and_are_pooled(tmp_path: Path) -> None:
    runs = [make(run=number, seed=number, n=400) for number in (1, 2, 3)]
    (details,) = page_for(tmp_path, *runs).details
    assert details.row.runs == "3"
    assert [" (shown)" in name for name in columns(details.charts["order"], "run")].count(True) == 1
    survival = details.charts["survival"]
    assert columns(survival, "legend") == ["each run (3)"] * 3 + ["all runs pooled"]
    assert columns(survival, "n")[-1] == 1200
    assert columns(survival, "ns")[-1][-1] == max(ns for run in runs for ns in run.latency_ns())
    assert columns(survival, "as_long")[-1][-1] == 1


def test_scaling_has_the_tables_rows(session_records: list[RunRecord], tmp_path: Path) -> None:
    page = page_for(tmp_path, *session_records)
    views = {each.row.cell_id: each.scaling for each in page.details if each.scaling is not None}
    assert len(views) == 4
    (view,) = {id(each): each for each in views.values()}.values()
    sweep = [record for record in session_records if record.cell_id in views]
    result = scaling_of(sweep)
    assert view.chart is not None
    assert columns(view.chart, "y") == [[point.throughput.value for point in result.points]]
    assert [row[0] for row in view.rows] == ["1", "8", "16", "32"]
    assert view.saturation == saturation(result)


def test_scaling_that_cannot_be_computed_says_why(tmp_path: Path) -> None:
    none = Samples(host_ns=[0] * 100, device_ns=[0] * 100, enqueue_ns=[], pace_ns=[])
    sweep = [make(streams=streams, samples=none) for streams in (1, 8)]
    with pytest.raises(ValueError, match=r".+") as refusal:
        scaling_of(sweep)
    parsed = Parsed(html(tmp_path, *sweep))
    assert f"Scaling cannot be told: {refusal.value}." in parsed.text
    assert "scaling" not in parsed.data["cell-0-data"]


def test_a_trace_is_linked_where_it_is_and_named_where_it_was(tmp_path: Path) -> None:
    (tmp_path / "profiles").mkdir()
    (tmp_path / "profiles" / "there.json").touch()
    notes = ["trace: profiles/there.json", "trace: profiles/gone.json"]
    (details,) = page_for(tmp_path, make(notes=notes)).details
    assert details.traces == [("profiles/there.json", True), ("profiles/gone.json", False)]


def test_missing_packages_are_named_with_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(needed, "find_spec", lambda name: None)
    assert needed.missing_packages() == (
        "the report needs jinja2 and vl-convert-python, which are not installed: "
        "pip install 'pytest-hwqueue[report]'"
    )
    with pytest.raises(ModuleNotFoundError, match=r"pytest-hwqueue\[report\]"):
        render_page(Page(None, [], False, [], []))  # type: ignore[arg-type]


def test_only_results_are_found(tmp_path: Path) -> None:
    folder = tmp_path / "session"
    write_record(folder, make())
    write_record(folder / "ranks" / "rank-0", make("part"))
    write_record(folder / "causes", make("traced"))
    (folder / "session.json").write_text('{"schema": "pytest-hwqueue/session/1"}')
    (folder / "broken.json").write_text("{")
    found = find_records([tmp_path])
    assert [stored.record.cell.name for stored in found.cells] == ["tiny_kernel_stress"]
    assert [stored.record.cell.name for stored in found.traced] == ["traced"]
    assert len(found.damaged) == 1
    assert "broken.json is damaged" in found.damaged[0]


def test_what_noise_cost_and_a_remedy_won_back_is_shown(tmp_path: Path) -> None:
    records = rounds(none=100_000, cpu=200_000, optimised=110_000)
    words = " ".join(Parsed(html(tmp_path, *records)).words)
    assert "Background load" in words
    assert "under cpu: lost 50.0 % [" in words
    assert "under cpu, pinning to 2,3 and nice -10: won back 40.9 % [" in words
