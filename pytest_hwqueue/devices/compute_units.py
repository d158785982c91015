"""AMD's counterpart of green contexts: streams with a mask of the compute units they may use.

Written against the HIP API reference ("hipExtStreamCreateWithCUMask", "hipExtStreamGetCUMask");
not run on AMD hardware.
"""

from __future__ import annotations

import ctypes
from itertools import accumulate

from pytest_hwqueue.devices.partitions import GroupEvidence, Partition
from pytest_hwqueue.devices.runtime import Runtime
from pytest_hwqueue.errors import DeviceError

_BITS = 32
# As many as a mask may have; a word beyond the GPU's units is 0.
_MOST_UNITS = 1024


def create_masked_stream(runtime: Runtime, partition: Partition, units: int) -> int:
    """Create a stream on its group of the compute units; return its handle.

    HIP has no call that also takes a priority or the flag for non-blocking: such a stream has
    normal priority, and waits for work on the default stream.

    Args:
        runtime: HIP's.
        partition: the groups follow one another in the order of the units' numbers.
        units: how many compute units the GPU has.

    Raises:
        DeviceError: if there are too few.

    """
    begins = [0, *accumulate(partition.split)]
    begin = begins[partition.group]
    end = begins[partition.group + 1] if partition.group < len(partition.split) else units
    if begins[-1] > units or begin >= end:
        raise DeviceError(
            f"{begins[-1]} compute units asked for, and the GPU has {units}"
            + (", which leaves none for the others" if begins[-1] == units else "")
        )
    mask = (1 << end) - (1 << begin)
    words = -(-units // _BITS)
    array = (ctypes.c_uint32 * words)(
        *((mask >> (_BITS * word)) & (2**_BITS - 1) for word in range(words))
    )
    handle = ctypes.c_void_p()
    runtime.call("ExtStreamCreateWithCUMask", ctypes.byref(handle), ctypes.c_uint32(words), array)
    if not handle.value:
        raise DeviceError("hipExtStreamCreateWithCUMask returned no stream")
    return handle.value


def group_of(runtime: Runtime, handle: int) -> GroupEvidence:
    """Read a stream's mask back: the numbers of the units that it may use."""
    words = _MOST_UNITS // _BITS
    array = (ctypes.c_uint32 * words)()
    runtime.call("ExtStreamGetCUMask", ctypes.c_void_p(handle), ctypes.c_uint32(words), array)
    numbers = [bit for bit in range(_MOST_UNITS) if array[bit // _BITS] >> (bit % _BITS) & 1]
    return GroupEvidence(len(numbers), numbers)
