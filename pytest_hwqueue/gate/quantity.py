"""The gated quantities: figures of a run, their worse direction, and required samples."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

_CONFIDENCE = 0.95


@dataclass(frozen=True)
class Quantity:
    """A figure of a run that can be gated.

    ``quantile`` is ``None`` for a figure that is not a quantile. A ratio of quantiles (P99 with
    neighbours over P99 alone) has its quantile, and the lesser side's number of samples counts.
    ``unit`` is that of the values, such as ``ns`` or ``TFLOP/s``; empty for a ratio.
    ``demoted_from`` is the label of the requested quantile if runs are too short for it and a lower
    one stands in; the verdict is then never a pass and never a regression.
    """

    name: str
    label: str
    quantile: float | None
    higher_is_worse: bool = True
    unit: str = "ns"
    demoted_from: str = ""

    @property
    def least_n(self) -> int:
        """The smallest number of samples a run needs.

        Below it even the largest sample is no upper bound of the quantile at 95 %:
        ``1 - q ** n < 0.95`` (Hahn & Meeker, Statistical Intervals, section 5.2).
        """
        if self.quantile is None:
            return 1
        needed = math.ceil(math.log(1 - _CONFIDENCE) / math.log(self.quantile))
        return needed if 1 - self.quantile**needed >= _CONFIDENCE else needed + 1


P50 = Quantity("p50", "P50", 0.5)
P90 = Quantity("p90", "P90", 0.9)
P95 = Quantity("p95", "P95", 0.95)
P99 = Quantity("p99", "P99", 0.99)
P999 = Quantity("p999", "P99.9", 0.999)
THROUGHPUT = Quantity("throughput", "throughput", None, higher_is_worse=False, unit="per s")
ITERATION_TIME = Quantity("iteration_time", "time per iteration", None)
"""The companion of every other figure: the mean time per iteration of a run, in ns. It needs no
number of samples, so there is always something to judge; see `CellGate`."""

_KNOWN = {
    quantity.name: quantity for quantity in (P50, P90, P95, P99, P999, THROUGHPUT, ITERATION_TIME)
}
_TAIL_DOWNWARDS = (P999, P99, P95, P90)


def quantity(name: str) -> Quantity:
    """Return the gated quantity with that name.

    The largest sample is not among them: it grows with the number of samples, and no number of them
    bounds it.

    Raises:
        ValueError: if there is none of that name.
    """
    if name not in _KNOWN:
        raise ValueError(f"no gated quantity is named {name!r}; known are {', '.join(_KNOWN)}")
    return _KNOWN[name]


def fall_back(wanted: Quantity, n: int) -> Quantity | None:
    """Return the tail quantile to gate with ``n`` samples per run, or ``None``.

    It is the requested one if ``n`` is enough for it, else the next lower tail quantile for which
    it is, down to P90. That one has its own name, and says in ``demoted_from`` what it stands in
    for.
    """
    if n >= wanted.least_n:
        return wanted
    if wanted not in _TAIL_DOWNWARDS:
        return None
    lower = _TAIL_DOWNWARDS[_TAIL_DOWNWARDS.index(wanted) + 1 :]
    found = next((candidate for candidate in lower if n >= candidate.least_n), None)
    return found and replace(found, demoted_from=wanted.label)
