"""Kernels of a given length, one behind the other: what an urgent kernel waits behind."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

import torch
from pydantic import Field

from pytest_hwqueue.data.errors import NotApplicable
from pytest_hwqueue.parts.devices.protocol import Stream
from pytest_hwqueue.parts.workloads.numerics import poison, require_close
from pytest_hwqueue.parts.workloads.workload import (
    HELD_KERNELS,
    Parameters,
    PrimaryLatency,
    Setup,
    Where,
    Workload,
)

_ELEMENTS = 256


class OccupyParameters(Parameters):
    """How long the device is occupied, how much of it, and by how many kernels at once."""

    kernel_us: float = Field(1000.0, gt=0, description="length of a spinning kernel, in µs")
    waves: int = Field(
        0, ge=0, le=64, description="how many times as many blocks a spinning kernel has as the "
        "device holds at once; 0: one block"
    )  # fmt: skip
    depth: int = Field(
        1, ge=0, description="spinning kernels of a stream, before the one that leaves a result"
    )


class Occupy(Workload, declared="occupy"):
    """Each stream runs ``depth`` spinning kernels, then a tiny one, which leaves a result.

    With depth 0 an iteration is the tiny kernel alone, the shortest work there is.
    """

    primary = PrimaryLatency(
        "burst", "launch", "a stream's kernels, from ready to done", marks="events"
    )
    parameters: OccupyParameters
    sizes: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "tiny": {"kernel_us": 50.0},
        "small": {"kernel_us": 200.0},
        "full": {"kernel_us": 1000.0},
    }

    def require_applicable(self, where: Where) -> None:
        """Refuse kernels that fill a device without multiprocessors."""
        if self.parameters.waves and where.capabilities.host:
            raise NotApplicable(
                "occupy: waves of blocks fill all multiprocessors, and the CPU has none; give "
                "waves=0, or an accelerator"
            )

    def setup(self, setup: Setup) -> None:
        """Make the spinning kernel, and an input and an output vector for each stream."""
        parameters = self.parameters
        duration_ns = max(1, round(parameters.kernel_us * 1e3))
        # Several streams may launch the same one: it reads nothing but the clock. To make one runs
        # some, so that who launches none makes none.
        spins = [setup.device.kernel_of(duration_ns, waves=parameters.waves)] * bool(
            parameters.depth
        )
        self._spins = spins * parameters.depth
        shape = (setup.streams, _ELEMENTS)
        place = setup.device.torch_device
        self._inputs = torch.rand(shape, generator=setup.generator(), device=place)
        self.outputs = [torch.empty_like(row) for row in self._inputs]

    def iterate(self, streams: Sequence[Stream]) -> None:
        """Enqueue each stream's kernels, stream by stream."""
        for index in range(len(self.outputs)):
            streams[index].launch(self._run, index, tag="burst")

    def work_per_iteration(self) -> dict[str, float]:
        """Return the kernels of all streams, the tiny ones too."""
        return {"kernels": float(len(self.outputs) * (self.parameters.depth + 1))}

    def check(self, run_once: Callable[[], None]) -> None:
        """Compare what each stream's last kernel leaves with what it should add up to."""
        poison(*self.outputs)
        run_once()
        for index, output in enumerate(self.outputs):
            expected = self._inputs[index] + (self.parameters.depth + 1)
            require_close(f"stream {index}", output, expected, 1e-6)

    def timeline_parameters(self, streams: int) -> dict[str, Any]:
        """Return so few kernels that those of all streams can be held back together."""
        fitting = max(0, HELD_KERNELS // streams - 1)
        return {"depth": min(self.parameters.depth, fitting)}

    def _run(self, index: int) -> None:
        for spin in self._spins:
            spin()
        torch.add(self._inputs[index], self.parameters.depth + 1, out=self.outputs[index])
