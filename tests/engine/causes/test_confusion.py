"""Planted causes get their names: the quick form of ``python -m tests.engine.causes.confusion``."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.engine.causes.victims import need

from .confusion import rows
from .planted_tenants import TENANT_KINDS

_TREE = Path(__file__).parents[3]
_RIGHT = 0.95


def confusion(*arguments: str) -> list[dict[str, Any]]:
    """Run the command; return its rows."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.engine.causes.confusion", "--json", *arguments],
        capture_output=True, text=True, check=False, cwd=_TREE,
        env=os.environ | {"PYTHONPATH": str(_TREE)},
    )  # fmt: skip
    assert done.returncode in (0, 1), done.stderr
    rows: list[dict[str, Any]] = json.loads(done.stdout)
    return rows


def check(rows: list[dict[str, Any]], least: int) -> None:
    """Assert that planted causes were named; skip where too few were not disturbed."""
    counted = sum(row["counted"] for row in rows)
    if counted < least:
        spoiled = sum(row["spoiled"] for row in rows)
        pytest.skip(f"this machine is too busy: {counted} planted delays count, {spoiled} do not")
    wrong = [row for row in rows if row["right"] < row["counted"]]
    assert sum(row["right"] for row in rows) >= _RIGHT * counted, wrong


@pytest.mark.parametrize("kind", TENANT_KINDS)
def test_who_shares_a_simulated_device_is_named_by_how_it_is_shared(kind: str) -> None:
    (row,) = rows(20, (), (kind,))
    assert row.counted >= 5
    assert row.spoiled == 0
    assert row.right == row.counted, row.named


@pytest.mark.slow
@pytest.mark.parametrize(("level", "kinds"), [
    ("perf", ("garbage collection", "stopped by a signal", "neighbour on the core")),
    ("switches", ("sleep", "sleep, who launches", "lock", "I/O")),
])  # fmt: skip
def test_what_perf_sees_is_told_apart(level: str, kinds: tuple[str, ...]) -> None:
    need("tracepoints" if level == "perf" else level)
    named = [word for kind in kinds for word in ("--kind", kind)]
    rows = confusion("--plants", "8", "--level", level, *named)
    assert [(row["planted"], row["refused"]) for row in rows] == [(kind, "") for kind in kinds]
    check(rows, least=15)


@pytest.mark.slow
@pytest.mark.parametrize("level", ["perf", "switches", "rusage"])
def test_every_kind_at_every_level(level: str) -> None:
    rows = confusion("--plants", "25", "--level", level)
    check([row for row in rows if row["device"] == "cpu"], least=100)
