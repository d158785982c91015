"""hwq baseline: what it prints and keeps, what it refuses, and how it ends."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
from click.testing import Result

from pytest_hwqueue.baselines.store import Store
from tests.cli.conftest import hwq
from tests.cli.stored import DEVICE, cell_id, noisy, put, refused, session_file
from tests.conftest import make_record
from tests.reports.stored_texts import assert_as_stored


@pytest.fixture(autouse=True)
def _folder(no_settings: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def rows(result: Result) -> list[list[str]]:
    lines = (line for line in result.output.splitlines() if line.startswith("│"))
    return [[cell.strip() for cell in line.strip("│").split("│")] for line in lines]


def baseline(*arguments: str) -> Result:
    return hwq("baseline", *arguments)


@pytest.mark.parametrize(("arguments", "says"), [
    (("compare", "--baseline", "main"), "name two sides"),
    (("compare", "main", "--test", "new"), "name two sides"),
    (("compare", "main", "new", "third"), "name two sides"),
    (("compare",), "name two sides"),
    (("compare", "main", "new", "--rate", "2"), "--rate: '2' is not valid"),
    (("compare", "main", "new", "--rate", "30%"), "screen"),
    (("compare", "main", "new", "--on-missing", "cry"), "choose from pass, warn, fail"),
    (("compare", "main", "new", "--fail-on", "p98"), "nvidia-h200/main has a figure 'p98'"),
    (("compare", "main", "new", "--fail-on", ","), "--fail-on: ',' is not valid"),
    (("compare", "main", "new", "--fail-on", "other_ratio"), "has a figure 'other_ratio'"),
    (("compare", "main", "new", "--sentinel", "fixed"), "--sentinel: 'fixed' is no cell of"),
    (("compare", "main", "new", "--json", "main.txt/x"), "main.txt"),
    (("compare", "main", "new", "--markdown", "main.txt/x"), "main.txt"),
    (("compare", "main", "nothing"), "'nothing' is neither a baseline nor a file nor a folder"),
    (("compare", "nothing", "new"), "nvidia-h200/main, nvidia-h200/new"),
    (("compare", "main", "empty"), "neither records (*.json) nor cells (*.jsonl)"),
    (("compare", "main", "main.txt"), "main.txt is not a session file"),
    (("compare", "main", "other"), "name is a in the baseline and c here"),
    (("baseline",), "Commands:"),
    (("baseline", "no-such"), "No such command"),
    (("baseline", "show"), "Missing argument"),
    (("baseline", "show", "nothing"), "there are nvidia-h200/main"),
    (("baseline", "show", "nvidia-h100/main"), "there is no baseline 'main' for nvidia-h100"),
    (("baseline", "show", "../main"), "'..' is not the folder of a device"),
    (("baseline", "show", "main", "--fail-on", "p98"), "no cell has a figure 'p98'"),
    (("baseline", "show", "main", "b"), "has no cell 'b'; its cells are:\n  a["),
    (("baseline", "history", "nothing"), "no baseline 'nothing'"),
    (("baseline", "accept", "main", "--from", "new"), "--reason"),
    (("baseline", "accept", "main", "--from", "new", "--reason", " "), "needs a reason"),
    (("baseline", "accept", "main", "--from", "main", "--reason", "x"), "the baseline itself"),
    (("baseline", "accept", "main", "--from", "new", "--reason", "x", "--cell", "b"),
     "nvidia-h200/new has no cell 'b'"),
    (("baseline", "accept", "nvidia-h100/main", "--from", "new", "--reason", "x"),
     "no cell of nvidia-h100; it has cells of nvidia-h200"),
    (("baseline", "accept", "ma in", "--from", "new", "--reason", "x"), "cannot name a baseline"),
    (("baseline", "prune", "main", "--keep", "0"), "--keep"),
    (("baseline", "prune", "nothing", "--keep", "5"), "no baseline 'nothing'"),
    (("baseline", "calibrate"), "Missing argument"),
    (("baseline", "calibrate", "main"), "no session has two runs"),
    (("baseline", "calibrate", "main"), "hwq run P0 --runs 3 --save aa"),
    (("baseline", "calibrate", "main", "--fail-on", "p98"), "no cell has a figure 'p98'"),
])  # fmt: skip
def test_wrong_input_ends_with_2(arguments: tuple[str, ...], says: str) -> None:
    put("main", "a", noisy(10, 1))
    put("new", "a", noisy(2, 2))
    put("other", "c", noisy(2, 2))
    Path("main.txt").write_text("no JSON")
    Path("empty").mkdir()

    refused(hwq(*arguments), says)


@pytest.mark.parametrize("arguments", [
    ("compare", "main", "new"), ("compare", "new", "main"), ("baseline", "list"),
    ("baseline", "show", "main"), ("baseline", "history", "main"),
    ("baseline", "prune", "main", "--keep", "1"), ("baseline", "calibrate", "main"),
    ("baseline", "accept", "new", "--from", "main", "--reason", "x"),
])  # fmt: skip
def test_a_damaged_file_is_named(arguments: tuple[str, ...]) -> None:
    put("main", "a", noisy(10, 1))
    put("new", "a", noisy(2, 2))
    (path,) = (Path("baselines") / DEVICE / "main").glob("*.jsonl")
    path.write_bytes(path.read_bytes()[:-10])

    refused(hwq(*arguments), str(path), "is damaged", "restore it from version control")


def test_a_session_without_good_cells_is_refused() -> None:
    put("main", "a", noisy(10, 1))
    path = session_file(make_record("a", 1, status="failed", reason="no memory", samples=None))

    refused(hwq("compare", "main", path), "nothing to compare")
    accepted = baseline("accept", "main", "--from", path, "--reason", "x")
    refused(accepted, "no cell that went well")


def test_a_name_of_several_devices_is_refused_with_both_names() -> None:
    put("main", "a", noisy(10, 1))
    put("main", "a", noisy(10, 1), hard={"device_name": "NVIDIA H100"})

    both = "write nvidia-h100/main or nvidia-h200/main"
    refused(hwq("compare", "main", "main"), both)
    for command in (("show",), ("history",), ("prune", "--keep", "1")):
        refused(hwq("baseline", command[0], "main", *command[1:]), both)
    refused(hwq("baseline", "calibrate", "main"), both)


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


def test_show_has_the_mean_and_the_spread_of_the_runs() -> None:
    factors = noisy(10, 1, sd=0.03)
    put("main", "a", factors)

    (row,) = rows(baseline("show", "main"))

    assert row[:4] == [cell_id("a"), "P99", "10", "10"]
    assert row[4] == f"{10 * np.exp(np.mean(np.log(factors))):.3g} ms"
    assert row[5] == f"{100 * np.std(np.log(factors), ddof=1):.2f} %"


def test_accept_moves_a_baseline_keeps_the_anchor_and_the_history() -> None:
    put("main", "a", [1.0] * 5)
    put("main", "b", [1.0] * 5)
    put("step", "a", [1.1] * 5)
    put("step", "b", [1.1] * 5)
    put("leap", "a", [1.21] * 2)

    moved = hwq("baseline", "accept", "main", "--from", "step", "--reason", "new allocator")
    again = hwq("baseline", "accept", "main", "--from", "leap", "--reason", "and a driver")

    assert moved.exit_code == 0, moved.output
    assert rows(moved)[0] == [cell_id("a"), "+10.0 %", "+10.0 %"]
    assert rows(moved)[-1] == ["median", "+10.0 %", "+10.0 %"]
    assert again.exit_code == 0, again.output
    assert rows(again) == [[cell_id("a"), "+10.0 %", "+21.0 %"]]
    assert "1 cell with fewer than 5 runs" in again.output
    history = hwq("baseline", "history", "main")
    first, second = rows(history)
    assert first[2:] == ["2", "+10.0 %", "+10.0 %", "", "new allocator"]
    assert second[1:] == ["000000000", "1", "+10.0 %", "+21.0 %", "", "and a driver"]
    assert f"farthest: {cell_id('a')} +21.0 %" in history.output
    store = Store(Path("baselines"))
    assert len(store.read("main", DEVICE).cells[cell_id("a")].runs) == 2
    assert store.anchor("main", DEVICE).cells[cell_id("a")].runs[0].p99_ns == 10_000_000


def test_accept_of_one_cell_leaves_the_others() -> None:
    for name in "ab":
        put("main", name, [1.0] * 5)
        put("new", name, [1.1] * 5)

    hwq("baseline", "accept", "main", "--from", "new", "--reason", "x", "--cell", cell_id("b"))

    cells = Store(Path("baselines")).read("main", DEVICE).cells
    assert cells[cell_id("a")].runs[0].p99_ns == 10_000_000
    assert cells[cell_id("b")].runs[0].p99_ns == 11_000_000


def test_accept_makes_a_new_baseline_of_a_session() -> None:
    failed = make_record("b", 1, status="failed", reason="out of memory", samples=None)
    path = session_file(make_record("a", 1), failed)

    result = baseline("accept", "main", "--from", path, "--reason", "first")

    assert result.exit_code == 0, result.output
    assert f"left out: {cell_id('b')}: failed: out of memory" in result.output
    assert rows(result) == [[cell_id("a"), "—", "+0.0 %"]]
    assert list(Store(Path("baselines")).read("main", DEVICE).cells) == [cell_id("a")]


def test_accept_of_several_devices_wants_to_know_which() -> None:
    other = make_record("b", 1, hard={"device_name": "NVIDIA H100"})
    arguments = ("--from", session_file(make_record("a", 1), other), "--reason", "x")

    both = "several devices: write nvidia-h100/main or nvidia-h200/main"
    refused(baseline("accept", "main", *arguments), both)
    assert baseline("accept", "nvidia-h100/main", *arguments).exit_code == 0
    assert Store(Path("baselines")).devices() == ["nvidia-h100"]


def test_planted_faults_are_refused() -> None:
    path = session_file(make_record("a", 1, faults=["slower:10"]))

    result = baseline("accept", "main", "--from", path, "--reason", "x")
    refused(result, "planted faults (slower:10)")
    refused(baseline("calibrate", path), "planted faults (slower:10)")


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

    result = hwq("baseline", "prune", "main", "--keep", "3", *more, answer=answer)

    assert result.exit_code == status, result.output
    runs = Store(Path("baselines")).read("main", DEVICE).cells[cell_id("a")].runs
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

    result = hwq("baseline", "calibrate", "aa")

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


def test_calibrate_refuses_runs_of_other_conditions() -> None:
    put("one", "a", noisy(3, 1), sessions="xxx")
    put("two", "a", noisy(3, 1), sessions="yyy", hard={"driver_major": 590})

    refused(hwq("baseline", "calibrate", "one", "two"), f"{DEVICE}/two", "driver_major is 580")
