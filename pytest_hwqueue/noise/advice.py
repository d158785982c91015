"""How much a remedy won back under noise, as a share of the quiet figure, with an interval."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from pytest_hwqueue.gate.settings import GateSettings
from pytest_hwqueue.gate.student import compare_pairs
from pytest_hwqueue.metrics.latency import CONFIDENCE
from pytest_hwqueue.metrics.numbers import percent
from pytest_hwqueue.metrics.telling import untold
from pytest_hwqueue.noise.losses import paired_losses
from pytest_hwqueue.noise.names import NONE

RemedyVerdict = Literal["won", "cost", "undecided"]

_LEAST_ROUNDS = 2


@dataclass(frozen=True)
class QuietShare:
    """A share of the quiet figure: 0.071 is 7.1 %.

    Attributes:
        value: None without rounds, or if `metrics.telling` refuses it.
        interval: two-sided, of this share alone; None if there are too few rounds.

    """

    value: float | None
    interval: tuple[float, float] | None

    @property
    def undecided(self) -> bool:
        """Whether the sign is uncertain."""
        return self.interval is None or self.interval[0] <= 0 <= self.interval[1]

    def negated(self) -> QuietShare:
        """Return the loss that corresponds to this gain."""
        value = None if self.value is None else -self.value
        return QuietShare(
            value, None if self.interval is None else (-self.interval[1], -self.interval[0])
        )


@dataclass(frozen=True)
class Bought:
    """How much a remedy won back.

    Attributes:
        lost: share lost to the noise without the remedy; below 0 is a gain.
        won: share won back by the remedy; below 0 it cost more than it gained. Its interval is
            widened by ``quiet_spread`` on both sides, because a difference within the spread of
            quiet runs is no finding.
        quiet_spread: by how much the highest of the quiet figures exceeds the lowest, as a share;
            None without rounds.
        rounds: number of rounds with the quiet figure and both others.
        left_out: number of rounds that lack one.
        confidence: of each interval.
        refused: why a value or an interval of ``lost`` or ``won`` is None.

    """

    lost: QuietShare
    won: QuietShare
    quiet_spread: float | None
    rounds: int
    left_out: int
    confidence: float
    refused: dict[str, str] = field(default_factory=dict)

    @property
    def verdict(self) -> RemedyVerdict:
        """Whether anything was won; undecided if the interval spans 0 or is missing."""
        if self.won.interval is None or self.won.undecided:
            return "undecided"
        return "won" if self.won.interval[0] > 0 else "cost"


def bought(
    quiet: Sequence[float | None],
    without: Sequence[float | None],
    with_remedy: Sequence[float | None],
    *,
    higher_is_worse: bool,
    confidence: float = CONFIDENCE,
) -> Bought:
    """Return how much a remedy won back, over the rounds of one session.

    For a rate, (quiet - without) / quiet is lost and (with - without) / quiet won back; for a
    latency, (without - quiet) / quiet and (without - with) / quiet. All use the rounds' geometric
    means, so that the loss and its interval equal those of `losses.paired_losses`. The interval of
    the share won is the paired t's, with the error of the difference of both ratios by the delta
    method (Casella and Berger, Statistical Inference, 2nd ed., 5.5.4), exact for small differences;
    it is widened by the spread of the quiet figures.

    Args:
        quiet: each round's figure without the noise; None where there is none.
        without: each round's figure under the noise.
        with_remedy: each round's figure under the noise, with the remedy.
        higher_is_worse: True for latencies, False for rates.
        confidence: of each interval, between 0 and 1.

    Raises:
        ValueError: if the numbers of rounds differ, or a figure is not finite and above 0.

    """
    if not len(quiet) == len(without) == len(with_remedy):
        raise ValueError(
            f"{len(quiet)} quiet rounds, {len(without)} without the remedy and {len(with_remedy)} "
            "with it: give as many of each, None where there is no figure"
        )
    bad = [
        each
        for figures in (quiet, without, with_remedy)
        for each in figures
        if each is not None and not 0 < each < math.inf
    ]
    if bad:
        raise ValueError(f"a figure is not finite and above 0: {bad[0]}")
    whole = [
        (base, noisy, remedied)
        for base, noisy, remedied in zip(quiet, without, with_remedy, strict=True)
        if base is not None and noisy is not None and remedied is not None
    ]
    loss = paired_losses(
        {NONE: [base for base, _, _ in whole], "noise": [noisy for _, noisy, _ in whole]},
        higher_is_worse=higher_is_worse,
        confidence=confidence,
    )["noise"]
    noisy_logs = [math.log(noisy / base) for base, noisy, _ in whole]
    remedied_logs = [math.log(remedied / base) for base, _, remedied in whole]
    won = _won(noisy_logs, remedied_logs, confidence)
    if higher_is_worse:
        won = won.negated()
    alone = [base for base, _, _ in whole]
    spread = max(alone) / min(alone) - 1 if alone else None
    refused = dict(loss.refused)
    if won.value is not None and won.interval is not None:
        low, high = won.interval
        if (reason := untold(won.value, won.interval)) is not None:
            won, refused["won"] = QuietShare(None, None), reason
        elif spread is not None:
            wider = QuietShare(won.value, (low - spread, high + spread))
            if wider.undecided and not won.undecided:
                refused["verdict"] = f"quiet runs alone differ by {percent(spread)}"
            won = wider
    rounds = len(whole)
    left_out = len(quiet) - rounds
    lost = QuietShare(loss.value, loss.interval)
    return Bought(lost, won, spread, rounds, left_out, confidence, refused)


def _won(without: Sequence[float], with_remedy: Sequence[float], confidence: float) -> QuietShare:
    """Return how far the second side's geometric mean exceeds the first's, given logarithms."""
    rounds = len(without)
    if not rounds:
        return QuietShare(None, None)
    before, after = (math.exp(math.fsum(side) / rounds) for side in (without, with_remedy))
    if rounds < _LEAST_ROUNDS:
        return QuietShare(after - before, None)
    # The derivative of a mean's exponential is that exponential.
    scaled = [before * each for each in without], [after * each for each in with_remedy]
    floor = GateSettings().floor * max(before, after)
    low, high = compare_pairs(*scaled, floor).interval(0.0, confidence)
    half = (high - low) / 2
    return QuietShare(after - before, (after - before - half, after - before + half))
