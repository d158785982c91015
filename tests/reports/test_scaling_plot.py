"""The plot of scaling: valid SVG with every curve, its saturation, and what was taken over."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree

import pytest

from pytest_hwqueue.metrics.scaling import Scaling, ScalingPoint, scaling
from pytest_hwqueue.reports import scaling_plot
from pytest_hwqueue.reports.scaling_plot import ScalingCurve, ScalingPanel, scaling_svg

SVG = "{http://www.w3.org/2000/svg}"


def saturating(at: int) -> Scaling:
    """Work that grows with the streams on a device that is full from ``at`` streams on."""
    points = [
        ScalingPoint(n, n, [round(1e6 * max(1, n / at)) + i % 7 for i in range(100)])
        for n in (1, 2, 4, 8)
    ]
    return scaling(points, "kernels/s")


def drawn(*curves: ScalingCurve) -> ElementTree.Element:
    panel = ScalingPanel("NVIDIA H200 (cuda) & more", "kernels/s", curves)
    return ElementTree.fromstring(scaling_svg("Scaling of <moe>", [panel]))


def ids(root: ElementTree.Element, start: str) -> list[str]:
    found = [group.get("id", "") for group in root.iter(f"{SVG}g")]
    return [each.removeprefix(start) for each in found if each.startswith(start)]


def texts(root: ElementTree.Element) -> set[str]:
    return {"".join(text.itertext()).strip() for text in root.iter(f"{SVG}text")}


def test_every_curve_is_drawn_and_saturation_only_where_there_is_one() -> None:
    full, never = saturating(4), saturating(16)
    assert (full.saturation_streams, never.saturation_streams) == (4, None)

    root = drawn(ScalingCurve("native, eager", full), ScalingCurve("mps, graph", never))

    assert ids(root, "curve ") == ["native, eager", "mps, graph"]
    assert ids(root, "saturation ") == ["native, eager"]
    assert {
        "Scaling of <moe>", "NVIDIA H200 (cuda) & more", "streams", "kernels/s",
        "native, eager: saturated from 4 streams on", "mps, graph: not saturated within the counts",
        "1", "2", "4", "8",
    } <= texts(root)  # fmt: skip


def test_what_was_taken_over_is_explained_where_there_is_any() -> None:
    explanation = "hollow: measured in an earlier session"
    found = saturating(4)

    assert explanation not in texts(drawn(ScalingCurve("native", found)))
    root = drawn(ScalingCurve("native", found, frozenset({1, 2})))
    assert explanation in texts(root)
    hollow = [use for use in root.iter(f"{SVG}use") if "fill: #ffffff" in use.get("style", "")]
    assert len(hollow) == 2


def test_a_missing_matplotlib_is_named_with_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scaling_plot, "can_plot", lambda: False)
    with pytest.raises(ModuleNotFoundError, match=r"pip install 'pytest-hwqueue\[report\]'"):
        drawn(ScalingCurve("native", saturating(4)))
