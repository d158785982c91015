"""Windows that end when what is asked of their runs is decided, on runs whose truth is known."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from pytest_hwqueue.answers.which.runs import WhichRuns, all_runs, entries
from pytest_hwqueue.answers.which.table import table
from pytest_hwqueue.data.records.tenants import LOOK_ERROR, ColocationRecord
from pytest_hwqueue.engine.scenarios.file import read_scenario
from pytest_hwqueue.engine.scenarios.planned_runs import PlannedRun, cases
from pytest_hwqueue.engine.scenarios.runs import Decided, WindowRecord
from pytest_hwqueue.engine.tenants.looks import Look, planned_looks
from tests.answers.which.conftest import SCENARIO, TRUTH, WINDOW_S, case, hwq, record, served

ROUNDS = 2


class Session:
    """Measures the runs of a scenario until they are decided, window by window."""

    def __init__(self, file: Path, until: str = "decided", rate: int = 20) -> None:
        self.rate = rate
        self.scenario = read_scenario(file)
        self.cases = cases(self.scenario)
        self.runs = WhichRuns(self.measure)
        # Seconds of each window, by run.
        self.windows: dict[str, list[float]] = {}
        self.runs.take_turns(all_runs(self.cases), ROUNDS, self.cases, until)
        self.found = table(entries(self.cases), self.runs)

    def measure(
        self, run: PlannedRun, peaks_per_s: Mapping[str, float], share: float, number: int,
        decided: Decided | None,
    ) -> WindowRecord:  # fmt: skip
        path = Path("records") / f"{run.name}-{run.placement}-{run.scheduler}-{number}.json"
        looks = planned_looks(round(WINDOW_S * share * 1e9), number, ROUNDS)
        for look in looks:
            seen = _seen(run, number, look, self.rate)
            if decided is not None and decided(seen, path):
                break
        self.windows.setdefault(f"{run.name} {run.placement} {run.scheduler}", []).append(
            seen.duration_s
        )
        return seen, path

    def verdicts(self, name: str) -> list[str]:
        return [goal.verdict for goal in case(self.found, name).goals]


def _seen(run: PlannedRun, number: int, look: Look, rate: int) -> ColocationRecord:
    latency_ms, per_s = TRUTH[run.name, run.placement, run.scheduler]
    seconds = look.window_ns / 1e9
    tenants = [
        served(tenant.name, *((latency_ms, rate) if tenant.name == "high" else (0, per_s)), seconds)
        for tenant in run.tenants
    ]
    made = record(
        run, number, tenants=tenants, duration_s=seconds, look_error=look.error, proof=None
    )
    return made.model_copy(update={"plan": replace(made.plan, duration_s=WINDOW_S / ROUNDS)})


def test_windows_end_when_decided_and_decide_what_whole_ones_do(file: Path) -> None:
    early, whole = Session(file), Session(file, "end")
    assert early.windows == {
        # Met: with too few requests for a P99, none can be.
        "mix processes mps": [30],
        "mix processes mps-priority": [30],
        # Exactly at its bound: the second half would not decide it.
        "mix threads stream-priority": [30],
        # Missed, plainly.
        "mix processes xsched:level=1,threshold=1": [3.75],
        # Missed too, and what others' throughput is compared with.
        "mix processes native": [3.75],
        "mix threads native": [3.75],
        # Alone: the P99 of what arrives, and the throughput of what does not.
        "mix.solo_high processes native": [30],
        "mix.solo_low processes native": [3.75],
    }
    assert set(map(tuple, whole.windows.values())) == {(30.0, 30.0)}
    for each in early.found.cases:
        pairs = list(zip(early.verdicts(each.id), whole.verdicts(each.id), strict=True))
        # Once one goal is missed, others may stay open.
        assert all(
            first == second or (first == "undecided" and ("missed",) * 2 in pairs)
            for first, second in pairs
        ), each.id
        assert all(goal.confidence > 1 - LOOK_ERROR for goal in each.goals)
    assert early.found.choices == whole.found.choices


def test_windows_go_on_until_their_rows_have_figures(file: Path) -> None:
    found = Session(file, "figures")
    # 600 requests would have both ends; of those that queue, a window that has them then is too
    # often a calm one (docs/decisions.md).
    assert found.windows == {
        name: [3.75] if name == "mix.solo_low processes native" else [30, 30]
        for name in Session(file).windows
    }
    for each in found.found.cases:
        assert all(t.p99_ms.interval for t in each.tenants if t.name == "high"), each.id
    # At ten times the rate, half of the time is more than enough.
    windows = Session(file, "figures", rate=200).windows
    assert windows["mix processes native"] == windows["mix threads native"] == [7.5]


def test_what_is_of_the_requests_measured_is_not_met_before_the_last(file: Path) -> None:
    file.write_text(SCENARIO.partition("goals:")[0] + "goals: [high.max < 10 ms]\n")
    windows = Session(file).windows
    assert windows["mix processes mps"] == windows["mix threads stream-priority"] == [30, 30]
    # Missed once and for all.
    assert windows["mix processes native"] == [3.75]


def test_windows_that_would_hardly_have_figures_end_when_decided(file: Path) -> None:
    found = Session(file, "figures", rate=2)
    assert found.windows["mix processes native"] == [30]
    high = case(found.found, "native").tenant("high")
    assert high.p99_ms.value is None
    # Of 1,000 requests at 2/s.
    assert high.p99_by_s == pytest.approx(500)


def test_a_p99_of_too_few_requests_shows_what_it_is_at_least(file: Path) -> None:
    found = case(Session(file).found, "native").tenant("high")
    assert found.p99_ms.value is None
    assert found.p99_ms.low == pytest.approx(20)
    assert "1000 independent ones suffice" in found.p99_ms.refused


def test_what_has_no_goal_is_measured_to_its_end(file: Path) -> None:
    file.write_text(SCENARIO.partition("goals:")[0])
    windows = Session(file).windows
    assert {name: each for name, each in windows.items() if each != [30, 30]} == {
        # As what it is compared with.
        "mix.solo_high processes native": [30],
        "mix.solo_low processes native": [3.75],
        "mix threads native": [3.75],
    }


def test_the_command_ends_windows_early_unless_it_is_told_not_to(
    file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    file.write_text(
        SCENARIO.replace('mps, mps-priority, "xsched:level=1,threshold=1"', "mps-priority")
        .replace("threads: [stream-priority]", "")
        .replace("batch: 8, arrival: closed", 'batch: 8, arrival: "constant: 5/s"')
        .replace("high.latency_p99_ms < 10", "high.latency_p99_ms < 1us")
    )
    windows = []
    for more in (("40s", "--until=decided"), ("40s",), ("10s", "--until=end")):
        path = tmp_path / "which.json"
        given = ("--device", "sim:h200", "--size", "tiny", "--json", path, "--duration")
        assert hwq(file, *given, *more).exit_code == 0
        found = json.loads(path.read_bytes())
        windows.append({each["id"]: each["window_s"] for each in found["cases"]})
        assert all(each["goals"][0]["verdict"] == "missed" for each in found["cases"][2:])
    # The others' throughput is compared with that under native.
    assert (windows[0]["mps-priority"], windows[0]["native"]) == (2.5, 10)
    # Half of 800 requests have a P99; the rest is left where it would hardly have both ends.
    assert set(windows[1].values()) == {20, 40}
    assert set(windows[2].values()) == {10}
