"""hwq baseline: what it prints and keeps, what it refuses, and how it ends."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
from click.testing import Result

from pytest_hwqueue.judge.baselines.store import Store
from tests.answers.stored import DEVICE, cell_id, noisy, put, session_file
from tests.cli.conftest import Launched, hwq
from tests.conftest import make_record
from tests.stored_texts import assert_as_stored


@pytest.fixture(autouse=True)
def _folder(no_settings: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def rows(result: Result) -> list[list[str]]:
    """The rows of the last table, a column each, without the lines below them."""
    _, _, body, *_ = result.stdout.split("─" * 78)
    return [re.split(" {2,}", line) for line in body.strip("─\n").splitlines() if line[:1].strip()]


def baseline(*arguments: str, answer: str | None = None) -> Result:
    return hwq("baseline", *arguments, answer=answer)


def test_what_is_stored_is_shown_as_stored() -> None:
    put("main", "a", noisy(10, 1, sd=0.03))
    put("main", "b", noisy(2, 1), sessions="xz")
    put("main", "c", noisy(10, 1, sd=0.001), sessions="x" * 10)
    put("main", "d", [1.0, 0.0])
    put("main", "e", [1.0, 1.0], n=20)
    put("short", "a", noisy(10, 1), n=40)
    put("named", "a", [1.0, 1.5], sessions=["monday", "friday"])
    put("main", "a", noisy(4, 1), hard={"device_name": "NVIDIA H100"})
    commands = (
        ("list",),
        ("list", "--baselines", "elsewhere"),
        ("show", f"{DEVICE}/main", "--detect", "1%"),
        ("show", "short", "--fail-on", "small.p50,throughput,p99"),
        ("show", "named", cell_id("a")),
        ("history", "named"),
        ("prune", "named", "--keep", "3"),
    )
    shown = []
    for command in commands:
        result = baseline(*command)
        assert result.exit_code == 0, result.output
        shown.append(f"$ hwq baseline {' '.join(command)}\n{result.output}")
    assert_as_stored(__file__, "baseline.txt", "\n".join(shown))


def test_accept_moves_a_baseline_keeps_the_anchor_and_the_history() -> None:
    put("main", "a", [1.0] * 5)
    put("main", "b", [1.0] * 5)
    put("step", "a", [1.1] * 5)
    put("step", "b", [1.1] * 5)
    put("leap", "a", [1.21] * 2)
    put("leap", "b", [1.3] * 2)
    a, b = cell_id("a"), cell_id("b")

    moved = baseline("accept", "main", "--from", "step", "--reason", "new allocator")
    again = baseline("accept", "main", "--from", "leap", "--reason", "and a driver", "--cell", a)

    assert (moved.exit_code, again.exit_code) == (0, 0), moved.output + again.output
    assert rows(moved)[0] == [a, "+10.0 %", "+10.0 %"]
    assert rows(moved)[-1] == ["median", "+10.0 %", "+10.0 %"]
    assert rows(again) == [[a, "+10.0 %", "+21.0 %"]]
    assert "1 cell with fewer than 5 runs" in again.output
    history = baseline("history", "main")
    first, second = rows(history)
    assert first[2:] == ["2", "+10.0 %", "+10.0 %"]
    assert second[1:] == ["000000000", "1", "+10.0 %", "+21.0 %"]
    assert re.search("new allocator.*and a driver", history.output, re.DOTALL)
    assert f"farthest: {a} +21.0 %" in " ".join(history.output.split())
    store = Store(Path("baselines"))
    cells = store.read("main", DEVICE)
    # Accepting one cell leaves the others.
    assert (len(cells[a].runs), cells[b].runs[0].p99_ns) == (2, 11_000_000)
    assert store.anchor("main", DEVICE)[a].runs[0].p99_ns == 10_000_000


def test_accept_makes_a_new_baseline_of_a_session() -> None:
    failed = make_record("b", 1, status="failed", reason="out of memory", samples=None)
    other = make_record("c", 1, hard={"device_name": "NVIDIA H100"})
    path = session_file(make_record("a", 1), failed, other)

    result = baseline("accept", f"{DEVICE}/main", "--from", path, "--reason", "first")

    assert result.exit_code == 0, result.output
    assert f"left out: {cell_id('b')}: failed: out of memory" in result.output
    assert rows(result) == [[cell_id("a"), "—", "+0.0 %"]]
    store = Store(Path("baselines"))
    assert store.devices() == [DEVICE]
    assert list(store.read("main", DEVICE)) == [cell_id("a")]


def test_what_comes_with_the_plugin_can_be_read_and_not_pruned() -> None:
    shown = baseline("show", "sim-h200/reference")
    assert (shown.exit_code, shown.output.count("P99   ")) == (0, 17), shown.output
    assert "was never moved" in baseline("history", "sim-h200/reference").output
    assert baseline("prune", "sim-h200/reference", "--keep=1", "--yes").exit_code == 2
    # A baseline of that name in the folder comes first.
    put("reference", "a", [1.0, 1.1])
    for name in ("reference", f"{DEVICE}/reference"):
        assert len(rows(baseline("show", name))) == 1
        assert "several devices" not in baseline("calibrate", name).output
    assert "was never moved" in baseline("history", "reference").output


@pytest.mark.parametrize(("more", "answer", "status", "left"), [
    (("--yes",), None, 0, 3),
    ((), "y\n", 0, 3),
    ((), "n\n", 2, 5),
    ((), "", 2, 5),
])  # fmt: skip
def test_prune_asks_before_it_removes(
    more: tuple[str, ...], answer: str | None, status: int, left: int
) -> None:
    put("main", "a", [1.0, 1.1, 1.2, 1.3, 1.4])

    result = baseline("prune", "main", "--keep", "3", *more, answer=answer)

    assert result.exit_code == status, result.output
    runs = Store(Path("baselines")).read("main", DEVICE)[cell_id("a")].runs
    assert len(runs) == left
    assert runs[-1].p99_ns == 14_000_000
    assert ("removed 2 runs" in result.output) == (status == 0)


def test_calibrate_finds_the_noise_that_was_planted() -> None:
    generator = np.random.default_rng(7)
    sessions = [f"day-{number // 5}" for number in range(200)]
    for name in "abcd":
        of_session = np.repeat(generator.normal(0, 0.02, 40), 5)
        factors = np.exp(of_session + generator.normal(0, 0.03, 200))
        put("aa", name, [float(x) for x in factors[:200]], sessions=sessions)

    result = baseline("calibrate", "aa")

    assert result.exit_code == 0, result.output
    for row in rows(result):
        run_sd, session_sd = (float(text.split()[0]) for text in row[3:5])
        low, high = map(float, re.findall(r"[\d.]+", row[3])[1:])
        assert row[1:3] == ["200", "40"]
        assert run_sd == pytest.approx(3.0, rel=0.15)
        assert session_sd == pytest.approx(2.0, rel=0.4)
        assert low < run_sd < high
    found = re.search(r"Recommended tau: ([\d.]+)%", result.output)
    assert found
    assert float(found[1]) == pytest.approx(2.0, rel=0.2)
    assert "hwq run P0" not in result.output


def test_calibrate_joins_sources_and_leaves_out_what_tells_nothing() -> None:
    put("one", "a", noisy(3, 1), sessions="xxx")
    put("two", "a", noisy(3, 2), sessions="yyy")
    put("two", "b", noisy(1, 2))
    put("two", "c", [1.0, 0.0], sessions="yy")

    joined = baseline("calibrate", "one", "two", "two")
    # One session tells nothing of how sessions differ, so no tau can be recommended.
    one = baseline("calibrate", "one", "--fail-on", "p99,small.p50")

    assert (joined.exit_code, one.exit_code) == (0, 0), joined.output + one.output
    assert rows(joined)[0][:3] == [cell_id("a"), "6", "2"]
    assert_as_stored(__file__, "calibrate.txt", f"{joined.output}\n=====\n\n{one.output}")


@pytest.mark.parametrize(
    ("given", "status", "sessions", "runs"),
    [
        (("--sessions=3", "--streams", "8"), 0, 3, "2"),
        (("--runs=4",), 0, 5, "4"),
        (("--runs=4",), 1, 1, "4"),
        (("--sessions=1", "--runs=3", "--", "-k", "moe", "--hwq-streams=8"), 0, 1, "3"),
    ],
)
def test_a_baseline_is_recorded_in_sessions_until_one_fails(
    launched: Launched, given: tuple[str, ...], status: int, sessions: int, runs: str
) -> None:
    launched.status = status
    assert hwq("baseline", "record", "main", "P0", *given).exit_code == status
    assert len(launched.commands) == sessions
    options = {"--hwq-save=main", "--hwq-priority=P0", f"--hwq-runs={runs}"}
    assert options <= set(launched.plugin_options)
    assert ("--hwq-streams=8" in launched.plugin_options) == any("streams" in one for one in given)
    assert ("moe" in launched.commands[0]) == ("moe" in given)


@pytest.mark.parametrize(("noise", "seeds"), [("run=0.03", {"1", "2"}), ("run=0.03,seed=7", {"7"})])
def test_sessions_of_a_baseline_have_simulated_noise_of_their_own(
    launched: Launched, noise: str, seeds: set[str]
) -> None:
    hwq("baseline", "record", "main", "P0", "--sessions=2", f"--sim-noise={noise}")
    given = [option for command in launched.commands for option in command if "noise" in option]
    assert {option.rpartition("seed=")[2] for option in given} == seeds
