"""Regions compiled by torch.compile, one per stream, forked and joined stage by stage."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from types import FunctionType
from typing import Any, ClassVar, Literal, cast

import torch
from pydantic import Field
from torch.nn.functional import gelu, layer_norm

from pytest_hwqueue.data.errors import HwqError, NotApplicable
from pytest_hwqueue.parts.devices.protocol import Event, Stream
from pytest_hwqueue.parts.workloads.numerics import poison, require_close, set_precision
from pytest_hwqueue.parts.workloads.workload import (
    MatmulType,
    Parameters,
    PrimaryLatency,
    Setup,
    Where,
    Workload,
)

Region = Callable[..., torch.Tensor]

# Relative error of the norm against the same regions uncompiled: a fused kernel rounds to the
# format less often. A single product's error times a few stages.
_TOLERANCES = {"fp32": 1e-5, "tf32": 5e-3, "bf16": 3e-2, "fp16": 5e-3}
# What mode="reduce-overhead" stands for, but without "trees": those graphs share one pool of memory
# and rely on one stream's order, so that on several streams one would overwrite what another still
# uses. Without them each graph has a pool of its own.
_GRAPHS = {"triton.cudagraphs": True, "triton.cudagraph_trees": False}
# A compiler's message can hold all the code it was given.
_MOST_WORDS_OF_ERROR = 2000


class CompileParameters(Parameters):
    """How regions are compiled, and their sizes."""

    mode: Literal["eager", "default", "reduce-overhead"] = Field(
        "default",
        description="eager: not compiled; default: by torch.compile; reduce-overhead: by "
        "torch.compile, which also captures each region into a graph (accelerators only)",
    )
    stages: int = Field(3, ge=2, description="times that the streams fork and join; at least 2")
    hidden: int = Field(1024, ge=1, description="width between regions")
    inner: int = Field(4096, ge=1, description="width within a region")
    batch: int = Field(64, ge=1, description="samples in an iteration")
    dtype: MatmulType = Field("fp32", description="numeric format")


class TorchCompile(Workload, declared="torch_compile"):
    """In each stage, every stream runs its own region on the joined result of the previous stage.

    A region normalises, widens, applies GELU, narrows and adds its input. The first stream joins:
    it averages all results, also in a region. Regions return new tensors, as compiled functions do;
    a copy puts them where the joining stream reads them.
    """

    primary = PrimaryLatency("forward", "iteration", "all stages, each with its regions and join")
    parameters: CompileParameters
    sizes: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        # Eager: on a host the compiler takes 20 s for an iteration of 1 ms.
        "tiny": {"mode": "eager", "stages": 2, "hidden": 64, "inner": 128, "batch": 8},
        "small": {"stages": 2, "hidden": 256, "inner": 1024, "batch": 16},
        "full": {"stages": 3, "hidden": 1024, "inner": 4096, "batch": 64},
    }

    def __init__(self, parameters: CompileParameters) -> None:
        super().__init__(parameters)
        self._compiled: dict[str, float] = {}

    def require_applicable(self, where: Where) -> None:
        """Refuse modes whose code the device or a graph cannot run."""
        mode = self.parameters.mode
        if mode != "eager" and not where.capabilities.runs_kernels:
            raise NotApplicable(
                f"torch_compile: mode={mode} makes code for a real device, not for a simulated "
                "one; use mode=eager"
            )
        if mode != "reduce-overhead":
            return
        if not where.capabilities.graphs:
            raise NotApplicable(
                "torch_compile: mode=reduce-overhead captures graphs, and the CPU has none; use "
                "mode=default"
            )
        if where.dispatch == "graph":
            raise NotApplicable(
                "torch_compile: mode=reduce-overhead replays graphs of its own, which a graph "
                "cannot hold; use mode=default"
            )

    def setup(self, setup: Setup) -> None:
        """Make weights and buffers; compile all regions by running each once.

        Raises:
            HwqError: if torch.compile fails.
            NotApplicable: if the device cannot run the mode's code.

        """
        parameters, place = self.parameters, setup.device.torch_device
        self.require_applicable(setup.where)
        dtype, generator = set_precision(parameters.dtype), setup.generator()
        hidden, inner = parameters.hidden, parameters.inner

        def normal(*shape: int, deviation: float = 1.0) -> torch.Tensor:
            values = torch.randn(shape, generator=generator, device=place)
            return values.mul_(deviation).to(dtype)

        stages, streams = range(parameters.stages), range(setup.streams)
        self._weights = [
            [
                (
                    normal(hidden),
                    normal(hidden, inner, deviation=hidden**-0.5),
                    normal(inner, hidden, deviation=inner**-0.5),
                )
                for _ in streams
            ]
            for _ in stages
        ]
        self._inputs = normal(parameters.batch, hidden)
        # What each stage is given, and at the end the result.
        self.joined = [self._inputs, *(torch.empty_like(self._inputs) for _ in stages)]
        self._made = [self._inputs.new_empty((len(streams), *self._inputs.shape)) for _ in stages]
        self._compile(setup)

    def iterate(self, streams: Sequence[Stream]) -> None:
        """Enqueue each stage's regions, one per stream, and its join on the first."""
        joined: Event | None = None
        for stage in range(self.parameters.stages):
            ends = []
            for index, stream in enumerate(streams):
                # Also keeps the next iteration off what is still read: the first stream's joins
                # are in order, and behind a stage's join all its buffers have been read. The first
                # stage waits for nobody, but each stream has waited for its last join in the
                # second stage of the iteration before.
                if joined is not None:
                    stream.wait(joined)
                stream.launch(self._run_region, stage, index, tag="region")
                ends.append(stream.record())
            for end in ends[1:]:
                streams[0].wait(end)
            streams[0].launch(self._run_join, stage)
            joined = streams[0].record()

    def work_per_iteration(self) -> dict[str, float]:
        """Return the samples through all stages."""
        return {"samples": float(self.parameters.batch)}

    def measured_apart(self) -> dict[str, float]:
        """Return the seconds of compiling, and the number of graphs found in its cache."""
        return dict(self._compiled)

    def check(self, run_once: Callable[[], None]) -> None:
        """Compare each stage's result with the same functions, uncompiled, one after another."""
        poison(*self.joined[1:], *self._made)
        run_once()
        tolerance = _TOLERANCES[self.parameters.dtype]
        with torch.inference_mode():
            given = self._inputs
            for stage, weights in enumerate(self._weights):
                made = torch.stack([_region(given, *of_stream) for of_stream in weights])
                given = _join(made)
                require_close(f"stage {stage}", self.joined[stage + 1], given, tolerance)

    def _compile(self, setup: Setup) -> None:
        mode = self.parameters.mode
        if mode == "eager":
            self._regions = [[cast(Region, _region)] * setup.streams for _ in self._weights]
            self._joins = [cast(Region, _join)] * len(self._weights)
            return
        started = time.perf_counter()
        from torch._dynamo import mark_static_address
        from torch._dynamo.utils import counters

        hits = counters["inductor"]["fxgraph_cache_hit"]
        if mode == "default":
            region, join = _compiled(_region, {}), _compiled(_join, {})
            self._regions = [[region] * setup.streams for _ in self._weights]
            self._joins = [join for _ in self._weights]
        else:
            # A captured graph belongs to one region: code shared by all would share it too.
            self._regions = [
                [_compiled(_region, _GRAPHS) for _ in of_stage] for of_stage in self._weights
            ]
            self._joins = [_compiled(_join, _GRAPHS) for _ in self._weights]
            weights = [each for of_stage in self._weights for each in of_stage]
            for buffer in (*sum(weights, ()), *self.joined, *self._made):
                # Or each replay would copy it into the graph's own.
                mark_static_address(buffer, guard=False)
        try:
            # Warnings about torch's own modules, which it imports only now, are not the user's,
            # and that fp32 is no TF32 is what was asked for.
            with warnings.catch_warnings(), torch.inference_mode():
                warnings.simplefilter("ignore", DeprecationWarning)
                warnings.filterwarnings("ignore", message="TensorFloat32 tensor cores")
                for stage in range(len(self._weights)):
                    for index in range(setup.streams):
                        self._run_region(stage, index)
                    self._run_join(stage)
        except Exception as error:  # whatever the compiler raises fails the cell, with its words
            text = str(error).strip()[:_MOST_WORDS_OF_ERROR]
            raise HwqError(
                f"mode={mode}: torch.compile failed: {type(error).__name__}: {text}"
            ) from error
        self._compiled = {
            "compile_s": time.perf_counter() - started,
            "graphs_from_cache": float(counters["inductor"]["fxgraph_cache_hit"] - hits),
        }

    def _run_region(self, stage: int, index: int) -> None:
        region = self._regions[stage][index]
        made = region(self.joined[stage], *self._weights[stage][index])
        self._made[stage][index].copy_(made)

    def _run_join(self, stage: int) -> None:
        self.joined[stage + 1].copy_(self._joins[stage](self._made[stage]))


def _region(
    given: torch.Tensor, gain: torch.Tensor, widen: torch.Tensor, narrow: torch.Tensor
) -> torch.Tensor:
    normal = layer_norm(given, given.shape[-1:], gain)
    return given + gelu(normal @ widen) @ narrow


def _join(made: torch.Tensor) -> torch.Tensor:
    mean = made.mean(0)
    return layer_norm(mean, mean.shape[-1:])


def _compiled(function: Callable[..., torch.Tensor], options: dict[str, Any]) -> Region:
    """Compile a copy of a function: torch keeps what it compiled with a function's code.

    So every cell compiles, and none runs into the limit on versions of one code.
    """
    assert isinstance(function, FunctionType)
    code = function.__code__.replace(co_name=f"compiled{function.__name__}")
    own = FunctionType(code, function.__globals__)
    # A graph break would leave part of a region uncompiled: it is a failure.
    return cast(Region, torch.compile(own, fullgraph=True, dynamic=False, options=options))
