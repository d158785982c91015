"""comms_compute_overlap: what computes and what communicates, and every collective is right."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from pytest_hwqueue.data.errors import CheckFailed
from pytest_hwqueue.data.records.declared import Traffic
from pytest_hwqueue.parts.devices.host import HostDevice
from pytest_hwqueue.parts.devices.protocol import Stream
from pytest_hwqueue.parts.workloads.distributed.comms_compute_overlap import (
    CommsComputeOverlap,
    OverlapParameters,
)
from pytest_hwqueue.parts.workloads.workload import Ranks, Setup, parameters_for

from .cells import Counts, LeftOut, Run, kernels_of, measured, simulated_timeline
from .everyone import CASES, small
from .two_ranks import Printed, gloo_group

NAME = "comms_compute_overlap"
COLLECTIVES = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all")


@pytest.mark.parametrize("streams", [2, 5])
def test_cell_has_its_overlap_and_bandwidth(streams: int) -> None:
    record = measured(CommsComputeOverlap, streams, given=CASES[NAME].small)
    assert record.samples is not None
    alone = record.samples.reference_iterations_ns
    assert {name: len(times) for name, times in alone.items()} == {
        "compute_only": 2, "comms_only": 2,
    }  # fmt: skip
    # One rank's collectives are real, and nothing of them crosses a bus.
    overlap, bandwidth = record.metrics.overlap, record.metrics.bandwidth
    assert overlap is not None
    if overlap.efficiency.value is None:  # of three iterations, chance may make anything
        assert "than is possible" in overlap.efficiency.refused
    assert (overlap.compute_ms.n, overlap.comms_ms.n) == (2, 2)
    assert overlap.both_ms.n == record.iterations
    assert bandwidth is not None
    assert bandwidth.algorithm.value is not None
    assert bandwidth.bus.value is None


@pytest.mark.parametrize(("cut", "streams"), [("1", 4), (3, 4), (1, 2), (2, 9)])
def test_references_do_what_the_iteration_does_and_no_more(cut: Any, streams: int) -> None:
    counts = Counts()
    with Run(small(NAME, compute_streams=cut), streams, counts.around) as run:
        run.once()
        both = dict(counts.launches)
        workload: Any = run.workload
        assert tuple(workload.references()) == workload.overlap
        counts.launches.clear()
        for enqueue in workload.references().values():
            enqueue(run.streams)
        run.pool.synchronize()
    assert counts.launches == both


@pytest.mark.parametrize(
    ("mode", "tag", "unit"),
    [("compute_only", "compute", "TFLOP"), ("comms_only", "comm", "collectives")],
)
def test_single_mode_gives_all_streams_its_work(mode: str, tag: str, unit: str) -> None:
    counts = Counts()
    with Run(small(NAME, mode=mode), 3, counts.around) as run:
        run.once()
        assert counts.streams_of(tag) == counts.streams == {0, 1, 2}
        assert {found for _, found in counts.launches} == {tag}
        assert run.workload.references() == {}
        assert run.workload.overlap is None
        assert list(run.workload.work_per_iteration()) == [unit]
        run.workload.check(run.once)


@pytest.mark.parametrize("async_op", [False, True])
@pytest.mark.parametrize("collective", COLLECTIVES)
def test_one_wrong_element_or_launch_of_every_collective_is_noticed(
    collective: str, async_op: bool
) -> None:
    with Run(small(NAME, collective=collective, async_op=async_op), 3) as run:
        workload: Any = run.workload
        workload.check(run.once)
        assert workload.traffic() == Traffic(3 * 1024, 0.0, "comms_only")
        inputs = workload.exchanges[0].inputs
        assert not any(itertools.starmap(torch.equal, itertools.combinations(inputs, 2)))
        for number in range(3):

            def spoiled(number: int = number) -> None:
                run.once()
                workload.exchanges[0].outputs[number][77] += 1

            text = f"stream 2: 1 of 256 elements that {collective} {number} gave rank 0 differ"
            with pytest.raises(CheckFailed, match=text):
                workload.check(spoiled)
    for left_out in range(4):
        once = small(NAME, collective=collective, num_compute=1)
        with Run(once, 4, LeftOut(4 + left_out).around) as run:
            run.once()
            with pytest.raises(CheckFailed):
                once.check(run.once)


def test_communication_is_hidden_on_a_simulated_device() -> None:
    workload = small(NAME, mm_dim=1024, comm_size="16M", num_compute=4)
    timeline = simulated_timeline(workload, 4)
    for one, other in itertools.permutations(workload.tags):
        began = min(kernel.start_ns for kernel in kernels_of(timeline, one))
        assert began < max(kernel.end_ns for kernel in kernels_of(timeline, other))


def parameters(**given: Any) -> OverlapParameters:
    """Typed parameters, which survive the way into a record and back."""
    found = parameters_for(CommsComputeOverlap, "tiny", given)
    assert isinstance(found, OverlapParameters)
    stored = json.loads(json.dumps(found.model_dump()))
    assert OverlapParameters.model_validate(stored) == found
    return found


@given(st.tuples(*[st.integers(1, 10**5)] * 3))
def test_matrix_may_be_given_as_text_or_numbers(sizes: tuple[int, int, int]) -> None:
    text = ",".join(map(str, sizes))
    assert parameters(mm_dim=text).matrix == parameters(mm_dim=list(sizes)).matrix == sizes
    one = sizes[0]
    assert parameters(mm_dim=one) == parameters(mm_dim=f"{one}, {one},{one}")
    assert parameters(mm_dim=str(one)).matrix == (one, one, one)


@given(st.integers(1, 10**6), st.sampled_from(["", "K", "M", "G"]))
def test_size_may_be_given_in_any_unit(number: int, unit: str) -> None:
    size = number * 1024 ** ["", "K", "M", "G"].index(unit)
    assert parameters(comm_size=f"{number}{unit}").comm_bytes == size
    assert parameters(comm_size=f"{number}{unit.lower()}") == parameters(comm_size=size)


@given(st.permutations(range(6)), st.sampled_from([1, 2, 3, 6]))
def test_groups_may_be_given_as_text_or_lists(ranks: list[int], size: int) -> None:
    groups = [ranks[begin : begin + size] for begin in range(0, 6, size)]
    found = parameters(process_groups=groups)
    assert found.groups(6) == [sorted(group) for group in groups]
    assert parameters(process_groups=str(groups)[1:-1]) == found
    assert parameters().groups(3) == [[0, 1, 2]]


def of_ranks(rank: int, size: int, store_path: str) -> None:
    """Check every collective among all ranks, and of four in two groups; called in every rank."""
    device = HostDevice()

    def prepared(seed: int, **given: Any) -> Any:
        workload = small(NAME, compute_streams=1, **given)
        workload.setup(Setup(device, 3, seed, Ranks(rank, size)))
        return workload

    def check(workload: Any, enqueue: Callable[[Sequence[Stream]], None]) -> None:
        def run_once() -> None:
            enqueue(pool.streams)
            pool.synchronize()

        workload.check(run_once)

    with gloo_group(rank, size, store_path), device.open_streams(3) as pool:
        cuts = (None, "[3,1],[0,2]") if size == 4 else (None,)
        for collective, groups in itertools.product(COLLECTIVES, cuts):
            given = {"collective": collective, "process_groups": groups}
            differs = pytest.raises(CheckFailed, match=rf"elements that {collective} 0 gave")
            workload = prepared(3, **given, async_op=groups is None)
            check(workload, workload.iterate)
            members = 2 if groups else size
            factor = (2 if collective == "all_reduce" else 1) * (members - 1) / members
            # Three of them on each of two streams.
            assert workload.traffic() == Traffic(6 * 1024, factor, "comms_only")
            assert workload.work_per_iteration() == pytest.approx(
                {
                    "TFLOP": size * 2 * 2 * 8 * 4 * 6e-12,
                    # As nccl-tests counts it: of one rank, and not of all together.
                    "GB of one rank's bus traffic": factor * 6 * 1024 / 1e9,
                }
            )
            with differs:
                check(workload, workload.references()["compute_only"])
            if groups is None:
                # What rank 0 puts in is not what the others count on.
                wrong = prepared(4 if rank == 0 else 3, **given)
                with differs:
                    check(wrong, wrong.iterate)
    print("done")


@pytest.mark.parametrize("size", [2, pytest.param(4, marks=pytest.mark.slow)])
def test_collectives_of_several_ranks(size: int, printed_by_ranks: Printed) -> None:
    assert printed_by_ranks(NAME, size) == ["done\n"] * size
