"""How much of the CPU's events a trace could see, as records keep it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Level = Literal["perf", "rusage", "none"]


@dataclass(frozen=True)
class Refusal:
    """Why a better tracing level, or a part of it, was not available.

    ``errno`` is that of the failed system call; None if it was another reason.
    """

    level: Level
    errno: int | None
    reason: str
