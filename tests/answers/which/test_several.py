"""Tables over variants, and of several sessions on different GPUs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pytest_hwqueue.answers.which.file import WhichFile, trends
from pytest_hwqueue.answers.which.runs import all_runs
from pytest_hwqueue.data.metrics.estimate import Estimate
from pytest_hwqueue.data.records.fingerprint import Fingerprint
from pytest_hwqueue.data.records.tenants import read_colocation, write_colocation
from pytest_hwqueue.engine.scenarios.file import read_scenario
from pytest_hwqueue.engine.scenarios.planned_runs import cases
from tests.answers.which.conftest import (
    SCENARIO,
    TRUTH,
    WINDOW_S,
    all_records,
    case,
    hwq,
    record,
    served,
    store,
    told,
)
from tests.answers.which.test_table import assert_faces_as_stored

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
    store(folder, *map(record, all_runs(wanted)))
    return folder


def test_p99_of_the_urgent_tenant_is_shown_over_variants(file: Path, sweep: Path) -> None:
    found, _ = told(file, sweep)
    (trend,) = trends(found)
    assert (trend.tenant, trend.variants) == ("high", ["small", "large", "alone"])
    assert {
        name: {variant: p99.value for variant, p99 in row.items()}
        for name, row in trend.rows.items()
    } == {
        "solo high": {"small": 2, "large": 2}, "native": {"small": 3, "large": 30, "alone": 2},
        "mps": {"small": 4, "large": 4},
    }  # fmt: skip
    assert_faces_as_stored("variants", file, [sweep])
    # One that is refused is told in its place.
    (path,) = sweep.glob("mix.large_*-mps-*.json")
    whole = read_colocation(path)
    few = whole.tenant("high").model_copy(update=dict(served("high", 4, 0, seconds=5)))
    path.unlink()
    store(sweep, whole.model_copy(update={"tenants": [few, whole.tenant("low")]}))
    found, output = told(file, sweep)
    mps = trends(found)[0].rows["mps"]
    assert (mps["small"].value, mps["large"].value) == (4, None)
    assert "has 100 requests; 1000 independent ones suffice" in mps["large"].refused
    assert "P99 refused for high of large-mps: has 100 requests; 1000" in " ".join(output.split())


def test_one_variant_or_no_less_urgent_tenant_has_no_trend(file: Path, sweep: Path) -> None:
    _, output = told(file, sweep, "--variant", "small")
    assert "over variants" not in output
    file.write_text(file.read_text().replace("priority: 1", "priority: 0"))
    for path in sweep.glob("*.json"):
        changed = path.read_text().replace('"priority":1', '"priority":0')
        # Written by another tool: without a seal.
        path.write_text(json.dumps(json.loads(changed)))
    _, output = told(file, sweep)
    assert "over variants" not in output


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


def over_solo(found: WhichFile, name: str, figure: str = "p99_over_solo") -> Estimate:
    ratio = getattr(case(found, name).tenant("high"), figure)
    assert isinstance(ratio, Estimate)
    return ratio


def test_ratios_of_three_gpus_are_formed_within_each(file: Path, three_gpus: list[Path]) -> None:
    found, _ = told(file, three_gpus[0], "--from", three_gpus[1], "--from", three_gpus[2])
    assert_faces_as_stored("three_gpus", file, three_gpus)
    assert [session.device_uuid for session in found.sessions] == ["a", "b", "c"]
    # Alone takes 2 ms, made 2, 3 and 5 times longer: the interval reaches over each GPU's.
    solo = case(found, "solo high")
    alone = solo.tenant("high").p50_ms
    assert (solo.sessions, alone.sessions) == (3, 3)
    assert (alone.value, alone.low, alone.high) == (6, 4, 10)
    for name, truth, sessions in (
        ("native", 10, 3), ("mps", 2, 1), ("mps-priority", 1.5, 1),
        ("threads-stream-priority", 2.5, 1),
    ):  # fmt: skip
        for figure in ("p50_over_solo", "p99_over_solo"):
            ratio = over_solo(found, name, figure)
            assert [ratio.value, ratio.low, ratio.high] == pytest.approx([truth] * 3)
            assert ratio.sessions == sessions
    own = found.sessions[0].cases
    assert [each.id for each in own] == ["solo high", "solo low", "native", "mps", "threads-native"]
    alone = own[0].tenant("high").p50_ms
    assert (alone.value, alone.low, alone.high) == (4, 4, 4)


def test_a_reference_of_another_session_is_divided_by_nobody(
    file: Path, three_gpus: list[Path]
) -> None:
    for path in three_gpus[0].glob("*solo*"):
        path.unlink()
    found, output = told(file, three_gpus[0], "--from", three_gpus[1])
    mps, native = over_solo(found, "mps"), over_solo(found, "native")
    assert (mps.value, mps.sessions) == (None, 0)
    assert mps.refused == "mix.solo_high was measured in other sessions only"
    assert native.value == pytest.approx(10)
    assert native.refused == "of 1 of 2 sessions: the others lack mix.solo_high"
    assert "the others lack" in output
    # mps met its goals too, but its share of alone is not known, so nobody leaves most.
    (choice,) = found.choices
    assert (choice.met, choice.best) == (["mps", "mps-priority"], None)
    assert "Which of them leaves the others most throughput is not" in " ".join(output.split())


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
    assert over_solo(found, "mps").value == pytest.approx(2)
    other = over_solo(found, "mps-priority")
    assert (other.value, other.refused) == (None, "mix.solo_high was failed: no driver")


VARIED = """\
name: varied
duration: 4s
schedulers: [mps]
tenants:
  - {name: high, workload: tiny_kernel_stress, parameters: {rounds: 2},
     arrival: "poisson: 200/s", priority: 1}
  - {name: low, workload: large_gemm_only, parameters: {mm_dim: 512}, arrival: "poisson: 50/s"}
variants:
  - {name: standard}
  - name: heavy
    set: {low: {parameters: {mm_dim: 4096}, arrival: closed}}
    goals: [high.p50 <= 1.2 x standard, high.p50 <= 100 x standard]
"""


def test_a_late_start_in_a_variant_to_compare_with_is_refused_before_anything_starts(
    tmp_path: Path,
) -> None:
    file = tmp_path / "varied.hwq.yaml"
    file.write_text(VARIED.replace("{name: standard}", "{name: standard, set: {low: {start: 3s}}}"))
    given = ("--device", "sim:h200", "--variant", "heavy", "--dir", tmp_path / "all")
    result = hwq(file, *given)
    assert result.exit_code == 4, result.output
    said = "heavy-mps: its goals need varied.standard: tenant low starts 3 s after the window"
    assert said in " ".join(result.stderr.split())
    assert not (tmp_path / "all").exists()
    # One window of 4 s is long enough.
    assert hwq(file, *given, "--rounds", "1").exit_code == 0


def test_a_goal_compares_with_a_variant_that_was_not_asked_for(tmp_path: Path) -> None:
    file = tmp_path / "varied.hwq.yaml"
    file.write_text(VARIED)
    measuring = ("--device", "sim:h200", "--size", "full", "--variant", "heavy")
    result = hwq(file, *measuring, "--dir", tmp_path / "all", "--json", tmp_path / "w.json")
    assert result.exit_code == 0, result.output
    found = WhichFile.model_validate_json((tmp_path / "w.json").read_bytes())
    # Native of the variant, with which others are compared, has its own to compare with.
    for row in ("heavy-native", "heavy-mps"):
        assert [goal.verdict for goal in case(found, row).goals] == ["missed", "met"]
    assert [each.id for each in found.cases if each.variant != "heavy"] == []
    (session,) = (tmp_path / "all").iterdir()
    again = hwq(file, "--variant", "heavy", "--from", session)
    assert again.stdout == result.stdout
