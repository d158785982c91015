"""Names of a fingerprint's fields in which two processes on one device may differ."""

from __future__ import annotations

from collections.abc import Mapping

PRECISION = ("fp32_product", "fp32_product_if_tf32_allowed", "fp32_convolution")
"""Fields of what float32 arithmetic is really done in."""

# Variables of which nothing tells the effect; by the kinds of devices they concern.
_OF_TORCH = ("PYTORCH_ALLOC_CONF", "PYTORCH_NO_CUDA_MEMORY_CACHING", "PYTORCH_TUNABLEOP_ENABLED")

SETTINGS: Mapping[str, tuple[str, ...]] = {
    "cpu": (),
    "cuda": (
        *_OF_TORCH, "PYTORCH_CUDA_ALLOC_CONF", "CUBLAS_WORKSPACE_CONFIG", "CUBLASLT_WORKSPACE_SIZE",
    ),
    "hip": (
        *_OF_TORCH, "PYTORCH_HIP_ALLOC_CONF", "HIPBLASLT_WORKSPACE_SIZE", "MIOPEN_FIND_ENFORCE",
        "MIOPEN_FIND_MODE",
    ),
}  # fmt: skip

# Families of variables, too many to name: those that are set are one field.
FAMILIES: Mapping[str, tuple[str, ...]] = {
    "nccl_variables": ("NCCL_", "TORCH_NCCL_"),
    "xsched_variables": ("XSCHED_", "XLOG_"),
}

SETTING_FIELDS = (
    *(f"environment.{name}" for names in SETTINGS.values() for name in names),
    *FAMILIES,
    "allocator",
    "torch_switches",
)
"""Fields of settings: what a user may vary on purpose."""

_IDENTITY = (
    *PRECISION, "default_dtype", "reduced_precision", "preload", "tracers", "mps_client",
    "module_loading", "interpreter_lock",
)  # fmt: skip

VERSION_FIELDS = (
    "cublas_version", "cudnn_version", "miopen_version", "nccl_version", "torchvision_version",
    "transformers_version", "triton_version",
)  # fmt: skip
"""Fields of the versions of libraries that work on the device."""

_OF_PROCESS = frozenset({*_IDENTITY, *SETTING_FIELDS, *VERSION_FIELDS, "preload_ignored"})

_EFFECTS: Mapping[str, tuple[str, ...]] = {
    "NVIDIA_TF32_OVERRIDE": PRECISION,
    "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE": PRECISION,
    "HIPBLASLT_ALLOW_TF32": PRECISION,
    "LD_PRELOAD": ("preload",),
    "CUDA_MODULE_LOADING": ("module_loading",),
    "PYTHON_GIL": ("interpreter_lock",),
    "CUDA_MPS_PIPE_DIRECTORY": ("mps_client",),
    "PYTORCH_CUDA_ALLOC_CONF": ("allocator",),
    "PYTORCH_ALLOC_CONF": ("allocator",),
}


def fields_of_variable(name: str) -> tuple[str, ...]:
    """Return the fields in which processes differ if a user sets an environment variable."""
    families = [each for each, prefixes in FAMILIES.items() if name.startswith(prefixes)]
    return (f"environment.{name}", *families, *_EFFECTS.get(name, ()))


def is_of_process(field: str) -> bool:
    """Whether two processes that use one device may differ in a field."""
    return field in _OF_PROCESS or field.startswith("environment.")


def is_of_mode(field: str) -> bool:
    """Whether tenants of two modes may differ in a field, since a mode sets up their processes.

    A partition of MPS and a green context leave a process some of the multiprocessors.
    """
    return field == "multiprocessor_count" or is_of_process(field)
