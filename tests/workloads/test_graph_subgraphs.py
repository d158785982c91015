"""graph_subgraphs: fan-in of independent subgraphs, and that a wrong merge is noticed."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from pytest_hwqueue.devices.simulated.device import SimulatedDevice
from pytest_hwqueue.errors import BadParameter, CheckFailed
from pytest_hwqueue.workloads.latency_sensitive.graph_subgraphs import GraphSubgraphs
from pytest_hwqueue.workloads.workload import Setup, parameters_for

from .cells import Counts, LeftOut, Run, make, measured

SMALL = {"batch": 3, "inputs": 8, "hidden": 12, "outputs": 5}


@pytest.mark.parametrize("streams", [2, 3, 8, 64])
def test_cell_is_measured_and_its_results_are_right(streams: int) -> None:
    record = measured(GraphSubgraphs, streams, given=SMALL)
    assert (record.status, record.reason) == ("ok", "")
    assert record.work_per_iteration == {"samples": 3.0 * (streams - 1)}
    assert record.samples is not None
    assert len(record.samples.tags_ns["merge"]) == record.iterations
    assert len(record.samples.tags_ns["subgraph"]) == record.iterations * (streams - 1)
    assert record.metrics.timeline is not None
    assert record.metrics.timeline.streams_used == streams


def test_one_subgraph_per_stream_and_the_merge_on_the_last() -> None:
    counts = Counts()
    with Run(make(GraphSubgraphs, SMALL), 4, counts.around) as run:
        run.once()
    assert counts.launches == {
        (0, "subgraph"): 1, (1, "subgraph"): 1, (2, "subgraph"): 1, (3, "merge"): 1,
    }  # fmt: skip


def test_simulated_device_runs_it() -> None:
    device, workload = SimulatedDevice("h200"), make(GraphSubgraphs)
    with device.open_streams(8) as pool:
        workload.setup(Setup(device, 8, 3))
        kernels = pool.held_timeline(lambda: workload.iterate(pool.streams)).kernels
    # Three products and two ReLUs per subgraph; a concatenation and a product.
    assert len(kernels) == 7 * 5 + 2
    merge_begins = min(kernel.start_ns for kernel in kernels if kernel.tag == "merge")
    assert all(k.end_ns <= merge_begins for k in kernels if k.tag == "subgraph")


@pytest.mark.parametrize("left_out", [0, 1, 2, 3])
def test_launch_left_out_is_noticed(left_out: int) -> None:
    with Run(make(GraphSubgraphs, SMALL), 4, LeftOut(4 + left_out).around) as run:
        run.once()
        with pytest.raises(CheckFailed, match="merge: relative error"):
            run.workload.check(run.once)


@pytest.mark.parametrize("wrong", ["result", "weight", "order"])
def test_wrong_merge_is_noticed(wrong: str) -> None:
    with Run(make(GraphSubgraphs, SMALL), 4) as run:
        workload: Any = run.workload

        def spoiled() -> None:
            if wrong == "order":
                workload._subgraphs.reverse()
            run.once()
            if wrong == "order":
                workload._subgraphs.reverse()
            if wrong == "result":
                workload._merged[1, 2] += 1
            if wrong == "weight":
                workload._weight[1, 2] += 1

        workload.check(run.once)
        with pytest.raises(CheckFailed, match="merge"):
            workload.check(spoiled)


@pytest.mark.parametrize("dtype", ["fp32", "tf32", "bf16", "fp16"])
def test_result_is_right_in_every_numeric_format(dtype: str) -> None:
    before = torch.get_float32_matmul_precision()
    try:
        with Run(make(GraphSubgraphs, {"dtype": dtype}), 3) as run:
            run.workload.check(run.once)
            assert torch.get_float32_matmul_precision() == (
                "high" if dtype == "tf32" else "highest"
            )
    finally:
        torch.set_float32_matmul_precision(before)


def test_same_seed_gives_the_same_result_and_another_one_another() -> None:
    merged = []
    for seed in (5, 5, 6):
        state = torch.get_rng_state()
        with Run(make(GraphSubgraphs, SMALL), 3, seed=seed) as run:
            run.once()
            merged.append(run.workload._merged.clone())  # type: ignore[attr-defined]
        assert torch.equal(torch.get_rng_state(), state)
    assert torch.equal(merged[0], merged[1])
    assert not torch.equal(merged[0], merged[2])


@pytest.mark.parametrize(("parameter", "value"), [("batch", 0), ("hidden", "x"), ("dtype", "fp8")])
def test_bad_value_is_refused_by_name(parameter: str, value: object) -> None:
    with pytest.raises(BadParameter, match=rf"graph_subgraphs\.{parameter}="):
        parameters_for(GraphSubgraphs, "tiny", {parameter: value})
