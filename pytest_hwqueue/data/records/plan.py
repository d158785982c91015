"""What runs together: tenants, where, and on what. Validated once, run, and kept in records."""

from __future__ import annotations

from enum import Enum


class TenantPlacement(str, Enum):
    """Where tenants run: in a process each, or in threads of one."""

    PROCESSES = "processes"
    THREADS = "threads"

    # Python's own would show the member's name.
    __str__ = str.__str__
