"""The table that is made of records whose truth is known: its figures, and how it looks."""

from __future__ import annotations

import io
import json
import re
from collections.abc import Sequence
from dataclasses import replace
from html import unescape
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from rich.console import Console

from pytest_hwqueue.answers.which.file import WhichFile
from pytest_hwqueue.answers.which.report import which_document
from pytest_hwqueue.answers.which.runs import all_runs, entries
from pytest_hwqueue.answers.which.wide import wide_document
from pytest_hwqueue.answers.which.words import effective, proof_line
from pytest_hwqueue.cli.main import main
from pytest_hwqueue.data.document.terminal import print_document, rendered
from pytest_hwqueue.data.errors import INTERRUPTED_BEFORE, RecordError
from pytest_hwqueue.data.figures.of_requests import ServedRequests, longest
from pytest_hwqueue.data.metrics.estimate import Estimate
from pytest_hwqueue.data.metrics.interference import priority_effect
from pytest_hwqueue.data.records.fingerprint import Fingerprint, Value
from pytest_hwqueue.data.records.proof import Proof
from pytest_hwqueue.data.records.tenants import (
    ColocationRecord,
    TenantResult,
    read_colocation,
    records_in,
    write_colocation,
)
from pytest_hwqueue.engine.scenarios.file import read_scenario
from pytest_hwqueue.engine.scenarios.planned_runs import cases
from pytest_hwqueue.parts.devices.fingerprint import of_processes
from tests.answers.which.conftest import (
    MPS,
    MPS_PRIORITY,
    MS,
    NATIVE,
    SCENARIO,
    WINDOW_S,
    XSCHED,
    Place,
    all_records,
    case,
    hwq,
    record,
    requests,
    served,
    store,
    told,
    told_of,
)
from tests.stored_texts import assert_as_stored

FAILED = 'own:step: a request raised:\n  File "own.py", line 9, in step\nValueError: no more'
DEAD = {
    "status": "failed", "reason": "tenant low ended with exit status 1. Try: a smaller batch",
    "proof": None, "tenants": [
        TenantResult(name="high"),
        TenantResult(name="low", exit="exit status 1", last_output="CUDA out of memory\n"),
    ],
}  # fmt: skip
SKIPPED = {"status": "skipped", "reason": "give --hwq-xsched-root", "tenants": []}


def assert_faces_as_stored(name: str, file: Path, folders: Sequence[Path]) -> None:
    """Compare the table in brief, in full, wide and as Markdown; narrow, no line may be longer."""
    given = [part for folder in folders for part in ("--from", folder)]
    markdown = file.parent / "table.md"
    brief = hwq(file, *given, columns=80).stdout
    table = file.parent / "table.json"
    whole = hwq(file, *given, "-v", "--markdown", markdown, "--json", table, columns=160).stdout
    assert_as_stored(__file__, f"{name}_80.txt", brief)
    assert_as_stored(__file__, f"{name}_v_160.txt", whole)
    assert_as_stored(__file__, f"{name}.md", markdown.read_text(encoding="utf-8"))
    wide = hwq(file, *given, "--wide", "--markdown", markdown, columns=250).stdout
    assert_as_stored(__file__, f"{name}_wide_250.txt", wide)
    assert_as_stored(__file__, f"{name}_wide.md", markdown.read_text(encoding="utf-8"))
    figures = set(re.findall(r"\d+\.\d+ \[[^]]*\]", whole))
    # What the command would print, without computing its figures again for each width.
    found = WhichFile.model_validate_json(table.read_bytes())
    assert rendered(which_document(found, verbose=True).parts, 160, False).strip() == whole.strip()
    for columns in (60, 120):
        narrow = rendered(which_document(found, verbose=True).parts, columns, False)
        for face in (narrow, rendered(wide_document(found).parts, columns, False)):
            assert max(len(line.rstrip()) for line in face.splitlines()) <= columns
        # The table's unit may stand in a heading instead of behind each number.
        for figure in figures:
            assert figure.partition(" ")[0] in narrow


def test_the_table_is_as_stored(file: Path, folder: Path) -> None:
    assert_faces_as_stored("mix", file, [folder])


def test_a_table_with_runs_that_failed_is_as_stored(file: Path, tmp_path: Path) -> None:
    failed = [served("high", 4, 0, reasons=[FAILED] * 3), served("low", 0, 96)]
    lost = all_records(read_scenario(file))["mix", "threads", "stream-priority"].tenants
    lost[0] = lost[0].model_copy(update={"issued": 1500, "unserved": 300})
    threads = ("mix", "threads", "stream-priority")
    changes: dict[Any, Any] = {
        MPS: {"tenants": failed}, MPS_PRIORITY: DEAD, XSCHED: SKIPPED, threads: {"tenants": lost},
        ("mix", "threads", "native"): None,
    }  # fmt: skip
    found, _ = told_of(file, changes)
    assert_faces_as_stored("failures", file, [tmp_path / "records"])
    assert case(found, "mps").tenant("high").failed_for == {FAILED: 3}
    dead = case(found, "mps-priority")
    assert (dead.status, dead.reason, dead.tenants) == ("failed", DEAD["reason"], [])
    assert dead.last_output == {"low": "CUDA out of memory\n"}
    # The page shows the requests that failed, below the table and in the tenant's own details.
    page = tmp_path / "page.html"
    (tmp_path / "records" / "which.json").write_bytes((tmp_path / "which.json").read_bytes())
    arguments = ["report", str(tmp_path / "records"), "-o", str(page)]
    assert CliRunner().invoke(main, arguments).exit_code == 0
    shown = unescape(page.read_text(encoding="utf-8"))
    assert f"mps, high: 1200 requests; 3 failed:\n3 × {FAILED}" in shown
    assert f"of its requests 3 failed:\n3 × {FAILED}" in shown


def test_wide_has_a_row_for_each_scheduler_with_its_changes(file: Path, folder: Path) -> None:
    rows = rows_of_wide(file, folder)
    assert list(rows) == [
        "`solo high`", "`native`", "`mps`", "`mps-priority`", "`xsched:level=1,threshold=1`",
        "`threads-native`", "`threads-stream-priority`",
    ]  # fmt: skip
    # Of solo and native themselves there is no change, and in threads it is to threads-native.
    assert [rows[name]["P99 [95 %]"].partition("<br>")[2] for name in rows] == [
        "", "", "-80.0 %", "-85.0 %", "-85.0 %", "", "-83.3 %",
    ]  # fmt: skip
    mps = rows["`mps`"]
    assert mps["n of high"] == "2400"
    assert mps["P50 [95 %]"] == "4.00 ms [4.00, 4.00]<br>-80.0 %"
    # The longest has no interval, so that nothing tells a change of it from chance.
    assert mps["max"] == "4.00 ms<br>~ -80.0 %"
    throughput = mps["low throughput [95 %]"]
    assert re.fullmatch(r"768 images/s \[\d+, \d+\]<br>-4.0\d % \[-[\d.]+, -[\d.]+\]", throughput)
    assert mps["low [95 %]"].startswith("96.0 requests/s")


def test_wide_marks_a_change_that_may_be_chance(file: Path) -> None:
    """As of figures that are native's own."""
    records = all_records(read_scenario(file))
    changes = {MPS: {"tenants": records[NATIVE].tenants}}
    told_of(file, changes)
    rows = rows_of_wide(file, file.parent / "records")
    for figure in ("mean", "P50", "P99"):
        assert rows["`mps`"][f"{figure} [95 %]"].endswith("<br>~ 0 %")
        assert rows["`mps-priority`"][f"{figure} [95 %]"].endswith("<br>-85.0 %")


def rows_of_wide(file: Path, folder: Path) -> dict[str, dict[str, str]]:
    markdown = file.parent / "wide.md"
    assert hwq(file, "--from", folder, "--wide", "--markdown", markdown).exit_code == 0
    text = markdown.read_text(encoding="utf-8").replace("\\", "")
    head, _, *rows = (
        [cell.strip() for cell in line.strip("|").split(" | ")]
        for line in text.splitlines()
        if line.startswith("|")
    )
    return {row[0]: dict(zip(head, row, strict=True)) for row in rows}


def test_every_run_is_there_once_with_solos_and_native_of_each_placement(file: Path) -> None:
    scenario = read_scenario(file)
    lines = entries(cases(scenario))
    assert [(line.id, line.role) for line in lines] == [
        ("solo high", "solo"),
        ("solo low", "solo"),
        ("native", "case"),
        ("mps", "case"),
        ("mps-priority", "case"),
        ("xsched:level=1,threshold=1", "case"),
        ("threads-native", "reference"),
        ("threads-stream-priority", "case"),
    ]
    assert [run.key for run in all_runs(cases(scenario))] == [line.run.key for line in lines]


def test_runs_of_one_kind_are_measured_once() -> None:
    scenarios = Path(__file__).parents[3] / "benchmarks" / "scenarios"
    scenario = read_scenario(scenarios / "bert_multi_priority.hwq.yaml")
    runs = all_runs(cases(scenario))
    assert len({run.key for run in runs}) == len(runs)
    alone = [run for run in runs if len(run.tenants) == 1 and run.placement == "processes"]
    assert len(alone) == 3
    assert replace(alone[0], name="x").key == alone[0].key


def test_figures_are_those_of_the_records(file: Path, folder: Path) -> None:
    found, _ = told(file, folder)
    assert (found.device_name, found.simulated, found.complete) == ("NVIDIA H200", False, True)
    assert (found.command, found.git_commit) == ("hwq which mix.hwq.yaml", "0" * 40)
    mps = case(found, "mps")
    assert (mps.window_s, len(mps.records)) == (2 * WINDOW_S, 2)
    for name in mps.records:
        assert read_colocation(folder / name).scheduler == "mps"
    high, low = mps.tenant("high"), mps.tenant("low")
    for figure in (high.p50_ms, high.p95_ms, high.p99_ms):
        assert figure == Estimate(value=4, low=4, high=4, n=2400, unit="ms")
    assert high.max_ms == Estimate(value=4, n=2400, unit="ms")
    assert (high.attained_within_ms, high.unit) == (10, "images")
    assert high.attainment is not None
    assert high.attainment.value == 1
    assert high.p99_over_solo == Estimate(value=2, low=2, high=2, n=2400)
    assert low.throughput_items_per_s.value == pytest.approx(8 * 96, rel=1e-3)
    loss = low.throughput_loss
    assert loss is not None
    assert loss.value == pytest.approx(0.04, abs=1e-3)
    assert None not in (loss.low, loss.high)
    assert sorted([loss.low, loss.value, loss.high]) == [loss.low, loss.value, loss.high]  # type: ignore[type-var]


def test_loss_is_against_native_of_the_same_placement(file: Path, folder: Path) -> None:
    found, _ = told(file, folder)
    loss = case(found, "threads-stream-priority").tenant("low").throughput_loss
    assert loss is not None
    assert loss.value == pytest.approx(0.2, abs=2e-3)
    for name in ("native", "threads-native", "solo low"):
        assert case(found, name).tenant("low").throughput_loss is None


def test_answer_names_the_mode_that_met_all_goals_and_leaves_most(file: Path, folder: Path) -> None:
    (choice,) = told(file, folder)[0].choices
    assert choice.met == ["mps", "mps-priority"]
    assert choice.missed == ["native", "xsched:level=1,threshold=1"]
    assert choice.undecided == ["threads-stream-priority"]  # 80 % is the bound itself
    assert (choice.best, choice.alike, choice.less_urgent) == ("mps", [], ["low"])


def test_goals_are_those_of_the_placement(file: Path, folder: Path) -> None:
    goals = """\
goals:
  all: [high.attainment >= 99%]
  processes: [high.latency_p99_ms < 10]
  threads: [high.latency_p99_ms < 4]
"""
    file.write_text(SCENARIO[: SCENARIO.index("goals:")] + goals)
    found, _ = told(file, folder)
    assert [(goal.goal, goal.verdict) for goal in case(found, "threads-stream-priority").goals] == [
        ("high.attainment >= 99%", "missed"),
        ("high.p99 < 4 ms", "missed"),
    ]
    assert [(goal.goal, goal.verdict) for goal in case(found, "mps").goals] == [
        ("high.attainment >= 99%", "met"), ("high.p99 < 10 ms", "met"),
    ]  # fmt: skip
    within = {each.id: each.tenant("high").attained_within_ms for each in found.cases[2:]}
    assert within["native"] == within["mps"] == 10
    assert within["threads-native"] == within["threads-stream-priority"] == 4
    (choice,) = found.choices
    assert choice.met == ["mps", "mps-priority", "xsched:level=1,threshold=1"]
    assert choice.missed[:2] == ["native", "threads-stream-priority"]


def test_a_deadline_of_a_tenant_comes_before_its_goal(file: Path, folder: Path) -> None:
    text = SCENARIO.replace("priority: 1}", "priority: 1, deadline_ms: 3}")
    file.write_text(text)
    found, _ = told(file, folder)
    high = case(found, "mps").tenant("high")
    assert high.attained_within_ms == 3
    assert high.attainment is not None
    assert high.attainment.value == 0


def test_more_throughput_than_native_is_no_loss(file: Path) -> None:
    high, _ = all_records(read_scenario(file))[MPS_PRIORITY].tenants
    found, output = told_of(file, {MPS_PRIORITY: {"tenants": [high, served("low", 0, 110)]}})
    assert found.choices[0].best == "mps-priority"
    assert re.search(r"images/s \[\d+, \d+\], 10\.0 % \[[\d., ]+\] more than under native", output)


def test_native_only_for_comparison_is_no_candidate(file: Path, folder: Path) -> None:
    found, _ = told(file, folder, "--schedulers", "mps,xsched")
    assert [(each.id, each.role) for each in found.cases if each.role != "solo"] == [
        ("native", "reference"), ("mps", "case"), ("xsched:level=1,threshold=1", "case"),
    ]  # fmt: skip
    (choice,) = found.choices
    assert (choice.met, choice.missed) == (["mps"], ["xsched:level=1,threshold=1"])


@pytest.mark.parametrize(
    ("given", "selected"),
    [
        ("native", ["native", "threads-native"]),
        ("threads-native", ["threads-native"]),
        ("threads-stream-priority,mps", ["mps", "threads-stream-priority"]),
        ("stream-priority", ["threads-stream-priority"]),
        (
            "xsched:level=1,threshold=1,threads-native",
            ["xsched:level=1,threshold=1", "threads-native"],
        ),
    ],
)
def test_a_row_is_selected_as_the_table_calls_it(
    file: Path, folder: Path, given: str, selected: list[str]
) -> None:
    text = file.read_text(encoding="utf-8")
    file.write_text(text.replace("threads: [", "threads: [native, "), encoding="utf-8")
    found, _ = told(file, folder, "--schedulers", given)
    assert [case.id for case in found.cases if case.role == "case"] == selected


def test_of_several_urgent_and_other_tenants_the_worst_is_shown(file: Path, folder: Path) -> None:
    found, _ = told(file, folder)
    cases = []
    for each in found.cases:
        tenants = [
            tenant.model_copy(update={"name": name, "p99_ms": p99})
            for tenant in each.tenants
            for name, p99 in (
                (tenant.name, tenant.p99_ms),
                (f"{tenant.name}2", tenant.p99_ms.model_copy(update={"value": 77.0})),
            )
        ]
        cases.append(each.model_copy(update={"tenants": tenants}))
    several = found.model_copy(update={"cases": cases})
    console = Console(file=io.StringIO(), width=80)
    print_document(which_document(several, verbose=False), console)
    text = console.file.getvalue()  # type: ignore[attr-defined]
    assert "worst P99 [95 %]" in text
    assert "of high, high2" in text
    assert re.search(r"^mps +77\.0 \[", text, re.MULTILINE)


# --- proof -----------------------------------------------------------------------------------


def test_samples_add_up_over_windows_and_multiprocessors_do_not(file: Path, folder: Path) -> None:
    seen = {
        "samples": 5, "multiprocessors seen by high": 132, "high XQueues never seen with work": 16,
    }  # fmt: skip
    for path in folder.glob("*-mps*.json"):
        changed = json.loads(path.read_text())
        changed["proof"]["counts"] = seen
        path.write_text(json.dumps(changed))
    found, _ = told(file, folder)
    proof, xsched = case(found, "mps").proof, case(found, "xsched:level=1,threshold=1").proof
    assert proof is not None
    assert proof.counts == {**seen, "samples": 10}
    assert xsched is not None
    assert (xsched.effective, xsched.counts) == (True, {"samples": 10})


def test_priority_that_no_probe_saw_is_not_proven(file: Path, folder: Path) -> None:
    """Records from before the probe say so, too."""
    found, output = told(file, folder, "--schedulers", "mps-priority")
    proof = case(found, "mps-priority").proof
    assert proof is not None
    assert (proof.priority, proof.effective) == ("not probed", None)
    assert found.choices[0].best == "mps-priority"
    assert "But its priority is not proven: no probe ran." in output


def probed(urgent_us: int) -> Proof:
    effect = priority_effect(
        ("high", "low"), [urgent_us * 1000, urgent_us * 1000 + 1] * 6, [400_000, 400_001] * 6,
        alone_ns=20_000, load_ns=400_000, requests=10,
    )  # fmt: skip
    return Proof(
        mode="mps-priority",
        evidence="clients of a server",
        device_priorities=(0,),
        priority=effect,
        effective=effect.effective,
    )


@pytest.mark.parametrize(
    ("second_us", "verdict", "text"),
    [
        (25, "proven", "priority proven: high's small kernels took 0.0625×"),
        (399, "not seen", "priority not proven: urgent small kernels took 0.998×"),
    ],
)
def test_priority_is_proven_if_it_was_in_each_window(
    file: Path, folder: Path, second_us: int, verdict: str, text: str
) -> None:
    scenario = read_scenario(file)
    (run,) = (r for r in all_runs(cases(scenario)) if r.scheduler == "mps-priority")
    paths = [path for path in folder.iterdir() if read_colocation(path).scheduler == run.scheduler]
    for number, (path, urgent_us) in enumerate(zip(paths, (25, second_us), strict=True), 1):
        write_colocation(path, record(run, number, proof=probed(urgent_us)))
    found, output = told(file, folder)
    proof = case(found, "mps-priority").proof
    assert proof is not None
    assert proof.priority == verdict
    assert proof.effective is (verdict == "proven")
    assert text in output


@pytest.mark.parametrize("scheduler", ["native", "mps"])
@pytest.mark.parametrize("alone", [True, False])
def test_for_a_server_that_is_not_ours_no_mode_is_proven(
    file: Path, folder: Path, scheduler: str, *, alone: bool
) -> None:
    """Whether or not it is for others: ``alone`` no tenant is ours, and there is no proof."""
    server = {
        "url": "http://127.0.0.1:1/",
        "connections": 1,
        "connected": 0,
        "most_at_once": 1,
        "origin": "url",
    }
    for path in folder.glob("*.json"):
        changed = json.loads(path.read_text())
        if changed["scheduler"] != scheduler:
            continue
        changed["tenants"][0]["server"] = server
        changed["proof"] = None if alone else changed["proof"]
        path.write_text(json.dumps(changed))
    found, output = told(file, folder)
    entry = case(found, scheduler)
    assert [tenant.origin for tenant in entry.tenants] == ["url", None]
    assert (entry.proof is None) == alone
    label = "not proven for high (not ours: it ran already)"
    assert effective(found, entry) == (label if alone else f"proven; {label}")
    seen = f"{scheduler} was seen; samples {5 * len(entry.records)}"
    assert proof_line(found, entry) == f"{'none' if alone else seen}; {label}"
    assert label in " ".join(output.split())
    short = hwq(file, "--from", folder).stdout
    assert f"active: {effective(found, entry)}" in " ".join(short.split())
    assert effective(found, case(found, "mps-priority")).startswith("proven; ")


# --- what is refused, or missing -------------------------------------------------------------


@pytest.mark.parametrize(
    ("native", "status", "why", "goal_why"),
    [
        ({"status": "invalid", "reason": "late"}, "invalid", "invalid: late", None),
        # The session was cut off.
        (None, "not measured", "not measured: there is no record of it",
         "mix under native was not measured"),
    ],
)  # fmt: skip
def test_without_native_loss_and_relative_goals_stay_open(
    file: Path, native: dict[str, str] | None, status: str, why: str, goal_why: str | None
) -> None:
    found, output = told_of(file, {NATIVE: native})
    assert case(found, "native").status == status
    assert status.upper() in output
    mps = case(found, "mps")
    loss = mps.tenant("low").throughput_loss
    assert loss is not None
    assert (loss.value, loss.refused) == (None, f"native was {why}")
    assert [goal.verdict for goal in mps.goals] == ["met", "met", "undecided"]
    assert goal_why in (None, mps.goals[-1].reason)
    assert "No scheduler was shown to meet all goals" in output


def test_percentiles_of_few_requests_are_refused_with_what_is_missing(file: Path) -> None:
    few = {"tenants": [served("high", 4, 0, seconds=5), served("low", 0, 20, seconds=5)]}
    found, output = told_of(file, dict.fromkeys((NATIVE, MPS, MPS_PRIORITY, XSCHED), few))
    high = case(found, "mps").tenant("high")
    assert (high.p95_ms.value, high.p99_ms.value) == (4, None)
    assert high.p99_ms.refused == "has 100 requests; 1000 independent ones suffice"
    assert "P99 refused" in output


def test_variation_is_the_standard_deviation_by_the_mean(file: Path) -> None:
    due = [index * 50 * MS for index in range(1200)]
    apart = requests("high", due, [at + (1 + 2 * (at // MS % 100 > 0)) * MS for at in due])
    found, _ = told_of(file, {NATIVE: {"tenants": [apart, served("low", 0, 100)]}})
    high = case(found, "native").tenant("high")
    # As many of 1 ms as of 3.
    assert high.mean_ms.value == 2
    assert high.variation is not None
    assert high.variation.value == pytest.approx(0.5, rel=1e-3)
    assert high.variation.interval is not None


def test_the_energy_of_a_request_is_the_devices_by_what_was_served_in_time(file: Path) -> None:
    power = Estimate(value=400, low=399, high=401, n=2, unit="W")
    short = Estimate(unit="W", refused="a window of 2 s; 5 s suffice")
    found, output = told_of(
        file, {MPS: {"mean_power_w": power}, MPS_PRIORITY: {"mean_power_w": short}}
    )
    energy = case(found, "mps").tenant("high").energy_j
    # 20 requests a second, all within the goal's 10 ms.
    assert energy is not None
    assert float(energy) == pytest.approx(20, rel=1e-3)
    assert energy.low == pytest.approx(399 / 20)
    assert energy.high == pytest.approx(20.11, abs=0.01)
    assert case(found, "mps").tenant("low").energy_j is None
    refused = case(found, "mps-priority").tenant("high").energy_j
    assert refused is not None
    assert (refused.value, refused.refused) == (None, "a window of 2 s; 5 s suffice")
    assert case(found, "native").tenant("high").energy_j is None
    assert "energy a request refused for high of mps-priority: a window of 2 s" in output


def test_requests_that_never_completed_are_no_fast_ones(file: Path) -> None:
    high, low = all_records(read_scenario(file))[MPS].tenants
    lost = high.model_copy(update={"issued": high.issued + 300, "unserved": 300})
    found, output = told_of(file, {MPS: {"tenants": [lost, low]}})
    figures = case(found, "mps").tenant("high")
    assert (figures.p50_ms.value, figures.p99_ms.value) == (4, None)
    assert figures.p99_ms.refused == "so many requests never completed"
    assert figures.max_ms.refused == "300 of 1500 requests never completed"
    window = ServedRequests(3, (1, 2), (1, 2), 10)
    assert longest([window], 0.95).refused == "1 of 3 requests never completed"
    assert "mps" in found.choices[0].missed
    assert "P99 to solo refused for high of mps: so many requests never completed" in output


def test_a_loss_and_a_ratio_that_tell_nothing_are_refused(file: Path) -> None:
    """Of a native that served two requests in a minute: lost -485 % [-13535, 75] was printed."""

    def few(name: str, latency_ms: tuple[int, ...]) -> TenantResult:
        scheduled = [(index + 1) * 10**9 // 10 for index in range(len(latency_ms))]
        ended = [at + ms * MS for at, ms in zip(scheduled, latency_ms, strict=True)]
        return requests(name, scheduled, ended)

    high = all_records(read_scenario(file))[NATIVE].tenants[0]
    uneven = few("high", (1,) * 250 + (90,) * 250)
    changes = {
        NATIVE: {"tenants": [high, few("low", (30_000, 40_000))]},
        MPS: {"tenants": [uneven, few("low", (10,) * 12)]},
    }
    found, output = told_of(file, changes)
    mps = case(found, "mps")
    loss, ratio = mps.tenant("low").throughput_loss, mps.tenant("high").p50_over_solo
    assert loss is not None
    assert ratio is not None
    assert (loss.value, loss.interval) == (None, None)
    assert loss.refused == "its interval has no end on one side"
    assert ratio.value is None
    assert "is wider than once the reference and than the figure itself" in ratio.refused
    said = "loss to native refused for low of 3 cells: its interval has no end"
    assert said in re.sub(r"\s+", " ", output)


def test_a_window_that_was_interrupted_costs_its_case_nothing(file: Path, folder: Path) -> None:
    records = {path: read_colocation(path) for path in folder.iterdir()}
    (path,) = (p for p, each in records.items() if (each.scheduler, each.run) == ("mps", 2))
    changed = {**json.loads(path.read_text()), "status": "failed", "reason": INTERRUPTED_BEFORE}
    path.write_text(json.dumps(changed))
    found, output = told(file, folder)
    assert case(found, "mps").window_s == WINDOW_S
    assert "interrupted" not in output


def test_without_any_figure_nothing_is_named_or_drawn(file: Path, tmp_path: Path) -> None:
    bad = {"status": "failed", "reason": "no driver", "tenants": []}
    records = all_records(read_scenario(file)).values()
    store(tmp_path / "records", *(each.model_copy(update=bad) for each in records))
    plot = tmp_path / "plot.svg"
    result = hwq(file, "--from", tmp_path / "records", "--svg", plot)
    assert result.exit_code == 1
    assert "No scheduler came to figures" in result.stdout
    assert "is not drawn" in result.stderr
    assert not plot.exists()


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ("plan", "measured with batch 16, and the scenario file says 8"),
        ("driver", "cannot stand in one table: driver_major was 5[78]0 and 5[78]0"),
    ],
)
def test_records_that_do_not_belong_together_are_refused(
    file: Path, tmp_path: Path, changed: str, message: str
) -> None:
    records = all_records(read_scenario(file))
    if changed == "plan":
        high, low = records[MPS].plan.tenants
        plan = replace(records[MPS].plan, tenants=(high, replace(low, batch=16)))
        records[MPS] = records[MPS].model_copy(update={"plan": plan})
    else:
        other = Fingerprint({"device_name": "NVIDIA H200", "driver_major": 570}, {})
        records[MPS] = records[MPS].model_copy(update={"fingerprint": other})
    store(tmp_path / "records", *records.values())
    result = hwq(file, "--from", tmp_path / "records")
    assert result.exit_code == 4
    assert re.search(message, result.stderr)


# What an H200 told of tenants natively and under two modes of MPS.
OF_MODES: dict[Place, dict[str, Value]] = {
    NATIVE: {"mps_client": False, "multiprocessor_count": 132},
    MPS: {"mps_client": True, "multiprocessor_count": "high: 132; low: 104"},
    MPS_PRIORITY: {"mps_client": True, "environment.CUDA_MPS_CLIENT_PRIORITY": "high: 0; low: 1"},
}


def conditions_of(place: Place, **changed: Value) -> Fingerprint:
    own: dict[str, Value] = {"device_name": "NVIDIA H200", "fp32_product": "fp32"}
    return Fingerprint({**own, **OF_MODES.get(place, OF_MODES[NATIVE]), **changed}, {})


def test_what_a_mode_sets_up_is_no_other_device(file: Path, tmp_path: Path) -> None:
    records = all_records(read_scenario(file))
    told_by = {
        place: record.model_copy(update={"fingerprint": conditions_of(place)})
        for place, record in records.items()
    }
    store(tmp_path / "records", *told_by.values())
    found, _ = told(file, tmp_path / "records")
    assert [each.status for each in found.cases] == ["ok"] * len(records)


def of_a_server_and_a_model(file: Path, product: str = "float32") -> list[ColocationRecord]:
    """Return records in which high is a server of the user's, which cannot be asked."""
    found = []
    for place, measured in all_records(read_scenario(file)).items():
        seen_by: dict[str, Fingerprint | None] = {
            each.name: None
            if each.name == "high"
            else Fingerprint({"fp32_product": product if place == MPS else "float32"}, {})
            for each in measured.plan.tenants
        }
        own = Fingerprint({"device_name": "NVIDIA H200", "fp32_product": "float32"}, {})
        found.append(measured.model_copy(update={"fingerprint": of_processes(own, seen_by)}))
    return found


def test_what_a_server_did_not_tell_fits(file: Path, tmp_path: Path) -> None:
    records = of_a_server_and_a_model(file)
    conditions = [each.fingerprint.hard for each in records if each.fingerprint is not None]
    assert {str(hard["fp32_product"]) for hard in conditions} == {
        "not known", "float32", "high: not known; low: float32",
    }  # fmt: skip
    store(tmp_path / "records", *records)
    found, _ = told(file, tmp_path / "records")
    assert [each.status for each in found.cases] == ["ok"] * len(records)


def test_what_the_tenant_beside_it_told_has_to_fit(file: Path, tmp_path: Path) -> None:
    first = tmp_path / "first"
    store(first, *of_a_server_and_a_model(file))
    store(tmp_path / "second", *of_a_server_and_a_model(file, "tf32"))
    result = hwq(file, "--from", first, "--from", tmp_path / "second")
    assert result.exit_code == 4
    assert "cannot stand in one table: fp32_product was 'float32' and 'tf32'" in result.stderr


@pytest.mark.parametrize(
    ("place", "changed"),
    [
        (MPS, {"device_name": "NVIDIA L4"}),
        # Both natively: a user's setting, and no mode's.
        (NATIVE, {"fp32_product": "tf32"}),
    ],
)
def test_another_device_or_setting_is_told_from_what_a_mode_sets_up(
    file: Path, tmp_path: Path, place: Place, changed: dict[str, Value]
) -> None:
    for each, measured in all_records(read_scenario(file)).items():
        own = conditions_of(each, **(changed if each == place else {}))
        store(tmp_path / "records", measured.model_copy(update={"fingerprint": own}))
    result = hwq(file, "--from", tmp_path / "records")
    assert result.exit_code == 4
    assert f"cannot stand in one table: {next(iter(changed))} was" in result.stderr


def test_from_a_folder_without_records_is_refused(file: Path, tmp_path: Path) -> None:
    (tmp_path / "session.json").write_text('{"records": []}')
    for folder, reason in (
        (tmp_path, "has no record of the cases of mix"),
        (tmp_path / "nowhere", "is no folder of records"),
    ):
        result = hwq(file, "--from", folder)
        assert result.exit_code == 4
        assert reason in result.stderr


def test_records_of_a_tenant_that_starts_late_are_read(tmp_path: Path) -> None:
    """Later than any length of a window that is not the record's own."""
    file = tmp_path / "mix.hwq.yaml"
    low = "  - {name: low, model: resnet18, start: 5s}\n"
    high = "  - {name: high, model: resnet18}\n"
    file.write_text(f"name: mix\nduration: 9s\nschedulers: [native]\ntenants:\n{high}{low}")
    found, _ = told_of(file, {})
    assert [case.status for case in found.cases] == ["ok"] * 3


def test_a_record_is_read_once(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "session.json").write_text('{"records": []}')
    read: list[str] = []
    read_bytes = Path.read_bytes

    def counted(path: Path) -> bytes:
        read.append(path.name)
        return read_bytes(path)

    monkeypatch.setattr(Path, "read_bytes", counted)
    records = [path.name for path, _ in records_in(folder)]
    assert records
    assert sorted(read) == sorted([*records, "session.json", "session.json"])


def test_other_files_of_a_folder_are_no_records_and_damaged_ones_are_named(folder: Path) -> None:
    paths = [path for path, _ in records_in(folder)]
    assert paths
    measured = paths[0].read_text(encoding="utf-8")
    (folder / "session.json").write_text(f'{{"schema": "s", "colocations": [{measured}]}}')
    assert [path for path, _ in records_in(folder)] == paths
    cut = folder / "cut.json"
    cut.write_text(measured[:-100], encoding="utf-8")
    with pytest.raises(RecordError, match=re.escape(f"{cut} is not a co-location's record")):
        records_in(folder)


WITH_SERVER = SCENARIO.replace("  threads: [stream-priority]\n", "").replace(
    "model: resnet18, batch: 1",
    "server: {url: 'http://127.0.0.1:1/x?m=${MODEL}', ready: /up, headers: {X-Route: a}}",
)


@pytest.mark.parametrize(
    ("change", "refused"),
    [
        (("ready: /up", "ready: /up, ready_timeout: 90s, stop_timeout: 20s"), ""),
        (("X-Route", "x-route"), ""),
        (("x?m", "y?m"), "server.url 'http://127.0.0.1:1/x?m=${MODEL}'"),
        (("X-Route: a", "X-Route: b"), "digest of headers.x-route"),
    ],
)
def test_records_fit_a_server_that_is_only_waited_for_otherwise(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: tuple[str, str], refused: str
) -> None:
    monkeypatch.setenv("MODEL", "llama")
    file = tmp_path / "mix.hwq.yaml"
    file.write_text(WITH_SERVER)
    store(tmp_path / "records", *all_records(read_scenario(file)).values())
    file.write_text(WITH_SERVER.replace(*change))
    # What a variable stood for is told by who started the server alone.
    monkeypatch.delenv("MODEL")
    result = hwq(file, "--from", tmp_path / "records")
    assert (result.exit_code == 4) == bool(refused), result.output
    assert refused in result.stderr
