"""What an urgent kernel's wait over the length of its victim's kernels says of preemption.

A kernel that arrives at any moment of a victim that works without a pause finds a rest of the
kernel under way that is uniform between nothing and all of it (the inspection of a deterministic
renewal process: Cox, Renewal Theory, 1962, section 5.2). So without preemption the P99 of the wait
rises by 0.99 of a kernel's length, its median by half of it: the law is of the P99.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from pytest_hwqueue.data.metrics.straight_line import StraightLine

PreemptionVerdict = Literal["waits", "shorter", "bounded", "no line", "undecided"]
"""waits: for a kernel, or more of what is in flight; shorter: for less than half of a kernel, which
yet grows with it; bounded: no longer for long kernels than for short ones; no line: no straight
line fits; undecided: the runs are too few, or differ too much."""

_MISFIT_P = 0.01
# A wait that grows by less is no wait for kernels: a tenth of the longest, and 50 µs at least,
# since a host's own delays are tens of µs.
_LEAST_GROWTH_US, _GROWTH_SHARE = 50.0, 0.1
# A line that is off by less at every length is no worse a law for it, however sure the misfit.
_LEAST_MISFIT_US, _MISFIT_SHARE = 20.0, 0.1
_HALF = 0.5


def matters_us(length_us: float) -> float:
    """Return the growth of the wait, in µs, that matters beside kernels of this length."""
    return max(_LEAST_GROWTH_US, _GROWTH_SHARE * length_us)


def preemption_verdict(
    line: StraightLine, lengths_us: Sequence[float], waits_us: Sequence[float]
) -> PreemptionVerdict:
    """Return what a line of P99 waits over kernels' lengths says.

    Args:
        line: fitted to them.
        lengths_us: of the victim's kernels.
        waits_us: at each, the mean of the runs' P99.

    """
    if _is_bent(line, waits_us):
        return "no line"
    longest_us = max(lengths_us)
    growth_us = matters_us(longest_us)
    # Beside kernels that are short themselves, growth that does not matter may be a whole kernel.
    if line.slope.high * longest_us <= growth_us < _HALF * longest_us:
        return "bounded"
    if line.slope.low >= _HALF:
        return "waits"
    if line.slope.low > 0 and line.slope.high < _HALF:
        return "shorter"
    return "undecided"


def _is_bent(line: StraightLine, waits_us: Sequence[float]) -> bool:
    """Whether runs show that no line fits, by more than does not matter."""
    if line.misfit_p is None or line.misfit_p >= _MISFIT_P:
        return False
    return any(
        abs(misfit) > max(_LEAST_MISFIT_US, _MISFIT_SHARE * abs(wait))
        for misfit, wait in zip(line.misfits, waits_us, strict=True)
    )
