"""What each noise cost, compared with the quiet turn of the same round, with an interval."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from pytest_hwqueue.gate.settings import GateSettings
from pytest_hwqueue.gate.student import MeanDifference, compare_pairs
from pytest_hwqueue.metrics.latency import CONFIDENCE, shortfall
from pytest_hwqueue.metrics.telling import untold
from pytest_hwqueue.noise.names import NONE

_LEAST_PAIRS = 2


@dataclass(frozen=True)
class Loss:
    """What a noise cost, as a share of the quiet figure: 0.088 is 8.8 %; below 0 is a gain.

    Attributes:
        noise: its name.
        value: None if refused.
        interval: two-sided, of this noise alone; None if refused.
        pairs: number of rounds with a figure for both the noise and the quiet turn.
        left_out: number of rounds that lack one.
        confidence: of the interval.
        refused: why ``value`` or ``interval`` is None.

    """

    noise: str
    value: float | None
    interval: tuple[float, float] | None
    pairs: int
    left_out: int
    confidence: float
    refused: dict[str, str] = field(default_factory=dict)


def paired_losses(
    figures: Mapping[str, Sequence[float | None]],
    *,
    higher_is_worse: bool,
    confidence: float = CONFIDENCE,
) -> dict[str, Loss]:
    """Return what each noise cost.

    The value comes from the mean of the pairs' differences of logarithms, so it is the loss of the
    geometric mean of their ratios; the interval is the paired t's. For a rate the loss is (quiet -
    noisy) / quiet, for a latency (noisy - quiet) / quiet.

    Args:
        figures: by noise, each round's figure (a rate or a latency, above 0); None where the
            noise was not applied or the round failed. ``none`` must be among them.
        higher_is_worse: True for latencies, False for rates.
        confidence: of each interval, between 0 and 1.

    Raises:
        ValueError: if ``none`` is missing, the numbers of rounds differ, or a figure is not finite
            and above 0.

    """
    if NONE not in figures:
        raise ValueError(f"there are no figures of {NONE!r} to compare with")
    for noise, of_rounds in figures.items():
        if len(of_rounds) != len(figures[NONE]):
            raise ValueError(f"{noise} has {len(of_rounds)} rounds, {NONE} {len(figures[NONE])}")
        bad = [each for each in of_rounds if each is not None and not 0 < each < math.inf]
        if bad:
            raise ValueError(f"a figure of {noise} is not finite and above 0: {bad[0]}")
    return {
        noise: _loss(noise, figures[NONE], of_rounds, higher_is_worse, confidence)
        for noise, of_rounds in figures.items()
        if noise != NONE
    }


def _loss(
    noise: str,
    quiet: Sequence[float | None],
    noisy: Sequence[float | None],
    higher_is_worse: bool,
    confidence: float,
) -> Loss:
    pairs = [
        (math.log(before), math.log(after))
        for before, after in zip(quiet, noisy, strict=True)
        if before is not None and after is not None
    ]
    value = interval = None
    refused = {}
    if not pairs:
        refused["value"] = refused["interval"] = shortfall(1, 0, "rounds")
    else:
        mean = math.fsum(after - before for before, after in pairs) / len(pairs)
        value = _share(mean, higher_is_worse)
        if len(pairs) < _LEAST_PAIRS:
            refused["interval"] = shortfall(_LEAST_PAIRS, len(pairs), "rounds")
        else:
            before, after = zip(*pairs, strict=True)
            difference = compare_pairs(before, after, GateSettings().floor)
            interval = _interval(difference, higher_is_worse, confidence)
            if interval is None:
                refused["interval"] = "rounds differ too much for any bound to be a number"
        reason = untold(value, interval or (-math.inf, math.inf)) if len(pairs) > 1 else None
        if reason is not None:
            value = interval = None
            refused = {"value": reason}
    return Loss(
        noise=noise, value=value, interval=interval, pairs=len(pairs),
        left_out=len(quiet) - len(pairs), confidence=confidence, refused=refused,
    )  # fmt: skip


def _interval(
    difference: MeanDifference, higher_is_worse: bool, confidence: float
) -> tuple[float, float] | None:
    try:
        low, high = (
            _share(bound, higher_is_worse) for bound in difference.interval(0.0, confidence)
        )
    except OverflowError:
        return None
    return min(low, high), max(low, high)


def _share(log_ratio: float, higher_is_worse: bool) -> float:
    return math.expm1(log_ratio) if higher_is_worse else -math.expm1(log_ratio)
