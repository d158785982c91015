"""The workloads that there are.

A session that only selects, counts and refuses tests imports no workload, and so no torch:
`workload_class` imports a workload's module in the process that runs it.
"""

from __future__ import annotations

import importlib
from collections.abc import Container, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pytest_hwqueue.data.errors import BadInput, nearest
from pytest_hwqueue.data.extensions import Registry, origin
from pytest_hwqueue.data.records.kinds import capabilities_of

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

    from pytest_hwqueue.parts.workloads.workload import Workload


@dataclass(frozen=True)
class StreamRange:
    """How many streams a workload can use; every stream it is given gets work."""

    least: int
    recommended: int
    most: int


@dataclass(frozen=True)
class Declaration:
    """What is known about a workload without importing it.

    Attributes:
        name: as users request it.
        family: the table that lists it.
        mark: its priority, as a pytest mark.
        stream_range: how many streams it can use.
        place: its class, as ``module:Class``.
        description: what it runs, or shows, in a line.
        units: of its work, the headline first; each is counted per second.
        tags: of its launches.
        collective: whether it runs collectives, on ranks started for it.
        no_graph: why an iteration cannot be captured as a graph; empty if it can.

    """

    name: str
    family: str
    mark: str
    stream_range: StreamRange
    place: str
    description: str
    units: tuple[str, ...]
    tags: tuple[str, ...] = ()
    collective: bool = False
    no_graph: str = ""

    def streams_refusal(self, streams: int) -> str | None:
        """Return why it cannot use so many streams, or None."""
        least, most = self.stream_range.least, self.stream_range.most
        if least <= streams <= most:
            return None
        return f"{self.name} takes {least} to {most} streams (--hwq-streams={streams})"

    def graph_refusal(self, ranks: int) -> str:
        """Return why dispatch `auto` does not capture for this many ranks; empty if it does."""
        if self.no_graph or ranks == 1 or not self.collective:
            return self.no_graph
        return f"capturing the collectives of {ranks} ranks into a graph has not been tried"


def _built_in(
    name: str, family: str, mark: str, streams: tuple[int, int, int], of_class: str,
    description: str, **more: Any,
) -> Declaration:  # fmt: skip
    place = f"pytest_hwqueue.parts.workloads.{family}.{name}:{of_class}"
    return Declaration(name, family, mark, StreamRange(*streams), place, description, **more)


# What a workload's class has too: a built-in one takes it from here, another package's gives it.
OF_CLASS = (
    "name", "family", "mark", "stream_range", "description", "units", "tags", "collective",
    "no_graph",
)  # fmt: skip
_DECLARED = (
    _built_in("hetero_kernels", "latency_sensitive", "P0", (2, 8, 128), "HeteroKernels",
              "small kernels' latency while large matrix products run (the convoy)",
              units=("small kernels", "TFLOP"), tags=("small", "large")),
    _built_in("tiny_kernel_stress", "latency_sensitive", "P0", (1, 16, 128), "TinyKernelStress",
              "rate of tiny kernels; eager: bounded by Python, graph: by the hardware queues",
              units=("kernels",), tags=("burst",)),
    _built_in("launch_contention", "latency_sensitive", "P1", (1, 16, 128), "LaunchContention",
              "launching calls from a thread, or a process, for each stream at once",
              units=("launches",)),
    _built_in("large_gemm_only", "latency_sensitive", "P0", (1, 4, 32), "LargeGemmOnly",
              "one large matrix product per stream (the throughput reference)",
              units=("TFLOP",), tags=("product",)),
    _built_in("llm_decode", "inference", "P1", (1, 1, 16), "LlmDecode",
              "greedy decoding of Qwen3 with a KV cache at batch 1, a sequence per stream",
              units=("tokens",), tags=("token", "first_token")),
    _built_in("speculative_decode", "inference", "P1", (2, 6, 16), "SpeculativeDecode",
              "a draft model proposes tokens, a large one verifies them in one pass",
              units=("accepted tokens", "verifications"), tags=("draft", "verify")),
    _built_in("continuous_batch", "inference", "P1", (3, 8, 32), "ContinuousBatch",
              "requests prefilled in a steady stream, alongside running batches that they join",
              units=("tokens",), tags=("prefill", "decode")),
    _built_in("rag_pipeline", "inference", "P2", (4, 8, 32), "RagPipeline",
              "embed, retrieve, rerank and generate, several queries in flight",
              units=("queries",), tags=("embed", "retrieve", "rerank", "generate")),
    _built_in("graph_subgraphs", "latency_sensitive", "P2", (2, 8, 64), "GraphSubgraphs",
              "independent MLP subgraphs that a merge stream concatenates and projects",
              units=("samples",), tags=("subgraph", "merge")),
    _built_in("occupy", "latency_sensitive", "P2", (1, 4, 128), "Occupy",
              "kernels of a given length, blocks and number, to keep a device occupied",
              units=("kernels",), tags=("burst",)),
    _built_in("stress", "latency_sensitive", "P2", (1, 2, 32), "Stress",
              "one resource at its limit: multiprocessors, blocks, l2, memory, copies, launches",
              units=("operations",), tags=("burst",)),
    _built_in("comms_compute_overlap", "distributed", "P1", (2, 4, 32), "CommsComputeOverlap",
              "matrix products alongside collectives: how much communication is hidden",
              units=("TFLOP", "GB of one rank's bus traffic"), tags=("compute", "comm"),
              collective=True),
    _built_in("activation_ckpt", "distributed", "P2", (2, 6, 16), "ActivationCheckpoint",
              "training step that recomputes activations alongside the backward",
              units=("samples",), tags=("forward", "recompute", "backward")),
    _built_in("fsdp_tp", "distributed", "P1", (3, 10, 16), "FsdpTensorParallel",
              "training steps whose blocks are gathered and reduced alongside the computation",
              units=("samples",), tags=("all_gather", "compute", "reduce"), collective=True,
              no_graph="FSDP allocates and frees parameters from Python in every step, which a "
              "graph would not repeat"),
    _built_in("moe", "distributed", "P1", (4, 16, 33), "MixtureOfExperts",
              "tokens that a gate routes to experts on separate streams, across all ranks",
              units=("tokens",), tags=("gate", "expert", "combine"), collective=True),
    _built_in("grad_accum", "distributed", "P2", (2, 6, 16), "GradientAccumulation",
              "microbatches' gradients reduced in buckets while later microbatches run",
              units=("samples",), tags=("forward", "backward", "reduce"),
              collective=True),
    _built_in("copy_engines", "pipeline", "P3", (1, 4, 16), "CopyEngines",
              "copies to the device, within it and back, on few copy engines",
              units=("GB",), tags=("to_device", "within", "to_host")),
    _built_in("async_dataload", "pipeline", "P3", (3, 6, 12), "AsyncDataload",
              "batches copied from pinned memory, preprocessed and classified, double-buffered",
              units=("images",), tags=("copy", "preprocess", "compute")),
    _built_in("zero_offload", "pipeline", "P3", (3, 6, 12), "ZeroOffload",
              "training with parameters and optimiser on the host, layers fetched ahead",
              units=("samples", "optimiser steps"), tags=("prefetch", "compute", "offload"),
              no_graph="its optimiser's step is a function of the host, whose capture has not "
              "been tried on a GPU"),
    _built_in("torch_compile", "pipeline", "P3", (2, 8, 16), "TorchCompile",
              "regions compiled by torch.compile on different streams, forked and joined",
              units=("samples",), tags=("region",),
              no_graph="its parameter `mode` decides: reduce-overhead captures each region into "
              "a graph"),
)  # fmt: skip


def _adopt(point: EntryPoint, found: Any) -> Declaration:
    """Return the declaration that another package's class makes."""
    from pytest_hwqueue.parts.workloads.workload import Workload

    if not (isinstance(found, type) and issubclass(found, Workload)):
        raise BadInput(f"{origin(point)} names {found!r}, which is no class of a Workload")
    lacking = [name for name in Workload.__annotations__ if not hasattr(found, name)]
    if lacking:
        raise BadInput(f"{origin(point)} names a workload without {', '.join(lacking)}")
    marks = sorted({each.mark for each in _DECLARED})
    if found.mark not in marks:
        raise BadInput(f"{origin(point)}: its mark is {found.mark!r}, not {', '.join(marks)}")
    if found.name != point.name:
        raise BadInput(f"{origin(point)} names a workload whose name is {found.name!r}")
    return Declaration(place=point.value, **{each: getattr(found, each) for each in OF_CLASS})


# A package adds one by the entry point ``NAME = "module:Class"``.
WORKLOADS = Registry("pytest_hwqueue.workloads", {each.name: each for each in _DECLARED}, _adopt)


def declaration(name: str) -> Declaration:
    """Return the declaration of the workload called ``name``, importing no built-in workload.

    Raises:
        BadInput: listing the existing names, or if the package that adds it cannot be used.

    """
    if name not in WORKLOADS:
        raise BadInput(f"no workload {name!r}; {nearest(name, WORKLOADS)}")
    return WORKLOADS[name]


def ahead(
    names: Iterable[str] = (), marks: Container[str] = (), device: str = ""
) -> list[tuple[str, str]]:
    """Return what a fork server must import ahead so that these workloads start quickly.

    Args:
        names: of workloads; those that are not built in are ignored.
        marks: also select workloads with one of these marks, unless there are names.
        device: what to measure; empty if unknown. If its tensors have no values they are fake:
            torch imports its compiler for them, and each operation is slow the first time.

    """
    wanted = list(names) or [each.name for each in _DECLARED if each.mark in marks]
    found = [(f"{__name__}:workload_class", name) for name in wanted if name in WORKLOADS.built_in]
    if not capabilities_of(device).has_values:
        found.append(("pytest_hwqueue.parts.devices.simulated.device:prepare", device))
    return found


def workload_class(name: str) -> type[Workload]:
    """Import and return the workload called ``name``.

    Raises:
        BadInput: listing the existing names.

    """
    module, _, attribute = declaration(name).place.partition(":")
    found: type[Workload] = getattr(importlib.import_module(module), attribute)
    return found
