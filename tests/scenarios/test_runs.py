"""Which runs a scenario's tests need, their order, and what becomes of goals."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from pytest_hwqueue.records.cell import Status
from pytest_hwqueue.records.noise import Machine, NoiseRound, NoiseStatus
from pytest_hwqueue.records.tenants import (
    ColocationRecord,
    RequestTimes,
    TenantResult,
    TenantThroughput,
)
from pytest_hwqueue.scenarios.file import Scenario, parse_scenario
from pytest_hwqueue.scenarios.planned_runs import Case, PlannedRun, cases, own_run, related
from pytest_hwqueue.scenarios.runs import PeakUnknown, ScenarioRuns

SUITE = Path(__file__).parents[2] / "benchmarks" / "scenarios"
TEXT = """\
name: mine
duration: 10s
schedulers: {processes: [native, mps, mps-priority], threads: [native]}
tenants:
  - {name: high, model: resnet18, arrival: "constant: 20/s", priority: 1}
  - {name: low, model: resnet50}
"""
Measured = tuple[str, str, float, int]


class Device:
    """Measures nothing: every tenant serves 100 requests a second, of 1 ms each."""

    def __init__(self, **statuses: Status) -> None:
        # Status of the runs whose name or scheduler this is.
        self.statuses = statuses
        self.felt = True
        self.measured: list[Measured] = []
        self.peaks: list[Mapping[str, float]] = []

    def __call__(
        self, run: PlannedRun, peaks_per_s: Mapping[str, float], share: float, number: int
    ) -> ColocationRecord:
        beside = "" if run.noise in (None, "none") else f"-beside-{run.noise}"
        self.measured.append((f"{run.name}-{run.placement}{beside}", run.scheduler, share, number))
        self.peaks.append(peaks_per_s)
        own_name = run.name.rpartition(".")[2]
        status = self.statuses.get(own_name, self.statuses.get(run.scheduler, "ok"))
        count = round(1000 * share)
        starts = [10_000_000 * index for index in range(count)]
        ends = [start + 1_000_000 for start in starts]
        throughput = TenantThroughput(requests_per_s=100.0, items_per_s=100.0, unit="items")
        tenants = [
            TenantResult(
                name=tenant.name, issued=count, completed=count, failed=0, unserved=0,
                throughput=throughput, latency_ns=[1_000_000] * count,
                requests=RequestTimes(scheduled_ns=starts, started_ns=starts, finished_ns=ends),
            )
            for tenant in run.tenants
        ]  # fmt: skip
        return ColocationRecord(
            id=run.name, plan={}, status=status, reason="" if status == "ok" else "it broke",
            device="cpu", scheduler=run.scheduler, tenants=tenants if status == "ok" else [],
            seed=0, placement=run.placement, duration_s=10 * share, elapsed_s=1, started="",
            command="", simulated=False, noise=run.noise and self._round(run.noise),
        )  # fmt: skip

    def _round(self, noise: str) -> NoiseRound:
        status: NoiseStatus = "quiet" if noise == "none" else "applied"
        if status == "applied" and not self.felt:
            status = "not applied"
        return NoiseRound(
            noise=noise, status=status, reason="asleep", started="", duration_s=1.0,
            autogroup_enabled=None, measured=None, measured_on_cpu_s=None,
            measured_run_delay_s=None, remedy=None, neighbours=[],
            machine=Machine(pressure_share={}, softirqs={}, interrupts={}, steal_s=None),
        )  # fmt: skip


def scenario(*goals: str, text: str = TEXT) -> Scenario:
    listed = "".join(f"  - {goal}\n" for goal in goals)
    return parse_scenario(text + (f"goals:\n{listed}" if goals else ""), Path("mine.hwq.yaml"))


def case(of: Scenario, name: str) -> Case:
    (found,) = (each for each in cases(of) if each.id == name)
    return found


def test_what_compares_nothing_is_measured_once() -> None:
    plain, device = scenario("high.p50 < 10 ms"), Device()
    runs = ScenarioRuns(plain, device)
    for _ in range(2):
        runs.measure([case(plain, "mps")])
    assert device.measured == [("mine-processes", "mps", 1.0, 1)]
    (result,) = runs.judge(case(plain, "mps"))
    assert result.verdict == "met"


def test_what_is_compared_takes_turns_forth_and_back() -> None:
    relative, device = (
        scenario("high.p50 <= 1.3 x solo", "low.throughput >= 80% of native"),
        Device(),
    )
    runs = ScenarioRuns(relative, device)
    wanted = [case(relative, "mps"), case(relative, "threads-native")]
    runs.measure(wanted)
    forth = [
        ("mine.solo_high-processes", "native"), ("mine-processes", "native"),
        ("mine-processes", "mps"), ("mine-threads", "native"),
    ]  # fmt: skip
    assert device.measured == [
        *((*run, 0.5, 1) for run in forth),
        *((*run, 0.5, 2) for run in reversed(forth)),
    ]
    assert len(runs.records(own_run(relative, wanted[0]))) == 2
    for each in wanted:
        assert [result.verdict for result in runs.judge(each)] == ["met", "met"]


def test_a_goal_of_one_placement_is_judged_and_has_its_reference_there_alone() -> None:
    text = TEXT + "goals: {all: [high.p50 < 2 ms], threads: [high.p50 <= 0.5 x solo]}\n"
    placed, device = scenario(text=text), Device()
    mps, threads = case(placed, "mps"), case(placed, "threads-native")
    runs = ScenarioRuns(placed, device)
    runs.measure([mps])
    assert device.measured == [("mine-processes", "mps", 1.0, 1)]
    assert [(each.goal, each.verdict) for each in runs.judge(mps)] == [("high.p50 < 2 ms", "met")]
    runs.measure([threads])
    assert ("mine.solo_high-processes", "native", 0.5, 1) in device.measured
    assert [(each.goal, each.verdict) for each in runs.judge(threads)] == [
        ("high.p50 < 2 ms", "met"), ("high.p50 <= 0.5 x solo", "missed"),
    ]  # fmt: skip


@pytest.mark.parametrize(("felt", "verdict"), [(True, "met"), (False, "undecided")])
def test_noises_take_turns_with_the_quiet(felt: bool, verdict: str) -> None:
    noisy = scenario("high.p50 <= 1.3 x solo", text=TEXT + "noise: [cpu]\n")
    device = Device()
    device.felt = felt
    runs = ScenarioRuns(noisy, device)
    quiet, beside = case(noisy, "mps"), case(noisy, "mps-beside-cpu")
    runs.measure([quiet, beside])
    forth = [
        ("mine.solo_high-processes", "native"), ("mine-processes", "mps"),
        ("mine.solo_high-processes-beside-cpu", "native"), ("mine-processes-beside-cpu", "mps"),
    ]  # fmt: skip
    assert device.measured == [
        *((*run, 0.5, 1) for run in forth),
        *((*run, 0.5, 2) for run in reversed(forth)),
    ]
    assert [result.verdict for result in runs.judge(quiet)] == ["met"]
    (result,) = runs.judge(beside)
    assert result.verdict == verdict
    assert felt or "noise cpu was not felt: asleep" in result.reason


def test_a_run_that_failed_is_not_repeated_and_decides_no_goal() -> None:
    relative = scenario("low.throughput >= 80% of native")
    device = Device(native="failed")
    runs = ScenarioRuns(relative, device)
    runs.measure([case(relative, "mps")])
    assert [(scheduler, number) for _, scheduler, _, number in device.measured] == [
        ("native", 1), ("mps", 1), ("mps", 2),
    ]  # fmt: skip
    (result,) = runs.judge(case(relative, "mps"))
    assert (result.verdict, result.reason) == ("undecided", "native was failed: it broke")


PEAK = TEXT.replace("constant: 20/s", "poisson: 20% of peak")


def test_a_share_of_the_peak_is_measured_before() -> None:
    shared, device = scenario(text=PEAK), Device()
    ScenarioRuns(shared, device).measure([case(shared, "mps")])
    assert device.measured == [
        ("mine.peak_high-processes", "native", 1.0, 1), ("mine-processes", "mps", 1.0, 1),
    ]  # fmt: skip
    assert device.peaks == [{}, {"high": 100.0}]


def test_without_the_peak_nothing_is_measured() -> None:
    shared, device = scenario(text=PEAK), Device(peak_high="timeout")
    runs = ScenarioRuns(shared, device)
    runs.measure([case(shared, "mps")])
    assert len(device.measured) == 1
    with pytest.raises(PeakUnknown, match=r"tenant high arrives at a share of its peak.* it broke"):
        runs.records(own_run(shared, case(shared, "mps")))


def test_tests_that_share_a_run_or_a_variant_are_measured_together() -> None:
    bert = parse_scenario(
        (SUITE / "bert_multi_priority.hwq.yaml").read_text(encoding="utf-8"), Path("bert.hwq.yaml")
    )
    among = cases(bert)
    # What is alone in one variant is the reference of another.
    assert [each.id for each in related(bert, case(bert, "alone-native"), among)] == [
        "alone-native", "alone-threads-native", "at_once-native", "at_once-threads-native",
    ]  # fmt: skip
    in_order = [each for each in among if each.id.startswith("in_order")]
    assert related(bert, in_order[0], among) == in_order
    assert related(bert, in_order[0], in_order[:1]) == in_order[:1]
    plain = scenario()
    assert related(plain, case(plain, "mps"), cases(plain)) == cases(plain)
