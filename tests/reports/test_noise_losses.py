"""Lines on what neighbours cost: by run against the quiet turn, and nothing that was not felt."""

from __future__ import annotations

from typing import Literal

import pytest

from pytest_hwqueue.harness.summary import summarise
from pytest_hwqueue.noise.names import noise_id
from pytest_hwqueue.records.cell import Cell, RunRecord, Samples, now
from pytest_hwqueue.records.noise import Machine, NoiseRound, RemedyRecord
from pytest_hwqueue.reports.markdown import render_markdown
from pytest_hwqueue.reports.noise_losses import noise_lines, remedy_lines

PINNED = RemedyRecord(cores_before=[0, 1, 2, 3], cores=[2, 3], nice_before=0, nice=-10, threads=4)
REMEDIES = {
    "optimised": PINNED,
    "isolated": PINNED.model_copy(update={"cores": [3], "kept_free": [1, 3]}),
}


def round_of(noise: str, status: Literal["quiet", "applied", "not applied"]) -> NoiseRound:
    return NoiseRound(
        noise=noise, status=status, started=now(), duration_s=2.0, autogroup_enabled=None,
        measured=None, measured_on_cpu_s=1.0, measured_run_delay_s=0.5, remedy=REMEDIES.get(noise),
        neighbours=[], machine=Machine(pressure_share={}, softirqs={}, interrupts={}, steal_s=None),
    )  # fmt: skip


def measured(
    noise: str,
    run: int,
    ns: int,
    status: Literal["quiet", "applied", "not applied"] = "applied",
    variant: str = "",
    scheduler: str = "native",
) -> RunRecord:
    beside = "" if noise == "none" else noise_id(noise)
    cell = Cell(
        name="w", device="cpu", streams=2, scheduler=scheduler, dispatch="eager",
        sync_mode="per_iteration", size=None, variant="-".join(filter(None, (variant, beside))),
    )  # fmt: skip
    times = [ns] * 400
    samples = Samples(host_ns=times, device_ns=times, enqueue_ns=times, pace_ns=[])
    return RunRecord(
        cell=cell, cell_id=cell.id, nodeid="x::y", run=run, status="ok", started=now(),
        duration_s=1, samples=samples, metrics=summarise(samples, {"tokens": 1.0}, ()),
        noise=round_of(noise, "quiet" if noise == "none" else status), seed=0, command="pytest",
    )  # fmt: skip


def test_a_line_per_cell_and_noise() -> None:
    records = [
        measured(noise, run, ns, variant=variant)
        for run in (1, 2)
        for variant in ("", "a=1")
        for noise, ns in (("none", 1000), ("cpu", 2000), ("x/own.yaml", 4000))
    ]
    lines = noise_lines(records)
    assert [line.partition(":")[0] for line in lines] == [
        "w[cpu-s2-native-eager] under cpu",
        "w[cpu-s2-native-eager] under x/own.yaml",
        "w[cpu-s2-native-eager-a=1] under cpu",
        "w[cpu-s2-native-eager-a=1] under x/own.yaml",
    ]
    assert "lost 50.0 % [" in lines[0]
    assert "of tokens/s; P99 longer by 100 % [" in lines[0]
    assert lines[0].endswith("25.0 % of its time waiting for a core")
    assert "lost 75.0 % [" in lines[1]


def test_a_slower_core_is_told() -> None:
    """As where hyperthreads share a core: nothing waits, and everything takes longer."""
    records = []
    for run in (1, 2):
        for noise, ns, speed in (("none", 1000, 4e7), ("cpu", 2000, 3e7)):
            record = measured(noise, run, ns)
            assert record.noise is not None
            told = record.noise.model_copy(update={"core_speed_per_s": speed})
            records.append(record.model_copy(update={"noise": told}))
    (line,) = noise_lines(records)
    assert "its core did 25.0 % [" in line
    assert line.endswith("] less in the same CPU time")


def test_one_run_has_no_interval() -> None:
    (line,) = noise_lines([measured("none", 1, 1000), measured("cpu", 1, 2000)])
    assert "lost 50.0 % of tokens/s" in line
    assert "no interval of P99: needs at least 2 rounds, has 1 (1 missing)" in line


def test_a_run_in_which_it_was_not_felt_does_not_count() -> None:
    quiet = [measured("none", run, 1000) for run in (1, 2)]
    one = [measured("cpu", 1, 2000), measured("cpu", 2, 9000, "not applied")]
    (line,) = noise_lines([*quiet, *one])
    assert "lost 50.0 % of" in line
    none = [measured("cpu", run, 9000, "not applied") for run in (1, 2)]
    (line,) = noise_lines([*quiet, *none])
    assert line.endswith("under cpu: no pair of runs in which all went well and it was felt")


@pytest.mark.parametrize("records", [[], [measured("cpu", 1, 5)], [measured("none", 1, 5)]])
def test_nothing_to_compare_gives_no_line(records: list[RunRecord]) -> None:
    assert noise_lines(records) == []


def rounds(**ns: int) -> list[RunRecord]:
    """Three runs under each noise; the longer, the later."""
    return [measured(noise, run, each + run) for run in (1, 2, 3) for noise, each in ns.items()]


def test_what_pinning_and_isolation_won_back_is_told_apart() -> None:
    records = rounds(none=100_000, cpu=200_000, optimised=160_000, isolated=110_000)
    pinned, isolated = remedy_lines(records)
    # Of 100 ns, 200 and 110: the rate falls by a half, and by 9.1 %.
    kept = "pinning to 3 and nice -10 with neighbours kept off 1,3"
    assert isolated.startswith(f"w[cpu-s2-native-eager] under cpu, {kept}: won back 40.9 % [")
    assert "] of 50.0 % [" in isolated
    assert "] lost tokens/s; won back 90.0 % [" in isolated
    assert isolated.endswith("] longer P99")
    assert ", pinning to 2,3 and nice -10: won back 12.5 % [" in pinned
    assert noise_lines(records)[-2:] == [pinned, isolated]
    assert "### Background load\n\n- w\\[cpu" in render_markdown([], records)


@pytest.mark.parametrize(
    ("ns", "status", "told"),
    [
        (200_000, "applied", [": undecided: ", " won back, its interval spans 0; undecided: "]),
        (400_000, "applied", [": cost 25.0 % [", "] on top of 50.0 % [", "; cost 200 % ["]),
        (110_000, "not applied", [": no run of all three in which all went well and it was felt"]),
    ],
)
def test_what_spans_0_is_undecided_what_got_worse_a_cost_and_what_was_not_felt_nothing(
    ns: int, status: Literal["applied", "not applied"], told: list[str]
) -> None:
    remedied = [measured("optimised", run, ns + run, status) for run in (1, 2, 3)]
    (line,) = remedy_lines([*rounds(none=100_000, cpu=200_000), *remedied])
    assert all(each in line for each in told), line


def test_a_scheduler_is_compared_with_native_beside_the_same_noise() -> None:
    records = [
        measured(noise, run, ns, scheduler=scheduler)
        for run in (1, 2)
        for scheduler, noise, ns in (
            ("native", "none", 100_000), ("native", "cpu", 200_000),
            ("stream-priority", "none", 90_000), ("stream-priority", "cpu", 125_000),
        )
    ]  # fmt: skip
    (line,) = remedy_lines(records)
    said = "w[cpu-s2-native-eager] under cpu, stream-priority in place of native: won back 30.0 % ["
    assert line.startswith(said)
    assert remedy_lines([r for r in records if r.cell.scheduler != "native"]) == []
