"""The model against the measured H200: every row is near, or says that it is not."""

from __future__ import annotations

import importlib.util
import resource
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from pytest_hwqueue.devices.simulated.colocation import run_tenants
from pytest_hwqueue.devices.simulated.profile import load_profile

TOOL = Path(__file__).resolve().parents[3] / "tools" / "simulated_calibration.py"


@pytest.fixture(scope="module")
def tool() -> ModuleType:
    """The program that compares the two."""
    spec = importlib.util.spec_from_file_location(TOOL.stem, TOOL)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[TOOL.stem] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def rows(tool: ModuleType) -> list[Any]:
    return list(tool.calibration(duration_s=3.0))


def test_every_figure_has_a_row(rows: list[Any]) -> None:
    names = [row.what for row in rows]
    assert len(set(names)) == len(names)
    for part in ("launch of a small kernel", "a graph per stream", "ready to start", "convoy",
                 "sleeps", "matrix product", "native, two processes", "XSched"):  # fmt: skip
        assert any(part in name for name in names), part


def test_rows_are_near_or_say_that_they_are_not(rows: list[Any]) -> None:
    for row in rows:
        if row.ratio is None:
            assert row.verdict == "not modelled"
            assert row.note
        elif not 0.5 <= row.ratio <= 2:
            assert row.verdict == "off by more than 2×"
        else:
            assert row.verdict == "near"


def test_few_rows_are_off(rows: list[Any]) -> None:
    off = [row.what for row in rows if row.verdict.startswith("off")]
    assert len(off) <= 4, off


@pytest.mark.parametrize(
    ("figure", "tolerance"),
    [
        ("launch of a small kernel", 0.01),
        ("event record", 0.01),
        ("from ready to start, on 1 streams", 0.01),
        ("convoy, tiny kernel of equal priority", 0.1),
        ("matrix product of 8192, bf16", 0.1),
    ],
)
def test_what_the_profile_was_made_from_comes_back(
    rows: list[Any], figure: str, tolerance: float
) -> None:
    row = next(row for row in rows if row.what == figure)
    assert row.ratio == pytest.approx(1, abs=tolerance)


def test_the_order_of_the_modes_is_that_of_the_table(rows: list[Any]) -> None:
    p50 = {
        row.what.removesuffix(": high P50"): row.simulated
        for row in rows
        if row.what.endswith(": high P50") and row.simulated is not None
    }
    assert p50["stream priority, threads"] < p50["native, two processes"]
    assert p50["native, two processes"] < p50["native, two threads"]


@pytest.mark.slow
def test_speed_and_memory_of_three_minutes(
    tool: ModuleType, record_property: Callable[[str, object], None]
) -> None:
    """Print what 180 virtual seconds cost; require only that memory does not grow with them."""
    hardware = load_profile("h200").hardware()
    tenants = [replace(tool._HIGH, priority=1), tool._low()]
    run_tenants(hardware, tenants, 10 * 10**9, "together")
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    began = time.perf_counter()
    high, low = run_tenants(hardware, tenants, 180 * 10**9, "together")
    seconds = time.perf_counter() - began
    grown_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    print(f"180 virtual s took {seconds:.1f} s, memory grew by {grown_kib} KiB")
    record_property("seconds", seconds)
    assert len(high.latencies_ns) == pytest.approx(3600, abs=2)
    assert len(low.latencies_ns) > 1000
    assert grown_kib < 20_000
