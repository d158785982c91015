"""Measuring one's own code: run with `pytest examples/test_own_code.py --hwq-streams=4`.

`make_step` is measured here, and as a tenant beside a neighbour in own_function.hwq.yaml.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import torch

from pytest_hwqueue import Device, Hwq, Stream


def test_one_function_on_every_stream(hwq: Hwq, hwq_device: Device, hwq_streams: int) -> None:
    """The same product on each stream; the test fails unless P99 is below the bound."""
    a = torch.rand(256, 256, device=hwq_device.torch_device)
    record = hwq.measure(lambda: a @ a, streams=hwq_streams, work={"products": hwq_streams})
    record.assert_p99("1 s")


def make_step(
    *, device: Device, streams: Sequence[Stream], seed: int, width: int = 256
) -> Callable[[], torch.Tensor]:
    """Prepare weights and an input once; each call of the step is one request."""
    generator = torch.Generator().manual_seed(seed)
    weights = torch.rand(width, width, generator=generator).to(device.torch_device)
    rows = torch.rand(8, width, generator=generator).to(device.torch_device)

    def step() -> torch.Tensor:
        with torch.no_grad():
            return torch.relu(rows @ weights) @ weights

    return step


def test_a_step_that_is_prepared(hwq: Hwq, hwq_streams: int) -> None:
    """One step for each stream, each with weights of its own."""
    record = hwq.measure(make_step, streams=hwq_streams, work={"requests": hwq_streams})
    record.assert_p99("1 s")


def test_streams_that_depend_on_each_other(hwq: Hwq, hwq_device: Device, hwq_streams: int) -> None:
    """A product on every stream, then a sum on the first that waits for all of them by events."""
    inputs = [torch.rand(256, 256, device=hwq_device.torch_device) for _ in range(hwq_streams)]
    products = [torch.empty_like(a) for a in inputs]
    total = torch.empty_like(inputs[0])

    def add_up() -> None:
        torch.sum(torch.stack(products), dim=0, out=total)

    def iteration(streams: Sequence[Stream]) -> None:
        for stream, a, out in zip(streams, inputs, products, strict=True):
            stream.launch(partial(torch.mm, a, a, out=out), tag="product")
        for stream in streams[1:]:
            streams[0].wait(stream.record())
        streams[0].launch(add_up, tag="sum")

    record = hwq.measure_streams(iteration, tags=("product", "sum"))
    record.assert_p50("1 s", tag="product")
    record.assert_p50("1 s", tag="sum")
    assert torch.allclose(total, torch.stack([a @ a for a in inputs]).sum(0), rtol=1e-3)
