"""Lines on what neighbours cost: by run against the quiet turn, and nothing that was not felt."""

from __future__ import annotations

from collections.abc import Sequence

from pytest_hwqueue.answers.session.noise import noise_lines, remedy_lines
from pytest_hwqueue.answers.session.outcome import render_markdown
from pytest_hwqueue.data.figures.of_cell import summarise
from pytest_hwqueue.data.noise_names import noise_id
from pytest_hwqueue.data.records.cell import Cell, RunRecord, Samples, now
from pytest_hwqueue.data.records.noise import Machine, NoiseRound, RemedyRecord
from pytest_hwqueue.judge.losses import device_interrupts, higher_in_every_run, tail_figure
from tests.stored_texts import assert_as_stored

PINNED = RemedyRecord(cores_before=[0, 1, 2, 3], cores=[2, 3], nice_before=0, nice=-10, threads=4)
REMEDIES = {
    "optimised": PINNED,
    "isolated": PINNED.model_copy(update={"cores": [3], "kept_free": [1, 3]}),
}


def measured(
    noise: str, run: int, ns: int, *, felt: bool = True, variant: str = "",
    scheduler: str = "native", speed: float | None = None, waited_s: float = 0.5,
    interrupts: int = 10,
) -> RunRecord:  # fmt: skip
    quiet = noise == "none"
    variant = "-".join(filter(None, (variant, "" if quiet else noise_id(noise))))
    cell = Cell(
        name="w", device="cpu", streams=2, scheduler=scheduler, dispatch="eager",
        sync_mode="per_iteration", size=None, variant=variant,
    )  # fmt: skip
    around = NoiseRound(
        noise=noise, status="quiet" if quiet else "applied" if felt else "not applied",
        started=now(), duration_s=2.0, autogroup_enabled=None, measured=None,
        measured_on_cpu_s=1.0, measured_run_delay_s=waited_s, core_speed_per_s=speed,
        remedy=REMEDIES.get(noise), neighbours=[],
        machine=Machine(
            pressure_share={}, softirqs={}, interrupts={"device": interrupts}, steal_s=None
        ),
    )  # fmt: skip
    times = [ns] * 400
    samples = Samples(host_ns=times, device_ns=times, enqueue_ns=times, pace_ns=[])
    return RunRecord(
        cell=cell, cell_id=cell.id, nodeid="x::y", run=run, status="ok", started=now(),
        duration_s=1, samples=samples, metrics=summarise(samples, {"tokens": 1.0}),
        noise=around, seed=0, command="pytest",
    )  # fmt: skip


def rounds(**ns: int) -> list[RunRecord]:
    """Three runs under each noise; the longer, the later."""
    return [measured(noise, run, each + run) for run in (1, 2, 3) for noise, each in ns.items()]


def remedied(ns: int, felt: bool = True) -> list[RunRecord]:
    own = [measured("optimised", run, ns + run, felt=felt) for run in (1, 2, 3)]
    return [*rounds(none=100_000, cpu=200_000), *own]


def test_lines_are_as_stored() -> None:
    quiet = [measured("none", run, 1000) for run in (1, 2)]
    felt, unfelt = measured("cpu", 1, 2000), measured("cpu", 2, 9000, felt=False)
    every = (("none", 1000), ("cpu", 2000), ("x/own.yaml", 4000))
    # As where hyperthreads share a core: nothing waits, and everything takes longer.
    shared = (("none", 1000, 4e7), ("cpu", 2000, 3e7))
    seen = (("none", 1000, 0.1, 10), ("cpu", 2000, 1.0, 10), ("disk", 2000, 0.1, 900))
    schedulers = (
        ("native", "none", 100_000), ("native", "cpu", 200_000),
        ("stream-priority", "none", 90_000), ("stream-priority", "cpu", 125_000),
    )  # fmt: skip
    sets: dict[str, Sequence[RunRecord]] = {
        "a line per cell and noise": [
            measured(noise, run, ns, variant=variant)
            for run in (1, 2) for variant in ("", "a=1") for noise, ns in every
        ],
        "a slower core": [
            measured(noise, run, ns, speed=speed) for run in (1, 2) for noise, ns, speed in shared
        ],
        "waiting for a core, and interrupts of devices": [
            measured(noise, run, ns, waited_s=waited_s, interrupts=number, variant=variant)
            for run in (1, 2) for variant in ("", "a=1") for noise, ns, waited_s, number in seen
        ],
        "waiting for a core, with remedies": [
            measured(noise, run, ns + run, waited_s=waited_s)
            for run in (1, 2, 3)
            for noise, ns, waited_s in (
                ("none", 100_000, 0.0), ("cpu", 200_000, 1.0), ("heavy", 300_000, 1.5),
                ("optimised", 110_000, 0.1),
            )
        ],
        "one run has no interval": [quiet[0], felt],
        "a run in which it was not felt does not count": [*quiet, felt, unfelt],
        "nor do several": [*quiet, measured("cpu", 1, 9000, felt=False), unfelt],
        # Of 100 ns, 200 and 110: the rate falls by a half, and by 9.1 %.
        "remedies": rounds(none=100_000, cpu=200_000, optimised=160_000, isolated=110_000),
        "a remedy that is undecided": remedied(200_000),
        "a remedy that cost": remedied(400_000),
        "a remedy whose noise was not felt": remedied(110_000, felt=False),
        "a scheduler beside the same noise": [
            measured(noise, run, ns, scheduler=scheduler)
            for run in (1, 2) for scheduler, noise, ns in schedulers
        ],
    }  # fmt: skip
    shown = [f"{name}:\n" + "\n".join(noise_lines(records)) for name, records in sets.items()]
    assert_as_stored(__file__, "noise.txt", "\n\n".join(shown))
    records = sets["remedies"]
    assert "### Background load\n\n- w\\[cpu" in render_markdown([], records)
    others = [r for r in sets["a scheduler beside the same noise"] if r.cell.scheduler != "native"]
    assert remedy_lines(others) == []
    # Nothing to compare gives no line.
    assert noise_lines([]) == noise_lines([felt]) == noise_lines(quiet) == []


def test_what_rose_rose_in_every_run_that_has_both() -> None:
    assert higher_in_every_run([1, 2, None, 3], [4, 3, 9, None]) == (1.5, 3.5)
    assert higher_in_every_run([1, 2], [4, 2]) is None
    assert higher_in_every_run([None], [1]) is None
    unread = Machine(
        pressure_share={}, softirqs={}, interrupts={}, steal_s=None,
        missing={"interrupts": "/proc/interrupts is empty"},
    )  # fmt: skip
    record = measured("cpu", 1, 1000)
    assert record.noise is not None
    noise = record.noise.model_copy(update={"machine": unread})
    assert device_interrupts(record) == 5
    assert device_interrupts(record.model_copy(update={"noise": noise})) is None


def test_the_tail_is_the_highest_percentile_that_all_runs_have() -> None:
    for number, name, least in ((400, "P99", 380), (20, "P50", 5)):
        times = list(range(1, number + 1))
        samples = Samples(host_ns=times, device_ns=times, enqueue_ns=times, pace_ns=[])
        metrics = summarise(samples, {"tokens": 1.0})
        record = measured("none", 1, 1).model_copy(update={"metrics": metrics})
        found, tail_ms = tail_figure({"none": [record]})
        assert found == name
        assert least < 1e6 * (tail_ms(record) or 0) <= number
