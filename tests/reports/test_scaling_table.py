"""The table of a sweep: what it shows where a speed-up is refused."""

from __future__ import annotations

import io
from collections.abc import Callable

import pytest
from rich.console import Console

from pytest_hwqueue.records.cell import RunRecord
from pytest_hwqueue.reports.tables import draw_scaling


@pytest.mark.parametrize("width", [200, 40])
@pytest.mark.parametrize("n", [20, 100])
def test_an_impossible_speedup_is_a_dash_with_its_reason(
    make_record: Callable[..., RunRecord], width: int, n: int
) -> None:
    """As was printed: 2 streams with a speed-up of 162 and an efficiency of 8088 %."""
    records = [
        make_record(streams=streams, n=n, median_ns=ms * 1e6, traced=False)
        for streams, ms in ((1, 162), (2, 2))
    ]
    file = io.StringIO()
    draw_scaling(Console(file=file, width=width), records, set())
    text = " ".join(file.getvalue().split())
    # What was measured is printed still.
    assert "k kernels/s" in text
    assert "—" in text
    assert "speedup, efficiency refused for 2 streams" in text
    assert text.count("than is possible, 3× at most") == 1
    assert "'s interval" not in text
    assert "80" not in text
