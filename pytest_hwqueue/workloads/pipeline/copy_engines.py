"""Copies to the device, within it and from it: many streams, few copy engines."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

import torch
from pydantic import Field

from pytest_hwqueue.devices.protocol import Stream
from pytest_hwqueue.errors import CheckFailed
from pytest_hwqueue.workloads.numerics import poison
from pytest_hwqueue.workloads.pipeline.stages import host_empty
from pytest_hwqueue.workloads.workload import Parameters, PrimaryLatency, Setup, Workload

_MIB = 1 << 20


class CopyParameters(Parameters):
    """Size of the buffers."""

    mebibytes: int = Field(64, ge=1, description="size of each copy in MiB")


class CopyEngines(Workload, declared="copy_engines"):
    """Each stream copies a buffer of its own to the device, within it, and back to the host.

    The host's memory is page-locked, so copies to and from it run on copy engines; a copy within
    the device is a kernel. Bytes over a tag's latency are a bandwidth while only one stream copies;
    with more of them, copies wait for an engine.
    """

    description = "copies to the device, within it and back, on few copy engines"
    units = ("GB",)
    primary = PrimaryLatency("to_device", "launch", "one copy to the device, from ready to done")
    tags = ("to_device", "within", "to_host")
    parameter_model = CopyParameters
    parameters: CopyParameters
    sizes: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "tiny": {"mebibytes": 1},
        "small": {"mebibytes": 8},
        "full": {"mebibytes": 64},
    }

    def setup(self, setup: Setup) -> None:
        """Create four buffers for each stream: two on the host and two on the device."""
        place = setup.device.torch_device
        shape = (setup.streams, self.parameters.mebibytes * _MIB // 4)
        self._given = host_empty(setup.device, shape, torch.float32)
        self._given.uniform_(generator=torch.Generator().manual_seed(setup.seed))
        self._landed, self._kept = torch.empty((2, *shape), device=place)
        self._returned = host_empty(setup.device, shape, torch.float32)

    def iterate(self, streams: Sequence[Stream]) -> None:
        """Enqueue the three copies of each stream."""
        for index in range(len(self._given)):
            stream = streams[index]
            stream.launch(self._to_device, index, tag="to_device")
            stream.launch(self._within, index, tag="within")
            stream.launch(self._to_host, index, tag="to_host")

    def work_per_iteration(self) -> dict[str, float]:
        """Return the size of all copies in 10⁹ bytes."""
        return {"GB": 3 * self._given.numel() * 4 / 1e9}

    def check(self, run_once: Callable[[], None]) -> None:
        """Require that what came back is what was sent."""
        poison(self._landed, self._kept, self._returned)
        run_once()
        for index, (sent, returned) in enumerate(zip(self._given, self._returned, strict=True)):
            if not torch.equal(sent, returned):
                wrong = int((sent != returned).sum())
                raise CheckFailed(
                    f"stream {index}: {wrong} of {sent.numel()} numbers came back wrong"
                )

    def _to_device(self, index: int) -> None:
        self._landed[index].copy_(self._given[index], non_blocking=True)

    def _within(self, index: int) -> None:
        self._kept[index].copy_(self._landed[index])

    def _to_host(self, index: int) -> None:
        self._returned[index].copy_(self._kept[index], non_blocking=True)
