"""Energy by a device's own counter: mean power of a window, and energy of an attained request."""

from __future__ import annotations

from typing import NamedTuple

from pytest_hwqueue.data.metrics.estimate import Estimate

# NVML's counter moves every 100 ms: each reading is that of a time up to so much earlier.
_COUNTER_S = 0.1
# From here on the counter's steps are at most 2 % of a window.
LEAST_S = 5.0


class EnergyReading(NamedTuple):
    """The counter at a time; the time since the window's begin in ns, the energy in mJ."""

    when_ns: int
    energy_mj: int


def mean_power(first: EnergyReading, last: EnergyReading) -> Estimate:
    """Return the mean power in W between two readings.

    Its interval is not one of chance: it has what the counter's steps leave open, since the span
    that it counted may be a step shorter or longer.
    """
    seconds = (last.when_ns - first.when_ns) / 1e9
    joules = (last.energy_mj - first.energy_mj) / 1e3
    if seconds < LEAST_S:
        return Estimate(unit="W", refused=f"a window of {seconds:.2g} s; {LEAST_S:g} s suffice")
    return Estimate(
        value=joules / seconds,
        low=joules / (seconds + _COUNTER_S),
        high=joules / (seconds - _COUNTER_S),
        n=2,
        unit="W",
    )


def energy_of_a_request(power_w: list[Estimate], rate: Estimate, attained: Estimate) -> Estimate:
    """Return the device's energy in J divided by a tenant's attained requests.

    The ends of its interval are those of all three at their worst, and of several windows the
    outermost ones.

    Args:
        power_w: of each window.
        rate: of the tenant's completed requests, per second.
        attained: share of its requests that were served in time.

    """
    for part in (*power_w, rate, attained):
        if part.value is None:
            return Estimate(unit="J", refused=part.refused)
    if not power_w:
        return Estimate(unit="J", refused="the device's energy was not counted")
    per_s = float(rate) * float(attained)
    if per_s <= 0:
        return Estimate(unit="J", refused="no request was served in time")
    mean = sum(map(float, power_w)) / len(power_w)
    ends = {}
    if rate.interval is not None and attained.interval is not None and rate.low * attained.low > 0:
        ends = {
            "low": min(each.low for each in power_w) / (rate.high * attained.high),
            "high": max(each.high for each in power_w) / (rate.low * attained.low),
        }
    refused = "" if ends else rate.refused or attained.refused or "some of its ends are 0"
    return Estimate(value=mean / per_s, n=attained.n, unit="J", refused=refused, **ends)
