"""Descriptors that this package keeps open in processes that run users' code.

They lie far above those that a program gets, so that code which writes to or closes descriptors
that it has not opened does not hit them.
"""

from __future__ import annotations

import fcntl
import os
import resource
import sys

# Room below the highest descriptor that a process may have, or that such code is likely to try.
_ROOM = 16
_HIGHEST = 4096


def moved_up(descriptor: int) -> int:
    """Move a descriptor to the top of those that this process may have; return its new number."""
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    top = _HIGHEST if limit == resource.RLIM_INFINITY else min(limit, _HIGHEST)
    moved = fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, top - _ROOM)
    os.close(descriptor)
    return moved


def keep_output() -> None:
    """Have this process's ``sys.stdout`` and ``sys.stderr`` outlive their descriptors 1 and 2."""
    for name, descriptor in (("stdout", 1), ("stderr", 2)):
        getattr(sys, name).flush()
        kept = moved_up(os.dup(descriptor))
        # Open as long as the process.
        stream = open(kept, "w", buffering=1, errors="backslashreplace")  # noqa: SIM115
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)


def standard_streams() -> list[tuple[int, int] | None]:
    """Return which files descriptors 0 to 2 are; None for one that is closed."""
    found: list[tuple[int, int] | None] = []
    for descriptor in range(3):
        try:
            status = os.fstat(descriptor)
        except OSError:
            found.append(None)
        else:
            found.append((status.st_dev, status.st_ino))
    return found
