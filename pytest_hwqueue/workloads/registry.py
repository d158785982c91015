"""The workloads that there are.

A session that only selects, counts and refuses tests imports no workload, and so no torch:
`workload_class` imports a workload's module in the process that runs it.
"""

from __future__ import annotations

import importlib
from collections.abc import Container, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pytest_hwqueue.devices.kinds import capabilities_of
from pytest_hwqueue.errors import BadInput
from pytest_hwqueue.extensions import Registry, origin

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

    from pytest_hwqueue.workloads.workload import Workload


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
        collective: whether it runs collectives, on ranks started for it.
        no_graph: why an iteration cannot be captured as a graph; empty if it can.

    """

    name: str
    family: str
    mark: str
    stream_range: StreamRange
    place: str
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


_PACKAGE = "pytest_hwqueue.workloads"

_DECLARED = (
    Declaration("hetero_kernels", "latency_sensitive", "P0", StreamRange(2, 8, 128),
                f"{_PACKAGE}.latency_sensitive.hetero_kernels:HeteroKernels"),
    Declaration("tiny_kernel_stress", "latency_sensitive", "P0", StreamRange(1, 16, 128),
                f"{_PACKAGE}.latency_sensitive.tiny_kernel_stress:TinyKernelStress"),
    Declaration("large_gemm_only", "latency_sensitive", "P0", StreamRange(1, 4, 32),
                f"{_PACKAGE}.latency_sensitive.large_gemm_only:LargeGemmOnly"),
    Declaration("llm_decode", "inference", "P1", StreamRange(1, 1, 16),
                f"{_PACKAGE}.inference.llm_decode:LlmDecode"),
    Declaration("speculative_decode", "inference", "P1", StreamRange(2, 6, 16),
                f"{_PACKAGE}.inference.speculative_decode:SpeculativeDecode"),
    Declaration("continuous_batch", "inference", "P1", StreamRange(3, 8, 32),
                f"{_PACKAGE}.inference.continuous_batch:ContinuousBatch"),
    Declaration("rag_pipeline", "inference", "P2", StreamRange(4, 8, 32),
                f"{_PACKAGE}.inference.rag_pipeline:RagPipeline"),
    Declaration("graph_subgraphs", "latency_sensitive", "P2", StreamRange(2, 8, 64),
                f"{_PACKAGE}.latency_sensitive.graph_subgraphs:GraphSubgraphs"),
    Declaration("comms_compute_overlap", "distributed", "P1", StreamRange(2, 4, 32),
                f"{_PACKAGE}.distributed.comms_compute_overlap:CommsComputeOverlap",
                collective=True),
    Declaration("activation_ckpt", "distributed", "P2", StreamRange(2, 6, 16),
                f"{_PACKAGE}.distributed.activation_ckpt:ActivationCheckpoint"),
    Declaration("fsdp_tp", "distributed", "P1", StreamRange(3, 10, 16),
                f"{_PACKAGE}.distributed.fsdp_tp:FsdpTensorParallel", collective=True,
                no_graph="FSDP allocates and frees parameters from Python in every step, which a "
                "graph would not repeat"),
    Declaration("moe", "distributed", "P1", StreamRange(4, 16, 33),
                f"{_PACKAGE}.distributed.moe:MixtureOfExperts", collective=True),
    Declaration("grad_accum", "distributed", "P2", StreamRange(2, 6, 16),
                f"{_PACKAGE}.distributed.grad_accum:GradientAccumulation", collective=True),
    Declaration("async_dataload", "pipeline", "P3", StreamRange(3, 6, 12),
                f"{_PACKAGE}.pipeline.async_dataload:AsyncDataload"),
    Declaration("zero_offload", "pipeline", "P3", StreamRange(3, 6, 12),
                f"{_PACKAGE}.pipeline.zero_offload:ZeroOffload",
                no_graph="its optimiser's step is a function of the host, whose capture has not "
                "been tried on a GPU"),
    Declaration("torch_compile", "pipeline", "P3", StreamRange(2, 8, 16),
                f"{_PACKAGE}.pipeline.torch_compile:TorchCompile",
                no_graph="its parameter `mode` decides: reduce-overhead captures each region into "
                "a graph"),
)  # fmt: skip


def _adopt(point: EntryPoint, found: Any) -> Declaration:
    """Return the declaration that another package's class makes."""
    from pytest_hwqueue.workloads.workload import Workload

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
    return Declaration(
        name=found.name,
        family=found.family,
        mark=found.mark,
        stream_range=found.stream_range,
        place=point.value,
        collective=found.collective,
        no_graph=found.no_graph,
    )


# A package adds one by the entry point ``NAME = "module:Class"``.
WORKLOADS = Registry("pytest_hwqueue.workloads", {each.name: each for each in _DECLARED}, _adopt)


def declaration(name: str) -> Declaration:
    """Return the declaration of the workload called ``name``, importing no built-in workload.

    Raises:
        BadInput: listing the existing names, or if the package that adds it cannot be used.

    """
    if name not in WORKLOADS:
        raise BadInput(f"no workload {name!r}; there are {', '.join(WORKLOADS)}")
    return WORKLOADS[name]


def ahead(
    names: Iterable[str] = (), marks: Container[str] = (), device: str = ""
) -> list[tuple[str, str]]:
    """Return what a fork server must import ahead so that these workloads start quickly.

    Args:
        names: of workloads; those that are not built in are ignored.
        marks: also select workloads with one of these marks, unless there are names.
        device: what to measure; empty if unknown. If its tensors have no values they are fake, and
            on an accelerator there is a profiler: torch imports its compiler for both.

    """
    wanted = list(names) or [each.name for each in _DECLARED if each.mark in marks]
    found = [(f"{__name__}:workload_class", name) for name in wanted if name in WORKLOADS.built_in]
    able = capabilities_of(device)
    if not able.has_values:
        found.append(("importlib:import_module", "torch._dynamo"))
    elif device and not able.host:
        found.append(("pytest_hwqueue.devices.kernel_trace:import_compiler", device))
    return found


def workload_class(name: str) -> type[Workload]:
    """Import and return the workload called ``name``.

    Raises:
        BadInput: listing the existing names.

    """
    module, _, attribute = declaration(name).place.partition(":")
    found: type[Workload] = getattr(importlib.import_module(module), attribute)
    return found
