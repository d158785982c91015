"""Energy by a device's own counter: mean power of a window, and energy of an attained request."""

from __future__ import annotations

from collections.abc import Sequence
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
    # A window is read some 20 ms after its begin and its end.
    if seconds < LEAST_S - _COUNTER_S:
        return Estimate(unit="W", refused=f"a window of {seconds:.3g} s; {LEAST_S:g} s suffice")
    return Estimate(
        value=joules / seconds,
        low=joules / (seconds + _COUNTER_S),
        high=joules / (seconds - _COUNTER_S),
        n=2,
        unit="W",
    )


class EnergyWindow(NamedTuple):
    """A window's mean power in W, and how long it was in s."""

    power_w: Estimate
    seconds: float


def energy_of_a_request(
    windows: Sequence[EnergyWindow], issued: int, attained: Estimate
) -> Estimate:
    """Return the device's energy in J divided by a tenant's attained requests, of some windows.

    The ends of its interval are those of energy and share at their worst.

    Args:
        windows: in which they were issued, at least one.
        issued: requests of the tenant in all of them.
        attained: share of these that were served in time.

    """
    for part in (*(each.power_w for each in windows), attained):
        if part.value is None:
            return Estimate(unit="J", refused=part.refused)
    if not issued * float(attained):
        return Estimate(unit="J", refused="no request was served in time")
    value, low, high = (
        sum(power * each.seconds for power, each in zip(powers, windows, strict=True))
        for powers in zip(
            *((float(one.power_w), one.power_w.low, one.power_w.high) for one in windows),
            strict=True,
        )
    )
    ends = {}
    if attained.interval is not None and attained.low > 0:
        ends = {"low": low / (issued * attained.high), "high": high / (issued * attained.low)}
    refused = "" if ends else attained.refused or "as few as none may be served in time"
    return Estimate(
        value=value / (issued * float(attained)), n=attained.n, unit="J", refused=refused, **ends
    )
