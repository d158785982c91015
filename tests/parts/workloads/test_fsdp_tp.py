"""fsdp_tp: training steps under FSDP2, phase by phase on streams, as in one process without it."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest
import torch
from torch.distributed.tensor import DTensor

from pytest_hwqueue.parts.devices.host import HostDevice
from pytest_hwqueue.parts.devices.protocol import Stream
from pytest_hwqueue.parts.workloads.workload import Ranks, Setup

from .cells import Run, kernels_of, simulated_timeline
from .everyone import small
from .orders import AccessLog, Launch, NotedStream
from .perturbed import StreamBeside
from .two_ranks import Printed, gloo_group

NAME = "fsdp_tp"


def lanes(run: Run) -> Any:
    return run.workload.lanes  # type: ignore[attr-defined]


def test_no_more_than_two_blocks_are_gathered_at_a_time() -> None:
    gathered: list[int] = []

    class Looking(StreamBeside):
        def launch(
            self, function: Callable[..., object], *arguments: object, tag: str | None = None
        ) -> None:
            super().launch(function, *arguments, tag=tag)
            self.inner.synchronize()
            own = [next(block.parameters()) for block in lanes(run)[0].blocks]
            gathered.append(sum(not isinstance(weight, DTensor) for weight in own))

    with Run(small(NAME, layers=4), 3, Looking) as run:
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


def test_block_is_freed_behind_its_computation_by_the_stream_that_gathered_it() -> None:
    log = AccessLog()
    with Run(small(NAME), 3, lambda stream: _WithArguments(stream, log)) as run:
        run.once()
    log.order()
    launches: dict[str, Launch] = {launch.name: launch for launch in log.launches}
    for block in range(3):
        # The last block is gathered in the one pass and freed in the other.
        for name in ("forward", "backward") if block < 2 else ("backward",):
            freed = launches[f"_free {block} {name}"]
            assert launches[f"_{name} {block}"].is_before(freed)
            gathered = launches[f"_unshard {block} {name if block < 2 else 'forward'}"]
            assert gathered.stream == freed.stream
            assert gathered.is_before(launches[f"_{name} {block}"])


def test_weights_change_in_every_step_and_models_have_different_data() -> None:
    with Run(small(NAME), 6) as run:
        seen = []
        for _ in range(3):
            run.once()
            seen += [torch.cat(lane.parameters()) for lane in lanes(run)]
        assert not any(torch.equal(one, other) for one, other in pairwise(seen))


def test_blocks_are_gathered_and_reduced_beside_the_computation() -> None:
    workload = small(NAME, hidden=256, heads=4, sequence=256, batch=4, layers=4)
    # A second step finds what the first has left.
    timeline = simulated_timeline(workload, 3, iterations=2)
    computing = kernels_of(timeline, "compute")
    for tag in ("all_gather", "reduce"):
        kernels = kernels_of(timeline, tag)
        beside = sum(
            any(one.start_ns < other.end_ns and other.start_ns < one.end_ns for other in computing)
            for one in kernels
        )
        # All but those of the block that is gathered first, and of that which is reduced last.
        assert beside >= 0.7 * len(kernels)


def of_ranks(rank: int, size: int, store_path: str) -> None:
    """Train on the grids there are of some ranks; called in every rank."""
    # Five features make shards of different sizes; two heads can be shared.
    cases = [(1, 5, 1), (2, 8, 2)] if size == 2 else [(None, 8, 2)]
    device = HostDevice()
    with gloo_group(rank, size, store_path):
        for tensor_ranks, hidden, heads in cases:
            workload: Any = small(NAME, hidden=hidden, heads=heads, tensor_ranks=tensor_ranks)
            with device.open_streams(7, gradients=True) as pool:
                workload.setup(Setup(device, 7, 3, Ranks(rank, size)))

                def steps(count: int) -> None:
                    for _ in range(count):
                        workload.iterate(pool.streams)  # noqa: B023
                    pool.synchronize()

                steps(1)
                workload.check(lambda: steps(1))
                workload.check(lambda: steps(2))
                sums = [float(torch.cat(lane.gradients()).sum()) for lane in workload.lanes]
                print(workload.work_per_iteration()["samples"], sums)


@pytest.mark.parametrize(
    ("size", "samples"),
    [(2, ["4.0", "2.0"]), pytest.param(4, ["4.0"], marks=pytest.mark.slow)],
)
def test_ranks_train_one_model_together(
    size: int, samples: list[str], printed_by_ranks: Printed
) -> None:
    printed = printed_by_ranks(NAME, size)
    assert len(set(printed)) == 1, "all ranks have the same gradients"
    # Two models with one sample on each row of ranks.
    assert [line.partition(" ")[0] for line in printed[0].splitlines()] == samples
