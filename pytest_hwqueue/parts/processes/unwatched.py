"""Stops what would watch a process that measures, and that process alone needs not."""

from __future__ import annotations

import os
import sys
from typing import Any

_OF_COVERAGE = "COVERAGE_PROCESS_"


def stop_coverage() -> None:
    """Stop coverage.py in this process, and keep it from those that this one starts.

    With ``patch = subprocess`` or COVERAGE_PROCESS_START it begins in every Python process, before
    any code of ours, and a step takes several times as long. What it has seen is still saved.
    """
    coverage: Any = sys.modules.get("coverage")
    current = getattr(getattr(coverage, "Coverage", None), "current", lambda: None)
    while (active := current()) is not None:
        active.stop()
    for name in [name for name in os.environ if name.startswith(_OF_COVERAGE)]:
        del os.environ[name]
