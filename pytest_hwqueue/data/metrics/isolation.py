"""How much slower a tenant is beside another one, and what that says of a claim.

A claim is shown if all of a figure's interval keeps it, refuted if none of it does. That a tenant
is no slower shows that a mode keeps it apart only where it is slower without the mode: beside a
neighbour that takes nothing, nobody is.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

from pytest_hwqueue.data.metrics.estimate import Estimate
from pytest_hwqueue.data.metrics.numbers import ratio_of
from pytest_hwqueue.data.metrics.straight_line import mean_of_runs

ClaimVerdict = Literal["shown", "refuted", "not decided"]


def slowdown(alone_ns: Sequence[float], beside_ns: Sequence[float], confidence: float) -> Estimate:
    """Return how much longer a tenant takes beside another one, as a share of its time alone.

    Args:
        alone_ns: what it takes alone, a value for each round, all above 0.
        beside_ns: likewise beside the other one, in the same rounds.
        confidence: two-sided, between 0 and 1, both excluded.

    """
    ratio = mean_ratio(beside_ns, alone_ns, confidence)
    if ratio.value is None:
        return ratio
    update = {"value": ratio.value - 1, "low": ratio.low - 1, "high": ratio.high - 1}
    return ratio.model_copy(update=update)


def mean_ratio(over: Sequence[float], under: Sequence[float], confidence: float) -> Estimate:
    """Return the geometric mean of rounds' ratios; refused for fewer than two rounds.

    The interval is Student's, of the mean logarithm: what drifts from round to round is in both
    sides of a ratio.

    Args:
        over: a value for each round, all above 0.
        under: likewise, in the same rounds.
        confidence: two-sided, between 0 and 1, both excluded.

    """
    logarithms = [math.log(a / b) for a, b in zip(over, under, strict=True)]
    mean = mean_of_runs(logarithms, confidence)
    if mean.value is None:
        return mean
    update = {
        "value": ratio_of(mean.value), "low": ratio_of(mean.low), "high": ratio_of(mean.high)
    }  # fmt: skip
    return mean.model_copy(update=update)


def at_most(figure: Estimate, bound: float) -> ClaimVerdict:
    """Return whether a figure is shown to be at most so much, by its interval."""
    if figure.value is None or figure.interval is None:
        return "not decided"
    if figure.high <= bound:
        return "shown"
    return "refuted" if figure.low > bound else "not decided"


def kept_apart(slower: Estimate, native_slower: Estimate, bound: float) -> ClaimVerdict:
    """Return whether a mode is shown to keep a tenant apart from another one.

    Args:
        slower: by how much it is slower beside the other one, under the mode.
        native_slower: the same without the mode; it does not matter where the claim is refuted.
        bound: by how much more than this it must not be slower.

    """
    found = at_most(slower, bound)
    if found == "shown" and at_most(native_slower, bound) != "refuted":
        return "not decided"
    return found
