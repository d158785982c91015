"""Training with parameters in the host's memory: layers are fetched, used, and their gradients sent
back, and the host's processor updates the parameters.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, ClassVar, Literal

import torch
from pydantic import Field
from torch.optim.adam import adam

from pytest_hwqueue.data.errors import CheckFailed, NotApplicable
from pytest_hwqueue.parts.devices.protocol import Event, Stream
from pytest_hwqueue.parts.devices.tensors import TORCH_TYPES, host_empty
from pytest_hwqueue.parts.workloads.numerics import (
    poison,
    require_close,
    set_precision,
)
from pytest_hwqueue.parts.workloads.pipeline.stages import (
    HostTask,
    LayerShare,
    grouped,
    matrices,
    thirds,
)
from pytest_hwqueue.parts.workloads.workload import (
    TORCH_SPELLINGS,
    Parameters,
    PrimaryLatency,
    Setup,
    Where,
    Workload,
)

# Relative error of a layer's gradient against autograd's, whose products run in the same format on
# the whole batch at once: rounding of the format, over a chain of layers and a sum over samples.
_TOLERANCES = {"fp32": 1e-4, "tf32": 1e-2, "bf16": 5e-2}
# Adam's first steps have one size whatever the gradient's: where that is near 0 its sign decides.
_STEP_FACTOR = 10
_BETAS = (0.9, 0.999)
_EPSILON = 1e-8

# Where the host is only modelled: Adam reads four and writes three float32 numbers per parameter.
_ADAM_BYTES = 28
_ASSUMED_HOST_BYTES_PER_S = 100e9


class OffloadParameters(Parameters):
    """The network, its batch and its optimiser."""

    layers: int = Field(2, ge=2, description="layers; an offload stream needs one")
    hidden: int = Field(1024, ge=1, description="width between layers")
    inner: int = Field(4096, ge=1, description="width within a layer")
    batch: int = Field(
        8, ge=1, description="samples in a training step, shared out to the compute streams"
    )
    sequence: int = Field(512, ge=1, description="rows of a sample")
    dtype: Annotated[Literal["fp32", "tf32", "bf16"], TORCH_SPELLINGS] = Field(
        "fp32",
        description="numeric format on the device; with bf16 the host keeps the parameters in "
        "float32 and sends them as bf16",
    )
    learning_rate: float = Field(1e-4, gt=0, description="of Adam")


class ZeroOffload(Workload, declared="zero_offload"):
    """One training step: prefetch of a layer ‖ compute of the one before ‖ gradients to the host.

    Layers are residual: y = x + relu(x·A)·B, the loss the mean square distance to a target. The
    forward pass fetches layers 0…L−1; the backward pass has the last one still and fetches
    L−2…0 again. With p prefetch streams, p fetches run ahead of the compute, into p + 1 slots.
    Streams are divided in thirds; prefetch and offload streams that would find no layer become
    compute streams.

    Each compute stream takes its share of the samples through all layers and writes its own
    gradient; an offload stream adds those up and copies the sum to the host.

    When all gradients have arrived, the host does one Adam step, while the streams are idle: the
    next step needs every parameter it changes. It is enqueued as host work after the last copies,
    so the enqueuing thread never waits, and its time is part of the iteration's.
    """

    primary = PrimaryLatency("step", "iteration", "a training step with its update on the host")
    parameters: OffloadParameters
    sizes: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "tiny": {"hidden": 64, "inner": 256, "sequence": 16},
        "small": {"hidden": 256, "inner": 1024, "sequence": 64},
        "full": {"hidden": 1024, "inner": 4096, "sequence": 512},
    }

    def __init__(self, parameters: OffloadParameters) -> None:
        super().__init__(parameters)
        self.steps = 0
        self._steps_ns = 0

    def require_applicable(self, where: Where) -> None:
        """Refuse more compute streams than samples."""
        _, computing, _ = self._share_out(where.streams)
        if computing > self.parameters.batch:
            raise NotApplicable(
                f"zero_offload.batch={self.parameters.batch} leaves some of {computing} compute "
                f"streams (of {where.streams}) without a sample; take batch={computing} or more, "
                "or fewer streams"
            )

    def setup(self, setup: Setup) -> None:
        """Create parameters and optimiser state on the host, and the rest on the device."""
        parameters, device = self.parameters, setup.device
        self.require_applicable(setup.where)
        self._groups = prefetching, computing, offloading = self._share_out(setup.streams)
        layers = parameters.layers
        self._fetches = [*range(layers), *reversed(range(layers - 1))]
        self._make_host(setup)
        size = (2 * parameters.hidden * parameters.inner,)
        place, dtype = device.torch_device, set_precision(parameters.dtype)
        self._slots = [torch.empty(size, dtype=dtype, device=place) for _ in range(prefetching + 1)]
        # One more than there are offload streams: while those are sent, the next are computed.
        self._partial_gradients = [
            [torch.empty(size, dtype=dtype, device=place) for _ in range(computing)]
            for _ in range(offloading + 1)
        ]
        shape = (parameters.batch, parameters.sequence, parameters.hidden)
        generator = setup.generator()
        inputs, targets = (
            torch.randn(shape, generator=generator, device=place).to(dtype) for _ in range(2)
        )
        # The loss is a mean over the whole batch, not over a share.
        scale = 1 / inputs.numel()
        self._shares = [
            LayerShare(share.flatten(0, 1), target.flatten(0, 1), layers, parameters.inner, scale)
            for share, target in zip(
                inputs.tensor_split(computing), targets.tensor_split(computing), strict=True
            )
        ]
        total = layers * size[0]
        self._host_step = HostTask(
            device, self._step, round(total * _ADAM_BYTES / _ASSUMED_HOST_BYTES_PER_S * 1e9)
        )
        if not device.capabilities.has_values:
            rate = f"{_ASSUMED_HOST_BYTES_PER_S / 1e9:g} GB/s"
            self.decisions_drawn = (f"time of the optimiser step on a host assumed to move {rate}",)

    def iterate(self, streams: Sequence[Stream]) -> None:
        """Enqueue one training step: fetches ahead, forward, backward, gradients, the step."""
        self._host_step.raise_error()
        prefetching, computing, offloading = grouped(streams, self._groups)
        last = self.parameters.layers - 1
        fetched: list[Event] = []
        used: list[list[Event]] = []
        sent: list[Event] = []

        def fetch() -> None:
            number = len(fetched)
            if number == len(self._fetches):
                return
            slot, stream = number % len(self._slots), prefetching[number % len(prefetching)]
            if number >= len(self._slots):
                for event in used[number - len(self._slots)]:
                    stream.wait(event)
            stream.launch(self._fetch, self._fetches[number], slot, tag="prefetch")
            fetched.append(stream.record())

        for _ in prefetching:
            fetch()
        for number, layer in enumerate(self._fetches):
            fetch()
            backward = number >= last
            ring = len(self._partial_gradients)
            used.append([])
            for share, stream in enumerate(computing):
                stream.wait(fetched[number])
                if backward and len(sent) >= ring:
                    stream.wait(sent[-ring])
                slot = number % len(self._slots)
                if number <= last:
                    stream.launch(self._forward, share, layer, slot, tag="compute")
                if backward:
                    gradient = len(sent) % ring
                    stream.launch(self._backward, share, layer, slot, gradient, tag="compute")
                used[-1].append(stream.record())
            if backward:
                stream = offloading[len(sent) % len(offloading)]
                for event in used[-1]:
                    stream.wait(event)
                stream.launch(self._offload, layer, len(sent) % ring, tag="offload")
                sent.append(stream.record())

        for event in sent[-len(offloading) :]:
            prefetching[0].wait(event)
        prefetching[0].launch(self._host_step.run)
        # All work of the next iteration stands behind its fetches: they wait here, so that nothing
        # of it overtakes the step and no event leaves its iteration; a graph has none from outside.
        stepped = prefetching[0].record()
        for stream in prefetching[1:]:
            stream.wait(stepped)

    def work_per_iteration(self) -> dict[str, float]:
        """Return the trained samples, and the optimiser's steps."""
        return {"samples": float(self.parameters.batch), "optimiser steps": 1.0}

    def measured_apart(self) -> dict[str, float]:
        """Return the mean time of the host's optimiser step, in ms; nothing on simulated devices.

        Raises:
            Exception: whatever a step raised on its own thread.

        """
        self._host_step.raise_error()
        return {"optimiser_step_ms": self._steps_ns / self.steps / 1e6} if self.steps else {}

    def check(self, run_once: Callable[[], None]) -> None:
        """Compare with plain training: autograd on the whole batch, torch's Adam, one stream."""
        before = [master.clone() for master in self.masters]
        plain = self._plain_adam()
        partial = [flat for ring in self._partial_gradients for flat in ring]
        poison(*self._slots, *self.host_gradients, *partial)
        for share in self._shares:
            share.poison()
        steps = self.steps
        run_once()
        self._host_step.raise_error()
        if self.steps == steps:
            raise CheckFailed("the host made no optimiser step")
        for _ in range(self.steps - steps):
            gradients = self._plain_step(plain)
        tolerance = _TOLERANCES[self.parameters.dtype]
        weights = plain.param_groups[0]["params"]
        for layer, (master, sent) in enumerate(
            zip(self.masters, self.host_parameters, strict=True)
        ):
            actual, expected = self.host_gradients[layer], gradients[layer].cpu()
            require_close(f"gradient of layer {layer}", actual, expected, tolerance)
            step, plain_step = master - before[layer], weights[layer] - before[layer]
            require_close(f"step of layer {layer}", step, plain_step, tolerance * _STEP_FACTOR)
            if not torch.equal(sent, master.to(sent.dtype)):
                raise CheckFailed(f"layer {layer}: what will be fetched is not what was updated")

    def _share_out(self, streams: int) -> tuple[int, int, int]:
        """Return how many streams prefetch, compute and offload; none is without a layer."""
        _, prefetching, offloading = thirds(streams)
        prefetching = min(prefetching, 2 * self.parameters.layers - 1)
        offloading = min(offloading, self.parameters.layers)
        return prefetching, streams - prefetching - offloading, offloading

    def _make_host(self, setup: Setup) -> None:
        parameters, dtype = self.parameters, TORCH_TYPES[self.parameters.dtype]
        size = (2 * parameters.hidden * parameters.inner,)
        count = range(parameters.layers)
        generator = torch.Generator().manual_seed(setup.seed)
        self.host_parameters = [host_empty(setup.device, size, dtype) for _ in count]
        self.host_gradients = [host_empty(setup.device, size, dtype) for _ in count]
        self.masters = self.host_parameters
        if dtype is not torch.float32:
            self.masters = [torch.empty(size) for _ in count]
        for master, sent in zip(self.masters, self.host_parameters, strict=True):
            widen, narrow = matrices(master, parameters.hidden)
            # A layer adds a tenth of what it is given, so that a deep sum of them keeps its size.
            widen.normal_(0, parameters.hidden**-0.5, generator=generator)
            narrow.normal_(0, 0.1 * parameters.inner**-0.5, generator=generator)
            sent.copy_(master)
        self._first = [torch.zeros(size) for _ in count]
        self._second = [torch.zeros(size) for _ in count]
        self._counts = [torch.zeros(()) for _ in count]

    def _fetch(self, layer: int, slot: int) -> None:
        self._slots[slot].copy_(self.host_parameters[layer], non_blocking=True)

    def _forward(self, share: int, layer: int, slot: int) -> None:
        self._shares[share].forward(layer, *matrices(self._slots[slot], self.parameters.hidden))

    def _backward(self, share: int, layer: int, slot: int, gradient: int) -> None:
        hidden = self.parameters.hidden
        self._shares[share].backward(
            layer,
            *matrices(self._slots[slot], hidden),
            *matrices(self._partial_gradients[gradient][share], hidden),
        )

    def _offload(self, layer: int, gradient: int) -> None:
        total, *others = self._partial_gradients[gradient]
        for other in others:
            total.add_(other)
        self.host_gradients[layer].copy_(total, non_blocking=True)

    def _step(self) -> None:
        started = time.perf_counter_ns()
        adam(
            self.masters, [gradient.float() for gradient in self.host_gradients],
            self._first, self._second, [], self._counts, fused=True, amsgrad=False,
            beta1=_BETAS[0], beta2=_BETAS[1], lr=self.parameters.learning_rate, weight_decay=0.0,
            eps=_EPSILON, maximize=False,
        )  # fmt: skip
        if self.masters is not self.host_parameters:
            for master, sent in zip(self.masters, self.host_parameters, strict=True):
                sent.copy_(master)
        self._steps_ns += time.perf_counter_ns() - started
        self.steps += 1

    def _plain_adam(self) -> torch.optim.Adam:
        """Return torch's own optimiser, unfused, in the same state as the host's."""
        with torch.inference_mode(False):
            weights = [master.clone() for master in self.masters]
            plain = torch.optim.Adam(
                weights, lr=self.parameters.learning_rate, betas=_BETAS, eps=_EPSILON,
                foreach=False, fused=False,
            )  # fmt: skip
            states = zip(self._counts, self._first, self._second, strict=True)
            for each, (count, first, second) in zip(weights, states, strict=True):
                plain.state[each] = {
                    "step": count.clone(), "exp_avg": first.clone(), "exp_avg_sq": second.clone()
                }  # fmt: skip
            return plain

    def _plain_step(self, plain: torch.optim.Adam) -> Sequence[torch.Tensor]:
        """Do one training step; return each layer's gradient."""
        dtype, place = self._slots[0].dtype, self._slots[0].device
        weights = plain.param_groups[0]["params"]
        with torch.inference_mode(False), torch.enable_grad():
            layers = [each.to(place, dtype, copy=True).requires_grad_() for each in weights]
            outputs = torch.cat([share.inputs for share in self._shares])
            targets = torch.cat([share.targets for share in self._shares])
            for flat in layers:
                widen, narrow = matrices(flat, self.parameters.hidden)
                outputs = outputs + torch.relu(outputs @ widen) @ narrow
            loss = (outputs - targets).float().square().mean() / 2
            gradients = torch.autograd.grad(loss, layers)
            for each, gradient in zip(weights, gradients, strict=True):
                each.grad = gradient.float().cpu()
            plain.step()
            return gradients
