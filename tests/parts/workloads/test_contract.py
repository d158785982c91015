"""What every workload does: uses every stream, races nowhere, notices what is wrong."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
import torch

from pytest_hwqueue.data.errors import CheckFailed
from pytest_hwqueue.engine.cell.program import graph
from pytest_hwqueue.parts.devices.host import HostDevice
from pytest_hwqueue.parts.devices.simulated.device import SimulatedDevice
from pytest_hwqueue.parts.workloads.workload import Setup, Workload
from tests.conftest import slow

from .cells import Counts, LeftOut, Run, measured
from .everyone import CASES, EVERYONE, FORMATS, given_for, least_and_recommended, small
from .orders import two_iterations, unordered
from .perturbed import StreamBeside, check_perturbed, group_for

everyone = pytest.mark.parametrize("name", EVERYONE)
# Where there are gradients, a launch left out may leave a backward without its graph.
NOTICED = (CheckFailed, AssertionError, RuntimeError, KeyError)


def least(name: str) -> int:
    """The fewest streams of which two may differ."""
    return max(2, EVERYONE[name].stream_range.least)


class _Idle(StreamBeside):
    """Takes work and does none of it."""

    def launch(
        self, function: Callable[..., object], *arguments: object, tag: str | None = None
    ) -> None:
        pass


def enqueued(workload: Workload, streams: int) -> Counts:
    """What an iteration enqueues, without doing it."""
    counts = Counts()
    with Run(workload, streams, lambda stream: counts.around(_Idle(stream))) as run:
        run.once()
    return counts


@pytest.mark.parametrize("some", ["bounds", slow("others")])
@everyone
def test_every_stream_gets_work_whatever_their_number(name: str, some: str) -> None:
    found = EVERYONE[name]
    bounds = found.stream_range
    ends = {bounds.least, bounds.least + 1, bounds.recommended, bounds.most}
    others = {*range(bounds.least, min(bounds.most, 10) + 1), min(bounds.most, 16)} - ends
    for streams in sorted(ends if some == "bounds" else others):
        counts = enqueued(small(name, streams), streams)
        assert counts.streams == set(range(streams))
        tagged = {tag: counts.of_tag(tag) for _, tag in counts.launches if tag is not None}
        assert tagged.keys() == set(found.tags), "the tags declared are those used"
        assert tagged == (CASES[name].launches(streams) or tagged)
        assert found.primary.per != "request" or counts.requests, "it has samples"
        assert len(found.urgency(streams)) == streams


@pytest.mark.parametrize(
    ("name", "streams"),
    [
        # The widest cell is checked and simulated below, if not measured.
        pytest.param(name, streams, marks=pytest.mark.slow if streams in several[1:][-1:] else ())
        for name, found in EVERYONE.items()
        for several in [
            CASES[name].measured
            or sorted({found.stream_range.least, found.stream_range.recommended})
        ]
        for streams in several
    ],
)
def test_cell_is_measured_and_its_results_are_right(name: str, streams: int) -> None:
    found, case = EVERYONE[name], CASES[name]
    record = measured(found, streams, given=given_for(name, streams))
    assert (record.status, record.reason) == ("ok", "")
    assert not any("drawn from the seed" in note for note in record.notes)
    work = record.work_per_iteration
    assert tuple(work) == found.units or name == "comms_compute_overlap"
    assert all(amount > 0 for amount in work.values())
    assert work == pytest.approx(case.work(streams) or work)
    assert record.metrics.timeline is not None
    assert record.metrics.timeline.streams_used == streams
    assert record.samples is not None
    assert record.primary is not None
    series = record.samples.tags_ns | {"iteration": record.samples.host_ns}
    contended = record.samples.contended
    for tag, count in case.launches(streams).items():
        if contended is None or tag != record.primary.name:
            assert len(series[tag]) == record.iterations * count
    if contended is not None:
        # Timed in windows of their own, while all streams have work.
        assert contended.enough
        return
    if record.samples.launching is not None:
        # Calls of threads: on the CPU they are the interpreter's, and no figure of a driver.
        assert record.samples.launching.refused.startswith("interpreter: ")
        assert record.primary.name not in series
        return
    own = series["iteration" if record.primary.per == "iteration" else record.primary.name]
    if case.launches(streams):
        assert len(own) == record.iterations * case.samples(streams)
    assert max(own) <= max(record.samples.host_ns), "it lies within its iteration"


@pytest.mark.parametrize(("name", "streams"), least_and_recommended())
def test_simulated_device_runs_and_captures_it_on_every_stream(name: str, streams: int) -> None:
    device, workload = SimulatedDevice("h200"), small(name, streams)
    with (
        group_for(workload, device),
        device.open_streams(streams, gradients=workload.gradients) as pool,
    ):
        workload.setup(Setup(device, streams, 3))
        workload.iterate(pool.streams)
        pool.synchronize()
        timeline = pool.held_timeline(lambda: workload.iterate(pool.streams))
        assert {kernel.stream for kernel in timeline.kernels} == set(range(streams))
        drawn = name in ("speculative_decode", "zero_offload")
        assert bool(workload.decisions_drawn) == drawn
        if name == "fsdp_tp":
            return
        program = graph(device, pool, workload.iterate)
        replayed = pool.held_timeline(lambda: program.enqueue(pool.streams))
        assert program.whole == CASES[name].whole
        assert len(replayed.kernels) == len(timeline.kernels)


@pytest.mark.parametrize(("name", "streams"), least_and_recommended())
def test_no_launches_race_and_results_stay_right_when_streams_are_slowed_down(
    name: str, streams: int
) -> None:
    assert unordered(small(name, streams), streams) == []
    # What bypasses torch's operations is seen in results alone.
    check_perturbed(HostDevice(), small(name, streams), streams, seed=1)


@pytest.mark.slow
@pytest.mark.parametrize("seed", [2, 3])
@pytest.mark.parametrize(("name", "streams"), least_and_recommended())
def test_results_stay_right_when_streams_are_slowed_down(
    name: str, streams: int, seed: int
) -> None:
    check_perturbed(HostDevice(), small(name, streams), streams, seed)


@pytest.mark.parametrize(
    ("name", "streams", "unneeded"),
    [
        pytest.param(name, streams, unneeded, marks=[pytest.mark.slow] * (number > 0))
        for name, case in CASES.items()
        for number, (streams, unneeded) in enumerate(
            (case.unneeded or {least(name): set()}).items()
        )
    ],
)
def test_each_event_is_needed(name: str, streams: int, unneeded: set[int]) -> None:
    log = two_iterations(small(name), streams)
    assert log.races() == []
    period = log.waits // 2
    assert unneeded == {
        number for number in range(period) if not log.races({number, number + period})
    }


# Of many launches; that their checks find what is wrong is seen below.
MANY = ("fsdp_tp", "grad_accum", "async_dataload", "speculative_decode")


@pytest.mark.parametrize("name", [slow(name) if name in MANY else name for name in EVERYONE])
def test_each_launch_left_out_is_noticed(name: str) -> None:
    launches = sum(enqueued(small(name), least(name)).launches.values())
    noticed = NOTICED if EVERYONE[name].gradients else (CheckFailed,)
    unnoticed = set()
    for number in range(launches):
        with Run(small(name), least(name), LeftOut(launches + number, launches).around) as run:
            run.once()
            try:
                run.workload.check(run.once)
            except noticed:
                pass
            else:
                unnoticed.add(number)
    assert unnoticed == CASES[name].unnoticed


@pytest.mark.parametrize("value", [None, float("nan"), float("inf")])
@everyone
def test_one_wrong_number_is_noticed(name: str, value: float | None) -> None:
    spots = CASES[name].spots or CASES[name].outputs
    with Run(small(name), least(name)) as run:
        run.workload.check(run.once)
        for index, kept in enumerate(spots(run.workload)):

            def spoiled(index: int = index) -> None:
                run.once()
                flat = spots(run.workload)[index].view(-1)
                place = min(5, len(flat) - 1)
                if not flat.is_floating_point():
                    flat[place] = (flat[place] + 1) % 50
                else:
                    flat[place] = flat[place] + CASES[name].wrong if value is None else value

            if value is None or kept.is_floating_point():
                with pytest.raises(CheckFailed):
                    run.workload.check(spoiled)


@everyone
def test_the_seed_alone_makes_the_results_and_each_iteration_repeats_them(name: str) -> None:
    results: list[list[torch.Tensor]] = []
    for seed in (5, 5, 6):
        torch.manual_seed(len(results))
        state, python_state = torch.get_rng_state(), random.getstate()
        counts = Counts()
        with Run(small(name), least(name), counts.around, seed=seed) as run:
            # Requests of continuous_batch go on in the next iteration.
            run.once()
            first = dict(counts.launches)
            run.once()
            results.append([each.clone() for each in CASES[name].outputs(run.workload)])
            assert counts.launches == {key: 2 * count for key, count in first.items()}
            run.once()
            again = [*map(torch.equal, results[-1], CASES[name].outputs(run.workload))]
            assert (not any(again)) if CASES[name].trains else all(again)
        assert torch.equal(torch.get_rng_state(), state), "nobody else's numbers are drawn"
        assert random.getstate() == python_state
    assert all(map(torch.equal, results[0], results[1]))
    same = list(map(torch.equal, results[0], results[2]))
    assert not (any(same) if results[0][0].is_floating_point() else all(same))


@pytest.mark.parametrize(
    ("name", "formats"),
    [(name, {"dtype": dtype}) for name, case in CASES.items() for dtype in case.formats]
    + [
        ("comms_compute_overlap", {"comp_dtype": computed, "comm_dtype": sent})
        for computed in FORMATS
        for sent in FORMATS
        if sent != "tf32"
    ],
)
def test_results_are_right_in_every_numeric_format(name: str, formats: dict[str, Any]) -> None:
    dtype = next(iter(formats.values()))
    with Run(small(name, **formats), least(name)) as run:
        run.workload.check(run.once)
        run.workload.check(run.once)
        expected = "high" if dtype == "tf32" else "highest"
        assert torch.get_float32_matmul_precision() == expected
        assert name != "async_dataload" or torch.backends.cudnn.allow_tf32 == (dtype == "tf32")
