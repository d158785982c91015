"""The workload `relay`: a vector that goes from stream to stream, each waiting for the one before.

hwq run relay --streams 2,8,32
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, ClassVar

import torch
from pydantic import Field

from pytest_hwqueue import Parameters, Setup, Stream, StreamRange, Workload, require_close


class RelayParameters(Parameters):
    """Size of the vector."""

    elements: int = Field(256, ge=1, description="elements of the vector")


class Relay(Workload):
    """Each stream adds 1 to what the stream before it has written."""

    name = "relay"
    family = "example"
    mark = "P2"
    description = "a vector passed through all streams by events: what a handover costs"
    stream_range = StreamRange(2, 8, 64)
    units = ("handovers",)
    parameter_model = RelayParameters
    parameters: RelayParameters
    sizes: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "tiny": {},
        "small": {},
        "full": {"elements": 65_536},
    }

    def setup(self, setup: Setup) -> None:
        """Make the vector that comes in, and one that each stream writes."""
        shape = (setup.streams + 1, self.parameters.elements)
        self._vectors = torch.zeros(shape, device=setup.device.torch_device)

    def iterate(self, streams: Sequence[Stream]) -> None:
        """Enqueue one round: each stream waits for its predecessor's event."""
        for index, stream in enumerate(streams):
            if index > 0:
                stream.wait(streams[index - 1].record())
            source, target = self._vectors[index], self._vectors[index + 1]
            stream.launch(partial(torch.add, source, 1, out=target))

    def work_per_iteration(self) -> dict[str, float]:
        """Handovers between streams."""
        return {"handovers": float(len(self._vectors) - 2)}

    def check(self, run_once: Callable[[], None]) -> None:
        """The last vector has been through all streams."""
        self._vectors[1:].fill_(float("nan"))
        run_once()
        laps = len(self._vectors) - 1
        require_close("the last vector", self._vectors[-1], self._vectors[0] + laps, 1e-6)
