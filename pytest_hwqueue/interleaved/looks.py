"""The looks of an interleaved session: when they happen, what they decide, what they detect."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from pytest_hwqueue.gate.detectable import can_convict, detectable_effect
from pytest_hwqueue.gate.settings import LEAST_FIRST_RUNS, GateSettings
from pytest_hwqueue.gate.verdict import Verdict
from pytest_hwqueue.metrics.distributions import student_quantile
from pytest_hwqueue.verdicts.judging import judged_once

_EARLY_CONFIDENCE = 0.98


def looks(pairs: int) -> list[int]:
    """Return after how many pairs cells are judged: a sixth, at least 2, then doubling.

    Args:
        pairs: process runs per side of cells that are not acquitted earlier.

    """
    found = [min(pairs, max(LEAST_FIRST_RUNS, pairs // 6))]
    while found[-1] < pairs:
        found.append(min(pairs, 2 * found[-1]))
    return found


def acquitted_early(verdict: Verdict, detect: float) -> bool:
    """Whether a look before the last one acquits a figure.

    A figure is looked at several times, and each look would let 5 % of the worsenings of ``detect``
    pass; so these looks have to exclude it at 98 %.

    Args:
        verdict: of that look.
        detect: the worsening that matters, as a fraction.

    """
    if not verdict.history or verdict.history[-1].decision != "acquitted":
        return False
    if verdict.ratio is None or verdict.sd is None:
        return True
    worse = verdict.ratio if verdict.quantity.higher_is_worse else 1 / verdict.ratio
    old, new = len(verdict.baseline), len(verdict.new)
    error = verdict.sd * math.sqrt(1 / old + 1 / new)
    limit = math.log(worse) + student_quantile(_EARLY_CONFIDENCE, old + new - 2) * error
    return limit < math.log1p(detect)


def with_median(figures: Sequence[str]) -> tuple[str, ...]:
    """Return the figures to judge: P99 alone is joined by P50.

    The host's noise sits in the tail, where a few dozen runs cannot see a change of 20 %; in the
    median they can. Other figures are judged as named.
    """
    return ("p99", "p50") if tuple(figures) == ("p99",) else tuple(figures)


def detectable_by_pairs(
    sd: float, pairs: int, settings: GateSettings, compared: int
) -> float | None:
    """Return the smallest true worsening detected with ``settings.power``, as a fraction.

    It is the larger of two effects: the one needed not to be acquitted earlier, and the one that
    the look at all pairs detects; see `detectable_effect` for both. A look before the last acquits
    only where ``settings.detect`` is excluded, so a worsening of that size stays whatever the
    noise. None if no cell could be convicted alone.

    Args:
        sd: standard deviation of the figure's logarithm between runs.
        pairs: runs of each side.
        settings: of the gate.
        compared: number of figures that share the error rate.

    """
    once = judged_once(replace(settings, tau=0.0), pairs)
    if not can_convict(pairs, pairs, once, compared):
        return None
    first = looks(pairs)[0]
    freedom = 2 * first - 2
    quantiles = student_quantile(1 - settings.screen, freedom) + student_quantile(
        settings.power, freedom
    )
    screened = min(math.expm1(quantiles * sd * math.sqrt(2 / first)), settings.detect)
    return max(screened, detectable_effect(sd, pairs, once, compared))
