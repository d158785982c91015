"""Which runs a scenario's tests need, their order, and what becomes of goals."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from pytest_hwqueue.data.records.noise import Machine, NoiseRound
from pytest_hwqueue.data.records.plan import Colocation
from pytest_hwqueue.data.records.run import Status
from pytest_hwqueue.data.records.tenants import (
    ColocationRecord,
    RequestLog,
    TenantResult,
    TenantThroughput,
)
from pytest_hwqueue.engine.scenarios.file import parse_scenario
from pytest_hwqueue.engine.scenarios.planned_runs import Case, PlannedRun, cases, own_run, related
from pytest_hwqueue.engine.scenarios.runs import Decided, PeakUnknown, ScenarioRuns, WindowRecord

SUITE = Path(__file__).parents[3] / "benchmarks" / "scenarios"
TEXT = """\
name: mine
duration: 10s
schedulers: {processes: [native, mps, mps-priority], threads: [native]}
tenants:
  - {name: high, model: resnet18, arrival: "constant: 20/s", priority: 1}
  - {name: low, model: resnet50}
"""
PEAK = TEXT.replace("constant: 20/s", "poisson: 20% of peak")


class Session:
    """Runs of a scenario in which every tenant serves 100 requests a second, of 1 ms each."""

    def __init__(
        self, more: str = "", text: str = TEXT, felt: bool = True, failing: str = "nothing"
    ) -> None:
        self.scenario = parse_scenario(text + more, Path("mine.hwq.yaml"))
        self.felt = felt
        # The scheduler or run that fails.
        self.failing = failing
        self.measured: list[tuple[str, float, int]] = []
        self.peaks: list[Mapping[str, float]] = []
        self.runs = ScenarioRuns(self._measure)

    def case(self, name: str) -> Case:
        (found,) = (each for each in cases(self.scenario) if each.id == name)
        return found

    def measure(self, *names: str) -> list[tuple[str, float, int]]:
        """Measure tests; return which runs that took, with their share and round."""
        before = len(self.measured)
        self.runs.measure([self.case(name) for name in names], "end")
        return self.measured[before:]

    def verdicts(self, name: str) -> dict[str, tuple[str, str]]:
        results = self.runs.judge(self.case(name))
        return {each.goal: (each.verdict, each.reason) for each in results}

    def _measure(
        self, run: PlannedRun, peaks_per_s: Mapping[str, float], share: float, number: int,
        decided: Decided | None,
    ) -> WindowRecord:  # fmt: skip
        words = [run.name.removeprefix("mine").removeprefix("."), run.placement, run.scheduler]
        words += [] if run.noise is None else [f"beside {run.noise}"]
        self.measured.append((" ".join(filter(None, words)), share, number))
        self.peaks.append(peaks_per_s)
        status: Status = "failed" if self.failing in words else "ok"
        count = round(1000 * share)
        starts = [10_000_000 * index for index in range(count)]
        times = RequestLog(
            scheduled_ns=starts, started_ns=starts, finished_ns=[at + 1_000_000 for at in starts]
        )
        tenants = [
            TenantResult(
                name=tenant.name, issued=count, completed=count, failed=0, unserved=0,
                throughput=TenantThroughput(
                    requests_per_s=100, items_per_s=100, unit="items", items_per_request=1
                ),
                latency_ns=[1_000_000] * count, requests=times,
            )
            for tenant in run.tenants
        ]  # fmt: skip
        machine = Machine(pressure_share={}, softirqs={}, interrupts={}, steal_s=None)
        applied = "applied" if self.felt else "not applied"
        noise = None if not run.compares_noise else NoiseRound(
            noise=run.noise or "none", status="quiet" if run.noise is None else applied,
            reason="asleep", started="", duration_s=1, autogroup_enabled=None, measured=None,
            remedy=None,
            measured_on_cpu_s=None, measured_run_delay_s=None, neighbours=[], machine=machine,
        )  # fmt: skip
        assert decided is None
        record = ColocationRecord(
            id=run.name, plan=Colocation(run.name, run.tenants), status=status,
            reason="" if status == "ok" else "it broke",
            device="cpu", scheduler=run.scheduler, tenants=tenants if status == "ok" else [],
            seed=0, placement=run.placement, duration_s=10 * share, elapsed_s=1, started="",
            command="", simulated=False, noise=noise,
        )  # fmt: skip
        return record, Path(f"{run.name}.json")


def forth_and_back(*names: str) -> list[tuple[str, float, int]]:
    return [(name, 0.5, 1) for name in names] + [(name, 0.5, 2) for name in reversed(names)]


def test_what_compares_nothing_is_measured_once() -> None:
    plain = Session("goals: [high.p50 < 10 ms]\n")
    assert plain.measure("mps") == [("processes mps", 1.0, 1)]
    assert plain.measure("mps") == []
    assert plain.verdicts("mps") == {"high.p50 < 10 ms": ("met", "")}


def test_what_is_compared_takes_turns_forth_and_back() -> None:
    relative = Session("goals: [high.p50 <= 1.3 x solo, low.throughput >= 80% of native]\n")
    assert relative.measure("mps", "threads-native") == forth_and_back(
        "solo_high processes native", "processes native", "processes mps", "threads native"
    )
    for name in ("mps", "threads-native"):
        assert len(relative.runs.records(own_run(relative.case(name)))) == 2
        assert set(relative.verdicts(name).values()) == {("met", "")}


def test_a_goal_of_one_placement_is_judged_and_has_its_reference_there_alone() -> None:
    placed = Session("goals: {all: [high.p50 < 2 ms], threads: [high.p50 <= 0.5 x solo]}\n")
    assert placed.measure("mps") == [("processes mps", 1.0, 1)]
    assert placed.verdicts("mps") == {"high.p50 < 2 ms": ("met", "")}
    assert ("solo_high processes native", 0.5, 1) in placed.measure("threads-native")
    assert placed.verdicts("threads-native") == {
        "high.p50 < 2 ms": ("met", ""), "high.p50 <= 0.5 x solo": ("missed", ""),
    }  # fmt: skip


VARIANTS = """\
goals: [low.p50 <= 2 x standard]
variants:
  - {name: standard}
  - {name: heavy, set: {low: {batch: 8}}, goals: [high.p50 <= 0.5 x standard]}
"""


def test_a_goal_may_compare_with_another_variant_under_the_same_scheduler() -> None:
    varied = Session(VARIANTS)
    assert varied.measure("heavy-mps") == forth_and_back(
        "standard processes mps", "heavy processes mps"
    )
    assert varied.verdicts("heavy-mps") == {
        "low.p50 <= 2 x standard": ("met", ""), "high.p50 <= 0.5 x standard": ("missed", ""),
    }  # fmt: skip
    # To the variant itself it is 1.
    assert varied.verdicts("standard-mps") == {"low.p50 <= 2 x standard": ("met", "")}
    # They are measured together, as all that shares a run.
    among = [varied.case(name) for name in ("standard-mps", "heavy-mps", "heavy-native")]
    assert related(among[1], among) == among
    failed = Session(VARIANTS, failing="standard")
    failed.measure("heavy-mps")
    assert set(failed.verdicts("heavy-mps").values()) == {
        ("undecided", "standard was failed: it broke")
    }


@pytest.mark.parametrize("felt", [True, False])
def test_noises_take_turns_with_the_quiet_and_decide_if_they_were_felt(felt: bool) -> None:
    noisy = Session("noise: [cpu]\ngoals: [high.p50 <= 1.3 x solo]\n", felt=felt)
    assert noisy.measure("mps", "mps-beside-cpu") == forth_and_back(
        "solo_high processes native", "processes mps",
        "solo_high processes native beside cpu", "processes mps beside cpu",
    )  # fmt: skip
    assert noisy.verdicts("mps") == {"high.p50 <= 1.3 x solo": ("met", "")}
    ((verdict, reason),) = noisy.verdicts("mps-beside-cpu").values()
    assert verdict == ("met" if felt else "undecided")
    assert felt or "noise cpu was not felt: asleep" in reason
    alone = Session("noise: [cpu]\ngoals: [high.p50 < 2 ms]\n")
    assert alone.measure("mps-beside-cpu") == forth_and_back("processes mps beside cpu")


def test_a_run_that_failed_is_not_repeated_and_decides_no_goal() -> None:
    relative = Session("goals: [low.throughput >= 80% of native]\n", failing="native")
    assert relative.measure("mps") == [
        ("processes native", 0.5, 1), ("processes mps", 0.5, 1), ("processes mps", 0.5, 2),
    ]  # fmt: skip
    assert list(relative.verdicts("mps").values()) == [("undecided", "native was failed: it broke")]


def test_a_share_of_the_peak_is_measured_before_and_without_it_nothing_is() -> None:
    shared, broken = Session(text=PEAK), Session(text=PEAK, failing="peak_high")
    peak = ("peak_high processes native", 1.0, 1)
    assert shared.measure("mps") == [peak, ("processes mps", 1.0, 1)]
    assert shared.peaks == [{}, {"high": 100.0}]
    assert broken.measure("mps") == [peak]
    with pytest.raises(PeakUnknown, match=r"tenant high arrives at a share of its peak.* it broke"):
        broken.runs.records(own_run(broken.case("mps")))


def test_tests_that_share_a_run_or_a_variant_are_measured_together() -> None:
    path = SUITE / "bert_multi_priority.hwq.yaml"
    bert = parse_scenario(path.read_text(encoding="utf-8"), path)
    among = {each.id: each for each in cases(bert)}
    # What is alone in one variant is the reference of another.
    together = related(among["alone-native"], list(among.values()))
    assert [each.id for each in together] == [
        "alone-native", "alone-threads-native", "at_once-native", "at_once-threads-native",
    ]  # fmt: skip
    in_order = [each for name, each in among.items() if name.startswith("in_order")]
    assert related(in_order[0], list(among.values())) == in_order
    assert related(in_order[0], in_order[:1]) == in_order[:1]
    plain = Session()
    assert related(plain.case("mps"), cases(plain.scenario)) == cases(plain.scenario)
