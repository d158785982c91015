"""Refuses comparisons that cannot be made, with the verdict that says why."""

from __future__ import annotations

import math
from collections.abc import Sequence

from pytest_hwqueue.gate.quantity import Quantity, fall_back
from pytest_hwqueue.gate.runs import ProcessRun
from pytest_hwqueue.gate.verdict import Verdict


def refusal(
    baseline: Sequence[ProcessRun],
    new: Sequence[ProcessRun],
    quantity: Quantity,
    *,
    accompanied: bool = False,
) -> Verdict | None:
    """Return the verdict that rules a comparison out, or ``None`` if it can be made.

    Args:
        baseline: its runs.
        new: the new runs so far.
        quantity: what their values are.
        accompanied: whether the runs' time per iteration can be judged where they have too few
            samples for the quantity.
    """
    if not baseline:
        return Verdict(
            "no-baseline",
            "no-baseline",
            f"{quantity.label} has no baseline yet: store these runs to have one",
            quantity,
            new=tuple(new),
        )
    counts = [run.n for run in (*baseline, *new)]
    short = quantity.quantile is not None and min(counts) < quantity.least_n
    if short and accompanied:
        return None
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
    if short:
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
    return None


def _refuse(
    reason: str,
    sentence: str,
    quantity: Quantity,
    baseline: Sequence[ProcessRun],
    new: Sequence[ProcessRun],
) -> Verdict:
    return Verdict(
        "incomparable", reason, sentence, quantity, baseline=tuple(baseline), new=tuple(new)
    )
