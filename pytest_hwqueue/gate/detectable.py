"""What a cell can detect: its minimum detectable effect, and the runs a goal needs."""

from __future__ import annotations

import math
from statistics import NormalDist

from pytest_hwqueue.gate.exact import permutation_floor
from pytest_hwqueue.gate.settings import GateSettings
from pytest_hwqueue.metrics.distributions import student_quantile

MOST_RUNS = 60
"""Beyond this many runs a side, more runs are no answer: the noise has to be reduced."""

LEAST_RUNS = 3
"""With fewer baseline runs the gate convicts nobody."""

LEAST_RUNS_EXACT = 5
"""From this many baseline runs on, the exact test decides and nothing is assumed of the noise."""


def detectable_effect(
    sd: float,
    runs: int,
    settings: GateSettings,
    cells: int,
    *,
    last_look: int | None = None,
    session_share: float | None = None,
) -> float:
    """Return the smallest true rise detected with ``settings.power``, as a fraction.

    It is the largest that three conditions require: not being acquitted at the first pass, being
    convicted at the last look at the rate of one cell, and being seen above ``min_effect``:
    ``exp(max{(t_screen + t_power) s sqrt(1/K + 1/M), (t_alpha + t_power) sqrt(s^2 (1/K + 1/T) +
    tau^2 (1 + 1/K)), ln(1 + min_effect) + z_power s sqrt(1/K + 1/T)}) - 1``. That is the usual
    approximation of the power of t by a shifted central t; simulated power agrees with it.

    Args:
        sd: standard deviation of the logarithm of the figure between runs.
        runs: baseline runs K, with ``first_runs`` at least 2 >= 1.
        settings: of the gate.
        cells: how many cells share the error rate.
        last_look: T, if different from the settings' last look.
        session_share: of both sides, if the baseline's runs do not have a session each.
    """
    last = settings.last_look if last_look is None else last_look
    share = 1 + 1 / runs if session_share is None else session_share
    first = runs + settings.first_runs - 2
    alpha = settings.weights[-1] * settings.rate / cells
    screened = (
        student_quantile(1 - settings.screen, first) + student_quantile(settings.power, first)
    ) * (sd * math.sqrt(1 / runs + 1 / settings.first_runs))
    freedom = runs + last - 2
    noise = sd**2 * (1 / runs + 1 / last)
    convicted = (
        student_quantile(1 - alpha, freedom) + student_quantile(settings.power, freedom)
    ) * math.sqrt(noise + settings.tau**2 * share)
    shown = math.log1p(settings.min_effect) + NormalDist().inv_cdf(settings.power) * math.sqrt(
        noise
    )
    return math.expm1(max(screened, convicted, shown))


def can_convict(runs: int, last_look: int, settings: GateSettings, cells: int) -> bool:
    """Return whether a cell alone in its suite can be convicted at its last look.

    That needs 3 baseline runs; from 5 on the exact test decides, whose least p is
    ``1 / C(K + T, T)``.
    """
    if runs < LEAST_RUNS_EXACT:
        return runs >= LEAST_RUNS
    reach = settings.weights[-1] * settings.rate / cells
    return permutation_floor(runs, last_look) <= reach


def runs_to_convict(settings: GateSettings, cells: int) -> int | None:
    """Return the smallest number of baseline runs with which the exact test can convict."""
    counts = range(LEAST_RUNS_EXACT, MOST_RUNS + 1)
    return next((k for k in counts if can_convict(k, settings.last_look, settings, cells)), None)


def look_to_convict(runs: int, settings: GateSettings, cells: int) -> int | None:
    """Return the shortest last look at which the exact test can convict with ``runs`` runs."""
    looks = range(settings.last_look, MOST_RUNS + 1)
    return next((look for look in looks if can_convict(runs, look, settings, cells)), None)


def runs_needed(sd: float, goal: float, settings: GateSettings, cells: int) -> int | None:
    """Return the smallest K = T with which the exact test detects a rise of ``goal``.

    ``None`` if more than 60 a side would be needed.
    """

    def enough(runs: int) -> bool:
        return (
            can_convict(runs, runs, settings, cells)
            and detectable_effect(sd, runs, settings, cells, last_look=runs) <= goal
        )

    # More runs never detect less, so the least number is found by halving.
    low, high = LEAST_RUNS_EXACT, MOST_RUNS
    if not enough(high):
        return None
    while low < high:
        middle = (low + high) // 2
        if enough(middle):
            high = middle
        else:
            low = middle + 1
    return low
