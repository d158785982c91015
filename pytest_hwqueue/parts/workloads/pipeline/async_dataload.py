"""Batches copied from the host, preprocessed and fed to a network, double-buffered."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, Literal

import torch
from pydantic import Field

from pytest_hwqueue.parts.devices.protocol import Event, Stream
from pytest_hwqueue.parts.devices.tensors import host_empty
from pytest_hwqueue.parts.workloads.numerics import poison, require_close, set_precision
from pytest_hwqueue.parts.workloads.pipeline.stages import grouped, thirds
from pytest_hwqueue.parts.workloads.tenants.models import seeded_model
from pytest_hwqueue.parts.workloads.tenants.shapes import ModelSize, model_family
from pytest_hwqueue.parts.workloads.workload import (
    HELD_KERNELS,
    MatmulType,
    Parameters,
    PrimaryLatency,
    Setup,
    Workload,
)

# Mean and standard deviation of ImageNet's red, green and blue, as torchvision's models take them.
_MEAN = (0.485, 0.456, 0.406)
_DEVIATION = (0.229, 0.224, 0.225)

# Relative error of the norm between two passes that a library may compute by different
# algorithms, from inputs rounded once or twice: a single product's error times ten for the depth.
# Two batches differ by about 0.3 or more.
_TOLERANCES = {"fp32": 1e-4, "tf32": 2e-2, "bf16": 5e-2, "fp16": 2e-2}

# A group has at most this many streams, and each needs a batch.
_LARGEST_GROUP = 4
# Kernels and copies of one batch.
_KERNELS = {"resnet18": 72, "resnet50": 178}


class DataloadParameters(Parameters):
    """The batches and the network that takes them."""

    batches: int = Field(
        8,
        ge=_LARGEST_GROUP,
        description="batches in an iteration; at least as many as a group can have streams",
    )
    batch: int = Field(32, ge=1, description="images in a batch")
    side: int = Field(224, ge=32, description="pixels of an image's side")
    model: Literal["resnet18", "resnet50"] = Field("resnet18", description="the network")
    model_size: ModelSize = Field("full", description="width of its layers: full, or tiny")
    dtype: MatmulType = Field("fp32", description="numeric format of the network")


class AsyncDataload(Workload, declared="async_dataload"):
    """Copy ‖ preprocess ‖ forward, each stage on its own group of streams.

    Batch b goes through stream b mod size of each group. Each copy stream has two buffers of raw
    images and each forward stream two of preprocessed ones: while one is read, the next is filled.
    Events go both ways: a stage waits for its input, and a stage that fills a buffer waits for the
    readers of its old content.
    """

    primary = PrimaryLatency("batch", "request", "a batch's copy, preprocessing and forward pass")
    parameters: DataloadParameters
    sizes: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "tiny": {"batches": 4, "batch": 2, "side": 32, "model_size": "tiny"},
        "small": {"batches": 8, "batch": 8, "side": 96, "model_size": "full"},
        "full": {"batches": 8, "batch": 32, "side": 224, "model_size": "full"},
    }

    def setup(self, setup: Setup) -> None:
        """Create the host's batches, two buffers per stream for each stage, and the network."""
        parameters, place = self.parameters, setup.device.torch_device
        dtype = set_precision(parameters.dtype)
        computing, preprocessing, copying = thirds(setup.streams)
        self._groups = (copying, preprocessing, computing)

        shape = (parameters.batch, 3, parameters.side, parameters.side)
        on_host = torch.Generator().manual_seed(setup.seed)
        self._host = host_empty(setup.device, (parameters.batches, *shape), torch.uint8)
        for images in self._host:
            # Each of a colour of its own under the noise, so that batches differ in their classes.
            colours = torch.rand((parameters.batch, 3, 1, 1), generator=on_host)
            images.copy_(torch.rand(shape, generator=on_host).add_(colours).mul_(127.5))
        self._raw = torch.empty((2 * copying, *shape), dtype=torch.uint8, device=place)
        self._ready = torch.empty((2 * computing, *shape), dtype=dtype, device=place)
        self._mean = torch.tensor(_MEAN, device=place).mul_(255).view(3, 1, 1)
        deviation = torch.tensor(_DEVIATION, device=place).mul_(255)
        self._factor = deviation.reciprocal_().view(3, 1, 1)

        family = model_family(parameters.model)
        self._model = seeded_model(family, parameters.model_size, setup.seed, dtype)
        if place.type != "cpu":
            self._model.to(place)
        shape_out = (parameters.batches, parameters.batch, self._model.config.num_labels)
        self.outputs = torch.empty(shape_out, dtype=dtype, device=place)

    def iterate(self, streams: Sequence[Stream]) -> None:
        """Enqueue every batch's copy, preprocessing and forward pass, batch by batch."""
        copying, preprocessing, computing = grouped(streams, self._groups)
        # For each buffer: the event behind the last reader of what is in it.
        raw_read: dict[int, Event] = {}
        ready_read: dict[int, Event] = {}
        for batch in range(self.parameters.batches):
            raw, ready = batch % (2 * len(copying)), batch % (2 * len(computing))

            stream = copying[batch % len(copying)]
            if raw in raw_read:
                stream.wait(raw_read[raw])
            stream.launch(self._copy, batch, raw, tag=f"copy#{batch}")
            copied = stream.record()

            stream = preprocessing[batch % len(preprocessing)]
            stream.wait(copied)
            if ready in ready_read:
                stream.wait(ready_read[ready])
            stream.launch(self._preprocess, raw, ready, tag=f"preprocess#{batch}")
            raw_read[raw] = preprocessed = stream.record()

            stream = computing[batch % len(computing)]
            stream.wait(preprocessed)
            stream.launch(self._forward, ready, batch, tag=f"compute#{batch}")
            ready_read[ready] = stream.record()
        # The next iteration may be enqueued before this one has run; there batch b is the first to
        # fill buffer b. Its streams wait here, so that no event leaves its iteration: a graph has
        # none from outside.
        for raw, event in raw_read.items():
            copying[raw % len(copying)].wait(event)
        for ready, event in ready_read.items():
            preprocessing[ready % len(preprocessing)].wait(event)

    def work_per_iteration(self) -> dict[str, float]:
        """Return the number of classified images."""
        return {"images": float(self.parameters.batches * self.parameters.batch)}

    def check(self, run_once: Callable[[], None]) -> None:
        """Compare each batch's classes with a plain pass over the normalised images."""
        poison(self._ready, self.outputs)
        self._raw.zero_()
        run_once()
        place, dtype = self.outputs.device, self.outputs.dtype
        mean = torch.tensor(_MEAN, device=place).view(3, 1, 1)
        deviation = torch.tensor(_DEVIATION, device=place).view(3, 1, 1)
        tolerance = _TOLERANCES[self.parameters.dtype]
        with torch.inference_mode():
            for batch, output in enumerate(self.outputs):
                images = self._host[batch].to(place).float() / 255
                images = ((images - mean) / deviation).to(dtype)
                expected = self._model(pixel_values=images).logits
                require_close(f"batch {batch}", output, expected, tolerance)

    def timeline_parameters(self, streams: int) -> dict[str, Any]:
        """Return so few batches that all their kernels can be held back together."""
        fitting = max(_LARGEST_GROUP, HELD_KERNELS // _KERNELS[self.parameters.model])
        return {"batches": min(self.parameters.batches, fitting)}

    def _copy(self, batch: int, raw: int) -> None:
        self._raw[raw].copy_(self._host[batch], non_blocking=True)

    def _preprocess(self, raw: int, ready: int) -> None:
        torch.sub(self._raw[raw], self._mean, out=self._ready[ready]).mul_(self._factor)

    def _forward(self, ready: int, batch: int) -> None:
        self.outputs[batch].copy_(self._model(pixel_values=self._ready[ready]).logits)
