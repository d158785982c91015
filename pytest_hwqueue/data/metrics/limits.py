"""What share of a device's own limits a cell takes."""

from __future__ import annotations

from pydantic import Field

from pytest_hwqueue.data.metrics.estimate import Estimate, PlainData


class LimitShare(PlainData):
    """How much of one of the device's own limits a cell takes."""

    limit: str = Field(description="its name, such as front end")
    most: Estimate = Field(
        description="the rate at which the device does this and nothing else, measured in the "
        "cell's process after its passes; a model's own figure on a simulated device"
    )
    share: Estimate = Field(description="of it that the cell reaches, 1 is all")


def limit_share(limit: str, reached: Estimate, most: Estimate) -> LimitShare:
    """Return the share of a limit that a rate is.

    The ends of its interval are those of both rates at their worst. It misses the share at most as
    often as both intervals together miss their rates (Bonferroni): in 10 % of cases of two of 95 %.

    Args:
        limit: its name.
        reached: by the cell, in the limit's unit.
        most: the limit, above 0.

    """
    if reached.value is None or most.value is None:
        why = reached.refused if reached.value is None else most.refused
        return LimitShare(limit=limit, most=most, share=Estimate(refused=why))
    ends = {}
    if reached.interval is not None and most.interval is not None and most.low > 0:
        ends = {"low": reached.low / most.high, "high": reached.high / most.low}
    elif reached.interval is not None and not most.n:
        # A model's own figure, which has no interval, is exact.
        ends = {"low": reached.low / most.value, "high": reached.high / most.value}
    share = Estimate(
        value=reached.value / most.value,
        n=min(reached.n, most.n) or reached.n,
        refused="" if ends else reached.refused or most.refused,
        **ends,
    )
    return LimitShare(limit=limit, most=most, share=share)
