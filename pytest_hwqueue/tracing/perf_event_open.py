"""The system call perf_event_open(2), by ctypes: its arguments and the ring it writes into.

Layouts and numbers are those of the kernel's interface, include/uapi/linux/perf_event.h, which
never change; the words are those of perf_event_open(2).
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import mmap
import os
import platform
import struct
import sys

# Numbers of the system call: arch/x86/entry/syscalls/syscall_64.tbl and, for newer machines,
# include/uapi/asm-generic/unistd.h.
_SYSTEM_CALL = {"x86_64": 298, "aarch64": 241, "riscv64": 241, "ppc64le": 319, "s390x": 331}

TYPE_SOFTWARE = 1
TYPE_TRACEPOINT = 2
SOFTWARE_DUMMY = 9
SAMPLE_TID = 1 << 1
SAMPLE_TIME = 1 << 2
SAMPLE_CPU = 1 << 7
SAMPLE_RAW = 1 << 10
RECORD_LOST = 2
RECORD_SAMPLE = 9
RECORD_SWITCH = 14
MISC_SWITCH_OUT = 1 << 13
MISC_SWITCH_OUT_PREEMPT = 1 << 14
CLOCK_MONOTONIC = 1

_FLAG_CLOSE_ON_EXEC = 8
# _IO('$', 0), _IO('$', 1), _IO('$', 5) and _IOW('$', 6, char *).
_IOCTL_ENABLE = 0x2400
_IOCTL_DISABLE = 0x2401
_IOCTL_SET_OUTPUT = 0x2405
_IOCTL_SET_FILTER = 0x40082406

# Where struct perf_event_mmap_page, the first page of a ring, keeps its u64 data_head, data_tail.
_DATA_HEAD = 1024
_DATA_TAIL = 1032
_PAGE = mmap.PAGESIZE
# More than any record of the events opened here takes.
_LARGEST_RECORD_BYTES = 512


class Attributes(ctypes.Structure):
    """The first 112 bytes of struct perf_event_attr (PERF_ATTR_SIZE_VER5, Linux 4.1).

    The kernel takes every size it has ever known.
    """

    _fields_ = (
        ("type", ctypes.c_uint32),
        ("size", ctypes.c_uint32),
        ("config", ctypes.c_uint64),
        ("sample_period", ctypes.c_uint64),
        ("sample_type", ctypes.c_uint64),
        ("read_format", ctypes.c_uint64),
        ("flags", ctypes.c_uint64),
        ("wakeup_watermark", ctypes.c_uint32),
        ("bp_type", ctypes.c_uint32),
        ("config1", ctypes.c_uint64),
        ("config2", ctypes.c_uint64),
        ("branch_sample_type", ctypes.c_uint64),
        ("sample_regs_user", ctypes.c_uint64),
        ("sample_stack_user", ctypes.c_uint32),
        ("clockid", ctypes.c_int32),
        ("sample_regs_intr", ctypes.c_uint64),
        ("aux_watermark", ctypes.c_uint32),
        ("sample_max_stack", ctypes.c_uint16),
        ("reserved_2", ctypes.c_uint16),
    )


# Bits of ``flags``, in the order of the bit fields of struct perf_event_attr.
DISABLED = 1 << 0
INHERIT = 1 << 1
EXCLUDE_KERNEL = 1 << 5
EXCLUDE_HYPERVISOR = 1 << 6
WATERMARK = 1 << 14
SAMPLE_ID_ALL = 1 << 18
USE_CLOCKID = 1 << 25
CONTEXT_SWITCH = 1 << 26


def open_event(attributes: Attributes, tid: int, cpu: int) -> int:
    """Open an event of one thread on one CPU; return its file descriptor, closed on exec.

    Args:
        attributes: without their ``size``, which is filled in.
        tid: the thread; 0 is the calling one, -1 is every process on the CPU.
        cpu: number of the CPU.

    Raises:
        OSError: with the kernel's errno: EACCES or EPERM without permission, ENOSYS if the call
            does not exist or is filtered out, EMFILE with too few file descriptors.

    """
    number = _SYSTEM_CALL.get(platform.machine())
    if number is None or sys.platform != "linux":
        raise OSError(
            errno.ENOSYS,
            f"no number of perf_event_open is known for {sys.platform} on {platform.machine()}",
        )
    attributes.size = ctypes.sizeof(attributes)
    library = ctypes.CDLL(None, use_errno=True)
    library.syscall.restype = ctypes.c_long
    descriptor = library.syscall(
        ctypes.c_long(number),
        ctypes.byref(attributes),
        ctypes.c_int(tid),
        ctypes.c_int(cpu),
        ctypes.c_int(-1),
        ctypes.c_ulong(_FLAG_CLOSE_ON_EXEC),
    )
    if descriptor < 0:
        code = ctypes.get_errno()
        raise OSError(code, f"perf_event_open: {os.strerror(code)}")
    return int(descriptor)


def enable(descriptor: int) -> None:
    """Enable an event and those inherited from it."""
    fcntl.ioctl(descriptor, _IOCTL_ENABLE, 0)


def disable(descriptor: int) -> None:
    """Disable an event and those inherited from it."""
    fcntl.ioctl(descriptor, _IOCTL_DISABLE, 0)


def write_into(descriptor: int, owner: int) -> None:
    """Redirect an event's output to the ring of ``owner``, an event on the same CPU."""
    fcntl.ioctl(descriptor, _IOCTL_SET_OUTPUT, owner)


def keep_only(descriptor: int, condition: str) -> None:
    """Make the kernel drop a tracepoint's records unless its fields meet a condition."""
    fcntl.ioctl(descriptor, _IOCTL_SET_FILTER, condition.encode() + b"\0")


class Ring:
    """The memory an event's records are written to, which the kernel never overwrites unread.

    Args:
        descriptor: the event's; further ones may `write_into` it.
        size_bytes: of the records; a power of two, at least a page.

    Raises:
        OSError: EPERM if the memory exceeds what the user may lock (perf_event_mlock_kb per CPU
            and RLIMIT_MEMLOCK).

    """

    def __init__(self, descriptor: int, size_bytes: int) -> None:
        if size_bytes < _PAGE or size_bytes & (size_bytes - 1):
            raise ValueError(
                f"a ring's size must be a power of two and at least {_PAGE}, is {size_bytes}"
            )
        self.size_bytes = size_bytes
        self._memory = mmap.mmap(descriptor, _PAGE + size_bytes)

    def take(self) -> tuple[bytes, bool]:
        """Return complete unread records, and whether the ring had no room for another."""
        (head,) = struct.unpack_from("=Q", self._memory, _DATA_HEAD)
        (tail,) = struct.unpack_from("=Q", self._memory, _DATA_TAIL)
        begin, length = tail % self.size_bytes, head - tail
        first = min(length, self.size_bytes - begin)
        taken = self._memory[_PAGE + begin : _PAGE + begin + first]
        taken += self._memory[_PAGE : _PAGE + length - first]
        struct.pack_into("=Q", self._memory, _DATA_TAIL, head)
        return taken, length > self.size_bytes - _LARGEST_RECORD_BYTES

    def close(self) -> None:
        """Release the memory."""
        self._memory.close()
