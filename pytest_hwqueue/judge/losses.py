"""What noise cost, and what pinning, priority or a scheduler won back of it.

Rounds are compared with their own quiet turn; a loss is a share of the quiet figure: 0.088 is
8.8 %, below 0 it is a gain.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Hashable, Mapping, Sequence
from functools import partial
from typing import TypeVar

from pytest_hwqueue.data.metrics.estimate import Estimate
from pytest_hwqueue.data.metrics.latency import CONFIDENCE, shortfall
from pytest_hwqueue.data.metrics.numbers import percent
from pytest_hwqueue.data.noise_names import NONE
from pytest_hwqueue.data.records.cell import RunRecord
from pytest_hwqueue.judge.statistics import compare_pairs
from pytest_hwqueue.judge.verdict import GateSettings

RecordFigure = Callable[[RunRecord], float | None]
Key = TypeVar("Key", bound=Hashable)
_LEAST_PAIRS = 2


def by_run(
    by_noise: Mapping[Key, Sequence[RunRecord]], figure: RecordFigure
) -> dict[Key, list[float | None]]:
    """Return each run's figure, by the conditions of the run; None where it does not count.

    A run counts if it succeeded and its noise, if any, was felt.
    """
    runs = sorted({record.run for records in by_noise.values() for record in records})
    found: dict[Key, list[float | None]] = {}
    for noise, records in by_noise.items():
        of_run = {each.run: figure(each) if _counts(each) else None for each in records}
        found[noise] = [of_run.get(run) for run in runs]
    return found


def _counts(record: RunRecord) -> bool:
    felt = record.noise is not None and record.noise.status != "not applied"
    return felt and record.status == "ok"


def throughput(record: RunRecord) -> float | None:
    """Return the rate of a cell's first unit of work."""
    return record.metrics.throughput[0].value if record.metrics.throughput else None


def core_speed(record: RunRecord) -> float | None:
    """Return the enqueuing thread's core speed per second of CPU time."""
    return None if record.noise is None else record.noise.core_speed_per_s


def waiting_share(record: RunRecord) -> float | None:
    """Return how long the measured threads could have run but had no core, per time measured."""
    seen = record.noise
    if seen is None or seen.measured_run_delay_s is None or seen.duration_s <= 0:
        return None
    return seen.measured_run_delay_s / seen.duration_s


def device_interrupts(record: RunRecord) -> float | None:
    """Return how many interrupts a second the whole machine's devices raised."""
    seen = record.noise
    if seen is None or "interrupts" in seen.machine.missing or seen.duration_s <= 0:
        return None
    return seen.machine.interrupts.get("device", 0) / seen.duration_s


def higher_in_every_run(
    quiet: Sequence[float | None], noisy: Sequence[float | None]
) -> tuple[float, float] | None:
    """Return the medians of a figure in the quiet and under noise, if it rose in every run.

    Only runs that have both count; None if there is none, or it did not rise in one.
    """
    pairs = [
        (before, after)
        for before, after in zip(quiet, noisy, strict=True)
        if before is not None and after is not None
    ]
    if not pairs or any(after <= before for before, after in pairs):
        return None
    before, after = (statistics.median(side) for side in zip(*pairs, strict=True))
    return before, after


def tail_figure(by_noise: Mapping[Key, Sequence[RunRecord]]) -> tuple[str, RecordFigure]:
    """Return the highest percentile available in all runs."""

    def at(percentile: str, record: RunRecord) -> float | None:
        judged = record.metrics.judged
        value: float | None = None if judged is None else getattr(judged, percentile).value
        return value

    records = [record for each in by_noise.values() for record in each if record.status == "ok"]
    name = "P99" if all(at("p99", record) is not None for record in records) else "P50"
    return name, partial(at, name.lower())


def paired_losses(
    figures: Mapping[str, Sequence[float | None]], *, higher_is_worse: bool
) -> dict[str, Estimate]:
    """Return what each noise cost, of the rounds that have a figure under it and a quiet one.

    The value comes from the mean of the pairs' differences of logarithms, so it is the loss of the
    geometric mean of their ratios; the interval is the paired t's. For a rate the loss is (quiet -
    noisy) / quiet, for a latency (noisy - quiet) / quiet.

    Args:
        figures: by noise, each round's figure (a rate or a latency, finite and above 0); None
            where the noise was not applied or the round failed. ``none`` must be among them.
        higher_is_worse: True for latencies, False for rates.

    """
    return {
        noise: _loss(figures[NONE], of_rounds, higher_is_worse)
        for noise, of_rounds in figures.items()
        if noise != NONE
    }


def _loss(
    quiet: Sequence[float | None], noisy: Sequence[float | None], higher_is_worse: bool
) -> Estimate:
    pairs = [
        (math.log(before), math.log(after))
        for before, after in zip(quiet, noisy, strict=True)
        if before is not None and after is not None
    ]
    n = len(pairs)
    if n == 0:
        return Estimate(refused=shortfall(1, 0, "rounds"))
    value = _share(math.fsum(after - before for before, after in pairs) / n, higher_is_worse)
    if n < _LEAST_PAIRS:
        return Estimate(value=value, n=n, refused=shortfall(_LEAST_PAIRS, n, "rounds"))
    before, after = zip(*pairs, strict=True)
    difference = compare_pairs(before, after, GateSettings().floor)
    try:
        ends = [_share(end, higher_is_worse) for end in difference.interval(0.0, CONFIDENCE)]
    except OverflowError:
        return Estimate(n=n, refused="rounds differ too much for any bound to be a number")
    return Estimate(value=value, low=min(ends), high=max(ends), n=n).informative()


def _share(log_ratio: float, higher_is_worse: bool) -> float:
    return math.expm1(log_ratio) if higher_is_worse else -math.expm1(log_ratio)


def won_back(
    quiet: Sequence[float | None],
    without: Sequence[float | None],
    with_remedy: Sequence[float | None],
    *,
    higher_is_worse: bool,
) -> tuple[Estimate, Estimate]:
    """Return what a noise cost without a remedy, and what the remedy won back of it.

    Of each round's figure without the noise, under it, and under it with the remedy, as in
    `paired_losses`; only rounds that have all three count. For a rate (with - without) / quiet is
    won back, for a latency (without - with) / quiet, of the rounds' geometric means; below 0 is
    what the remedy cost. The interval is the paired t's, with the error of the difference of both
    ratios by the delta method (Casella and Berger, Statistical Inference, 2nd ed., 5.5.4), exact
    for small differences. It is wider by the spread of the quiet figures on both sides: a
    difference within that is no finding, and ``refused`` then says why.
    """
    rounds = [
        (base, noisy, remedied)
        for base, noisy, remedied in zip(quiet, without, with_remedy, strict=True)
        if base is not None and noisy is not None and remedied is not None
    ]
    bases, noisy, remedied = ([each[side] for each in rounds] for side in range(3))
    lost = _loss(bases, noisy, higher_is_worse)
    if not rounds:
        return lost, lost
    logs = [
        [math.log(figure / base) for figure, base in zip(side, bases, strict=True)]
        for side in (noisy, remedied)
    ]
    before, after = (math.exp(math.fsum(side) / len(side)) for side in logs)
    value = before - after if higher_is_worse else after - before
    if len(rounds) < _LEAST_PAIRS:
        return lost, lost.model_copy(update={"value": value})
    # The derivative of a mean's exponential is that exponential.
    scaled = [before * each for each in logs[0]], [after * each for each in logs[1]]
    floor = GateSettings().floor * max(before, after)
    low, high = compare_pairs(*scaled, floor).interval(0.0, CONFIDENCE)
    half = (high - low) / 2
    won = Estimate(value=value, low=value - half, high=value + half, n=len(rounds)).informative()
    if won.value is None:
        return lost, won
    spread = max(bases) / min(bases) - 1
    ends = value - half - spread, value + half + spread
    refused = ""
    if ends[0] <= 0 <= ends[1]:
        alone = abs(value) > half
        refused = (
            f"quiet runs alone differ by {percent(spread)}" if alone else "its interval spans 0"
        )
    return lost, Estimate(value=value, low=ends[0], high=ends[1], n=len(rounds), refused=refused)
