"""Charts in files: valid SVG, the same for the same figures, with every curve and what it says."""

from __future__ import annotations

import sys
import xml.etree.ElementTree as ElementTree
from collections.abc import Sequence
from typing import Any

import pytest

from pytest_hwqueue.data.document.charts import (
    Curve,
    pareto_chart,
    rates_chart,
    scaling_chart,
    survival_chart,
    tone,
)
from pytest_hwqueue.data.document.drawing import Spec, stacked_svg
from pytest_hwqueue.data.metrics.numbers import TimeUnit
from pytest_hwqueue.data.metrics.scaling import Scaling, ScalingPoint, scaling
from pytest_hwqueue.data.records.placement import TenantPlacement

SVG = "{http://www.w3.org/2000/svg}"
MS = 1_000_000
HOSTILE = "<img src=x> & var(--none)"
LATENCIES = {
    "solo high": ([2 * MS] * 400, 400, "processes"),
    "native": ([MS * (2 + i % 40) for i in range(400)], 400, "processes"),
    "xsched:level=1,threshold=1": ([3 * MS, 4 * MS], 2, "processes"),
    "threads-native": ([20 * MS] * 100, 200, "threads"),
}


def latencies() -> Spec:
    curves = [
        Curve(name, ns, tone(at), issued - len(ns), placement=TenantPlacement(placement))
        for at, (name, (ns, issued, placement)) in enumerate(LATENCIES.items())
    ]
    return survival_chart(curves, TimeUnit("ms", 1e6), x="latency", y="share of requests")


def saturating(at: int) -> Scaling:
    """Work that grows with the streams on a device that is full from ``at`` streams on."""
    points = [
        ScalingPoint(n, n, [round(1e6 * max(1, n / at)) + i % 7 for i in range(100)])
        for n in (1, 2, 4, 8)
    ]
    return scaling(points, "kernels/s")


def drawn(*charts: Spec, note: str = "") -> ElementTree.Element:
    return ElementTree.fromstring(stacked_svg(HOSTILE, [(HOSTILE, each) for each in charts], note))


def texts(root: ElementTree.Element) -> set[str]:
    return {"".join(text.itertext()).strip() for text in root.iter(f"{SVG}text")}


def paths(root: ElementTree.Element, mark: str) -> Sequence[ElementTree.Element]:
    groups = [each for each in root.iter(f"{SVG}g") if f"mark-{mark}" in each.get("class", "")]
    return [path for group in groups for path in group.iter(f"{SVG}path")]


def test_every_case_has_its_line_and_its_name_and_equal_figures_give_equal_files() -> None:
    root = drawn(latencies())
    lines = {path.get("aria-label"): path for path in paths(root, "line")}
    assert list(lines) == list(LATENCIES)
    assert len({path.get("stroke") for path in lines.values()}) == 4
    dashed = [name for name, path in lines.items() if path.get("stroke-dasharray") == "5,3"]
    assert dashed == ["threads-native"]
    expected = {HOSTILE, "latency, ms (log)", "share of requests", "all", "P50", "P90", "P99"}
    assert expected | set(LATENCIES) <= texts(root)
    text = stacked_svg("a", [("b", latencies())])
    assert text == stacked_svg("a", [("b", latencies())])
    # Colours are real.
    assert "var(" not in text


def test_saturation_is_marked_only_where_there_is_one() -> None:
    full, never = saturating(4), saturating(16)
    assert (full.saturation_streams, never.saturation_streams) == (4, None)
    curves = [("native, eager", full), ("mps, graph", never)]
    root = drawn(scaling_chart(curves), note="a note")
    words = " ".join(texts(root))
    assert "native, eager: saturated from 4 streams on" in words
    assert "mps, graph: not saturated within the counts" in words
    assert {"1", "2", "4", "8", "streams", "kernels/s"} <= texts(root)
    assert "a note" in words
    rules = [each for each in root.iter(f"{SVG}line") if each.get("stroke-dasharray") == "2,2"]
    assert len(rules) == 1


def test_verdicts_of_rates_have_marks_of_their_own() -> None:
    points: list[Spec] = [
        {"x": 10.0, "y": 3.0, "y_low": 2.0, "y_high": 4.0, "verdict": "held"},
        {"x": 20.0, "y": 4.0, "y_low": None, "y_high": None, "verdict": "undecided"},
        {"x": 30.0, "y": 9.0, "y_low": 8.0, "y_high": None, "verdict": "broken"},
    ]
    curves = {"native": points, "nothing known": []}
    more: dict[str, Any] = {"goal": 7, "front": [(10, 3)], "bands": [(10, 30), None]}
    root = drawn(rates_chart(curves, "per second", "P99, ms", **more, log=True))
    assert {"native", "nothing known", "per second", "P99, ms"} <= texts(root)
    held, undecided, broken = (path for path in paths(root, "symbol") if path.get("aria-label"))
    assert held.get("d") == undecided.get("d") != broken.get("d")
    assert (held.get("fill"), undecided.get("fill")) == (held.get("stroke"), "#fff")


def test_modes_on_one_spot_share_a_label_and_open_ends_are_said() -> None:
    open_ended = {"p99_low": None, "p99_high": 12.0, "loss_low": None, "loss_high": None}
    modes = (("native", "missed", 40, 0), ("mps", "met", 10, 30), ("xsched", "met", 10, 30))
    points = [
        {"case": case, "together": together, "p99": p99, "loss": loss, "front": True, "note": ""}
        | open_ended
        for case, together, p99, loss in modes
    ]
    chart = pareto_chart(points)
    assert [row["text"] for row in chart["data"]["values"]] == ["native", "mps\nxsched", ""]
    root = drawn(chart)
    assert {"native", "mps", "xsched", "all goals met", "a goal missed"} <= texts(root) | {
        span.text for span in root.iter(f"{SVG}tspan")
    }


def test_missing_vl_convert_is_named_with_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "vl_convert", None)
    with pytest.raises(ModuleNotFoundError, match=r"pip install 'pytest-hwqueue\[report\]'"):
        drawn(latencies())
