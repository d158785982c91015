"""The workloads by name. A name imports its module only when it is asked for."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pytest_hwqueue.workloads.protocol import Workload

_PACKAGE = "pytest_hwqueue.workloads"

WORKLOADS: dict[str, str] = {
    "hetero_kernels": f"{_PACKAGE}.latency_sensitive.hetero_kernels:HeteroKernels",
    "tiny_kernel_stress": f"{_PACKAGE}.latency_sensitive.tiny_kernel_stress:TinyKernelStress",
    "large_gemm_only": f"{_PACKAGE}.latency_sensitive.large_gemm_only:LargeGemmOnly",
    "llm_decode": f"{_PACKAGE}.inference.llm_decode:LlmDecode",
    "speculative_decode": f"{_PACKAGE}.inference.speculative_decode:SpeculativeDecode",
    "continuous_batch": f"{_PACKAGE}.inference.continuous_batch:ContinuousBatch",
    "rag_pipeline": f"{_PACKAGE}.inference.rag_pipeline:RagPipeline",
    "graph_subgraphs": f"{_PACKAGE}.latency_sensitive.graph_subgraphs:GraphSubgraphs",
    "comms_compute_overlap": (f"{_PACKAGE}.distributed.comms_compute_overlap:CommsComputeOverlap"),
    "activation_ckpt": f"{_PACKAGE}.distributed.activation_ckpt:ActivationCheckpoint",
    "fsdp_tp": f"{_PACKAGE}.distributed.fsdp_tp:FsdpTensorParallel",
    "moe": f"{_PACKAGE}.distributed.moe:MixtureOfExperts",
    "grad_accum": f"{_PACKAGE}.distributed.grad_accum:GradientAccumulation",
    "async_dataload": f"{_PACKAGE}.pipeline.async_dataload:AsyncDataload",
    "zero_offload": f"{_PACKAGE}.pipeline.zero_offload:ZeroOffload",
    "torch_compile": f"{_PACKAGE}.pipeline.torch_compile:TorchCompile",
}


class UnknownWorkload(ValueError):
    """No workload has this name; the text lists those there are."""


def workload_class(name: str) -> type[Workload]:
    """Import and return the workload called ``name``.

    Raises:
        UnknownWorkload: listing the names there are.

    """
    if name not in WORKLOADS:
        raise UnknownWorkload(f"no workload {name!r}; there are {', '.join(WORKLOADS)}")
    module, _, attribute = WORKLOADS[name].partition(":")
    found: type[Workload] = getattr(importlib.import_module(module), attribute)
    return found
