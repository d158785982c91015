"""The report says what the records hold, in one file: nothing else, and nothing unescaped."""

from __future__ import annotations

import json
import re
import sys
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from pytest_hwqueue.answers.page.cells import find_records, own_judgements, page_cells
from pytest_hwqueue.answers.page.render import Page, page_of, render_page
from pytest_hwqueue.data.document import drawing as needed
from pytest_hwqueue.data.document.document import Chart, Paragraph, Table
from pytest_hwqueue.data.document.scaling import saturation
from pytest_hwqueue.data.figures.of_cell import scaling_of
from pytest_hwqueue.data.metrics.numbers import NO_INTERVAL, milliseconds, time_unit
from pytest_hwqueue.data.records.cell import RunRecord, Samples, write_record
from pytest_hwqueue.data.records.files import record_path
from pytest_hwqueue.data.records.fingerprint import Fingerprint
from pytest_hwqueue.data.records.plan import Colocation, Tenant
from pytest_hwqueue.data.records.proof import Proof
from pytest_hwqueue.data.records.stored import SessionFiles
from pytest_hwqueue.data.records.tenants import write_colocation
from pytest_hwqueue.engine.tenants.colocation import TenantSet
from pytest_hwqueue.judge.judging import Judgement
from pytest_hwqueue.parts.schedulers.native import Native
from pytest_hwqueue.parts.schedulers.syntax import SchedulerPaths, parse_scheduler
from tests.answers.conftest import make, paced
from tests.answers.page.conftest import HOSTILE, folder_of, html, page_for, with_timeline
from tests.answers.session.test_noise_losses import rounds
from tests.data.records.test_stored import INFO
from tests.stored_texts import assert_as_stored

MOST_BYTES = 1_000_000
VOID = {"meta", "link", "input", "br", "path"}
Attributes = dict[str, str | None]


class Parsed(HTMLParser):
    """The elements of a page, its text outside of scripts, and what scripts hold by their ids."""

    def __init__(self, page: str) -> None:
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []
        self.scripts: list[tuple[Attributes, str]] = []
        self.words: list[str] = []
        self.links: list[str] = []
        self.feed(page)
        self.close()
        self.text = " ".join(" ".join(self.words).split())
        data = [each for each in self.scripts if each[0].get("type") == "application/json"]
        self.data = [json.loads(text) for _, text in data]
        # What is run, rather than read.
        self.run = [each for each in self.scripts if not each[0].get("type")]

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.links += [value for name, value in attrs if name in ("src", "href") and value]
        if tag == "script":
            self.scripts.append((dict(attrs), ""))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert tag in VOID

    def handle_data(self, data: str) -> None:
        inside = self.open[-1] if self.open else ""
        if inside == "script":
            given, before = self.scripts[-1]
            self.scripts[-1] = (given, before + data)
        elif inside != "style":
            self.words.append(data)


def columns(chart: Chart, name: str) -> list[Any]:
    """Return a field of the rows that a chart consists of."""
    assert chart.spec is not None
    layers = (layer["data"]["values"] for layer in chart.spec["layer"])
    return next([row[name] for row in rows] for rows in layers if name in rows[0])


def test_a_row_has_the_records_figures_to_the_digit(tmp_path: Path) -> None:
    (tmp_path / "profiles").mkdir()
    (tmp_path / "profiles" / "there.json").touch()
    record = make(notes=["trace: profiles/there.json", "trace: profiles/gone.json"])
    (details,) = page_for(tmp_path, record).details
    latency = record.metrics.latency
    assert latency is not None
    unit = time_unit(latency.p50 * 1e6, [latency.max * 1e6])
    (shown,) = details.row.figures["p99"]
    assert str(shown) == f"{milliseconds(float(latency.p99), unit)} {NO_INTERVAL}"
    assert details.row.texts["n"] == str(latency.n)
    assert details.row.figures["max"] == [milliseconds(latency.max, unit)]
    assert details.sorts["p99"] == latency.p99 * 1e6
    assert details.sorts["throughput"] == record.metrics.throughput[0].value
    assert columns(details.charts[1], "ns") == [record.judged_ns()]
    # A trace is linked where it is and named where it was.
    assert details.traces == [("profiles/there.json", True), ("profiles/gone.json", False)]


def test_its_words_are_as_stored_in_one_small_file_without_a_number_for_a_refusal(
    judgement: Judgement, session_records: list[RunRecord], tmp_path: Path
) -> None:
    none = Samples(host_ns=[0] * 100, device_ns=[0] * 100, enqueue_ns=[], pace_ns=[])
    sweep = [make("untold", streams=streams, samples=none) for streams in (1, 8)]
    under_load = rounds(none=100_000, cpu=200_000, optimised=110_000)
    found = find_records([folder_of(tmp_path, *session_records, *sweep, *under_load)])
    page = page_of(found, tmp_path / "report.html", judgements=[judgement])
    assert page.headline.level == "bad"
    text = render_page(page)
    parsed = Parsed(text)
    words = "\n".join(" ".join(each.split()) for each in parsed.words if each.strip())
    words = re.sub(r"20\d\d-\d\d-\d\dT\S+|(?<=-)[\da-f]{8}(?=\.json)", "…", words)
    assert_as_stored(__file__, "page.txt", words)
    assert not re.search(r"\b(NaN|null|undefined|None(?! was recorded))\b", words)
    # Nor does a chart draw a line where there is no P99, or a scaling that cannot be told.
    for details in page.details:
        assert "P99 " not in str(details.charts) or "p99" in details.sorts
        scaling = "scaling" in str(details.parts[-1:]).lower()
        assert scaling == (details.cell.shown.cell_id[:6] in ("tiny_k", "untold"))
    told = [each.parts[-1] for each in page.details if each.cell.shown.cell.name.startswith("tiny")]
    result = scaling_of(session_records[:4])
    for view in told:
        (chart,) = (part for part in view.parts if isinstance(part, Chart))
        assert columns(chart, "y") == [point.throughput.value for point in result.points]
        ends = zip(columns(chart, "y_low"), columns(chart, "y_high"), strict=True)
        assert [*ends] == [point.throughput.interval for point in result.points]
        assert Paragraph(saturation(result), "") in view.parts
    data = sum(len(body) for given, body in parsed.scripts if given.get("type"))
    packed = next(body for given, body in parsed.scripts if given.get("id") == "vega")
    assert len(text.encode()) - data + len(packed) < MOST_BYTES
    assert [link for link in parsed.links if not link.startswith("#")] == []
    # A verdict leads to its cell.
    shown = {each.cell.shown.cell_id: each.cell.key for each in page.details if each.cell.verdicts}
    tables = [part for part in page.comparisons[0].parts if isinstance(part, Table)]
    led = {row.texts["cell"].split(" ")[0]: row.links.get("cell") for row in tables[0].rows}
    assert led == {cell_id: shown.get(cell_id) for cell_id in led}
    assert {f"#cell-{key}" for key in led.values() if key} <= set(parsed.links)
    assert any(led.values())
    assert "default-src 'none'" in text


def test_simulated_is_written_where_a_simulated_figure_is(tmp_path: Path) -> None:
    measured = Parsed(html(tmp_path, make()))
    assert "simulated" not in measured.text.lower()
    model = Fingerprint(
        hard={"device_name": "simulated NVIDIA H200", "device_kind": "sim"}, soft={}
    )
    text = html(tmp_path, make("modelled", cell={"device": "sim:h200"}, fingerprint=model))
    both = Parsed(text)
    assert "Simulated. Figures marked so are a model's" in both.text
    for name in ("Distributions", "Latencies"):
        drawn = [each for each in both.data if each.get("description", "").startswith(name)]
        assert sorted("SIMULATED" in str(chart) for chart in drawn) == [False, True]
    # Its line in the table, and its details.
    assert text.count('<span class="chip sim">simulated</span>') == 1
    assert text.count('<span class="pill simulated">simulated</span>') == 1


def test_names_that_look_like_elements_stay_text(tmp_path: Path) -> None:
    closing = "</script><script>alert('data')</script><!--"
    proof = Proof(mode=closing, evidence=HOSTILE, device_priorities=(0,))
    record = make(
        f"tests/test_mine.py::test_it[{HOSTILE}]", notes=[closing], command=f"pytest '{closing}'",
        scheduler_proof=proof, n=50, family=None, work={f"{HOSTILE} kernels": 4.0},
    )  # fmt: skip
    record = with_timeline(tmp_path / "session", record)
    plain = Parsed(html(tmp_path, make()))
    parsed = Parsed(html(tmp_path, record))
    # The same scripts as any report with two cells: no text became one of them.
    assert parsed.run == plain.run
    assert not parsed.open
    assert HOSTILE in parsed.text
    assert closing in parsed.text
    names = [param["value"] for data in parsed.data if isinstance(data, list) for each in data
             for param in each["params"] if param["name"] == "names"]  # fmt: skip
    assert names == [[HOSTILE]]


def test_timelines_have_ready_start_and_end_of_each_kernel_or_say_why_not(tmp_path: Path) -> None:
    record = with_timeline(tmp_path / "session", make(), "gemm")
    (details,) = page_for(tmp_path, record).details
    (chart,) = details.timelines
    assert chart.spec is not None
    (timeline,) = chart.spec["data"]["values"]
    assert {"name": "streams", "value": ["stream 0", "stream 1"]} in chart.spec["params"]
    assert timeline["start"] == [0, 1000, 2000, 3000]
    assert timeline["end"] == [900, 1900, 2900, 3900]
    # Enqueued 490 ns and 980 ns before the first two start; then behind the stream's one before.
    assert timeline["ready"] == [-500, -490, 900, 1900]
    assert chart.spec["description"] == "work on all streams (4 kernels)"
    assert record.timelines is not None
    folder = tmp_path / "session"
    (folder / record.timelines.file).unlink()
    (details,) = page_of(find_records([folder]), tmp_path / "report.html").details
    (chart,) = details.timelines
    assert chart.spec is None
    assert "cannot read" in chart.note


def test_a_comparison_that_cannot_be_read_is_told_where_it_would_be_shown(tmp_path: Path) -> None:
    for session in ("one", "two"):
        write_record(tmp_path / session, make())
        file = tmp_path / session / "session.json"
        content = SessionFiles(session=INFO, files=[], judgements=[{}])
        file.write_text(content.model_dump_json(by_alias=True))
    found = find_records([tmp_path / "one"])
    assert own_judgements(found) == []
    assert [line.partition(": ")[0] for line in found.damaged] == [
        f"{tmp_path / 'one' / 'session.json'} is damaged"
    ]
    # Of several sessions none is shown.
    found = find_records([tmp_path])
    assert (own_judgements(found), found.damaged) == ([], [])


def test_what_was_run_again_explains_its_own_session_alone(tmp_path: Path) -> None:
    for name in ("traced", "not"):
        folder = tmp_path / "cells" / name
        write_record(folder, make(name))
        write_record(folder, make())
        (folder / "session.json").write_text("{}")
    again = tmp_path / "cells" / "traced" / "causes"
    write_record(again, with_timeline(again, make()))
    cells = page_cells(find_records([tmp_path / "cells"]), [], {}, "")
    explained = [(cell.session, cell.shown.cell.name) for cell in cells if cell.timelines]
    assert explained == [("traced", "tiny_kernel_stress")]
    # So it is with tenants.
    tenants = (Tenant("a", workload="tiny_kernel_stress", parameters={"rounds": 2}),)
    plan = Colocation("mix", tenants, duration_s=0.1, warmup_s=0, device="sim:h200")
    native = Native(parse_scheduler("native"), SchedulerPaths())
    for session, name, traced in (
        ("one", "scenarios", False), ("one", "scenarios/traced", True),
        ("two", "scenarios", False), ("which", ".", False), ("which", "traced", True),
    ):  # fmt: skip
        place = tmp_path / "tenants" / session / name
        record = TenantSet(native, lambda *_: None, place, traced=traced).once(plan)
        write_colocation(record_path(place, record.id), record)
        if session != "which":
            (tmp_path / "tenants" / session / "session.json").write_text("{}")
    cells = page_cells(find_records([tmp_path / "tenants"]), [], {}, "")
    causes = {cell.session: cell.causes is not None for cell in cells}
    assert causes == {"one": True, "two": False, "which": True}


def test_runs_of_a_cell_share_a_row_and_are_pooled(tmp_path: Path) -> None:
    runs = [make(run=number, seed=number, n=400) for number in (1, 2, 3)]
    (details,) = page_for(tmp_path, *runs).details
    assert details.cell.runs.count == "3"
    survival, order = details.charts
    assert [" (shown)" in name for name in columns(order, "run")].count(True) == 1
    assert columns(survival, "legend") == ["each run (3)"] * 3 + ["all runs pooled"]
    assert columns(survival, "n")[-1] == 1200
    assert columns(survival, "ns")[-1][-1] == max(ns for run in runs for ns in run.judged_ns())
    assert columns(survival, "as_long")[-1][-1] == 1


def test_charts_of_a_pace_do_not_call_it_a_latency(tmp_path: Path) -> None:
    for record, what in ((make(n=400), "latency"), (paced(make(n=400)), "time per iteration")):
        (details,) = page_for(tmp_path / what[:4], record).details
        assert [f"{what}, ms" in str(chart.spec) for chart in details.charts] == [True, True]
        assert ("latency" in str([chart.spec for chart in details.charts])) == (what == "latency")


def test_missing_packages_are_named_with_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "jinja2", None)
    monkeypatch.setitem(sys.modules, "vl_convert", None)
    assert needed.missing_packages() == (
        "the report needs jinja2 and vl-convert-python: pip install 'pytest-hwqueue[report]'"
    )
    with pytest.raises(ModuleNotFoundError, match=r"pytest-hwqueue\[report\]"):
        render_page(Page(None, [], False, [], []))  # type: ignore[arg-type]


def test_only_results_are_found(tmp_path: Path) -> None:
    folder = folder_of(tmp_path, make())
    write_record(folder / "ranks" / "rank-0", make("part"))
    write_record(folder / "causes", make("traced"))
    (folder / "session.json").write_text('{"schema": "pytest-hwqueue/session/1"}')
    (folder / "broken.json").write_text("{")
    found = find_records([tmp_path])
    assert [stored.record.cell.name for stored in found.cells] == ["tiny_kernel_stress"]
    assert [stored.record.cell.name for stored in found.traced] == ["traced"]
    assert ["broken.json is damaged" in each for each in found.damaged] == [True]


def test_a_session_of_another_version_is_told(tmp_path: Path) -> None:
    write_record(tmp_path, make())
    content = SessionFiles(session=INFO, files=[]).model_dump_json(by_alias=True)
    file = tmp_path / "session.json"
    file.write_text(content.replace("session-files/2", "session-files/1"))
    (said,) = find_records([tmp_path]).damaged
    assert said.startswith(f"{file} is a session's file, but of version 1, and ")
