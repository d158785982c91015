"""The few calls of the CUDA or HIP runtime that torch does not offer."""

from __future__ import annotations

import ctypes

from pytest_hwqueue.errors import DeviceError

# cudaStreamNonBlocking and hipStreamNonBlocking: no implicit order against the default stream.
_NON_BLOCKING = 1


class Runtime:
    """Calls of the library that torch has loaded.

    A second HIP runtime in the process would fail with "invalid device ordinal".
    """

    def __init__(self, hip: bool) -> None:
        self._prefix = "hip" if hip else "cuda"
        stem = "libamdhip64" if hip else "libcudart"
        self._library = ctypes.CDLL(loaded_library(stem))
        least, greatest = ctypes.c_int(), ctypes.c_int()
        self.call("DeviceGetStreamPriorityRange", ctypes.byref(least), ctypes.byref(greatest))
        self.least_priority, self.greatest_priority = least.value, greatest.value

    def create_stream(self, priority: int) -> int:
        """Create a stream; 0 is normal, larger is more urgent, clamped to the device's range."""
        handle = ctypes.c_void_p()
        self.call(
            "StreamCreateWithPriority",
            ctypes.byref(handle),
            ctypes.c_uint(_NON_BLOCKING),
            ctypes.c_int(self.device_priority(priority)),
        )
        if not handle.value:
            raise DeviceError(f"{self._prefix}StreamCreateWithPriority returned no stream")
        return handle.value

    def device_priority(self, priority: int) -> int:
        """Convert a priority (larger is more urgent) to the device's numbers, clamped."""
        # The runtime counts the other way: numerically lower is more urgent.
        return max(self.greatest_priority, min(self.least_priority, -priority))

    def stream_priority(self, handle: int) -> int:
        """Read a stream's priority back, in the device's own numbers."""
        priority = ctypes.c_int()
        self.call("StreamGetPriority", ctypes.c_void_p(handle), ctypes.byref(priority))
        return priority.value

    def call(self, name: str, *arguments: object) -> None:
        """Call a function by its name without ``cuda`` or ``hip``; DeviceError if it fails."""
        status = getattr(self._library, self._prefix + name)(*arguments)
        if status != 0:
            describe = getattr(self._library, f"{self._prefix}GetErrorString")
            describe.restype = ctypes.c_char_p
            text = describe(status).decode()
            raise DeviceError(f"{self._prefix}{name} failed with error {status}: {text}")


def loaded_library(stem: str) -> str:
    """Return the path of the shared library that this process has already loaded.

    Raises:
        DeviceError: if there is none of that name.

    """
    with open("/proc/self/maps", encoding="utf-8") as lines:
        for line in lines:
            path = line.rstrip("\n").partition("/")
            name = path[2].rpartition("/")[2]
            if name.startswith(stem):
                return "/" + path[2]
    raise DeviceError(
        f"torch has loaded no {stem}: its runtime is linked in, and streams cannot be created "
        "through it; install a torch build that uses the shared runtime"
    )
