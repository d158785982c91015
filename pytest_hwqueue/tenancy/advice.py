"""What to try when a tenant dies with a known message."""

from __future__ import annotations

import re

_KNOWN = (
    (
        r"invalid device ordinal",
        "two copies of the GPU's runtime may be loaded, or the device is hidden: let the "
        "scheduler use the library that torch itself loads, and make one device visible with "
        "CUDA_VISIBLE_DEVICES or HIP_VISIBLE_DEVICES",
    ),
    (
        r"miopenStatusUnknownError",
        "MIOpen failed below the scheduler: see its reason with MIOPEN_ENABLE_LOGGING=1 and "
        "MIOPEN_LOG_LEVEL=6, and run kernels one by one with AMD_SERIALIZE_KERNEL=3",
    ),
    (
        r"undefined symbol|fail to get symbol",
        "the scheduler's library and the driver or runtime do not fit: build it against the "
        "version that torch uses, and name the real library in the scheduler's settings",
    ),
    (
        r"cannot be preloaded|wrong ELF class|cannot open shared object",
        "the loader did not take a library: look at its path, and that it is built for this "
        "architecture (file LIBRARY, ldd LIBRARY)",
    ),
    (
        r"failed to send event to server",
        "xserver is not there, or ended while the tenants ran: see its log next to this record",
    ),
    (
        r"out of memory|can't allocate memory|MemoryError",
        "all tenants share the device's memory: use a smaller batch, or fewer tenants",
    ),
    (
        r"(CUDA|HIP) error|device-side assert|illegal memory access",
        "run kernels one by one to see which fails: CUDA_LAUNCH_BLOCKING=1, or "
        "AMD_SERIALIZE_KERNEL=3 on ROCm",
    ),
)  # fmt: skip


def advice(text: str) -> str:
    """Return what to try for the first known message in ``text``; empty if none is known."""
    for pattern, what in _KNOWN:
        if re.search(pattern, text, re.IGNORECASE):
            return what
    return ""


def with_advice(reason: str, output: str) -> str:
    """Return a reason with what to try, if it or the process's last output is a known message."""
    what = advice(f"{reason}\n{output}")
    return f"{reason}. Try: {what}" if what else reason
