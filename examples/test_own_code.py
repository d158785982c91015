"""Measuring one's own code: run with `pytest examples --hwq-streams=4 --hwq-device=cpu`."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import torch

from pytest_hwqueue import Device, Hwq, Stream


def test_one_function_on_every_stream(hwq: Hwq, hwq_device: Device, hwq_streams: int) -> None:
    """The same product on each stream; the test fails unless P99 is below the bound."""
    a = torch.rand(256, 256, device=hwq_device.torch_device)
    record = hwq.measure(lambda: a @ a, streams=hwq_streams, work={"products": hwq_streams})
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
