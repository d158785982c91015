"""Copies to the device, within it, to another one, and back: many streams, few copy engines."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

import torch
from pydantic import Field

from pytest_hwqueue.data.errors import CheckFailed, NotApplicable
from pytest_hwqueue.parts.devices.kinds import visible_accelerators
from pytest_hwqueue.parts.devices.limits import TO_DEVICE, TO_HOST
from pytest_hwqueue.parts.devices.protocol import Stream
from pytest_hwqueue.parts.devices.tensors import host_empty
from pytest_hwqueue.parts.workloads.numerics import poison
from pytest_hwqueue.parts.workloads.workload import (
    Parameters,
    PrimaryLatency,
    Setup,
    Where,
    Workload,
)

_MIB = 1 << 20


class CopyParameters(Parameters):
    """Size of the buffers, and where they go."""

    mebibytes: int = Field(64, ge=1, description="size of each copy in MiB")
    peer: bool = Field(
        False, description="also copy to the next accelerator that the process sees (tag to_peer)"
    )


class CopyEngines(Workload, declared="copy_engines"):
    """Each stream copies a buffer of its own to the device, within it, and back to the host.

    The host's memory is page-locked, so copies to and from it run on copy engines; a copy within
    the device is a kernel. Bytes over a tag's latency are a bandwidth while only one stream copies;
    with more of them, copies wait for an engine. With ``peer`` it also copies each to another
    accelerator, which keeps a buffer for each stream.
    """

    primary = PrimaryLatency(
        "to_device", "launch", "one copy to the device, from ready to done", marks="events"
    )
    parameters: CopyParameters
    sizes: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "tiny": {"mebibytes": 1},
        "small": {"mebibytes": 8},
        "full": {"mebibytes": 64},
    }

    def __init__(self, parameters: CopyParameters) -> None:
        super().__init__(parameters)
        if parameters.peer:
            self.tags = (*self.tags, "to_peer")  # type: ignore[misc]

    def require_applicable(self, where: Where) -> None:
        """Require a second accelerator for ``peer``, and eager dispatch: its stream is torch's."""
        if not self.parameters.peer:
            return
        if not where.capabilities.visible_by or visible_accelerators()[1] < 2:
            raise NotApplicable("copy_engines: peer=true needs a second visible accelerator")
        if where.dispatch == "graph":
            raise NotApplicable("copy_engines: peer=true waits for a stream outside of the graph; "
                                "use --hwq-dispatch=eager")  # fmt: skip

    def setup(self, setup: Setup) -> None:
        """Create four buffers for each stream, two on the host and two on the device; five if peer.

        The fifth is on the other device, with a stream of its own: copies wait for no other there.
        """
        place = setup.device.torch_device
        shape = (setup.streams, self.parameters.mebibytes * _MIB // 4)
        self._given = host_empty(setup.device, shape, torch.float32)
        self._given.uniform_(generator=torch.Generator().manual_seed(setup.seed))
        self._landed, self._kept = torch.empty((2, *shape), device=place)
        self.returned = host_empty(setup.device, shape, torch.float32)
        if self.parameters.peer:
            peer = torch.device("cuda", (place.index + 1) % visible_accelerators()[1])
            self._beside = torch.empty(shape, device=peer)
            self._there = [torch.cuda.Stream(peer) for _ in range(setup.streams)]

    def iterate(self, streams: Sequence[Stream]) -> None:
        """Enqueue the copies of each stream."""
        for index in range(len(self._given)):
            stream = streams[index]
            stream.launch(self._to_device, index, tag="to_device")
            stream.launch(self._within, index, tag="within")
            if self.parameters.peer:
                stream.launch(self._to_peer, index, tag="to_peer")
            stream.launch(self._to_host, index, tag="to_host")

    def work_per_iteration(self) -> dict[str, float]:
        """Return the size of all copies in 10⁹ bytes."""
        return {"GB": len(self.tags) * self._given.numel() * 4 / 1e9}

    def limits_used(self) -> dict[str, float]:
        """Return what crosses to the device, and to the host."""
        each = self._given.numel() * 4 / 1e9
        return {TO_DEVICE: each, TO_HOST: each}

    def check(self, run_once: Callable[[], None]) -> None:
        """Require that what came back is what was sent."""
        arrived = [("back", self.returned)]
        if self.parameters.peer:
            arrived.append(("at the other device", self._beside))
        poison(self._landed, self._kept, *(buffer for _, buffer in arrived))
        run_once()
        for where, all_streams in arrived:
            for index, (sent, there) in enumerate(zip(self._given, all_streams.cpu(), strict=True)):
                if not torch.equal(sent, there):
                    wrong = int((sent != there).sum())
                    raise CheckFailed(
                        f"stream {index}: {wrong} of {sent.numel()} numbers are wrong {where}"
                    )

    def _to_device(self, index: int) -> None:
        self._landed[index].copy_(self._given[index], non_blocking=True)

    def _within(self, index: int) -> None:
        self._kept[index].copy_(self._landed[index])

    def _to_host(self, index: int) -> None:
        self.returned[index].copy_(self._kept[index], non_blocking=True)

    def _to_peer(self, index: int) -> None:
        with torch.cuda.stream(self._there[index]):
            self._beside[index].copy_(self._kept[index], non_blocking=True)
