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
