"""The plot of latency distributions: valid SVG with a curve for each case, and what it says."""

from __future__ import annotations

import xml.etree.ElementTree as ET

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_hwqueue.reports import latency_plot
from pytest_hwqueue.reports.latency_plot import Curve, Panel, latency_svg, survival

MS = 1_000_000
CURVES = [
    Curve("solo high", "processes", [2 * MS] * 400, 400, solo=True),
    Curve("native", "processes", [MS * (2 + i % 40) for i in range(400)], 400),
    Curve("xsched:level=1,threshold=1", "processes", [3 * MS, 4 * MS], 2),
    Curve("threads-native", "threads", [20 * MS] * 100, 200),
]


def drawn() -> str:
    return latency_svg("mix <on> sim:h200 & more", [Panel("tenant high", CURVES)])


def test_every_case_has_its_curve() -> None:
    root = ET.fromstring(drawn())
    names = [each.get("id", "") for each in root.iter("{http://www.w3.org/2000/svg}g")]
    assert [name for name in names if name.startswith("curve ")] == [
        f"curve {curve.case}" for curve in CURVES
    ]


def test_texts_say_what_is_drawn() -> None:
    root = ET.fromstring(drawn())
    texts = {"".join(each.itertext()) for each in root.iter("{http://www.w3.org/2000/svg}text")}
    expected = {
        "mix <on> sim:h200 & more", "tenant high", "latency from the scheduled arrival, ms",
        "share of requests that took at least this long", "P50", "P90", "P99", "P99.9",
        "native, n = 400", "threads-native, n = 200",
    }  # fmt: skip
    assert expected <= {text.strip() for text in texts}


def test_equal_figures_give_equal_files() -> None:
    assert drawn() == drawn()


def test_a_missing_matplotlib_is_named_with_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(latency_plot, "find_spec", lambda name: None)
    with pytest.raises(ModuleNotFoundError, match=r"pip install 'pytest-hwqueue\[report\]'"):
        drawn()


@given(st.lists(st.integers(1, 10**9), min_size=1), st.integers(0, 50))
def test_survival_counts_every_request(latency_ns: list[int], lost: int) -> None:
    issued = len(latency_ns) + lost
    times_ms, shares = survival(Curve("a", "processes", latency_ns, issued))
    assert shares[0] == 1
    assert shares[-1] == pytest.approx((lost + 1) / issued)
    for at, share in zip(times_ms, shares, strict=True):
        # Of equal latencies the first has the share of all.
        at_least = sum(each / MS >= at for each in latency_ns) + lost
        assert share <= at_least / issued + 1e-12
    median = sorted(latency_ns)[len(latency_ns) // 2] / MS
    assert median in times_ms
