"""The search for a capacity: its windows, its starts, what confirms it, and what it leaves out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import CliRunner, Result

from pytest_hwqueue.answers.which.budget import MOST_WINDOWS, SearchBudget
from pytest_hwqueue.answers.which.capacity_file import CapacityCase, CapacityFile, CapacityRate
from pytest_hwqueue.answers.which.rates import RateVerdict
from pytest_hwqueue.answers.which.search import RateRuns, _starts_alone, verdict_on
from pytest_hwqueue.cli.main import main
from pytest_hwqueue.data.figures.served import served
from pytest_hwqueue.data.records.tenants import ColocationRecord, read_colocation
from pytest_hwqueue.engine.scenarios.goals import GoalResult, evaluate, parse_goal
from tests.answers.which.conftest import interrupt
from tests.answers.which.test_capacity import SCENARIO
from tests.engine.tenants.test_colocation import FAULTY

Searched = tuple[list[CapacityCase], list[ColocationRecord], Result]


def search(folder: Path, text: str, *options: str, status: int = 0) -> Searched:
    """Search the capacity of high; return each row, all records, oldest first, and the output."""
    (folder / "queue.hwq.yaml").write_text(text)
    result = CliRunner().invoke(
        main,
        ["capacity", str(folder / "queue.hwq.yaml"), "--tenant", "high", *options, "--dir",
         str(folder / "d"), "--json", str(folder / "c.json")],
        env={"COLUMNS": "200"},
    )  # fmt: skip
    assert result.exit_code == status, result.output
    found = CapacityFile.model_validate_json((folder / "c.json").read_bytes())
    paths = [path for path in folder.glob("d/*/*.json") if path.name != "capacity.json"]
    records = sorted(map(read_colocation, paths), key=lambda record: record.started)
    return found.cases, records, result


def test_a_rate_that_is_undecided_shows_no_goal_missed() -> None:
    goals = [GoalResult(goal="high.p99 < 8 ms", verdict=each) for each in ("missed", "met")]

    def judge(case: Any, *, confidence: float) -> list[GoalResult]:
        # What one goal by itself misses, two together do not.
        if confidence < 0.97:
            return goals
        return [each.model_copy(update={"verdict": "undecided"}) for each in goals]

    runs: Any = SimpleNamespace(judge=judge)
    verdict, results = verdict_on(runs, SimpleNamespace(), 0.95)  # type: ignore[arg-type]
    assert (verdict, [each.verdict for each in results]) == ("undecided", ["undecided", "met"])


ON_SIM = ("--device", "sim:h200", "--size", "full", "--window", "500ms")
MPS = (*ON_SIM, "--schedulers", "mps-priority", "--rates", "50:3200", "--precision", "40%")


def edges(case: CapacityCase) -> list[CapacityRate]:
    of = case.capacity_per_s
    return [rate for rate in case.rates if rate.rate_per_s in (of.low, of.high)]


def own(records: list[ColocationRecord], scheduler: str, rate: float) -> list[ColocationRecord]:
    """Return the windows of all tenants together at a rate."""
    arrival = f"poisson: {rate:.6g}/s"
    return [
        record
        for record in records
        if len(record.tenants) == 2 and record.scheduler == scheduler
        and record.plan.tenants[0].arrival == arrival
    ]  # fmt: skip


def test_the_edge_is_confirmed_and_what_is_broken_is_compared_with_nothing(tmp_path: Path) -> None:
    (case,), records, _ = search(tmp_path, SCENARIO, *MPS)
    low, high = edges(case)
    assert (low.verdict, high.verdict) == ("held", "broken")
    assert (low.confirming, high.confirming) == (2, 2)
    assert case.unconfirmed_per_s == []
    for rate in case.rates:
        assert len(own(records, "mps-priority", rate.rate_per_s)) == rate.windows
        assert len(rate.records) == rate.windows
        # What it is compared with is measured at the edge, and else not at all.
        compared = own(records, "native", rate.rate_per_s)
        assert bool(compared) == (rate is low)
        assert (rate.verdict == "held") == (rate is low)
        assert rate in (low, high) or rate.confirming == 0
    # All native windows follow those whose goals need them.
    order = [r.scheduler for r in records if len(r.tenants) == 2]
    assert order.index("native") > order.index("mps-priority")
    assert sum(a != b for a, b in pairwise(order)) <= 4
    # What confirms that a rate is broken shows so by itself, or was measured to its end.
    goal = parse_goal("high.p99 < 8 ms")
    for record in own(records, "mps-priority", high.rate_per_s)[-2:]:
        windows = [served(record.tenant("high"), round(record.duration_s * 1e9))]
        alone = evaluate(goal, windows, confidence=1 - record.look_error)
        assert alone.verdict == "missed" or record.duration_s == record.plan.duration_s


def test_a_confirmation_that_disagrees_widens_the_interval(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (before,), _, _ = search(tmp_path, SCENARIO, *MPS)
    low = before.capacity_per_s.low
    verdict: Callable[..., Any] = RateRuns.verdict

    def doubted(self: RateRuns, case: Any) -> tuple[RateVerdict, Any]:
        found, results = verdict(self, case)
        at = case.tenants[0].arrival
        return ("undecided" if self.confirms and at == f"poisson: {low:.6g}/s" else found), results

    monkeypatch.setattr(RateRuns, "verdict", doubted)
    (after,), _, result = search(tmp_path, SCENARIO, *MPS)
    doubtful = next(rate for rate in after.rates if rate.rate_per_s == low)
    # Judged by all its windows, of which further ones change nothing.
    assert (doubtful.verdict, doubtful.confirming) == ("undecided", 1)
    assert 0 < after.capacity_per_s.low < low
    assert after.capacity_per_s.high == before.capacity_per_s.high
    assert [rate.confirming for rate in edges(after)] == [2, 2]
    assert "windows of it reused" in result.stderr


def test_where_requests_are_rare_there_are_at_most_eight_windows(tmp_path: Path) -> None:
    text = SCENARIO.replace("200/s", "4/s").replace("8 ms", "3.4 ms")
    rates = ("--rates", "1:16", "--schedulers", "native")
    (case,), records, result = search(tmp_path, text, *ON_SIM, *rates)
    windows = [record for record in records if len(record.tenants) == 2]
    assert all(record.plan.duration_s > 40 for record in windows)
    assert 3 <= len(windows) == sum(rate.windows for rate in case.rates) <= MOST_WINDOWS
    assert f"or {MOST_WINDOWS} windows if they take longer" in result.stderr


def test_elsewhere_a_mode_takes_its_time_at_most_and_says_so(tmp_path: Path) -> None:
    options = (*ON_SIM[:4], "--schedulers", "native", "--time", "30s")
    (case,), records, result = search(tmp_path, SCENARIO, *options)
    windows = [record for record in records if len(record.tenants) == 2]
    assert sum(record.duration_s for record in windows) <= 30
    assert case.cut
    assert "its 30 s were used up" in " ".join(result.stdout.split())
    # With more time, the same command goes on from there.
    (longer,), more, result = search(tmp_path, SCENARIO, *options[:-1], "100s")
    assert f"{len(records)} windows of it reused" in result.stderr
    assert len(more) > len(records)
    assert len(longer.rates) >= len(case.rates)


def test_a_goal_of_the_tenant_beside_itself_alone_is_compared_at_each_rate(tmp_path: Path) -> None:
    """It is six times as slow beside low at any rate, and nothing else would tell."""
    text = SCENARIO.partition("goals:")[0] + "goals: [high.p99 <= 2 x solo]\n"
    options = (*ON_SIM[:4], "--schedulers", "native", "--rates", "12:3200", "--precision", "40%")
    (case,), _, _ = search(tmp_path, text, *options, "--window", "1s", "--time", "120s")
    assert max(rate.rate_per_s for rate in case.rates) <= 800
    assert min(rate.rate_per_s for rate in case.rates) < 20
    assert case.capacity_per_s.high <= 100
    assert case.broke_first == ["high.p99 <= 2 x solo"]


def test_a_mode_that_is_broken_at_its_lowest_rate_ends_there(tmp_path: Path) -> None:
    text = SCENARIO.replace("8 ms", "1 us")
    options = (*ON_SIM, "--schedulers", "native", "--rates", "25:3200")
    (case,), _, result = search(tmp_path, text, *options)
    assert "below 25" in result.stdout
    # The first, an octave lower, then four times; by halves it would be six.
    assert [rate.rate_per_s for rate in case.rates] == [25, 100, 400, 800]
    assert [rate.windows - rate.confirming for rate in case.rates] == [1, 1, 1, 1]
    assert [rate.confirming for rate in case.rates] == [2, 0, 0, 0]


def test_a_budget_counts_starts_once_and_windows_where_requests_are_rare() -> None:
    def record(started: str) -> Any:
        return SimpleNamespace(tenants_started=started, duration_s=10.0)

    budget = SearchBudget(time_s=100.0, warmup_s=2.0)
    budget.count([record("a"), record("a")])
    assert (budget.spent_s, budget.windows) == (2 * 11.5 + 5, 2)
    budget.count([record("b")])
    assert (budget.spent_s, budget.windows) == (3 * 11.5 + 10, 3)
    assert budget.allows([10.0, 10.0], 1, counted=False)
    assert not budget.allows([10.0, 10.0], 1, kept_s=30.0, counted=False)
    assert budget.allows([100.0] * 5, 2, counted=True)
    assert not budget.allows([100.0] * 6, 2, counted=True)


def test_a_window_confirms_only_in_a_start_of_its_own() -> None:
    def records(*started: str) -> Any:
        return [SimpleNamespace(tenants_started=each) for each in started]

    assert _starts_alone(records("a"))
    assert _starts_alone(records("a", "a", "b"))
    # Kept from another search, say.
    assert not _starts_alone(records("a", "a"))
    assert not _starts_alone(records("a", "b", "a"))
    # Simulated tenants are not started.
    assert _starts_alone(records("", ""))


# The second tenant rests between requests: its products tell nothing here and cost a whole core.
REAL = """\
name: living
duration: 1s
warmup: 100ms
schedulers: {processes: [native], threads: [native]}
tenants:
  - {name: high, function: "own:make", parameters: {at: AT, action: "ACTION"}, priority: 1,
     arrival: "constant: 20/s", deadline_ms: 100000}
  - {name: low, workload: large_gemm_only, parameters: {mm_dim: 64}, arrival: "closed: delay=20ms"}
goals:
  - high.p50 < 100 s
"""
ON_CPU = ("--device", "cpu", "--window", "500ms", "--windows", "2", "--rates", "20:40",
          "--precision", "100%", "--requests", "20")  # fmt: skip


def real(folder: Path, at: int = 0, action: str = "") -> str:
    """Return a scenario of real processes, in which a request of a tenant may do something."""
    (folder / "own.py").write_text(FAULTY)
    return REAL.replace("AT", str(at)).replace("ACTION", action)


pytestmark = pytest.mark.usefixtures("own_leases", "no_process_is_left")
LENT = pytest.mark.usefixtures("lent_server")


def started(records: list[ColocationRecord]) -> dict[str, list[str]]:
    """Return when tenants were started, of each window of both, by placement."""
    found: dict[str, list[str]] = {}
    for record in records:
        if len(record.tenants) == 2:
            found.setdefault(record.placement, []).append(record.tenants_started)
    return found


@LENT
def test_a_mode_s_tenants_serve_all_its_windows_and_two_fresh_starts_confirm(
    tmp_path: Path,
) -> None:
    text = real(tmp_path)
    cases, records, result = search(tmp_path, text, *ON_CPU)
    assert [case.id for case in cases] == ["native", "threads-native"]
    assert all(record.status == "ok" for record in records)
    for case in cases:
        assert (case.capacity_per_s.low, case.starts) == (40, 3)
        assert edges(case)[-1].confirming == 2
        sets = started(records)[case.placement]
        # One for the search, and one for each window that confirms; never two alive at once.
        counts = list(Counter(sets).values())
        assert sets == sorted(sets)
        assert counts[1:] == [1, 1]
        assert sum(counts) == sum(rate.windows for rate in case.rates)
    assert all(record.proof is not None for record in records)
    assert "starts" in result.stdout
    # Each of these is measured once, in a set of its own.
    alone = [record for record in records if len(record.tenants) == 1]
    assert len({record.tenants_started for record in alone}) == len(alone) == 2
    # A search that has ended measures nothing more.
    again, same, result = search(tmp_path, text, *ON_CPU)
    assert again == cases
    assert len(same) == len(records)
    assert f"{len(records)} windows of it reused" in result.stderr


@LENT
def test_an_interrupted_search_ends_its_tenants_and_goes_on_with_new_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text, only = real(tmp_path), ("--schedulers", "threads-native")
    # It judges too, while a window is measured.
    monkeypatch.setattr(RateRuns, "_decides", lambda *_: False)
    interrupt(monkeypatch, RateRuns, "verdict", call=2)
    _, before, result = search(tmp_path, text, *ON_CPU, *only, status=2)
    assert "INCOMPLETE: interrupted; the same command continues." in result.stdout
    (case,), records, _ = search(tmp_path, text, *ON_CPU, *only)
    assert case.capacity_per_s.low == 40
    assert records[: len(before)] == before
    assert case.starts == len(set(started(records)["threads"]))


@LENT
def test_a_tenant_that_dies_ends_its_mode_s_search_alone(tmp_path: Path) -> None:
    text = real(tmp_path, 25, "import os, signal; os.kill(os.getpid(), signal.SIGKILL)")
    (processes, threads), records, result = search(tmp_path, text, *ON_CPU, status=0)
    for case in (processes, threads):
        assert "died by SIGKILL" in case.reason
        assert case.rates[0].verdict == "held"
    statuses = [record.status for record in records if len(record.tenants) == 2]
    assert statuses == ["ok", "failed"] * 2
    assert "ended early, failed at 40/s" in " ".join(result.stdout.split())
