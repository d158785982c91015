"""Figures over several sessions: a ratio is formed within each session, and then combined.

Two GPUs of one model differ, and so do two sessions on one GPU: dividing a case of one session by a
reference of another would show that difference as the scheduler's.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import NormalDist

from pytest_hwqueue.data.figures import of_requests as figures
from pytest_hwqueue.data.figures.of_requests import Estimator, ServedRequests
from pytest_hwqueue.data.metrics.dependence import student_quantile
from pytest_hwqueue.data.metrics.estimate import Estimate

# No session counts more than 10,000 times another, however sharp it was.
_LEAST_VARIANCE = 1e-4


def absolute(
    estimator: Estimator, windows: Sequence[ServedRequests], confidence: float
) -> Estimate:
    """Estimate a figure that is not a ratio, from all windows.

    Over several GPUs the interval covers each GPU's: it meets a goal only if each does.
    """
    whole = estimator(windows, confidence)
    devices = list(dict.fromkeys(window.session.device for window in windows))
    sessions = len({window.session for window in windows})
    if len(devices) == 1:
        return whole.model_copy(update={"sessions": sessions})
    each = [
        estimator([w for w in windows if w.session.device == device], confidence)
        for device in devices
    ]
    refused = next((estimate.refused for estimate in each if estimate.refused), "")
    return whole.model_copy(
        update={
            "low": min(whole.low, *(estimate.low for estimate in each)),
            "high": max(whole.high, *(estimate.high for estimate in each)),
            "refused": whole.refused or (refused and f"on one of {len(devices)} GPUs {refused}"),
            "sessions": sessions,
        }
    )


def ratio(
    estimator: Estimator,
    windows: Sequence[ServedRequests],
    reference: Sequence[ServedRequests],
    confidence: float,
) -> Estimate:
    """Estimate a figure divided by a reference's, from the sessions that measured both."""
    referred = {window.session for window in reference}
    common = [
        session
        for session in dict.fromkeys(window.session for window in windows)
        if session in referred
    ]
    if not common:
        return Estimate(low=0.0, refused="no session measured both", sessions=0)
    return combined(
        [
            figures.ratio(
                estimator,
                [window for window in windows if window.session == session],
                [window for window in reference if window.session == session],
                confidence,
            )
            for session in common
        ],
        confidence,
    )


def combined(ratios: Sequence[Estimate], confidence: float) -> Estimate:
    """Combine the ratios of one or more sessions, with the spread between them in the interval.

    The result is the random-effects mean of their logarithms: a session's weight is the inverse of
    its own variance plus that between sessions (DerSimonian and Laird, Controlled Clinical Trials
    7, 1986), its own variance being that of a normal distribution with its interval's wider half.
    The interval is Hartung and Knapp's, Student's t with one degree of freedom fewer than sessions
    (Statistics in Medicine 20, 2001), never narrower than the weights alone make it (Röver, Knapp
    and Friede, BMC Medical Research Methodology 15:99, 2015). Two sessions say little about the
    spread, and their t is 12.7.

    If a session's interval lacks an end, it has no weight: the interval then covers that of each
    session, and the value is the median.
    """
    if len(ratios) == 1:
        return ratios[0]
    n, sessions = sum(each.n for each in ratios), len(ratios)
    known = [each.value for each in ratios if each.value is not None]
    if len(known) < sessions or any(
        each.low <= 0 or math.isinf(each.high) or not 0 < value < math.inf
        for each, value in zip(ratios, known, strict=True)
    ):
        return Estimate(
            value=sorted(known)[len(known) // 2] if len(known) == sessions else None,
            low=min(each.low for each in ratios),
            high=max(each.high for each in ratios),
            n=n,
            refused=next((each.refused for each in ratios if each.refused), ""),
            sessions=sessions,
        )
    logs = [math.log(value) for value in known]
    z = NormalDist().inv_cdf((1 + confidence) / 2)
    variances = [
        (max(math.log(each.high) - log, log - math.log(each.low), 0.0) / z) ** 2
        for each, log in zip(ratios, logs, strict=True)
    ]
    least = _LEAST_VARIANCE * max(variances)
    variances = [max(variance, least) for variance in variances]
    between = _between(logs, variances)
    if min(variances) + between == 0:
        return Estimate(value=known[0], low=known[0], high=known[0], n=n, sessions=sessions)
    weights = [1 / (variance + between) for variance in variances]
    mean = math.fsum(w * y for w, y in zip(weights, logs, strict=True)) / math.fsum(weights)
    spread = _squares(weights, logs, mean) / (sessions - 1)
    error = math.sqrt(max(1.0, spread) / math.fsum(weights))
    half = student_quantile((1 + confidence) / 2, sessions - 1) * error
    return Estimate(
        value=math.exp(mean), low=_exp(mean - half), high=_exp(mean + half), n=n, sessions=sessions
    )


def _between(logs: Sequence[float], variances: Sequence[float]) -> float:
    """Return the variance between sessions by DerSimonian and Laird's method of moments."""
    count = len(logs)
    if max(variances) == 0:
        mean = math.fsum(logs) / count
        return _squares([1.0] * count, logs, mean) / (count - 1)
    # Relative to the greatest variance, so that no weight overflows.
    scale = max(variances)
    weights = [scale / variance for variance in variances]
    total = math.fsum(weights)
    mean = math.fsum(w * y for w, y in zip(weights, logs, strict=True)) / total
    excess = _squares(weights, logs, mean) / scale - (count - 1)
    by = total - math.fsum(w * w for w in weights) / total
    return max(0.0, scale * excess / by)


def _squares(weights: Sequence[float], logs: Sequence[float], mean: float) -> float:
    return math.fsum(w * (y - mean) ** 2 for w, y in zip(weights, logs, strict=True))


def _exp(value: float) -> float:
    return math.inf if value > 700 else math.exp(value)
