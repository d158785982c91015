"""fsdp_tp: training steps under FSDP2, phase by phase on streams, as in one process without it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any

import pytest
import torch
from torch.distributed.tensor import DTensor

from pytest_hwqueue.devices.host import HostDevice
from pytest_hwqueue.devices.protocol import Stream
from pytest_hwqueue.devices.simulated.device import SimulatedDevice
from pytest_hwqueue.errors import BadParameter, CheckFailed, NotApplicable
from pytest_hwqueue.ranks.cell import group_of_one
from pytest_hwqueue.workloads.distributed.fsdp_tp import FsdpTensorParallel
from pytest_hwqueue.workloads.workload import Ranks, Setup, Where, parameters_for

from .cells import Counts, LeftOut, Run, Waits, kernels_of, make, measured
from .orders import AccessLog, Launch, NotedStream, unordered
from .perturbed import StreamBeside, check_perturbed
from .two_ranks import gloo_group, run_ranks

SMALL = {"hidden": 8, "heads": 2, "sequence": 4, "layers": 3}
TWO_LAYERS = {**SMALL, "layers": 2}


@pytest.fixture
def group() -> Iterator[None]:
    with gloo_group():
        yield


def of(run: Run) -> Any:
    return run.workload


@pytest.mark.usefixtures("group")
@pytest.mark.parametrize(("streams", "models"), [(3, 1), (5, 1), (10, 3), (16, 5)])
def test_cell_is_measured_and_its_steps_are_right(streams: int, models: int) -> None:
    record = measured(FsdpTensorParallel, streams, given=SMALL)
    assert (record.status, record.reason) == ("ok", "")
    assert record.work_per_iteration == {"samples": float(models)}
    assert record.samples is not None
    launches = {tag: len(times) for tag, times in record.samples.tags_ns.items()}
    each = record.iterations * models
    # The last block is gathered once for both passes.
    assert launches == {
        "all_gather": 5 * each, "compute": 6 * each, "reduce": 3 * each, "step": each,
    }  # fmt: skip
    assert record.metrics.timeline is not None
    assert record.metrics.timeline.streams_used == streams


@pytest.mark.usefixtures("group")
@pytest.mark.parametrize(
    ("streams", "gathering", "computing", "reducing", "updating"),
    [
        (3, {0}, {1}, {2}, {2}),
        (4, {0}, {1}, {2}, {3}),
        (5, {0}, {1}, {2, 4}, {3}),
        (8, {0, 5}, {1, 6}, {2, 4, 7}, {3, 7}),
    ],
)
def test_each_stream_has_its_phase_of_a_model(
    streams: int, gathering: set[int], computing: set[int], reducing: set[int], updating: set[int]
) -> None:
    counts = Counts()
    with Run(make(FsdpTensorParallel, TWO_LAYERS), streams, counts.around) as run:
        run.once()
        run.workload.check(run.once)
    by_tag: dict[str | None, set[int]] = {}
    for stream, tag in counts.launches:
        by_tag.setdefault(tag, set()).add(stream)
    # What frees a gathered block has no tag either.
    assert by_tag == {
        "all_gather": gathering,
        "compute": computing,
        "reduce": reducing,
        None: gathering | updating,
    }
    urgent = FsdpTensorParallel.urgency(streams)
    assert {stream for stream in range(streams) if urgent[stream]} == gathering | reducing


@pytest.mark.usefixtures("group")
def test_no_more_than_two_blocks_are_gathered_at_a_time() -> None:
    gathered: list[int] = []

    class Looking(StreamBeside):
        def launch(
            self, function: Callable[..., object], *arguments: object, tag: str | None = None
        ) -> None:
            super().launch(function, *arguments, tag=tag)
            self.inner.synchronize()
            blocks = of(run)._lanes[0].blocks
            gathered.append(
                sum(not isinstance(next(block.parameters()), DTensor) for block in blocks)
            )

    with Run(make(FsdpTensorParallel, {**SMALL, "layers": 4}), 3, Looking) as run:
        run.once()
    assert max(gathered) == 2
    assert gathered[-1] == 0, "all are freed when the step ends"


class _WithArguments(NotedStream):
    """Notes which block and pass a launch is for, too."""

    def __init__(self, stream: Stream, log: AccessLog) -> None:
        super().__init__(stream, log)
        self._launches = log.launches

    def launch(
        self, function: Callable[..., object], *arguments: object, tag: str | None = None
    ) -> None:
        super().launch(function, *arguments, tag=tag)
        words = [self._launches[-1].name.rpartition(".")[2], *map(str, arguments)]
        self._launches[-1].name = " ".join(words)


@pytest.mark.usefixtures("group")
def test_block_is_freed_behind_its_computation_by_the_stream_that_gathered_it() -> None:
    log = AccessLog()
    with Run(make(FsdpTensorParallel, SMALL), 3, lambda stream: _WithArguments(stream, log)) as run:
        run.once()
    launches: dict[str, Launch] = {launch.name: launch for launch in log.launches}
    for block in range(3):
        # The last block is gathered in the one pass and freed in the other.
        for name in ("forward", "backward") if block < 2 else ("backward",):
            freed = launches[f"_free {block} {name}"]
            assert launches[f"_{name} {block}"].is_before(freed)
            gathered = launches[f"_unshard {block} {name if block < 2 else 'forward'}"]
            assert gathered.stream == freed.stream
            assert gathered.is_before(launches[f"_{name} {block}"])


@pytest.mark.usefixtures("group")
@pytest.mark.parametrize("streams", [3, 5])
def test_every_other_event_within_a_step_is_needed(streams: int) -> None:
    # By their numbers: those before a block is freed, which is no operation on tensors; see above.
    freeing = {3: {1, 5, 8, 12}, 5: {1, 5, 9, 14}}[streams]
    counted = Waits()
    workload = make(FsdpTensorParallel, SMALL)
    assert unordered(workload, streams, around=counted.around) == []
    period = counted.count // 2
    ends = 2 * (streams - 1)
    for left_out in set(range(period - ends)) - freeing:
        waits = Waits(left_out, period)
        races = unordered(make(FsdpTensorParallel, SMALL), streams, around=waits.around)
        assert races, f"wait {left_out}"


@pytest.mark.usefixtures("group")
@pytest.mark.parametrize("streams", [3, 10])
def test_steps_stay_right_when_streams_are_slowed_down(streams: int) -> None:
    check_perturbed(HostDevice(), make(FsdpTensorParallel, SMALL), streams, seed=1)


@pytest.mark.usefixtures("group")
@pytest.mark.parametrize(
    ("left_out", "words"),
    [
        (0, "DTensor"),  # the first block is not gathered
        (2, "^0$"),  # its forward: the next finds nothing
        (6, "grad can be implicitly created only for scalar outputs"),  # the last's backward
        (8, "gradient of block 1 of model 0"),  # the last's reduction
        (9, "change of block 1 of model 0"),  # the last's update
        (10, "gradient of block 0 of model 0"),  # the first's backward
        (12, "gradient of block 0 of model 0"),
        (13, "change of block 0 of model 0"),
    ],
)
def test_launch_left_out_is_noticed(left_out: int, words: str) -> None:
    with Run(make(FsdpTensorParallel, TWO_LAYERS), 3, LeftOut(14 + left_out).around) as run:
        run.once()
        with pytest.raises((CheckFailed, RuntimeError, KeyError), match=words):
            run.workload.check(run.once)


@pytest.mark.usefixtures("group")
@pytest.mark.parametrize(("what", "model"), [("gradient", 0), ("change", 1)])
def test_one_wrong_number_is_noticed(what: str, model: int) -> None:
    with Run(make(FsdpTensorParallel, SMALL), 6) as run:

        def spoiled() -> None:
            run.once()
            lane = of(run)._lanes[model]
            with torch.no_grad():
                if what == "gradient":
                    lane._sharded[1].gradients[5] += 1.0
                else:
                    next(lane.blocks[1].parameters()).to_local()[5] += 1e-3

        with pytest.raises(CheckFailed, match=f"{what} of block 1 of model {model}"):
            run.workload.check(spoiled)


@pytest.mark.usefixtures("group")
def test_weights_change_in_every_step_and_models_have_different_data() -> None:
    with Run(make(FsdpTensorParallel, SMALL), 6) as run:
        seen = []
        for _ in range(3):
            run.once()
            seen += [torch.cat(lane.parameters()) for lane in of(run)._lanes]
        assert not any(torch.equal(one, other) for one, other in pairwise(seen))


@pytest.mark.usefixtures("group")
def test_same_seed_trains_the_same_and_another_one_does_not() -> None:
    reached = []
    for seed in (5, 5, 6):
        state = torch.get_rng_state()
        with Run(make(FsdpTensorParallel, SMALL), 4, seed=seed) as run:
            run.once()
            run.once()
            reached.append(torch.cat(of(run)._lanes[0].parameters()))
        assert torch.equal(torch.get_rng_state(), state)
    assert torch.equal(reached[0], reached[1])
    assert not torch.equal(reached[0], reached[2])


@pytest.mark.usefixtures("group")
@pytest.mark.parametrize("dtype", ["fp32", "tf32", "bf16"])
def test_steps_are_right_in_every_numeric_format(dtype: str) -> None:
    before = torch.get_float32_matmul_precision()
    try:
        with Run(make(FsdpTensorParallel, {"dtype": dtype}), 4) as run:
            run.once()
            run.workload.check(run.once)
    finally:
        torch.set_float32_matmul_precision(before)


def test_blocks_are_gathered_and_reduced_beside_the_computation() -> None:
    device = SimulatedDevice("h200")
    given = {"hidden": 256, "heads": 4, "sequence": 256, "batch": 4, "layers": 4}
    workload = make(FsdpTensorParallel, given)
    with group_of_one(device), device.open_streams(3, gradients=True) as pool:
        workload.setup(Setup(device, 3, 3))
        # A second step finds what the first has left.
        for _ in range(2):
            timeline = pool.held_timeline(lambda: workload.iterate(pool.streams))
    computing = kernels_of(timeline, "compute")
    for tag in ("all_gather", "reduce"):
        kernels = kernels_of(timeline, tag)
        beside = sum(
            any(one.start_ns < other.end_ns and other.start_ns < one.end_ns for other in computing)
            for one in kernels
        )
        # All but those of the block that is gathered first, and of that which is reduced last.
        assert beside >= 0.7 * len(kernels)


def each_grid(rank: int, size: int, store_path: str) -> None:
    """Train on the grids there are of some ranks; called in every rank."""
    # Five features make shards of different sizes; two heads can be shared.
    cases = [(1, 5, 1), (2, 8, 2)] if size == 2 else [(None, 8, 2)]
    device = HostDevice()
    with gloo_group(rank, size, store_path):
        for tensor_ranks, hidden, heads in cases:
            given = {**SMALL, "hidden": hidden, "heads": heads, "tensor_ranks": tensor_ranks}
            workload: Any = make(FsdpTensorParallel, given)
            with device.open_streams(7, gradients=True) as pool:
                workload.setup(Setup(device, 7, 3, Ranks(rank, size)))

                def steps(count: int) -> None:
                    for _ in range(count):
                        workload.iterate(pool.streams)  # noqa: B023
                    pool.synchronize()

                steps(1)
                workload.check(lambda: steps(1))
                workload.check(lambda: steps(2))
                sums = [float(torch.cat(lane.gradients()).sum()) for lane in workload._lanes]
                print(workload.work_per_iteration()["samples"], sums)


@pytest.mark.parametrize(
    ("size", "samples"),
    [(2, ["4.0", "2.0"]), pytest.param(4, ["4.0"], marks=pytest.mark.slow)],
)
def test_ranks_train_one_model_together(size: int, samples: list[str]) -> None:
    printed = run_ranks("tests.workloads.test_fsdp_tp:each_grid", size)
    assert len(set(printed)) == 1, "all ranks have the same gradients"
    # Two models with one sample on each row of ranks.
    assert [line.partition(" ")[0] for line in printed[0].splitlines()] == samples


@pytest.mark.parametrize(("ranks", "heads", "words"), [(3, 2, "3 ranks"), (2, 1, "1 heads")])
def test_ranks_that_cannot_share_layers_are_refused(ranks: int, heads: int, words: str) -> None:
    workload = make(FsdpTensorParallel, {"heads": heads, "tensor_ranks": 2})
    with pytest.raises(NotApplicable, match=rf"fsdp_tp\.tensor_ranks=2 .* the {words}"):
        workload.setup(Setup(HostDevice(), 3, 3, Ranks(0, ranks)))


@pytest.mark.parametrize(
    ("parameter", "value"),
    [("heads", 3), ("layers", 1), ("tensor_ranks", 0), ("learning_rate", 0.0)],
)
def test_bad_value_is_refused_by_name(parameter: str, value: object) -> None:
    with pytest.raises(BadParameter, match=rf"fsdp_tp\.{parameter}={value!r}"):
        parameters_for(FsdpTensorParallel, "tiny", {parameter: value})


def test_graphs_are_refused() -> None:
    with pytest.raises(NotApplicable, match="use --hwq-dispatch=eager"):
        make(FsdpTensorParallel).require_applicable(Where("cuda", 3, dispatch="graph"))
