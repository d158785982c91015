"""What is said of remedies: only what one session measured, and how to measure the rest."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from pytest_hwqueue.cli.main import main
from pytest_hwqueue.harness.summary import summarise
from pytest_hwqueue.noise.names import noise_id
from pytest_hwqueue.records.cell import Cell, RunRecord, Samples, now, write_record
from pytest_hwqueue.records.noise import Machine, NoiseRound, RemedyRecord
from pytest_hwqueue.reports.advice_words import advice_lines
from pytest_hwqueue.reports.noise_advice import advise

if TYPE_CHECKING:
    from tests.conftest import RunInProcess

NoiseStatus = Literal["quiet", "applied", "not applied"]
REMEDY = RemedyRecord(cores_before=[0, 1, 2, 3], cores=[2, 3], nice_before=0, nice=-10, threads=4)
REMEDIES = {
    "optimised": REMEDY,
    "isolated": REMEDY.model_copy(update={"cores": [3], "kept_free": [1, 3]}),
}


def measured(
    noise: str, run: int, ns: int, *, scheduler: str = "native", device: str = "cuda",
    status: NoiseStatus = "applied", size: str | None = "full", faults: tuple[str, ...] = (),
) -> RunRecord:  # fmt: skip
    beside = "" if noise == "none" else noise_id(noise)
    cell = Cell(
        name="llm_decode", device=device, streams=2, scheduler=scheduler, dispatch="eager",
        sync_mode="per_iteration", size=size, parameters={"layers": 3},
        variant="-".join(filter(None, ("layers=3", beside))),
    )  # fmt: skip
    times = [ns] * 400
    samples = Samples(host_ns=times, device_ns=times, enqueue_ns=times, pace_ns=[])
    return RunRecord(
        cell=cell, cell_id=cell.id, nodeid="test_x.py::test_y[cuda-s2]", run=run, status="ok",
        started=now(), duration_s=1, samples=samples,
        metrics=summarise(samples, {"tokens": 1.0}, ()),
        noise=NoiseRound(
            noise=noise, status="quiet" if noise == "none" else status, started=now(),
            duration_s=2.0, autogroup_enabled=None, measured=None, measured_on_cpu_s=1.0,
            measured_run_delay_s=0.5, remedy=REMEDIES.get(noise), neighbours=[],
            machine=Machine(pressure_share={}, softirqs={}, interrupts={}, steal_s=None),
        ),
        seed=0, command="pytest", faults=list(faults),
    )  # fmt: skip


def rounds(**ns: int) -> list[RunRecord]:
    """Three runs under each noise; the longer, the later."""
    return [measured(noise, run, each + run) for run in (1, 2, 3) for noise, each in ns.items()]


def test_what_pinning_won_back_is_said_with_its_source() -> None:
    advice = advise([("s1", rounds(none=100_000, cpu=200_000, optimised=110_000))])
    first, second, how, *missing = advice_lines(advice)
    # Of 100 ns, 200 and 110: the rate falls by a half, and by 9.1 %.
    assert first.startswith("under cpu, pinning to cores 2,3 and nice -10 won back 40.9 % [")
    assert "] of 50.0 % [" in first
    assert first.endswith(
        "lost tokens/s (llm_decode[cuda-s2-native-eager-layers=3], session s1, 3 runs)"
    )
    assert "of 100 % [" in second
    assert "longer P99 (" in second
    assert "95 % interval" in how
    assert missing == [
        "not measured: what pinning with neighbours kept off those cores and their hyperthreads "
        "buys of llm_decode[cuda-s2-native-eager-layers=3]: `hwq run llm_decode --size full "
        "--device cuda --streams 2 --noise cpu,isolated --runs 6 --param layers=3`",
        "not measured: what priority on the device, or isolation by another scheduler, buys of "
        "llm_decode[cuda-s2-native-eager-layers=3]: `hwq run llm_decode --size full --device cuda "
        "--streams 2 --scheduler native,stream-priority --noise cpu --runs 6 --param layers=3`",
    ]


def test_what_isolation_bought_is_a_comparison_of_its_own() -> None:
    both = rounds(none=100_000, cpu=200_000, optimised=160_000, isolated=110_000)
    advice = advise([("s1", both)])
    assert [each.remedy for each in advice.comparisons] == [
        "pinning to core 3 and nice -10 with neighbours kept off cores 1,3",
        "pinning to cores 2,3 and nice -10",
    ]
    isolated, pinned = advice.comparisons
    assert "--noise cpu,isolated --runs 6" in isolated.again
    assert "--noise cpu,optimised --runs 6" in pinned.again
    lines = advice_lines(advice)
    said = "under cpu, pinning to core 3 and nice -10 with neighbours kept off cores 1,3 won back"
    assert lines[0].startswith(f"{said} 40.9 % [")
    assert [each.what.partition(",")[0] for each in advice.not_measured] == [
        "what priority on the device"
    ]


def test_of_the_remedies_one_is_named_as_not_measured() -> None:
    def lacking(*sessions: list[RunRecord]) -> list[str]:
        named = [(str(number), records) for number, records in enumerate(sessions)]
        return [
            each.what for each in advise(named).not_measured if each.what.startswith("what pinning")
        ]

    neither = rounds(none=100_000, cpu=200_000)
    pinned = rounds(none=100_000, cpu=200_000, optimised=100_000)
    isolated = rounds(none=100_000, cpu=200_000, isolated=100_000)
    (first,) = lacking(neither)
    assert first == "what pinning and priority buy"
    assert lacking(isolated) == [first]
    (second,) = lacking(neither, pinned)
    assert "kept off those cores and their hyperthreads" in second
    assert lacking(pinned, isolated) == lacking(isolated, pinned) == []


def test_what_spans_0_is_undecided_and_what_got_worse_is_a_cost() -> None:
    same = advise([("s", rounds(none=100_000, cpu=200_000, optimised=200_000))])
    lines = advice_lines(same)
    assert all("undecided: " in line for line in lines[:2])
    assert "the interval spans 0" in lines[0]
    assert "measure again with `hwq run llm_decode " in lines[0]
    worse = advice_lines(advise([("s", rounds(none=100_000, cpu=200_000, optimised=400_000))]))
    assert "nice -10 cost: 25.0 % [" in worse[0]
    assert "fewer tokens/s, where the noise had cost 50.0 % [" in worse[0]
    assert "cost: P99 longer by 200 % [" in worse[1]


def test_a_scheduler_is_compared_with_native_beside_the_same_noise() -> None:
    records = [
        measured(noise, run, ns, scheduler=scheduler)
        for run in (1, 2)
        for scheduler, noise, ns in (
            ("native", "none", 100_000), ("native", "cpu", 200_000),
            ("stream-priority", "none", 90_000), ("stream-priority", "cpu", 125_000),
        )
    ]  # fmt: skip
    lines = advice_lines(advise([("s", records)]))
    assert any(
        line.startswith("under cpu, stream-priority in place of native won back 30.0 % [")
        for line in lines
    )
    gained = "in the quiet, stream-priority in place of native gained: 11.1 % ["
    assert any(line.startswith(gained) for line in lines)
    # Each scheduler lacks the remedy.
    assert sum("what pinning and priority buy" in line for line in lines) == 2


def test_the_last_session_counts_and_sessions_are_not_mixed() -> None:
    old = rounds(none=100_000, cpu=200_000, optimised=100_000)
    new = rounds(none=100_000, cpu=200_000, optimised=160_000)
    (comparison,) = advise([("1", old), ("2", new)]).comparisons
    assert comparison.session == "2"
    halves = [("1", rounds(none=100_000, cpu=200_000)), ("2", rounds(optimised=100_000))]
    advice = advise(halves)
    assert advice.comparisons == ()
    assert any("pinning" in each.what for each in advice.not_measured)


def test_planted_simulated_and_unfelt_is_no_evidence() -> None:
    noises = ("none", "cpu", "optimised")
    planted = [measured(noise, 1, 1000, faults=("slower:10",)) for noise in noises]
    simulated = [measured(noise, 1, 1000, device="sim:h200") for noise in noises]
    advice = advise([("s", planted + simulated)])
    assert advice.comparisons == ()
    assert [each.what for each in advice.not_measured] == ["no cell was measured under noise"]
    unfelt = [
        measured(noise, run, 1000, status="not applied") for noise in noises for run in (1, 2)
    ]
    lines = advice_lines(advise([("s", unfelt)]))
    assert all("there is no run in which" in line for line in lines[:2])


@given(
    ns=st.dictionaries(
        st.tuples(
            st.integers(1, 3),
            st.sampled_from(["none", "cpu", "optimised", "isolated", "own.yaml"]),
            st.sampled_from(["native", "mps"]),
        ),
        st.integers(1_000, 10**9), max_size=10,
    )
)  # fmt: skip
def test_nothing_is_advised_without_figures(ns: dict[tuple[int, str, str], int]) -> None:
    records = [
        measured(noise, run, each, scheduler=scheduler)
        for (run, noise, scheduler), each in ns.items()
    ]
    advice = advise([("s", records)])
    assert advice.comparisons or advice.not_measured
    for line in advice_lines(advice):
        if not line.startswith(("undecided: ", "not measured: ", "% are")):
            assert "[" in line.partition("(")[0]


def test_the_proposed_commands_measure_beside_what_they_name(
    pytester: pytest.Pytester, run_in_process: RunInProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a test that takes --hwq-noise, and of one that says itself what runs beside it."""
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[2]))
    pytester.makepyfile(
        test_mine="def test_given(hwq): hwq.measure(lambda: None)\n"
        "def test_own(hwq, hwq_noise): hwq.measure(lambda: None)\n"
    )
    short = ("--hwq-isolation=process", "--hwq-max-time=0.1", "--hwq-iterations=5")
    first = run_in_process("--hwq-device=cpu", "--hwq-streams=2", "--hwq-noise=cpu", *short)
    assert first.ret == pytest.ExitCode.OK, first.stdout.str()
    found = CliRunner().invoke(main, ["advise"])
    commands = re.findall(r"`(pytest [^`]*)`", found.output)
    assert len(commands) == 2, found.output
    for command in commands:
        words = shlex.split(command, comments=True)[1:]
        ran = run_in_process(*words, *short, "--hwq-runs=1", "-v")
        assert ran.ret == pytest.ExitCode.OK, ran.stdout.str()
        noises = re.findall(r"test_given\[(\S+?)-cpu-s2", ran.stdout.str())
        if "test_own" in command:
            # The option would have no effect there.
            assert "--hwq-noise" not in words
            assert 'with hwq_noise("cpu") and hwq_noise("optimised") around' in command
        else:
            assert set(noises) == {"quiet", "beside-cpu", "beside-optimised"}


def test_the_command_reads_sessions_and_writes_json(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    nothing = CliRunner().invoke(main, ["advise", "--dir", "out"])
    assert nothing.exit_code == 1
    assert "no cell was measured under noise: `hwq run llm_decode --noise" in nothing.output
    folder = tmp_path / "out" / "20260101T000000-1"
    for record in rounds(none=100_000, cpu=200_000, optimised=110_000):
        write_record(folder, record)
    (folder / "session.json").write_text("{}")
    (folder / "broken.json").write_text('{"noise":{')
    found = CliRunner().invoke(main, ["advise", "--dir", "out", "--json", "advice.json"])
    assert found.exit_code == 0, found.output
    assert "won back 40.9 %" in found.output
    assert "left out: " in found.output
    written = json.loads((tmp_path / "advice.json").read_text())
    (comparison,) = written["comparisons"]
    assert comparison["session"] == folder.name
    assert [each["verdict"] for each in comparison["figures"]] == ["won", "won"]
    assert comparison["figures"][0]["bought"]["won"]["value"] == pytest.approx(0.409, abs=1e-3)
    assert CliRunner().invoke(main, ["advise", "absent"]).exit_code == 4
