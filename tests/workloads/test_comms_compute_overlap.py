"""comms_compute_overlap: every stream has work, and every collective is what it must be."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from pytest_hwqueue.devices.host import HostDevice
from pytest_hwqueue.devices.protocol import Stream
from pytest_hwqueue.devices.simulated.device import SimulatedDevice
from pytest_hwqueue.errors import BadParameter, CheckFailed, NotApplicable
from pytest_hwqueue.ranks.cell import group_of_one
from pytest_hwqueue.workloads.distributed.comms_compute_overlap import (
    CommsComputeOverlap,
    OverlapParameters,
)
from pytest_hwqueue.workloads.workload import Ranks, Setup, Traffic, Where, parameters_for

from .cells import Counts, LeftOut, Run, make, measured
from .two_ranks import gloo_group, run_ranks

SMALL = {"mm_dim": "8,4,6", "num_compute": 2, "comm_size": "1K", "num_coll": 3}
COLLECTIVES = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all")


@pytest.fixture
def one_rank() -> Iterator[None]:
    with gloo_group():
        yield


in_group = pytest.mark.usefixtures("one_rank")


@in_group
@pytest.mark.parametrize(("streams", "computing"), [(2, 1), (3, 2), (4, 2), (5, 3), (32, 30)])
def test_cell_is_measured_and_its_results_are_right(streams: int, computing: int) -> None:
    record = measured(CommsComputeOverlap, streams, given=SMALL)
    assert (record.status, record.reason) == ("ok", "")
    assert record.work_per_iteration == pytest.approx({"TFLOP": computing * 2 * 2 * 8 * 4 * 6e-12})
    assert record.samples is not None
    launches = {tag: len(times) for tag, times in record.samples.tags_ns.items()}
    assert launches == {
        "comm": record.iterations * (streams - computing),
        "compute": record.iterations * computing * 2,
    }
    alone = record.samples.reference_iterations_ns
    assert {name: len(times) for name, times in alone.items()} == {
        "compute_only": 2, "comms_only": 2,
    }  # fmt: skip
    # One rank's collectives are real, and nothing of them crosses a bus.
    assert record.metrics.overlap is not None
    if record.metrics.overlap.efficiency is None:  # of three iterations, chance may make anything
        assert "than is possible" in record.metrics.overlap.refused["efficiency"]
    assert record.metrics.overlap.n == {"compute": 2, "comms": 2, "both": record.iterations}
    assert record.metrics.bandwidth is not None
    assert record.metrics.bandwidth.algorithm is not None
    assert record.metrics.bandwidth.bus is None
    assert record.metrics.timeline is not None
    assert record.metrics.timeline.streams_used == streams


@in_group
@pytest.mark.parametrize(("compute_streams", "streams"), [("1", 4), (3, 4), (1, 2), (2, 9)])
def test_streams_that_do_not_compute_communicate(compute_streams: Any, streams: int) -> None:
    counts = Counts()
    given = {**SMALL, "compute_streams": compute_streams}
    with Run(make(CommsComputeOverlap, given), streams, counts.around) as run:
        run.once()
    cut = int(compute_streams)
    assert {stream for stream, tag in counts.launches if tag == "compute"} == set(range(cut))
    assert {stream for stream, tag in counts.launches if tag == "comm"} == set(range(cut, streams))


@in_group
@pytest.mark.parametrize(
    ("mode", "tag", "unit"),
    [("compute_only", "compute", "TFLOP"), ("comms_only", "comm", "collectives")],
)
def test_single_mode_gives_all_streams_its_work(mode: str, tag: str, unit: str) -> None:
    counts = Counts()
    with Run(make(CommsComputeOverlap, {**SMALL, "mode": mode}), 3, counts.around) as run:
        run.once()
        assert {found for _, found in counts.launches} == {tag}
        assert counts.streams == {0, 1, 2}
        assert run.workload.references() == {}
        assert run.workload.overlap is None
        assert list(run.workload.work_per_iteration()) == [unit]
        run.workload.check(run.once)


@in_group
def test_references_do_what_the_iteration_does_and_no_more() -> None:
    counts = Counts()
    with Run(make(CommsComputeOverlap, SMALL), 5, counts.around) as run:
        run.once()
        both = dict(counts.launches)
        workload: Any = run.workload
        assert tuple(workload.references()) == workload.overlap
        counts.launches.clear()
        for enqueue in workload.references().values():
            enqueue(run.streams)
        run.pool.synchronize()
        assert counts.launches == both
        assert {tag for _, tag in both} == {"compute", "comm"}


@in_group
@pytest.mark.parametrize("async_op", [False, True])
@pytest.mark.parametrize("collective", COLLECTIVES)
def test_every_collective_is_right_and_one_wrong_element_is_noticed(
    collective: str, async_op: bool
) -> None:
    given = {**SMALL, "collective": collective, "async_op": async_op}
    with Run(make(CommsComputeOverlap, given), 3) as run:
        workload: Any = run.workload
        workload.check(run.once)
        assert workload.traffic() == Traffic(3 * 1024, 0.0, "comms_only")
        for number in range(3):

            def spoiled(number: int = number) -> None:
                run.once()
                workload._exchanges[0]._outputs[number][77] += 1

            text = f"stream 2: 1 of 256 elements that {collective} {number} gave rank 0 differ"
            with pytest.raises(CheckFailed, match=text):
                workload.check(spoiled)


@in_group
@pytest.mark.parametrize("collective", COLLECTIVES)
def test_launch_left_out_is_noticed(collective: str) -> None:
    given = {**SMALL, "collective": collective, "num_compute": 1}
    for left_out in range(4):
        with (
            Run(make(CommsComputeOverlap, given), 4, LeftOut(4 + left_out).around) as run,
        ):
            run.once()
            with pytest.raises(CheckFailed):
                run.workload.check(run.once)


@in_group
@pytest.mark.parametrize("comm_dtype", ["fp32", "bf16", "fp16"])
@pytest.mark.parametrize("comp_dtype", ["fp32", "tf32", "bf16", "fp16"])
def test_every_numeric_format_is_right(comp_dtype: str, comm_dtype: str) -> None:
    before = torch.get_float32_matmul_precision()
    try:
        given = {**SMALL, "comp_dtype": comp_dtype, "comm_dtype": comm_dtype}
        with Run(make(CommsComputeOverlap, given), 2) as run:
            run.workload.check(run.once)
    finally:
        torch.set_float32_matmul_precision(before)


def test_communication_is_hidden_on_a_simulated_device() -> None:
    device = SimulatedDevice("h200")
    given = {"mm_dim": 1024, "comm_size": "16M", "num_compute": 4}
    with (
        group_of_one(device),
        device.open_streams(4) as pool,
    ):
        workload = make(CommsComputeOverlap, given)
        workload.setup(Setup(device, 4, 3))
        timeline = pool.held_timeline(lambda: workload.iterate(pool.streams))
    spans = {
        tag: (
            min(k.start_ns for k in timeline.kernels if k.tag == tag),
            max(k.end_ns for k in timeline.kernels if k.tag == tag),
        )
        for tag in workload.tags
    }
    assert {kernel.stream for kernel in timeline.kernels} == {0, 1, 2, 3}
    assert spans["comm"][0] < spans["compute"][1]
    assert spans["compute"][0] < spans["comm"][1]


@in_group
def test_same_seed_gives_the_same_inputs_and_another_one_others() -> None:
    inputs = []
    for seed in (5, 5, 6):
        with Run(make(CommsComputeOverlap, SMALL), 4, seed=seed) as run:
            workload: Any = run.workload
            own = [each.clone() for exchange in workload._exchanges for each in exchange._inputs]
            assert not any(itertools.starmap(torch.equal, itertools.combinations(own, 2)))
            inputs.append([*own, workload._products[0].a])
    assert all(map(torch.equal, inputs[0], inputs[1]))
    assert not any(map(torch.equal, inputs[0], inputs[2]))


@pytest.mark.parametrize(
    ("given", "where", "text"),
    [
        ({"compute_streams": 4}, Where("cpu", 4), "compute_streams=4 leaves none of 4 streams to"),
        ({"compute_streams": 9}, Where("cpu", 4), "compute_streams=9 leaves none of 4 streams"),
        (
            {"mode": "comms_only", "compute_streams": 2}, Where("cpu", 4),
            "compute_streams=2: in mode comms_only no stream computes; leave it out",
        ),
        (
            {"mode": "compute_only", "compute_streams": 2}, Where("cpu", 4),
            "compute_streams=2 of 4 streams leaves some without work in mode compute_only",
        ),
        ({"backend": "nccl"}, Where("cpu", 4), "backend=nccl needs CUDA or ROCm; on cpu take gloo"),
        ({"backend": "gloo"}, Where("cuda", 4), "backend=gloo takes data through the host's"),
        ({"backend": "gloo"}, Where("hip", 4), "on hip take nccl, or leave it out"),
        ({"backend": "gloo"}, Where("sim", 4), "on sim take nccl, or leave it out"),
        ({"process_groups": "[0,1]"}, Where("cpu", 4), "process_groups=.0,1. must name each rank"),
        ({"process_groups": "[0],[1]"}, Where("cpu", 4, 3), "each rank from 0 to 2 once"),
        ({"comm_size": 3}, Where("cpu", 4), "comm_size=3 leaves some of 1 ranks no element"),
        (
            {"comm_size": 5, "comm_dtype": "fp16"}, Where("cuda", 4, 3),
            "comm_size=5 leaves some of 3 ranks no element of fp16; take a greater one",
        ),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_refused_by_name(given: Any, where: Where, text: str) -> None:
    with pytest.raises(NotApplicable, match=rf"^comms_compute_overlap\..*{text}"):
        make(CommsComputeOverlap, given).require_applicable(where)


def test_what_fits_is_not_refused() -> None:
    for kind, backend in (("cpu", "gloo"), ("cuda", "nccl"), ("hip", "nccl"), ("sim", "nccl")):
        for fits in ({"backend": backend}, {"process_groups": "[1],[0]"}, {"comm_size": 8}):
            workload = make(CommsComputeOverlap, fits)
            workload.require_applicable(Where(kind, 2, 2, "graph"))


@in_group
def test_it_is_refused_before_anything_is_made() -> None:
    with pytest.raises(NotApplicable):
        make(CommsComputeOverlap, {"compute_streams": 2}).setup(Setup(HostDevice(), 2, 3))


@pytest.mark.parametrize(
    ("parameter", "value"),
    [
        ("mode", "both"), ("mm_dim", "4,4"), ("mm_dim", 0), ("mm_dim", "-1"), ("num_compute", 0),
        ("comp_dtype", "int8"), ("comm_size", "1T"), ("comm_size", 0), ("comm_size", "1.5M"),
        ("num_coll", 0), ("comm_dtype", "tf32"), ("compute_streams", 0), ("async_op", "maybe"),
        ("backend", "mpi"), ("process_groups", "0,1"), ("process_groups", "[]"),
        ("process_groups", "[0,1],[1,2]"), ("process_groups", "[0,1],[2]"),
        ("process_groups", "[0,,1]"), ("process_groups", [0, 1]), ("process_groups", [[-1]]),
        ("collective", "broadcast"),
    ],
)  # fmt: skip
def test_bad_value_is_refused_by_name(parameter: str, value: object) -> None:
    with pytest.raises(BadParameter, match=rf"comms_compute_overlap\.{parameter}="):
        parameters_for(CommsComputeOverlap, "tiny", {parameter: value})


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
        workload: Any = make(CommsComputeOverlap, {**SMALL, "compute_streams": 1, **given})
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
                    "GB of bus traffic": size * factor * 6 * 1024 / 1e9,
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
def test_collectives_of_several_ranks(size: int) -> None:
    printed = run_ranks("tests.workloads.test_comms_compute_overlap:of_ranks", size)
    assert printed == ["done\n"] * size
