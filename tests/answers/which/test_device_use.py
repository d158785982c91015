"""Goals on how tenants use the device: one traced window of each row, judged, shown, read again."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest
from click.testing import Result

from pytest_hwqueue.answers.which.file import WhichFile
from pytest_hwqueue.data.records.tenants import read_colocation, write_colocation
from pytest_hwqueue.engine.tenants import simulated_tenants
from pytest_hwqueue.engine.tenants.device_use import TIME_SLICES
from tests.answers.which.conftest import case, hwq

SCENARIO = """\
name: use
duration: 8s
schedulers:
  processes: [native, mps]
  threads: [native, stream-priority]
tenants:
  - {name: high, workload: tiny_kernel_stress, parameters: {rounds: 2},
     arrival: "poisson: 100/s", priority: 1}
  - {name: low, workload: large_gemm_only, parameters: {mm_dim: 4096}, arrival: closed}
goals:
"""
GOALS = (
    "high.p50 < 10 ms", "device.busy > 85%", "low.busy > 99.9%", "high.wait_p99 < 1 ms",
    "device.switches < 2000/s", "high.wait_p999 < 5 ms",
)  # fmt: skip
ROWS = ("native", "mps", "threads-native", "threads-stream-priority")


def write(folder: Path, *goals: str, name: str = "use", text: str = SCENARIO) -> Path:
    file = folder / f"{name}.hwq.yaml"
    file.write_text(text + "".join(f"  - {goal}\n" for goal in goals))
    return file


def measure(file: Path, folder: Path, *more: str | Path) -> tuple[WhichFile, Result]:
    path = file.with_suffix(".json")
    result = hwq(
        file, "--device", "sim:h200", "--size", "full", "--dir", folder, "--json", path, *more
    )
    assert result.exit_code == 0, result.output
    return WhichFile.model_validate_json(path.read_bytes()), result


def verdicts(found: WhichFile, row: str) -> list[str]:
    return [goal.verdict for goal in case(found, row).goals]


MeasuredRun = tuple[Path, WhichFile, Result]


@pytest.fixture(scope="module", name="measured")
def measured_once(tmp_path_factory: pytest.TempPathFactory) -> MeasuredRun:
    folder = tmp_path_factory.mktemp("use")
    found, result = measure(write(folder, *GOALS), folder / "all", "-v")
    (session,) = (folder / "all").iterdir()
    return session, found, result


def test_goals_are_judged_by_one_traced_window_of_each_row(measured: MeasuredRun) -> None:
    session, found, result = measured
    assert [verdicts(found, row) for row in ROWS[1:]] == [
        # The small kernel waits behind the large one, unless its stream comes first; and 800
        # requests show no P99.9.
        ["met", "met", "missed", "missed", "met", "undecided"],
        ["met", "met", "missed", "missed", "met", "undecided"],
        ["met", "met", "missed", "met", "met", "undecided"],
    ]
    native = case(found, "native")
    assert verdicts(found, "native") == ["met", *["undecided"] * 5]
    assert {goal.reason for goal in native.goals[1:]} == {TIME_SLICES}
    assert native.device_use == []
    # It is known before that nothing would be seen there: nothing runs for it.
    records = [read_colocation(path) for path in (session / "traced").glob("*.json")]
    assert sorted(f"{one.placement} {one.scheduler}" for one in records) == [
        "processes mps", "threads native", "threads stream-priority",
    ]  # fmt: skip
    assert all(one.traced and one.duration_s == 8 for one in records)
    text = " ".join(result.stdout.split())
    assert "No --duration decides device.busy > 85%, low.busy > 99.9%, " in text
    assert f"under native: {TIME_SLICES}." in text
    assert result.stderr.count(" traced ok (") == 3


def test_every_row_with_a_traced_window_shows_how_the_device_was_used(
    measured: MeasuredRun,
) -> None:
    _, found, result = measured
    for row in ROWS[1:]:
        goals = {goal.goal: goal.figure for goal in case(found, row).goals}
        device, high, low = case(found, row).device_use
        assert [each.tenant for each in (device, high, low)] == ["device", "high", "low"]
        assert device.wait_p99_ms is high.switches_per_s is low.switches_per_s is None
        assert device.switches_per_s == goals["device.switches < 2000/s"]
        assert device.busy.scaled(100, "%") == goals["device.busy > 85%"]
        assert low.busy.scaled(100, "%") == goals["low.busy > 99.9%"]
        assert high.wait_p99_ms is not None
        assert high.wait_p99_ms == goals["high.wait_p99 < 1 ms"]
        assert device.busy >= low.busy > high.busy > 0
        # A model's tracer costs nothing.
        assert device.throughput_over_measured is None
        for tenant in (high, low):
            assert tenant.throughput_over_measured is not None
            assert tenant.throughput_over_measured == pytest.approx(1, rel=0.05)
    lines = result.stdout.partition("How the device was used")[2].splitlines()
    shown = [line.split()[:2] for line in lines if line.startswith(("mps", "threads-"))]
    assert shown == [[row, who] for row in ROWS[1:] for who in ("device", "high", "low")]


def test_records_alone_judge_the_same_and_other_goals(
    measured: MeasuredRun, tmp_path: Path
) -> None:
    session, found, result = measured
    again, text = measure(write(tmp_path, *GOALS), tmp_path, "--from", session, "-v")
    assert again == found
    assert text.stdout == result.stdout
    # Goals that came after the measuring, and none: what was traced is there.
    other, _ = measure(write(tmp_path, "low.busy > 40%"), tmp_path, "--from", session)
    assert [verdicts(other, row) for row in ROWS] == [["undecided"], ["met"], ["met"], ["met"]]
    none, _ = measure(
        write(tmp_path, text=SCENARIO.removesuffix("goals:\n")), tmp_path, "--from", session
    )
    assert [len(case(none, row).device_use) for row in ROWS] == [0, 3, 3, 3]


def test_the_wide_table_has_each_tenants_share_of_the_device(
    measured: MeasuredRun, tmp_path: Path
) -> None:
    session, found, _ = measured
    markdown = tmp_path / "wide.md"
    file = write(tmp_path, *GOALS)
    assert hwq(file, "--from", session, "--wide", "--markdown", markdown).exit_code == 0
    cells = [
        [cell.strip() for cell in line.split("|")[1:-1]]
        for line in markdown.read_text(encoding="utf-8").splitlines()
        if line.startswith("|")
    ]
    rows = {row[0].strip("`❌🟢⚠️ "): dict(zip(cells[0], row, strict=True)) for row in cells[2:]}
    names = [name for name in cells[0] if "busy" in name]
    assert len(names) == 2
    for row in ROWS[1:]:
        _, high, low = case(found, row).device_use
        for name, use in zip(names, (high, low), strict=True):
            assert rows[row][name].startswith(f"{use.busy.scaled(100, '%'):.3g}"[:3])
    assert {rows["native"][name] for name in names} == {""}


def changed(session: Path, **update: object) -> Path:
    """A copy of a session whose traced windows are otherwise."""
    copy = session.parent / "copy"
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(session, copy)
    for path in (copy / "traced").glob("*.json"):
        write_colocation(path, read_colocation(path).model_copy(update=update))
    return copy


def test_what_a_traced_window_did_not_show_is_undecided_and_says_why(
    measured: MeasuredRun, tmp_path: Path
) -> None:
    session, *_ = measured
    file = write(tmp_path, "device.busy > 85%", "high.p50 < 10 ms")
    broken = changed(session, status="failed", reason="it broke")
    found, result = measure(file, tmp_path, "--from", broken, "-v")
    assert verdicts(found, "mps") == ["undecided", "met"]
    reason = "the traced run was failed: it broke"
    assert reason in case(found, "mps").goals[0].reason
    assert reason in " ".join(result.stdout.split())
    # Of a folder without them.
    shutil.rmtree(changed(session) / "traced")
    found, _ = measure(file, tmp_path, "--from", session.parent / "copy")
    assert case(found, "mps").goals[0].reason == "no window of it was traced"
    # They are no measured windows.
    alone = hwq(file, "--from", session / "traced")
    assert (alone.exit_code, "has no record of the cases" in alone.stderr) == (4, True)


def test_traced_windows_of_several_sessions_count_together(
    measured: MeasuredRun, tmp_path: Path
) -> None:
    session, found, _ = measured
    twice, _ = measure(
        write(tmp_path, "device.switches < 2000/s"), tmp_path, "--from", session,
        "--from", changed(session),
    )  # fmt: skip
    (goal,) = case(twice, "mps").goals
    once = case(found, "mps").goals[4]
    assert (goal.figure.sessions, goal.figure.n) == (2, 2 * once.figure.n)
    assert goal.figure.value == once.figure.value
    assert [len(case.device_use) for case in twice.sessions[0].cases if case.id == "mps"] == [3]


def test_goals_of_a_traced_window_do_not_keep_others_from_ending_early(tmp_path: Path) -> None:
    early = write(tmp_path, "high.p50 < 10 ms", name="early")
    both = write(tmp_path, "high.p50 < 10 ms", "device.busy > 85%", name="both")
    measuring = ("--until=decided", "--duration", "60s", "--schedulers", "mps")
    without, _ = measure(early, tmp_path / "early", *measuring)
    found, _ = measure(both, tmp_path / "both", *measuring)
    assert case(found, "mps").window_s == case(without, "mps").window_s < 60
    assert len(list((tmp_path / "both").glob("*/traced/*-mps-*.json"))) == 1
    assert not list((tmp_path / "early").glob("*/traced"))


def test_a_traced_window_is_as_long_as_a_wait_needs_or_the_others_may(tmp_path: Path) -> None:
    rare = SCENARIO.replace("100/s", "20/s").replace("arrival: closed", 'arrival: "constant: 20/s"')
    for goal, least_s, most_s in (
        # As many requests as suffice for a P99, as far as the scenario's duration goes.
        ("high.wait_p99 < 10 ms", 45, 60), ("device.busy > 1%", 20, 20),
    ):  # fmt: skip
        folder = tmp_path / goal.partition(" ")[0]
        file = write(tmp_path, "high.p50 < 10 ms", goal, text=rare)
        # One window of two decides what is measured.
        found, _ = measure(
            file, folder, "--schedulers", "mps", "--duration", "60s", "--until=decided"
        )
        assert verdicts(found, "mps") == ["met", "met"]
        assert case(found, "mps").window_s < 60
        (path,) = folder.glob("*/traced/*-mps-*.json")
        assert least_s <= read_colocation(path).duration_s <= most_s


def test_causes_come_from_the_window_that_goals_had_traced(tmp_path: Path) -> None:
    file = write(tmp_path, "high.p99 < 1 s", "high.wait_p99 < 1 s")
    _, result = measure(file, tmp_path / "all", "--causes", "--schedulers", "mps")
    assert "mps: high: causes of the slowest 1 % in a traced run of its own" in result.stdout
    assert len(list((tmp_path / "all").glob("*/traced/*-mps-*.json"))) == 1


def test_a_window_traced_again_for_causes_judges_no_goal(tmp_path: Path) -> None:
    # The goal's window is as long as the measuring time; the causes of a P99 want 20 s.
    text = SCENARIO.replace("100/s", "20/s").replace("arrival: closed", 'arrival: "constant: 90/s"')
    file = write(tmp_path, "high.p99 < 1 s", "device.switches > 1/s", text=text)
    given = ("--schedulers", "mps", "--duration", "4s")
    found, result = measure(file, tmp_path / "all", "--causes", *given)
    assert "mps: high: causes of the slowest" in result.stdout
    (session,) = (tmp_path / "all").iterdir()
    lengths = [
        [read_colocation(path).duration_s for path in (session / folder).glob("*-mps-*.json")]
        for folder in ("traced", "traced_again")
    ]
    ((judged_s,), (explained_s,)) = lengths
    assert judged_s == 4 < explained_s
    again, _ = measure(file, tmp_path, "--from", session, *given[:2])
    assert again == found


OPEN = "high.wait_p999 < 5 ms"
THREADS = ("--schedulers", "threads-native", "--device", "sim:h200")


@pytest.mark.parametrize(
    ("duration", "goal", "ended_by", "said"),
    [
        # 1000 requests take 11 s, with some to spare.
        ("8s", OPEN, "duration", f"A longer --duration may decide {OPEN} under threads-native: "),
        ("30s", OPEN, "", f"No --duration decides {OPEN} under threads-native: has "),
    ],
)
def test_what_decides_a_goal_of_a_traced_window_depends_on_what_ended_it(
    tmp_path: Path, duration: str, goal: str, ended_by: str, said: str
) -> None:
    file = write(tmp_path, goal)
    found, result = measure(file, tmp_path / "all", *THREADS, "--duration", duration)
    (judged,) = case(found, "threads-native").goals
    assert (judged.verdict, judged.ended_by) == ("undecided", ended_by)
    assert said in " ".join(result.stdout.split())
    (session,) = (tmp_path / "all").iterdir()
    again, text = measure(file, tmp_path, "--from", session, *THREADS)
    assert (again, text.stdout) == (found, result.stdout)
    # Each session's own window was ended so, whatever they have together.
    both = ("--from", session, "--from", changed(session))
    twice, _ = measure(file, tmp_path, *both, *THREADS)
    (together,) = case(twice, "threads-native").goals
    assert (together.verdict, together.ended_by) == ("undecided", ended_by)


def test_what_a_trace_cannot_hold_stands_beside_the_undecided_goal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(simulated_tenants, "_MOST_KERNELS", 1000)
    file = write(tmp_path, "high.wait_p99 < 5 ms")
    found, result = measure(file, tmp_path / "all", *THREADS)
    (judged,) = case(found, "threads-native").goals
    assert (judged.verdict, judged.ended_by) == ("undecided", "trace")
    cut = r"; traced for [0-9.]+ s of 8 s: a trace holds no more kernels"
    assert re.search(cut, judged.reason)
    text = " ".join(result.stdout.split())
    assert re.search(f"No --duration decides {judged.goal} under threads-native: .*{cut}", text)


def test_where_requests_are_counted_more_of_them_decide(tmp_path: Path) -> None:
    text = SCENARIO.replace('"poisson: 100/s",', '"constant: 100/s", requests: 20,')
    file = write(tmp_path, "high.wait_p99 < 5 ms", "high.p99 < 50 ms", text=text)
    found, result = measure(file, tmp_path / "all", *THREADS)
    judged = case(found, "threads-native").goals
    assert [(each.verdict, each.ended_by) for each in judged] == [("undecided", "requests")] * 2
    said = "More `requests` may decide high.wait_p99 < 5 ms and high.p99 < 50 ms under threads-nat"
    assert said in " ".join(result.stdout.split())
    assert "--duration" not in result.stdout.replace("--duration 8s", "")
    # If the time is over first, that is what lacks.
    more = write(tmp_path, "high.p99 < 50 ms", text=text.replace("requests: 20", "requests: 900"))
    short, result = measure(more, tmp_path / "short", *THREADS, "--duration", "2s")
    (judged_short,) = case(short, "threads-native").goals
    assert (judged_short.verdict, judged_short.ended_by) == ("undecided", "")
    assert "a longer --duration" in " ".join(result.stdout.split())


def test_who_is_not_traced_leaves_the_goals_undecided(tmp_path: Path) -> None:
    text = SCENARIO.replace("arrival: closed}", "arrival: closed, concurrency: 2}")
    file = write(tmp_path, "device.busy > 85%", text=text)
    found, _ = measure(file, tmp_path / "all", "--schedulers", "mps", "--duration", "1s")
    (goal,) = case(found, "mps").goals
    assert goal.verdict == "undecided"
    assert goal.reason.startswith(
        "not observable: the traced run was skipped: tenant low serves 2 requests at once"
    )


def test_a_window_that_its_requests_end_is_all_that_counts(tmp_path: Path) -> None:
    text = SCENARIO.replace(
        'arrival: "poisson: 100/s",', 'arrival: "constant: 100/s", requests: 20,'
    )
    text = text.replace("{mm_dim: 4096}", "{mm_dim: 512}").replace(
        "  processes: [native, mps]\n", ""
    )
    file, path = write(tmp_path, "device.busy > 1%", text=text), tmp_path / "use.json"
    given = ("--device", "sim:h200", "--size", "tiny", "--duration", "8s", "--schedulers", "native")
    result = hwq(file, *given, "--dir", tmp_path / "d", "--json", path)
    assert result.exit_code == 0, result.output
    (traced,) = (tmp_path / "d").rglob("traced/*.json")
    record = read_colocation(traced)
    assert record.duration_s < 4
    use = case(WhichFile.model_validate_json(path.read_bytes()), "threads-native").device_use
    busy = {each.tenant: each.busy for each in use}
    # A closed loop keeps the device busy from begin to end.
    assert 0.5 < (busy["low"].value or 0) <= (busy["device"].value or 0) <= 1
    assert record.device_use is not None
    assert 0 < sum(record.device_use.busy_ns) <= record.duration_s * 1e9 * 1.001
