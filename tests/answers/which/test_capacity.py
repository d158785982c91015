"""`hwq capacity`: what is printed and written, resuming, and what is refused before it starts."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from pytest_hwqueue.answers.which import command as which
from pytest_hwqueue.answers.which.capacity_file import CapacityCase, CapacityFile, front
from pytest_hwqueue.answers.which.file import WhichFile
from pytest_hwqueue.answers.which.search import RateRuns
from pytest_hwqueue.cli.main import main
from pytest_hwqueue.engine.scenarios.measurer import Measurer
from pytest_hwqueue.engine.scenarios.planned_runs import PlannedRun
from pytest_hwqueue.engine.scenarios.runs import ATTEMPTS
from pytest_hwqueue.options.options import OPTIONS
from tests.answers.which.conftest import interrupt
from tests.conftest import slow

SCENARIO = """\
name: shared
duration: 5s
warmup: 100ms
schedulers: [native, mps-priority]
tenants:
  - {name: high, workload: large_gemm_only, arrival: "poisson: 200/s", priority: 1}
  - {name: low, workload: large_gemm_only, parameters: {mm_dim: 4096}, arrival: closed}
goals:
  - high.p99 < 8 ms
  - low.throughput >= 30% of native
"""
FAST = ("--device", "sim:h200", "--size", "full", "--window", "500ms", "--windows", "4",
        "--precision", "40%", "--rates", "50:3200")  # fmt: skip


@pytest.fixture(autouse=True)
def _no_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    for option in OPTIONS:
        monkeypatch.delenv(option.variable, raising=False)


def hwq(*arguments: str | Path, columns: int = 200) -> Result:
    env = {"COLUMNS": str(columns)}
    return CliRunner().invoke(main, ["capacity", *map(str, arguments)], prog_name="hwq", env=env)


def write(folder: Path, text: str = SCENARIO) -> Path:
    file = folder / "shared.hwq.yaml"
    file.write_text(text)
    return file


def search(
    folder: Path, text: str = SCENARIO, *more: str | Path, status: int = 0
) -> tuple[list[CapacityCase], Result]:
    """Search the capacity of high; return what c.json has of each row."""
    result = hwq(write(folder, text), "--tenant", "high", *FAST, *more, "--dir", folder / "d",
                 "--json", folder / "c.json", "--markdown", folder / "c.md")  # fmt: skip
    assert result.exit_code == status, result.output
    found = CapacityFile.model_validate_json((folder / "c.json").read_bytes())
    assert found.complete == (status == 0)
    assert (found.simulated, found.tenant) == (True, "high")
    return found.cases, result


MeasuredRun = tuple[Path, list[CapacityCase], Result]


@pytest.fixture(scope="module", name="measured")
def measured_once(tmp_path_factory: pytest.TempPathFactory) -> MeasuredRun:
    folder = tmp_path_factory.mktemp("capacity")
    return (folder, *search(folder, SCENARIO, "--svg", folder / "c.svg"))


def test_each_scheduler_has_a_bracket_and_says_what_broke_first(measured: MeasuredRun) -> None:
    _, found, result = measured
    assert [case.id for case in found] == ["native", "mps-priority"]
    for case in found:
        low, value, high = (getattr(case.capacity_per_s, end) for end in ("low", "value", "high"))
        assert low <= value <= high
        rates = {rate.rate_per_s: rate for rate in case.rates}
        assert (rates[low].verdict, rates[high].verdict) == ("held", "broken")
        missed = [each.goal for each in rates[high].goals if each.verdict == "missed"]
        assert case.broke_first == missed
        assert all(rate.windows - rate.confirming <= 4 for rate in case.rates)
    native, mps = found
    of = mps.capacity_per_s
    assert (native.capacity_per_s.high or 0) < (of.low or 0)
    said = f"hold under mps-priority: {of.low:.4g} /s; {of.high:.4g} /s was shown to break"
    assert said in " ".join(result.stdout.split())
    assert "\nSimulated, not measured. " in result.stdout
    # What the other loses grows with the rate.
    lost = [rate.lost["low"].value or 0.0 for rate in mps.held]
    assert lost == sorted(lost) != [0.0] * len(lost)
    # Time is said before any rate is measured; the search begins near what high serves alone.
    before = result.stderr.splitlines()[1]
    assert [
        text for text in ("at most 2 min", "virtual time", "at 800/s") if text not in before
    ] == []
    assert ": held" in result.stderr


def test_reports_hold_every_rate_and_the_goal(measured: MeasuredRun) -> None:
    folder, found, _ = measured
    markdown, svg = (folder / "c.md").read_text(), (folder / "c.svg").read_text()
    for case in found:
        assert f'aria-label="{case.id}, ' in svg
        for rate in case.rates:
            assert f"| {rate.rate_per_s:.4g} | {rate.verdict} |" in markdown
    assert 'aria-label="the goal"' in svg
    assert 'aria-label="not beaten"' in svg
    assert "Command: `" in markdown
    # A narrow terminal gets what has no column below each row.
    narrow = hwq(folder / "shared.hwq.yaml", "--tenant", "high", *FAST, "--dir", folder / "d",
                 columns=40)  # fmt: skip
    assert narrow.exit_code == 0, narrow.output
    for text in ("held", "broke", "windows 4", "lost by low"):
        assert text in " ".join(narrow.stdout.split())


def test_interrupted_search_continues_and_ends_alike(
    measured: MeasuredRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    windows = interrupt(monkeypatch, Measurer, "window", call=6)
    _, first = search(tmp_path, SCENARIO, status=2)
    assert "INCOMPLETE: interrupted; the same command continues." in first.stdout
    assert windows() == 5
    found, second = search(tmp_path)
    assert "5 windows of it reused" in second.stderr
    assert windows() - 5 == len(list(tmp_path.glob("d/*/shared*.json"))) - 5
    assert found == measured[1]


def test_one_interrupted_while_it_judges_has_a_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # It judges too, while a window is measured.
    monkeypatch.setattr(RateRuns, "_decides", lambda *_: False)
    interrupt(monkeypatch, RateRuns, "verdict", call=3)
    _, result = search(tmp_path, SCENARIO, status=2)
    assert "INCOMPLETE: interrupted; the same command continues." in result.stdout


def with_invalid_windows(
    monkeypatch: pytest.MonkeyPatch, invalid: Callable[[PlannedRun, int], bool]
) -> None:
    """Let windows be invalid, by their run and how often it was measured before."""
    window: Callable[..., Any] = Measurer.window
    times: Counter[tuple[str, str, int]] = Counter()

    def measured(self: Measurer, run: PlannedRun, *given: Any) -> Any:
        record, path = window(self, run, *given)
        place = (run.key, run.tenants[0].arrival, given[1])
        if invalid(run, times[place]):
            record = record.model_copy(update={"status": "invalid", "reason": "1.04 ms late"})
        times[place] += 1
        return record, path

    monkeypatch.setattr(Measurer, "window", measured)


# As in tests/answers/which/test_sessions.py; below, one that stays invalid.
@pytest.mark.slow
def test_an_invalid_window_is_measured_again(
    measured: MeasuredRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with_invalid_windows(monkeypatch, lambda _, before: before < ATTEMPTS - 1)
    (found,), result = search(tmp_path, SCENARIO, "--schedulers", "native")
    assert "ended early" not in result.stdout
    assert found.capacity_per_s == measured[1][0].capacity_per_s


@pytest.mark.parametrize(
    ("scheduler", "rate", "said"),
    [
        ("mps-priority", 1600, "no rate was shown to break, but the search ended early."),
        slow("native", 100, "Ended early, and may carry more than was found: native."),
    ],
)
def test_a_row_that_ended_early_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, scheduler: str, rate: int, said: str
) -> None:
    key = (scheduler, f"poisson: {rate}/s")
    with_invalid_windows(monkeypatch, lambda run, _: (run.scheduler, run.tenants[0].arrival) == key)
    found, result = search(tmp_path, SCENARIO, "--window", "5s")
    told = f"ended early, invalid at {rate}/s, each of 3 times: 1.04 ms late"
    lines = [line.strip() for line in result.stdout.splitlines()]
    row = next(i for i, line in enumerate(lines) if line.startswith(scheduler))
    assert lines[row + 1] == told
    assert f"- `{scheduler}`: {told}" in (tmp_path / "c.md").read_text()
    assert said in " ".join(lines)
    (case,) = (case for case in found if case.id == scheduler)
    assert case.capacity_per_s.refused.startswith(f"the search {told}")


NATIVE = SCENARIO.replace("[native, mps-priority]", "[native]")


@pytest.mark.parametrize(
    ("bound", "rates", "shown"),
    [("9 s", "25:100", "at least 100"), ("1 us", "200:800", "below 200")],
)
def test_rates_that_never_break_or_never_hold_leave_an_open_end(
    tmp_path: Path, bound: str, rates: str, shown: str
) -> None:
    text = NATIVE.replace("30%", "1%").replace("8 ms", bound)
    (case,), result = search(tmp_path, text, "--rates", rates)
    assert shown in result.stdout
    assert "--rates searches farther" in result.stdout
    assert case.capacity_per_s.value is None
    assert case.capacity_per_s.refused


def test_search_follows_the_variant(tmp_path: Path) -> None:
    text = NATIVE.replace("  - low.throughput >= 30% of native\n", "") + (
        "variants:\n  - {name: alone, only: [high], set: {high: {arrival: 'constant: 400/s'}}}\n"
    )
    (case,), _ = search(tmp_path, text)
    assert case.variant == "alone"
    # Rates are doublings of the variant's.
    assert 1600 in [rate.rate_per_s for rate in case.rates]
    record = json.loads((next((tmp_path / "d").glob("*/shared*.json"))).read_text())
    assert record["plan"]["tenants"][0]["arrival"].startswith("constant: ")


@pytest.mark.parametrize(
    ("options", "change", "said"),
    [
        ("--tenant nobody", ("", ""), "the tenants are high, low"),
        ("--tenant low", ("", ""), "its arrival is closed, which has no rate"),
        ("--tenant high --rates 5:50",
         ('workload: large_gemm_only, arrival: "poisson: 200/s"',
          "server: {url: 'http://h/', protocol: openai, client: {command: 'x {folder}', "
          "format: vllm}}"),
         "its requests are sent by another project's client (server.client)"),
        ("--tenant high --rates 9", ("", ""), "give two rates per second"),
        ("--tenant high --precision 0", ("", ""), "give a share above 0 and below 200%"),
        ("--tenant high --window 5", ("", ""), "is no duration"),
        ("--tenant high --requests 100 --windows 2", ("", ""),
         "fewer than the 534 independent requests"),
        ("--tenant high", ("200/s", "20% of peak"), "share of its peak"),
        ("--tenant high", ("goals:", "x: []\ngoals:"), "unknown field"),
        ("--tenant high", (SCENARIO[SCENARIO.index("goals:"):], ""), "has no goals"),
        ("--tenant high", ("  - low", "  - device.busy > 85%\n  - low"),
         "native: device.busy > 85% is judged by a traced window"),
        ("--tenant high", ("schedulers", "noise: [cpu]\nschedulers"), "in the quiet"),
        ("--tenant high --schedulers no", ("", ""), "no scheduler mode 'no'"),
        ("--tenant high --schedulers native,preload:no", ("", ""), "--schedulers: preload:no: "),
    ],
)  # fmt: skip
def test_what_cannot_be_searched_is_refused_before_anything_starts(
    tmp_path: Path, options: str, change: tuple[str, str], said: str
) -> None:
    file = write(tmp_path, SCENARIO.replace(*change, 1))
    result = hwq(file, "--device", "sim:h200", *options.split(), "--dir", tmp_path / "d")
    assert result.exit_code == 4, result.output
    assert said in " ".join(result.output.split())
    assert not (tmp_path / "d").exists()


def test_a_scheduler_that_is_not_modelled_costs_the_others_nothing(tmp_path: Path) -> None:
    text = SCENARIO.replace("[native, mps-priority]", '[native, "xsched:level=3"]')
    (native, xsched), result = search(tmp_path, text)
    assert native.capacity_per_s.value is not None
    assert "the simulator does not model" in xsched.reason
    assert xsched.reason in " ".join(result.stdout.split())


def test_docs_show_what_their_command_prints(tmp_path: Path) -> None:
    page = (Path(__file__).parents[3] / "docs" / "capacity.md").read_text()
    file = tmp_path / "shared.hwq.yaml"
    file.write_text(page.partition("```yaml\n")[2].partition("```")[0])
    block = page[page.index("$ hwq capacity ") :].partition("\n```\n")[0]
    command, _, shown = block.partition("\n")
    assert command.split()[3] == file.name
    result = hwq(file, *command.split()[4:], "--dir", tmp_path, columns=110)
    assert result.exit_code == 0, result.output
    assert masked(result.stdout) == masked(shown)


def masked(text: str) -> str:
    """The text without its figures, which may differ a little between versions of torch."""
    return " ".join(re.sub(r"[\d.]+", "#", text).replace("─", "").split())


@dataclass(frozen=True)
class Coarse(which.SearchOptions):
    precision: str = "100%"
    windows: int = 1


def test_which_adds_the_capacity_as_a_column(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(which, "SearchOptions", Coarse)
    arguments = [
        "which", str(write(tmp_path)), "--capacity", "--schedulers", "native", "--device",
        "sim:h200", "--size", "tiny", "--dir", str(tmp_path / "d"), "--duration", "1s", "--json",
        str(tmp_path / "w.json"), "--markdown", str(tmp_path / "w.md"),
    ]  # fmt: skip
    result = CliRunner().invoke(main, arguments, env={"COLUMNS": "250"})
    assert result.exit_code == 0, result.output
    found = WhichFile.model_validate_json((tmp_path / "w.json").read_bytes())
    (native,) = (case for case in found.cases if case.role == "case")
    capacity = native.tenant("high").capacity_per_s
    assert capacity is not None
    assert native.tenant("low").capacity_per_s is None
    assert "capacity" in result.stdout
    assert "| capacity \\[95 %\\] |" in (tmp_path / "w.md").read_text()
    stored = next((tmp_path / "d").glob("which-*/capacity/*.json"))
    assert stored.is_file()
    # With the table in the folder of the records, as a session that names no file leaves it.
    (stored.parents[1] / "which.json").write_bytes((tmp_path / "w.json").read_bytes())
    page = tmp_path / "page.html"
    reported = CliRunner().invoke(main, ["report", str(stored.parents[1]), "-o", str(page)])
    assert reported.exit_code == 0, reported.output
    assert '<td data-label="capacity" class="num">' in page.read_text(encoding="utf-8")
    refused = CliRunner().invoke(main, [*arguments, "--from", str(tmp_path)])
    assert refused.exit_code == 4
    assert "--capacity: measures" in refused.output


def case_of(name: str, *points: tuple[float, float]) -> CapacityCase:
    rates = [
        {"rate_per_s": rate, "verdict": "held", "windows": 1, "p99_ms": {}, "goals": [],
         "lost": {"low": {"value": lost}}, "records": []}
        for rate, lost in points
    ]  # fmt: skip
    return CapacityCase.model_validate(
        {"id": name, "variant": None, "placement": "processes", "scheduler": name,
         "capacity_per_s": {"low": max(rate for rate, _ in points)}, "broke_first": [],
         "rates": rates}
    )  # fmt: skip


def test_front_joins_what_no_other_beats() -> None:
    a = case_of("a", (10, 0.1), (20, 0.2), (40, 0.5))
    b = case_of("b", (10, 0.05), (20, 0.3), (30, 0.4))
    points = [(name, rate.rate_per_s) for name, rate in front([a, b], "low")]
    assert points == [("b", 10), ("a", 20), ("b", 30), ("a", 40)]
    assert front([a, b], "nobody") == []


def test_the_last_lines_of_a_server_that_died_stand_in_its_row_alone(tmp_path: Path) -> None:
    file = write(
        tmp_path,
        "name: dead\ndescription: its server dies\nduration: 1s\ntenants:\n"
        "  - name: web\n"
        "    server: {command: '{python} -c \"exit(chr(78) + chr(79))\" {port}', protocol: http}\n"
        "    arrival: 'poisson: 20/s'\n"
        "goals: [web.p99 < 100 ms]\n",
    )
    result = hwq(file, "--tenant", "web", "--device", "cpu", "--time", "20s", "--window", "500ms",
                 "--dir", tmp_path / "d")  # fmt: skip
    assert result.exit_code == 1, result.output
    # What it wrote is in none of the arguments that a message may name.
    assert [line.strip() for line in result.stdout.splitlines()].count("NO") == 1
    assert "NO" not in result.stderr.split()
    assert "dead[cpu-processes-native] run 1 failed: the server of tenant web" in result.stderr
