"""Whether runs can be compared at all, and if not, the verdict that says why."""

from __future__ import annotations

import math
from collections.abc import Sequence

from pytest_hwqueue.gate.quantity import Quantity, fall_back
from pytest_hwqueue.gate.runs import Run
from pytest_hwqueue.gate.verdict import Verdict

MOST_N_RATIO = 1.1
"""Quantiles of runs whose numbers of samples differ by more than this have different biases."""


def refusal(baseline: Sequence[Run], new: Sequence[Run], quantity: Quantity) -> Verdict | None:
    """Return the verdict that ends a comparison before it begins, or ``None`` if it may begin."""
    if not baseline:
        return Verdict(
            "no-baseline",
            "no-baseline",
            f"{quantity.label} has no baseline yet: store these runs to have one",
            quantity,
            new=tuple(new),
        )
    for side, runs in (("baseline", baseline), ("new", new)):
        for number, run in enumerate(runs, start=1):
            where = f"{quantity.label} of {side} run {number} (session {run.session})"
            if not math.isfinite(run.value) or run.value < 0:
                return _refuse(
                    "not-a-number",
                    f"{where} is {run.value}: its samples are negative, infinite or not numbers",
                    quantity,
                    baseline,
                    new,
                )
            if run.value == 0:
                clock = quantity.quantile is not None
                why = "the clock is too coarse for it" if clock else "nothing was done"
                code = "clock-too-coarse" if clock else "zero-figure"
                return _refuse(code, f"{where} is 0: {why}", quantity, baseline, new)
    if quantity.quantile is None:
        return None
    counts = [run.n for run in (*baseline, *new)]
    if min(counts) < quantity.least_n:
        instead = fall_back(quantity, min(counts))
        advice = f"gate {instead.label} instead" if instead else "take more samples"
        return Verdict(
            "inconclusive",
            "too-few-samples",
            f"{quantity.label} needs {quantity.least_n} samples in every run, one has "
            f"{min(counts)}: {advice}",
            quantity,
            baseline=tuple(baseline),
            new=tuple(new),
        )
    if max(counts) > MOST_N_RATIO * min(counts):
        return _refuse(
            "different-n",
            f"runs have between {min(counts)} and {max(counts)} samples, and a {quantity.label} "
            "depends on how many: cut all to the least",
            quantity,
            baseline,
            new,
        )
    return None


def _refuse(
    reason: str, sentence: str, quantity: Quantity, baseline: Sequence[Run], new: Sequence[Run]
) -> Verdict:
    return Verdict(
        "incomparable", reason, sentence, quantity, baseline=tuple(baseline), new=tuple(new)
    )
