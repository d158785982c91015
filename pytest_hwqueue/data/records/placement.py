"""Where tenants run: apart from plans, since who reads a mode's name needs no pydantic."""

from __future__ import annotations

from enum import Enum


class TenantPlacement(str, Enum):
    """Where tenants run: in a process each, or in threads of one."""

    PROCESSES = "processes"
    THREADS = "threads"

    # Python's own would show the member's name.
    __str__ = str.__str__
