"""Inner sessions of acceptance tests: the environment that they see, and what they recorded."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
SUITE = ROOT / "benchmarks"


def plain_environment(**more: str) -> dict[str, str]:
    """Return an environment in which none of this session's settings count, with more in it."""
    foreign = ("HWQ_", "PYTEST_")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(foreign)}
    return {**kept, "PYTHONPATH": str(ROOT), **more}


def records_in(file: Path) -> list[dict[str, Any]]:
    """Return the records of a session that wrote ``--hwq-json``."""
    found: list[dict[str, Any]] = json.loads(file.read_text(encoding="utf-8"))["records"]
    return found
