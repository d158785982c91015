"""Scaling: weak and strong told apart, saturation found with its range, refusals."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from pytest_hwqueue.data.metrics.latency import contiguous_blocks
from pytest_hwqueue.data.metrics.scaling import RESAMPLES, Scaling, ScalingPoint, scaling

COUNTS = (1, 2, 4, 8, 16)


def weak_points(
    saturated_at: int, counts: Sequence[int] = COUNTS, noise: float = 0.01, seed: int = 3
) -> list[ScalingPoint]:
    """Measure a device that runs ``saturated_at`` streams' work as fast as one stream's."""
    generator = np.random.default_rng(seed)
    means = {streams: 1e6 * max(1, streams / saturated_at) for streams in counts}
    times = {n: generator.normal(mean, noise * mean, 100).round() for n, mean in means.items()}
    return [ScalingPoint(n, 100.0 * n, each.astype(int).tolist()) for n, each in times.items()]


def of_every_point(result: Scaling, field: str) -> list[Any]:
    return [float(getattr(point, field)) for point in result.points]


@pytest.mark.parametrize("saturated_at", [1, 2, 4, 8, 64])
def test_saturation_is_where_throughput_stops_growing(saturated_at: int) -> None:
    result = scaling(weak_points(saturated_at), "kernels/s")
    assert result.points[1].efficiency.value == pytest.approx(min(saturated_at, 2) / 2, rel=0.01)
    assert "already full" in result.reading
    found = (result.saturation_streams, result.saturation_range)
    seen = saturated_at <= 16
    assert found == ((saturated_at, (saturated_at,) * 2) if seen else (None, None))
    said = "not saturated within the counts measured, up to 16 streams"
    assert result.refused.get("saturation_streams") == (None if seen else said)


def test_doubtful_saturation_has_a_wide_range() -> None:
    # Eight streams reach 95 % of the rate of sixteen, give or take the noise.
    generator = np.random.default_rng(5)
    points = [
        ScalingPoint(streams, 100, generator.normal(mean, 0.1 * mean, 60).astype(int).tolist())
        for streams, mean in ((1, 4e6), (8, 1e6 / 0.95), (16, 1e6))
    ]
    assert scaling(points, "x/s").saturation_range == (8, 16)


def test_strong_scaling_and_mixed_work() -> None:
    points = [ScalingPoint(n, 800.0, [8_000_000 // min(n, 4)] * 50) for n in COUNTS]
    result = scaling(points, "kernels/s")
    assert (result.kind, result.saturation_streams) == ("strong", 4)
    assert "splitting gained nothing" in result.reading
    assert of_every_point(result, "speedup") == pytest.approx([1, 2, 4, 4, 4])
    assert of_every_point(result, "efficiency") == pytest.approx([1, 1, 1, 0.5, 0.25])
    mixed = scaling([ScalingPoint(n, 100.0 + n, [1_000_000] * 50) for n in COUNTS], "x/s")
    assert mixed.kind == "mixed"
    assert "compare throughput" in mixed.reading


def test_base_other_than_one_stream_is_said_and_one_point_says_nothing() -> None:
    result = scaling(weak_points(16, counts=(4, 2, 8)), "x/s")
    assert (of_every_point(result, "streams"), result.base_streams) == ([2, 4, 8], 2)
    assert of_every_point(result, "efficiency") == pytest.approx([1, 1, 1], rel=0.01)
    assert "against 2" in result.refused["efficiency against one stream"]
    alone = scaling(weak_points(1, counts=(1,)), "x/s")
    assert (alone.kind, alone.saturation_streams) == (None, None)
    assert set(alone.refused) == {"kind", "saturation_streams", "saturation_range"}
    assert alone.refused["saturation_streams"].startswith("needs at least 2 counts of streams")


@pytest.mark.parametrize(
    ("one", "streams", "more", "said"),
    [
        # As was printed: 2 streams with a speed-up of 162 and an efficiency of 8088 %.
        ([162_000_000] * 20, 2, [2_000_000] * 20, "162× is more than is possible, 3× at most"),
        ([162_000_000] * 100, 2, [2_000_000] * 100, "162× is more than is possible, 3× at most"),
        # One iteration of 60 took as long as 500 others.
        ([10**6] * 60, 8, [100_000] * 59 + [50_000_000],
         "is wider than once the reference and than the figure itself"),
    ],
)  # fmt: skip
def test_a_speedup_that_cannot_be_is_refused(
    one: list[int], streams: int, more: list[int], said: str
) -> None:
    points = [ScalingPoint(1, 1.0, one), ScalingPoint(streams, float(streams), more)]
    result = scaling(points, "x/s")
    point = result.points[1]
    assert (result.kind, point.throughput > 0) == ("weak", True)
    for figure in (point.speedup, point.efficiency):
        assert (figure.value, figure.interval) == (None, None)
        assert said in figure.refused


def test_few_iterations_have_no_intervals() -> None:
    points = weak_points(2)
    points[2] = dataclasses.replace(points[2], iteration_ns=points[2].iteration_ns[:49])
    result = scaling(points, "x/s")
    for figure in (result.points[2].speedup, result.points[2].efficiency):
        assert (figure.value is None, figure.interval) == (False, None)
        assert "needs at least 50 iterations here and at the least count" in figure.refused
    assert result.points[1].speedup.interval is not None
    said = "needs at least 50 iterations at each count, has 49 (1 missing) at 4 streams"
    assert (result.saturation_streams, result.refused["saturation_streams"]) == (None, said)


@pytest.mark.parametrize(
    # 2.5 % at each end, widened for 10, 14 and 20 blocks.
    ("n", "tail"), [(50, 0.00855064), (73, 0.01248326), (101, 0.01588083)]
)  # fmt: skip
def test_speedup_interval_is_that_of_resampled_blocks(n: int, tail: float) -> None:
    times = np.random.default_rng(n).integers(10**6, 10**7, (2, n)).tolist()
    points = [ScalingPoint(streams, 1, each) for streams, each in enumerate(times, 1)]
    generator, rates = np.random.default_rng(0), []
    for totals, sizes in map(contiguous_blocks, times):
        drawn = generator.integers(len(sizes), size=(RESAMPLES, len(sizes)))
        rates.append(sizes[drawn].sum(axis=1) / totals[drawn].sum(axis=1))
    result = scaling(points, "x/s")
    ends = np.quantile(rates[1] / rates[0], [tail, 1 - tail])
    assert result.points[1].speedup.ends == pytest.approx(ends)
    assert result.points[1].efficiency.ends == pytest.approx(ends / 2)
    assert Scaling.model_validate_json(result.model_dump_json()) == result


def test_refuses_what_is_no_measurement() -> None:
    # Durations and work are refused as throughput refuses them.
    for streams, work, reason in (
        ([], 1, "at least one point"),
        ([0], 1, "at least 1 stream"),
        ([2, 2], 1, "appear once"),
        ([1], 0, "work per iteration"),
    ):
        with pytest.raises(ValueError, match=reason):
            scaling([ScalingPoint(each, work, [1]) for each in streams], "x/s")
