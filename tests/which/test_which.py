"""hwq which: figures of records whose truth is known, what is chosen, and whole sessions."""

from __future__ import annotations

import io
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from html import unescape
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from rich.console import Console

from pytest_hwqueue.cli.main import main
from pytest_hwqueue.devices.fingerprint import Fingerprint
from pytest_hwqueue.errors import INTERRUPTED
from pytest_hwqueue.metrics.interference import priority_effect
from pytest_hwqueue.records.tenants import (
    ColocationProof,
    ColocationRecord,
    TenantResult,
    read_colocation,
    record_path,
    write_colocation,
)
from pytest_hwqueue.reports.which.terminal import draw_which
from pytest_hwqueue.reports.which.words import printed
from pytest_hwqueue.scenarios.file import Scenario, read_scenario
from pytest_hwqueue.scenarios.planned_runs import PlannedRun, cases, colocation
from pytest_hwqueue.settings.options import OPTIONS
from pytest_hwqueue.tenancy.outcome import delivered
from pytest_hwqueue.which.conclusions import choices, trends
from pytest_hwqueue.which.file import (
    WhichCase,
    WhichFigure,
    WhichFile,
    WhichGoal,
    WhichTenant,
)
from pytest_hwqueue.which.runs import all_runs, entries

SCENARIO = """\
name: mix
description: an urgent one and a greedy one
duration: 60s
ci_duration: 1s
warmup: 100ms
schedulers:
  processes: [native, mps, mps-priority, "xsched:level=1,threshold=1"]
  threads: [stream-priority]
tenants:
  - {name: high, model: resnet18, batch: 1, arrival: "constant: 20/s", priority: 1}
  - {name: low, model: resnet50, batch: 8, arrival: closed}
goals:
  - high.latency_p99_ms < 10
  - high.attainment >= 99%
  - low.throughput >= 80% of native
"""
MS = 1_000_000
WINDOW_S = 60
# Latency of high in ms, and requests per second of low, in each run.
TRUTH = {
    ("mix.solo_high", "processes", "native"): (2, 0),
    ("mix.solo_low", "processes", "native"): (0, 125),
    ("mix", "processes", "native"): (20, 100),
    ("mix", "processes", "mps"): (4, 96),
    ("mix", "processes", "mps-priority"): (3, 90),
    ("mix", "processes", "xsched:level=1,threshold=1"): (3, 50),
    ("mix", "threads", "native"): (30, 100),
    ("mix", "threads", "stream-priority"): (5, 80),
}


@pytest.fixture(autouse=True)
def _no_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    for option in OPTIONS:
        monkeypatch.delenv(option.variable, raising=False)


@pytest.fixture(name="file")
def scenario_file(tmp_path: Path) -> Path:
    path = tmp_path / "mix.hwq.yaml"
    path.write_text(SCENARIO)
    return path


def hwq(*arguments: str | Path, columns: int = 250) -> Result:
    env = {"COLUMNS": str(columns)}
    return CliRunner().invoke(main, ["which", *map(str, arguments)], prog_name="hwq", env=env)


def served(
    name: str, latency_ms: int, per_s: int, seconds: int = WINDOW_S, reasons: Sequence[str] = ()
) -> TenantResult:
    """A tenant whose every request took so long, or that served so many per second."""
    rate = per_s or 20
    step = 10**9 // rate
    scheduled = [index * step for index in range(rate * seconds)]
    finished = [at + (latency_ms * MS or step) for at in scheduled]
    told = {
        "scheduled_ns": scheduled, "started_ns": scheduled, "finished_ns": finished,
        "failures": [{"index": index, "reason": reason} for index, reason in enumerate(reasons)],
        "unserved": 0, "lateness": None, "unit": "images", "memory_bytes": {},
        "items_per_request": 8 if name == "low" else 1,
    }  # fmt: skip
    return delivered(name, told, WINDOW_S * 10**9)


def record(run: PlannedRun, number: int = 1, **changed: Any) -> ColocationRecord:
    latency_ms, per_s = TRUTH[run.name, run.placement, run.scheduler]
    plan = colocation(
        run, {}, duration_s=WINDOW_S, warmup_s=1, seed=number - 1, device="cuda", size="full",
        folder=Path(),
    )  # fmt: skip
    tenants = [
        served(tenant.name, *((latency_ms, 0) if tenant.name == "high" else (0, per_s)))
        for tenant in run.tenants
    ]
    fields: dict[str, Any] = {
        "id": plan.id, "run": number, "plan": plan.to_json(), "status": "ok", "device": "cuda",
        "scheduler": run.scheduler, "tenants": tenants, "seed": number - 1,
        "placement": run.placement, "duration_s": WINDOW_S, "elapsed_s": 70.0,
        "started": f"2026-01-01T00:0{number}:00.000+00:00", "command": "hwq which mix.hwq.yaml",
        "git_commit": "0" * 40, "simulated": False,
        "fingerprint": Fingerprint({"device_name": "NVIDIA H200", "driver_major": 580}, {}),
        "proof": ColocationProof(
            mode=run.scheduler, evidence=f"{run.scheduler} was seen", device_priorities=[0],
            effective=True if "xsched" in run.scheduler else None, counts={"samples": 5},
        ),
    }  # fmt: skip
    return ColocationRecord(**{**fields, **changed})


def store(folder: Path, *records: ColocationRecord) -> None:
    folder.mkdir(exist_ok=True)
    for each in records:
        write_colocation(record_path(folder, each.id), each)


def all_records(scenario: Scenario, number: int = 1) -> dict[tuple[str, str, str], Any]:
    runs = all_runs(scenario, cases(scenario))
    return {(run.name, run.placement, run.scheduler): record(run, number) for run in runs}


@pytest.fixture(name="folder")
def measured_folder(tmp_path: Path, file: Path) -> Path:
    """Records of all runs of the scenario, in two rounds."""
    folder = tmp_path / "records"
    for number in (1, 2):
        store(folder, *all_records(read_scenario(file), number).values())
    return folder


def told(file: Path, folder: Path, *more: str | Path) -> tuple[WhichFile, str]:
    """The table as JSON and as printed."""
    path = folder.parent / "which.json"
    result = hwq(file, "--from", folder, "--json", path, "-v", *more)
    assert result.exit_code == 0, result.output
    return WhichFile.model_validate_json(path.read_bytes()), result.stdout


def case(found: WhichFile, name: str) -> WhichCase:
    (only,) = (each for each in found.cases if each.id == name)
    return only


def test_every_run_is_there_once_with_solos_and_native_of_each_placement(file: Path) -> None:
    scenario = read_scenario(file)
    lines = entries(scenario, cases(scenario))
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
    assert [run.key for run in all_runs(scenario, cases(scenario))] == [
        line.run.key for line in lines
    ]


def test_failed_requests_are_told_with_their_frames(file: Path, tmp_path: Path) -> None:
    reason = 'own:step: a request raised:\n  File "own.py", line 9, in step\nValueError: no more'
    records = all_records(read_scenario(file))
    tenants = [served("high", 4, 0, reasons=[reason] * 3), served("low", 0, 96)]
    records["mix", "processes", "mps"] = records["mix", "processes", "mps"].model_copy(
        update={"tenants": tenants}
    )
    store(tmp_path / "records", *records.values())
    markdown, page = tmp_path / "table.md", tmp_path / "page.html"
    found, output = told(file, tmp_path / "records", "--markdown", markdown)
    short = hwq(file, "--from", tmp_path / "records").stdout
    assert case(found, "mps").tenant("high").failed_for == {reason: 3}
    whole = f"mps, high: 1200 requests; 3 failed:\n3 × {reason}\n"
    assert all(whole in text for text in (output, short, markdown.read_text()))
    assert "failed" not in output.replace(whole, "")
    (tmp_path / "records" / "which.json").write_bytes((tmp_path / "which.json").read_bytes())
    assert CliRunner().invoke(
        main, ["report", str(tmp_path / "records"), "-o", str(page)]
    ).exit_code == 0  # fmt: skip
    shown = unescape(page.read_text(encoding="utf-8"))
    assert whole.strip() in shown
    # And in the tenant's own details.
    assert f"of its requests 3 failed:\n3 × {reason}" in shown


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
        assert figure == WhichFigure(value=4, low=4, high=4, n=2400)
    assert high.max_ms == WhichFigure(value=4, n=2400)
    assert (high.attained_within_ms, high.unit) == (10, "images")
    assert high.attainment is not None
    assert high.attainment.value == 1
    assert high.p99_over_solo == WhichFigure(value=2, low=2, high=2, n=2400)
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
    found, output = told(file, folder)
    (choice,) = found.choices
    assert choice.met == ["mps", "mps-priority"]
    assert choice.missed == ["native", "xsched:level=1,threshold=1"]
    assert choice.undecided == ["threads-stream-priority"]  # 80 % is the bound itself
    assert (choice.best, choice.alike, choice.less_urgent) == ("mps", [], ["low"])
    assert "All goals were met under mps and mps-priority." in output
    assert "it is mps that leaves most to low 768 images/s" in output
    assert "a loss of 4.0" in output
    assert "imulated" not in output


def test_goals_are_those_of_the_placement(file: Path, folder: Path) -> None:
    goals = """\
goals:
  all: [high.attainment >= 99%]
  processes: [high.latency_p99_ms < 10]
  threads: [high.latency_p99_ms < 4]
"""
    file.write_text(SCENARIO[: SCENARIO.index("goals:")] + goals)
    found, output = told(file, folder)
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
    assert "Missed: high.attainment >= 99%, high.p99 < 10 ms under native;" in output


VARIANTS = """\
variants:
  - {name: small}
  - {name: large, set: {low: {batch: 64}}}
  - {name: alone, only: [high], goals: [high.variation < 2%]}
"""
# P99 of high in ms.
GROWING = {
    ("small", "native"): 3,
    ("small", "mps"): 4,
    ("large", "native"): 30,
    ("large", "mps"): 4,
}


@pytest.fixture(name="sweep")
def measured_sweep(file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Records of variants; of `alone` there is only what others needed for comparison."""
    text = SCENARIO.replace(', mps-priority, "xsched:level=1,threshold=1"', "")
    text = text.replace("  threads: [stream-priority]\n", "").partition("goals:")[0]
    file.write_text(text + VARIANTS)
    scenario = read_scenario(file)
    wanted = [each for each in cases(scenario) if each.variant and each.variant.name != "alone"]
    for variant in ("small", "large"):
        monkeypatch.setitem(TRUTH, (f"mix.{variant}.solo_high", "processes", "native"), (2, 0))
        monkeypatch.setitem(TRUTH, (f"mix.{variant}.solo_low", "processes", "native"), (0, 125))
    for (variant, mode), p99_ms in GROWING.items():
        monkeypatch.setitem(TRUTH, (f"mix.{variant}", "processes", mode), (p99_ms, 90))
    folder = tmp_path / "sweep"
    store(folder, *map(record, all_runs(scenario, wanted)))
    return folder


def test_p99_of_the_urgent_tenant_is_shown_over_variants(file: Path, sweep: Path) -> None:
    markdown = sweep.parent / "sweep.md"
    found, output = told(file, sweep, "--markdown", markdown)
    (trend,) = trends(found)
    assert (trend.tenant, trend.variants) == ("high", ["small", "large", "alone"])
    assert {
        name: {variant: p99.value for variant, p99 in row.items()}
        for name, row in trend.rows.items()
    } == {
        "solo high": {"small": 2, "large": 2},
        "native": {"small": 3, "large": 30, "alone": 2},
        "mps": {"small": 4, "large": 4},
    }
    lines = markdown.read_text().split("### P99 of high over variants\n\n")[1].splitlines()
    assert lines[0] == "| scheduler | small | large | alone |"
    assert r"| `mps` | 4.00 ms \[4.00, 4.00\] | 4.00 ms \[4.00, 4.00\] |  |" in lines
    shown = output.split("P99 of high over variants")[1].split("Variant small")[0].splitlines()
    assert [line.split() for line in shown if "30.0" in line] == [
        ["large", "30.0", "[30.0,", "30.0]"]
    ]


def test_a_variant_whose_p99_is_refused_has_none_in_the_trend(file: Path, sweep: Path) -> None:
    (path,) = sweep.glob("mix.large_*-mps-*.json")
    whole = read_colocation(path)
    few = whole.tenant("high").model_copy(update=dict(served("high", 4, 0, seconds=5)))
    tenants = [few, whole.tenant("low")]
    path.unlink()
    store(sweep, whole.model_copy(update={"tenants": tenants}))
    found, output = told(file, sweep)
    (trend,) = trends(found)
    assert trend.rows["mps"]["small"].value == 4
    assert trend.rows["mps"]["large"].value is None
    assert "has 100 (268 missing)" in trend.rows["mps"]["large"].reason
    assert "P99 refused for high of large-mps: needs at least 368 requests, has 100" in output


def test_one_variant_or_no_less_urgent_tenant_has_no_trend(file: Path, sweep: Path) -> None:
    _, output = told(file, sweep, "--variant", "small")
    assert "over variants" not in output
    file.write_text(file.read_text().replace("priority: 1", "priority: 0"))
    for path in sweep.glob("*.json"):
        path.write_text(path.read_text().replace('"priority":1', '"priority":0'))
    _, output = told(file, sweep)
    assert "over variants" not in output


def test_native_only_for_comparison_is_no_candidate(file: Path, folder: Path) -> None:
    found, _ = told(file, folder, "--schedulers", "mps,xsched")
    assert [(each.id, each.role) for each in found.cases if each.role != "solo"] == [
        ("native", "reference"),
        ("mps", "case"),
        ("xsched:level=1,threshold=1", "case"),
    ]
    (choice,) = found.choices
    assert (choice.met, choice.missed) == (["mps"], ["xsched:level=1,threshold=1"])


def test_proof_is_short_and_says_whether_it_was_effective(file: Path, folder: Path) -> None:
    found, output = told(file, folder)
    proof = case(found, "xsched:level=1,threshold=1").proof
    assert proof is not None
    assert (proof.effective, proof.counts) == (True, {"samples": 10})
    assert "proven; effective: yes" in output
    assert "xsched:level=1,threshold=1 was seen; samples 10; effective: yes" in output
    assert "mps was seen; samples 10; effective: unknown" in output


def test_samples_add_up_over_windows_and_multiprocessors_do_not(file: Path, folder: Path) -> None:
    seen = {
        "samples": 5,
        "multiprocessors seen by high": 132,
        "high XQueues never seen with work": 16,
    }
    for path in folder.glob("*-mps*.json"):
        changed = json.loads(path.read_text())
        changed["proof"]["counts"] = seen
        path.write_text(json.dumps(changed))
    proof = case(told(file, folder)[0], "mps").proof
    assert proof is not None
    assert proof.counts == {**seen, "samples": 10}


def test_priority_that_no_probe_saw_is_not_proven(file: Path, folder: Path) -> None:
    """Records from before the probe say so, too."""
    found, output = told(file, folder)
    proof = case(found, "mps-priority").proof
    assert proof is not None
    assert (proof.priority, proof.effective) == ("not probed", None)
    assert "proven; priority not proven" in output
    assert "priority not proven: no probe ran" in output


def probed(urgent_us: int) -> ColocationProof:
    effect = priority_effect(
        "high", "low", [urgent_us * 1000, urgent_us * 1000 + 1] * 6, [400_000, 400_001] * 6,
        alone_ns=20_000, load_ns=400_000, requests=10,
    )  # fmt: skip
    return ColocationProof(
        mode="mps-priority",
        evidence="clients of a server",
        device_priorities=[0],
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
    (run,) = (r for r in all_runs(scenario, cases(scenario)) if r.scheduler == "mps-priority")
    paths = [path for path in folder.iterdir() if read_colocation(path).scheduler == run.scheduler]
    for number, (path, urgent_us) in enumerate(zip(paths, (25, second_us), strict=True), 1):
        write_colocation(path, record(run, number, proof=probed(urgent_us)))
    found, output = told(file, folder)
    proof = case(found, "mps-priority").proof
    assert proof is not None
    assert proof.priority == verdict
    assert proof.effective is (verdict == "proven")
    assert text in output


def test_the_answer_says_that_priority_is_not_proven(file: Path, folder: Path) -> None:
    found, output = told(file, folder, "--schedulers", "mps-priority")
    assert found.choices[0].best == "mps-priority"
    assert "But its priority is not proven: no probe ran." in output


def test_a_dead_tenant_costs_its_mode_alone(file: Path, tmp_path: Path) -> None:
    records = all_records(read_scenario(file))
    place = ("mix", "processes", "mps-priority")
    reason = "tenant low ended with exit status 1. Try: a smaller batch"
    dead = [
        TenantResult(name="high"),
        TenantResult(name="low", exit="exit status 1", last_output="CUDA out of memory\n"),
    ]
    records[place] = records[place].model_copy(
        update={"status": "failed", "reason": reason, "tenants": dead, "proof": None}
    )
    place = ("mix", "processes", "xsched:level=1,threshold=1")
    records[place] = records[place].model_copy(
        update={"status": "skipped", "reason": "give --hwq-xsched-root", "tenants": []}
    )
    store(tmp_path / "records", *records.values())
    markdown = tmp_path / "table.md"
    found, output = told(file, tmp_path / "records", "--markdown", markdown)
    failed = case(found, "mps-priority")
    assert (failed.status, failed.reason, failed.tenants) == ("failed", reason, [])
    assert failed.last_output == {"low": "CUDA out of memory\n"}
    for text in (output, markdown.read_text().replace("\\", "")):
        assert f"FAILED: {reason}" in text
        assert "SKIPPED: give --hwq-xsched-root" in text
        assert "Without figures: mps-priority and xsched:level=1,threshold=1." in text
        assert "All goals were met under mps." in text
        assert "last output of low:\nCUDA out of memory" in re.sub(" *\n *", "\n", text)


def test_a_native_that_failed_leaves_loss_and_relative_goals_open(
    file: Path, tmp_path: Path
) -> None:
    records = all_records(read_scenario(file))
    place = ("mix", "processes", "native")
    records[place] = records[place].model_copy(update={"status": "invalid", "reason": "late"})
    store(tmp_path / "records", *records.values())
    found, output = told(file, tmp_path / "records")
    mps = case(found, "mps")
    loss = mps.tenant("low").throughput_loss
    assert loss is not None
    assert (loss.value, loss.reason) == (None, "native was invalid: late")
    assert [goal.verdict for goal in mps.goals] == ["met", "met", "undecided"]
    assert "No scheduler was shown to meet all goals" in output


def test_percentiles_of_few_requests_are_refused_with_what_is_missing(
    file: Path, tmp_path: Path
) -> None:
    records = all_records(read_scenario(file))
    for place, whole in records.items():
        tenants = []
        for tenant in whole.tenants:
            assert tenant.requests is not None
            times = {name: values[:100] for name, values in tenant.requests}
            told_so = {
                **times, "failures": [], "unserved": 0, "lateness": None, "unit": "images",
                "memory_bytes": {}, "items_per_request": 1,
            }  # fmt: skip
            tenants.append(delivered(tenant.name, told_so, WINDOW_S * 10**9))
        records[place] = whole.model_copy(update={"tenants": tenants})
    store(tmp_path / "records", *records.values())
    found, output = told(file, tmp_path / "records")
    high = case(found, "mps").tenant("high")
    assert high.p95_ms.value == 4
    assert high.p99_ms.value is None
    assert high.p99_ms.reason == "needs at least 368 requests, has 100 (268 missing)"
    assert "P99 refused" in output
    assert "268 missing" in output


def test_requests_that_never_completed_are_no_fast_ones(file: Path, tmp_path: Path) -> None:
    records = all_records(read_scenario(file))
    place = ("mix", "processes", "mps")
    high, low = records[place].tenants
    assert high.issued is not None
    lost = high.model_copy(update={"issued": high.issued + 300, "unserved": 300})
    records[place] = records[place].model_copy(update={"tenants": [lost, low]})
    store(tmp_path / "records", *records.values())
    found, output = told(file, tmp_path / "records")
    figures = case(found, "mps").tenant("high")
    assert figures.p50_ms.value == 4
    assert figures.p99_ms.value is None
    assert figures.p99_ms.reason == "so many requests never completed"
    assert figures.max_ms.reason == "300 of 1500 requests never completed"
    assert "mps" in found.choices[0].missed
    assert "P99 to solo refused for high of mps: so many requests never completed" in output


def test_windows_of_several_folders_count_together(file: Path, tmp_path: Path) -> None:
    folders = [tmp_path / "first", tmp_path / "second"]
    for number, folder in enumerate(folders, 1):
        store(folder, *all_records(read_scenario(file), number).values())
    found, _ = told(file, folders[0], "--from", folders[1])
    assert case(found, "mps").window_s == 2 * WINDOW_S
    assert case(found, "mps").tenant("high").issued == 2400


@pytest.fixture(name="three_gpus")
def measured_on_three_gpus(file: Path, tmp_path: Path) -> list[Path]:
    """Records of three sessions on three GPUs, each slower than the first by another constant.

    All measured the tenants alone and native; each other mode was measured once. Under any mode
    high takes TRUTH's multiple of alone on every GPU.
    """
    folders = []
    for number, (gpu, slower, modes) in enumerate(
        (("a", 2, ("mps",)), ("b", 3, ("mps-priority",)), ("c", 5, ("stream-priority",))), 1
    ):
        records = []
        for each in all_records(read_scenario(file), number).values():
            if each.scheduler not in ("native", *modes):
                continue
            tenants = [
                tenant.model_copy(update={"latency_ns": [slower * t for t in tenant.latency_ns]})
                for tenant in each.tenants
            ]
            fingerprint = Fingerprint(
                {"device_name": "NVIDIA H200", "driver_major": 580}, {"device_uuid": gpu}
            )
            records.append(each.model_copy(update={"tenants": tenants, "fingerprint": fingerprint}))
        folders.append(tmp_path / f"session-{gpu}")
        store(folders[-1], *records)
    return folders


def test_ratios_of_three_gpus_are_formed_within_each(
    file: Path, three_gpus: list[Path], tmp_path: Path
) -> None:
    others = [part for folder in three_gpus[1:] for part in ("--from", folder)]
    markdown = tmp_path / "table.md"
    found, output = told(file, three_gpus[0], *others, "--markdown", markdown)
    assert [session.device_uuid for session in found.sessions] == ["a", "b", "c"]
    solo = case(found, "solo high")
    assert (solo.sessions, solo.tenant("high").p50_ms.sessions) == (3, 3)
    # Alone takes 2 ms, made 2, 3 and 5 times longer: the interval reaches over each GPU's.
    alone = solo.tenant("high").p50_ms
    assert (alone.value, alone.low, alone.high) == (6, 4, 10)
    for name, truth, sessions in (
        ("native", 10, 3), ("mps", 2, 1), ("mps-priority", 1.5, 1),
        ("threads-stream-priority", 2.5, 1),
    ):  # fmt: skip
        for figure in (case(found, name).tenant("high").p50_over_solo,
                       case(found, name).tenant("high").p99_over_solo):  # fmt: skip
            assert figure is not None
            assert figure.value == pytest.approx(truth)
            assert figure.low == pytest.approx(truth)
            assert figure.high == pytest.approx(truth)
            assert figure.sessions == sessions
    for text in (output, markdown.read_text().replace("\\", "")):
        flat = re.sub(r"\s+", " ", text)
        assert "Measured in 3 sessions on 3 GPUs." in flat
        assert "do not divide one row by another" in flat
        for number, gpu in enumerate("abc", 1):
            assert f"Session {number} of 3: session-{gpu} on GPU {gpu}" in flat
    first = found.sessions[0]
    assert [each.id for each in first.cases] == [
        "solo high", "solo low", "native", "mps", "threads-native",
    ]  # fmt: skip
    alone = first.cases[0].tenant("high").p50_ms
    assert (alone.value, alone.low, alone.high) == (4, 4, 4)
    for columns in (160, 60):
        narrow = hwq(file, "--from", three_gpus[0], *others, columns=columns).stdout
        assert all(len(line.rstrip()) <= columns for line in narrow.splitlines())


def test_a_reference_of_another_session_is_divided_by_nobody(
    file: Path, three_gpus: list[Path]
) -> None:
    for path in three_gpus[0].glob("*solo*"):
        path.unlink()
    found, output = told(file, three_gpus[0], "--from", three_gpus[1])
    mps = case(found, "mps").tenant("high").p99_over_solo
    assert mps is not None
    assert (mps.value, mps.sessions) == (None, 0)
    assert mps.reason == "mix.solo_high was measured in other sessions only"
    native = case(found, "native").tenant("high").p99_over_solo
    assert native is not None
    assert native.value == pytest.approx(10)
    assert native.reason == "of 1 of 2 sessions: the others lack mix.solo_high"
    assert "the others lack" in output
    # mps met its goals too, but its share of alone is not known, so nobody leaves most.
    (choice,) = found.choices
    assert choice.met == ["mps", "mps-priority"]
    assert choice.best is None
    assert "Which of them leaves most is not known" in re.sub(r"\s+", " ", output)


def test_a_reference_that_failed_in_another_session_costs_nothing(
    file: Path, three_gpus: list[Path]
) -> None:
    for path in three_gpus[1].glob("*solo*"):
        bad = read_colocation(path).model_copy(
            update={"status": "failed", "reason": "no driver", "tenants": [], "fingerprint": None}
        )
        write_colocation(path, bad)
    found, _ = told(file, three_gpus[0], "--from", three_gpus[1])
    assert len(found.sessions) == 2  # the failed runs have no fingerprint, and are of their folder
    own = case(found, "mps").tenant("high").p99_over_solo
    other = case(found, "mps-priority").tenant("high").p99_over_solo
    assert own is not None
    assert other is not None
    assert own.value == pytest.approx(2)
    assert (other.value, other.reason) == (None, "mix.solo_high was failed: no driver")


def test_a_loss_and_a_ratio_that_tell_nothing_are_refused(file: Path, tmp_path: Path) -> None:
    """Of a native that served two requests in a minute: lost -485 % [-13535, 75] was printed."""
    records = all_records(read_scenario(file))

    def few(name: str, latency_ms: tuple[int, ...]) -> TenantResult:
        scheduled = [(index + 1) * 10**9 // 10 for index in range(len(latency_ms))]
        finished = [at + ms * MS for at, ms in zip(scheduled, latency_ms, strict=True)]
        got = {
            "scheduled_ns": scheduled, "started_ns": scheduled, "finished_ns": finished,
            "failures": [], "unserved": 0, "lateness": None, "unit": "images", "memory_bytes": {},
            "items_per_request": 8,
        }  # fmt: skip
        return delivered(name, got, WINDOW_S * 10**9)

    for place, low in (
        (("mix", "processes", "native"), few("low", (30_000, 40_000))),
        (("mix", "processes", "mps"), few("low", (10,) * 12)),
    ):
        high = few("high", (1,) * 250 + (90,) * 250) if place[2] == "mps" else None
        tenants = [high or records[place].tenants[0], low]
        records[place] = records[place].model_copy(update={"tenants": tenants})
    store(tmp_path / "records", *records.values())
    found, output = told(file, tmp_path / "records")
    mps = case(found, "mps")
    loss, ratio = mps.tenant("low").throughput_loss, mps.tenant("high").p50_over_solo
    assert loss is not None
    assert ratio is not None
    assert (loss.value, loss.low, loss.high) == (None, None, None)
    assert "is wider than 100 percentage points and than the figure itself" in loss.reason
    assert ratio.value is None
    assert "is wider than once the reference and than the figure itself" in ratio.reason
    assert "loss to native refused for low of mps: its interval" in re.sub(r"\s+", " ", output)
    # Goals need no such width: the whole interval may lie on one side.
    assert mps.goals[-1].verdict in ("met", "missed", "undecided")


def test_a_window_that_was_interrupted_costs_its_case_nothing(file: Path, folder: Path) -> None:
    records = {path: read_colocation(path) for path in folder.iterdir()}
    (path,) = (p for p, each in records.items() if (each.scheduler, each.run) == ("mps", 2))
    changed = {**json.loads(path.read_text()), "status": "failed", "reason": INTERRUPTED}
    path.write_text(json.dumps(changed))
    found, output = told(file, folder)
    assert case(found, "mps").window_s == WINDOW_S
    assert "interrupted" not in output


def test_a_session_that_was_cut_off_is_printed_as_far_as_it_came(
    file: Path, tmp_path: Path
) -> None:
    records = all_records(read_scenario(file))
    kept = [each for place, each in records.items() if place[1:] != ("processes", "native")]
    store(tmp_path / "records", *kept)
    found, output = told(file, tmp_path / "records")
    assert case(found, "native").status == "not measured"
    assert "NOT MEASURED" in output
    loss = case(found, "mps").tenant("low").throughput_loss
    assert loss is not None
    assert loss.reason == "native was not measured: there is no record of it"
    last = case(found, "mps").goals[-1]
    assert (last.verdict, last.reason) == ("undecided", "mix under native was not measured")


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
        ({"plan": ("batch", 16)}, "measured with batch 16, and the scenario file says 8"),
        ({"hard": 570}, "cannot stand in one table: driver_major was 5[78]0 and 5[78]0"),
    ],
)
def test_records_that_do_not_belong_together_are_refused(
    file: Path, tmp_path: Path, changed: dict[str, Any], message: str
) -> None:
    records = all_records(read_scenario(file))
    place = ("mix", "processes", "mps")
    other = records[place].model_dump()
    if "plan" in changed:
        name, value = changed["plan"]
        other["plan"]["tenants"][1][name] = value
    else:
        other["fingerprint"] = Fingerprint({"device_name": "NVIDIA H200", "driver_major": 570}, {})
    records[place] = ColocationRecord(**other)
    store(tmp_path / "records", *records.values())
    result = hwq(file, "--from", tmp_path / "records")
    assert result.exit_code == 4
    assert re.search(message, result.stderr)


def test_from_a_folder_without_records_is_refused(file: Path, tmp_path: Path) -> None:
    (tmp_path / "session.json").write_text('{"records": []}')
    for folder, reason in (
        (tmp_path, "has no record of the cases of mix"),
        (tmp_path / "nowhere", "is no folder of records"),
    ):
        result = hwq(file, "--from", folder)
        assert result.exit_code == 4
        assert reason in result.stderr


@pytest.mark.parametrize("columns", [80, 120])
@pytest.mark.parametrize("verbose", [(), ("-v",)], ids=["brief", "verbose"])
def test_the_decision_comes_first_and_each_row_names_its_mode(
    file: Path, folder: Path, columns: int, verbose: tuple[str, ...]
) -> None:
    output = hwq(file, "--from", folder, *verbose, columns=columns).stdout
    lines = [line.rstrip() for line in output.split("\n")]
    assert max(map(len, lines)) <= columns
    decision, answer, rest = output.partition("All goals were met")
    assert answer
    heading = next(line for line in decision.split("\n") if line.startswith("scheduler"))
    assert re.findall(r"P99 of high|loss of low|goals", heading) == [
        "P99 of high", "loss of low", "goals",
    ]  # fmt: skip
    rows = {
        "solo high": r"2\.00 \[.*\]", "native": r"20\.0 \[.*\] +1 of 3",
        "mps": r"4\.00 \[.*\] +4\.00 \[.*\] +3 of 3",
        "mps-priority": r"3\.00 \[.*\] +10\.0 \[.*\] +3 of 3",
        "xsched:level=1,threshold=1": r"3\.00 \[.*\] +50\.0 \[.*\] +2 of 3",
        "threads-stream-priority": r"5\.00 \[.*\] +20\.0 \[.*\] +2\W3 of 3",
    }  # fmt: skip
    for name, figures in rows.items():
        (row,) = (line for line in decision.split("\n") if line.startswith(f"{name}  "))
        assert re.search(figures, row), row
    # Each tenant's row names its mode, too.
    for name in ("native", "mps", "threads-stream-priority"):
        for tenant in ("high", "low"):
            assert re.search(rf"^{name} +{tenant}( |$)", rest, re.MULTILINE)


def test_brief_names_the_goals_not_met_and_what_was_proven(file: Path, folder: Path) -> None:
    text = " ".join(hwq(file, "--from", folder, columns=80).stdout.split())
    assert "native: missed: high.p99 < 10 ms (20" in text
    assert "met: low.throughput >= 80% of native" not in text
    assert "xsched:level=1,threshold=1: proven; effective: yes" in text
    assert "was seen; samples" not in text


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
    draw_which(several, console)
    text = console.file.getvalue()  # type: ignore[attr-defined]
    assert "worst P99 [95 %]" in text
    assert "of high, high2" in text
    assert re.search(r"^mps +77\.0 \[", text, re.MULTILINE)


def test_narrow_terminals_lose_no_figure(file: Path, folder: Path) -> None:
    wide = hwq(file, "--from", folder, "-v").stdout
    for columns in (160, 60):
        narrow = hwq(file, "--from", folder, "-v", columns=columns).stdout
        assert all(len(line.rstrip()) <= columns for line in narrow.splitlines())
        for figure in ("768", "720", "20.0", "4.00"):
            assert figure in narrow
            assert figure in wide


def tenant(name: str, priority: int, value: float, half: float) -> WhichTenant:
    none = WhichFigure()
    return WhichTenant(
        name=name, priority=priority, issued=1, completed=1, failed=0, unserved=0, p50_ms=none,
        p95_ms=none, p99_ms=none, max_ms=none, unit="images", throughput_loss=None,
        p50_over_solo=None, p99_over_solo=None,
        throughput_items_per_s=WhichFigure(value=value, low=value - half, high=value + half),
    )  # fmt: skip


def judged(name: str, verdict: str | None, *throughputs: float, half: float = 0.5) -> WhichCase:
    """A case with an urgent tenant and less urgent ones of these throughputs."""
    others = [tenant(f"low{index}", 0, each, half) for index, each in enumerate(throughputs)]
    goals = [] if verdict is None else [WhichGoal(goal="g", verdict=verdict)]
    return WhichCase(
        id=name, role="case", variant=None, placement="processes", scheduler=name, status="ok",
        tenants=[tenant("high", 1, 1.0, half), *others], goals=goals,
    )  # fmt: skip


def test_of_modes_that_met_all_the_one_that_leaves_most_is_best() -> None:
    (choice,) = choices([judged("a", "met", 90), judged("b", "met", 95), judged("c", "missed", 99)])
    assert (choice.met, choice.best, choice.alike) == (["a", "b"], "b", [])


def test_modes_whose_intervals_overlap_are_called_alike() -> None:
    (choice,) = choices([judged("a", "met", 94, half=1), judged("b", "met", 95, half=1)])
    assert (choice.best, choice.alike) == ("b", ["a"])


def test_of_several_less_urgent_tenants_the_one_that_loses_most_counts() -> None:
    (choice,) = choices([judged("a", "met", 100, 10), judged("b", "met", 80, 80)])
    assert choice.best == "b"


def test_without_a_less_urgent_tenant_none_is_best() -> None:
    (choice,) = choices([judged("a", "met"), judged("b", "undecided")])
    assert (choice.met, choice.undecided, choice.best) == (["a"], ["b"], None)


def test_without_goals_nothing_is_met() -> None:
    (choice,) = choices([judged("a", None, 90)])
    assert not choice.goals
    assert choice.met == choice.missed == choice.undecided == []


def test_each_variant_has_its_own_choice() -> None:
    first = judged("x-a", "met", 90).model_copy(update={"variant": "x"})
    second = judged("y-a", "missed", 90).model_copy(update={"variant": "y"})
    found = choices([first, second])
    assert [(each.variant, each.best) for each in found] == [("x", "x-a"), ("y", None)]


SIMULATED = (
    "--device", "sim:h200", "--size", "tiny", "--duration", "1s",
)  # fmt: skip


@pytest.fixture(scope="module", name="simulated")
def simulated_session(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Result]:
    """A whole session on the model of a device; some modes are no part of it."""
    folder = tmp_path_factory.mktemp("simulated")
    file = folder / "mix.hwq.yaml"
    modes = 'processes: [native, mps-partition, "preload:no_such"]'
    text = SCENARIO.replace(SCENARIO[SCENARIO.index("  processes:") :].splitlines()[0][2:], modes)
    file.write_text(text)
    return folder, hwq(
        file, *SIMULATED, "--dir", folder / "all", "--json", folder / "w.json", "--markdown",
        folder / "w.md", "--svg", folder / "w.svg",
    )  # fmt: skip


def test_a_session_measures_in_turn_and_says_that_it_is_simulated(
    simulated: tuple[Path, Result],
) -> None:
    folder, result = simulated
    # A mode that was asked for could not be opened.
    assert result.exit_code == 4, result.output
    assert "not measured: preload:no_such: there is no no_such.yaml" in result.stderr
    found = WhichFile.model_validate_json((folder / "w.json").read_bytes())
    assert (found.device, found.simulated, found.complete) == ("sim:h200", True, True)
    runs = [line.split()[3] for line in result.stderr.splitlines() if "[sim:h200" in line]
    measured = [run for run in runs if runs.count(run) == 2]
    assert measured == list(reversed(measured))
    assert len(set(measured)) == 5
    for text in (result.stdout, (folder / "w.md").read_text(), (folder / "w.svg").read_text()):
        assert "SIMULATED" in text
    assert "Simulated, not measured." in result.stdout
    assert case(found, "threads-stream-priority").tenant("high").issued == 20
    # What ran, once for each tenant above the table.
    ran = "low: resnet50 (tiny), batch 8, images of 3×32×32, fp32 without TF32,"
    for text in (result.stdout, (folder / "w.md").read_text()):
        assert " ".join(text.split()).count(ran) == 1


def test_alternatives_of_an_entry_are_rows_of_their_own(tmp_path: Path) -> None:
    file = tmp_path / "small.hwq.yaml"
    file.write_text(
        "name: small\nduration: 300ms\nschedulers: ['xsched:level=1,threshold=1|2|8']\ntenants:\n"
        "  - {name: urgent, workload: tiny_kernel_stress, arrival: 'poisson: 600/s', priority: 1}\n"
        "  - {name: other, workload: tiny_kernel_stress, arrival: closed}\n"
        "goals: [urgent.p50 < 1 s]\n",
        encoding="utf-8",
    )
    result = hwq(
        file, "--device", "sim:h200", "--size", "tiny", "--dir", tmp_path / "all", "--rounds", "1",
        "--schedulers", "xsched:threshold=8|1,level=1", "--json", tmp_path / "w.json",
    )  # fmt: skip
    assert result.exit_code == 0, result.output
    found = WhichFile.model_validate_json((tmp_path / "w.json").read_bytes())
    modes = ["xsched:level=1,threshold=1", "xsched:level=1,threshold=8"]
    assert [each.id for each in found.cases if each.role == "case"] == modes
    # The higher threshold keeps less back.
    low, high = (case(found, mode).tenant("other").throughput_items_per_s.value for mode in modes)
    assert low is not None
    assert high is not None
    assert low < high
    rows = [line.split()[0] for line in result.stdout.splitlines() if line.startswith("xsched")]
    assert list(dict.fromkeys(rows)) == modes


def test_causes_stand_below_the_table_and_change_nothing_in_it(tmp_path: Path) -> None:
    file = tmp_path / "small.hwq.yaml"
    file.write_text(
        "name: small\nduration: 300ms\nschedulers: {processes: [native], threads: [native]}\n"
        "tenants:\n"
        "  - {name: urgent, workload: tiny_kernel_stress, parameters: {rounds: 2}, "
        "arrival: 'poisson: 600/s'}\n"
        "  - {name: other, workload: tiny_kernel_stress, parameters: {rounds: 2}, "
        "arrival: 'poisson: 300/s'}\n"
        "goals: [urgent.p99 < 1 s]\n",
        encoding="utf-8",
    )
    device = ("--device", "sim:h200", "--size", "tiny")
    result = hwq(file, *device, "--dir", tmp_path / "all", "--causes")
    assert result.exit_code == 0, result.output
    lines = result.stdout.splitlines()
    told = [line for line in lines if ": urgent: causes of the slowest 1 %" in line]
    assert [line.partition(":")[0] for line in told] == ["native", "threads-native"]
    assert lines[-2:] == told
    (folder,) = (tmp_path / "all").iterdir()
    assert len(list((folder / "traced").glob("*.json"))) == 2
    again = hwq(file, "--from", folder)
    assert again.stdout.splitlines() == lines[:-2]
    refused = hwq(file, "--from", folder, "--causes")
    assert refused.exit_code == 4
    assert "--causes" in refused.stderr


def test_modes_that_cannot_be_had_stand_in_the_table(simulated: tuple[Path, Result]) -> None:
    folder, result = simulated
    found = WhichFile.model_validate_json((folder / "w.json").read_bytes())
    for name, reason, status in (
        ("mps-partition", "share", "skipped"), ("preload:no_such", "no_such", "failed"),
    ):  # fmt: skip
        assert case(found, name).status == status
        assert reason in case(found, name).reason
        assert f"{status.upper()}: {case(found, name).reason[:40]}" in " ".join(
            result.stdout.split()
        )
    assert found.choices[0].without_figures == ["mps-partition", "preload:no_such"]


def test_records_alone_give_the_same_table_and_plot(simulated: tuple[Path, Result]) -> None:
    folder, result = simulated
    (session,) = (folder / "all").iterdir()
    again = hwq(
        folder / "mix.hwq.yaml", "--from", session, "--json", folder / "again.json", "--svg",
        folder / "again.svg",
    )  # fmt: skip
    assert again.exit_code == 0, again.output
    assert again.stdout == result.stdout
    first = (folder / "w.json").read_text()
    assert (folder / "again.json").read_text() == first == (session / "which.json").read_text()
    assert (folder / "again.svg").read_bytes() == (folder / "w.svg").read_bytes()


def test_xsched_without_its_root_is_skipped_on_a_real_device(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("XSCHED_ROOT", raising=False)
    file = tmp_path / "one.hwq.yaml"
    file.write_text(
        'name: one\nduration: 1s\nschedulers: ["xsched:level=1,threshold=1", mps-priority]\n'
        "tenants:\n  - {name: high, workload: tiny_kernel_stress, priority: 1}\n"
    )
    result = hwq(
        file, "--device", "cpu", "--duration", "300ms", "--rounds", "1", "--dir", tmp_path / "d",
        "--json", tmp_path / "w.json",
    )  # fmt: skip
    # Native came to figures, but only for comparison.
    assert result.exit_code == 1, result.output
    found = WhichFile.model_validate_json((tmp_path / "w.json").read_bytes())
    native = case(found, "native")
    assert (native.role, native.status) == ("reference", "ok")
    assert native.proof is not None
    for name in ("xsched:level=1,threshold=1", "mps-priority"):
        assert case(found, name).status == "skipped"
        assert case(found, name).reason in " ".join(result.stdout.split())
    assert not found.simulated


def test_ctrl_c_prints_the_table_so_far(tmp_path: Path, file: Path) -> None:
    command = [
        sys.executable, "-m", "pytest_hwqueue", "which", str(file), *SIMULATED, "--rounds", "50",
        "--duration", "100s", "--dir", str(tmp_path / "d"), "--json", str(tmp_path / "w.json"),
    ]  # fmt: skip
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env={**os.environ, "COLUMNS": "250"},
    )  # fmt: skip
    assert process.stderr is not None
    for line in lines_of(process):
        if "3/400" in line:
            break
    process.send_signal(signal.SIGINT)
    stdout, _ = process.communicate(timeout=60)
    assert process.returncode == 2
    assert "INCOMPLETE: interrupted" in stdout
    assert "NOT MEASURED" in stdout
    found = json.loads((tmp_path / "w.json").read_text())
    assert found["complete"] is False
    assert found["cases"][0]["status"] == "ok"
    (session,) = (tmp_path / "d").iterdir()
    again = hwq(file, "--from", session)
    assert again.exit_code == 0
    assert "solo high" in again.stdout


def lines_of(process: subprocess.Popen[str]) -> Iterator[str]:
    assert process.stderr is not None
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        line = process.stderr.readline()
        if not line:
            break
        yield line
    process.kill()
    pytest.fail(f"ended too early: {process.communicate()}")


@pytest.mark.parametrize(
    ("arguments", "status", "message"),
    [
        (["--variant", "big"], 4, "--variant"),
        (["--schedulers", "mpz"], 4, "there is no scheduler mode 'mpz'"),
        (["--schedulers", "mps-partition"], 5, "the scenario has native, mps"),
        (["--schedulers", "native,xsched:level=3"], 4, "does not list xsched:level=3"),
        (["--duration", "60"], 4, "such as 180s"),
        (["--rounds", "0"], 4, "--rounds"),
        (["--device", "sim:none"], 4, "--device"),
        (["--json", "no/such/folder/w.json"], 4, "there is no folder"),
    ],
)
def test_wrong_usage_is_refused_before_anything_is_measured(
    file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], status: int,
    message: str,
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    result = hwq(file, "--device", "sim:h200", *arguments)
    assert result.exit_code == status
    assert message in result.stderr
    assert not (tmp_path / ".hwqueue").exists()


def test_a_wrong_scenario_file_is_refused_with_its_lines(tmp_path: Path) -> None:
    file = tmp_path / "bad.hwq.yaml"
    file.write_text("name: bad\nduration: 1\n")
    result = hwq(file)
    assert result.exit_code == 4
    assert "bad.hwq.yaml:2: duration" in result.stderr


def test_a_deadline_of_a_tenant_comes_before_its_goal(file: Path, folder: Path) -> None:
    text = SCENARIO.replace("priority: 1}", "priority: 1, deadline_ms: 3}")
    file.write_text(text)
    found, _ = told(file, folder)
    high = case(found, "mps").tenant("high")
    assert high.attained_within_ms == 3
    assert high.attainment is not None
    assert high.attainment.value == 0


def test_runs_of_one_kind_are_measured_once() -> None:
    scenarios = Path(__file__).parents[2] / "benchmarks" / "scenarios"
    scenario = read_scenario(scenarios / "bert_multi_priority.hwq.yaml")
    runs = all_runs(scenario, cases(scenario))
    assert len({run.key for run in runs}) == len(runs)
    alone = [run for run in runs if len(run.tenants) == 1 and run.placement == "processes"]
    assert len(alone) == 3
    assert replace(alone[0], name="x").key == alone[0].key


@pytest.mark.parametrize(
    ("given", "unit", "text"),
    [
        (WhichFigure(value=4, low=3.5, high=4.5), "ms", "4.00 ms [3.50, 4.50]"),
        (WhichFigure(value=4, low=3.5), "ms", "4.00 ms [3.50, ∞]"),
        (WhichFigure(value=4), "ms", "4.00 ms"),
        (WhichFigure(value=1, low=0.99694, high=1), "share", "100.00 % [99.69, 100.00]"),
        (WhichFigure(value=0.04, low=0.031, high=0.05), "%", "4.00 % [3.10, 5.00]"),
        (WhichFigure(value=0.04, high=0.05), "%", "4.00 % [-∞, 5.00]"),
        (WhichFigure(value=1.3, low=1.2, high=1.4), "×", "1.30× [1.20, 1.40]"),
        (WhichFigure(value=7530, low=7500, high=7560), "images/s", "7.53 k images/s [7.50, 7.56]"),
        (WhichFigure(reason="none"), "ms", "—"),
    ],
)
def test_figures_are_printed_with_their_ends(given: WhichFigure, unit: str, text: str) -> None:
    assert str(printed(given, unit)) == text


def test_more_throughput_than_native_is_no_loss(file: Path, tmp_path: Path) -> None:
    records = all_records(read_scenario(file))
    place = ("mix", "processes", "mps-priority")
    high, _ = records[place].tenants
    faster = {"tenants": [high, served("low", 0, 110)]}
    records[place] = records[place].model_copy(update=faster)
    store(tmp_path / "records", *records.values())
    found, output = told(file, tmp_path / "records")
    assert found.choices[0].best == "mps-priority"
    assert re.search(r"images/s \[\d+, \d+\], 10\.0 % \[[\d., ]+\] more than under native", output)
