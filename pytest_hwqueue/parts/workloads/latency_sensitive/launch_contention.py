"""Contention among those that launch: each has a stream, and one small kernel to launch on it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, Literal

import torch
from pydantic import Field

from pytest_hwqueue.data.errors import NotApplicable
from pytest_hwqueue.parts.devices.limits import GRAPH_START
from pytest_hwqueue.parts.devices.protocol import Stream
from pytest_hwqueue.parts.workloads.numerics import poison, require_close
from pytest_hwqueue.parts.workloads.workload import (
    Parameters,
    PrimaryLatency,
    Setup,
    Where,
    Workload,
)


class LaunchParameters(Parameters):
    """What one launch does."""

    elements: int = Field(256, ge=1, description="elements of the kernel")
    launchers: Literal["threads", "processes"] = Field(
        "threads", description="who launches at once: a thread for each stream, or a process"
    )


class LaunchContention(Workload, declared="launch_contention"):
    """Each stream runs one small kernel: a square.

    Judged is the launching call, as the host's thread sees it that makes it, while a launcher for
    each stream launches at once. What the device does is as short as it can be.
    """

    primary = PrimaryLatency("launch", "call", "a launching call of one of several at once")
    parameters: LaunchParameters
    sizes: ClassVar[Mapping[str, Mapping[str, Any]]] = {"tiny": {}, "small": {}, "full": {}}

    def __init__(self, parameters: LaunchParameters) -> None:
        super().__init__(parameters)
        self.launched_by = parameters.launchers

    def require_applicable(self, where: Where) -> None:
        """Refuse several ranks, which share no device, and processes where none can share it."""
        if where.ranks > 1:
            raise NotApplicable(
                f"launch_contention measures who launches on one device, and not {where.ranks} "
                "ranks (--hwq-ranks=1)"
            )
        if self.launched_by == "processes" and not where.capabilities.tenant_processes:
            raise NotApplicable(
                "launch_contention: launchers=processes needs a real device, which processes share "
                "(launchers=threads)"
            )

    def setup(self, setup: Setup) -> None:
        """Create an input and an output vector for each stream."""
        shape = (setup.streams, self.parameters.elements)
        place = setup.device.torch_device
        self._inputs = list(torch.randn(shape, generator=setup.generator(), device=place))
        self.outputs = [torch.empty_like(row) for row in self._inputs]

    def iterate(self, streams: Sequence[Stream]) -> None:
        """Enqueue each stream's kernel."""
        for stream, source, output in zip(streams, self._inputs, self.outputs, strict=True):
            stream.launch(_square, source, output)

    def work_per_iteration(self) -> dict[str, float]:
        """Return the launches of all streams."""
        return {"launches": float(len(self.outputs))}

    def limits_used(self) -> dict[str, float]:
        """Return the launches, each of which is a graph where they are the driver's."""
        return {GRAPH_START: float(len(self.outputs))}

    def check(self, run_once: Callable[[], None]) -> None:
        """Compare each stream's result with the same in float64."""
        poison(*self.outputs)
        run_once()
        for index, (source, output) in enumerate(zip(self._inputs, self.outputs, strict=True)):
            require_close(f"stream {index}", output, source.double().square(), 1e-6)


def _square(source: torch.Tensor, output: torch.Tensor) -> None:
    torch.mul(source, source, out=output)
