"""Stands in for a refused percentile, so that a test that needs it fails and says why.

Records keep ``None`` there. A test gets a `Refused` instead: ``None < 12.0`` is a TypeError that
names neither the figure nor what it lacks.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any, NoReturn, TypeVar

from pydantic import PlainSerializer

from pytest_hwqueue.errors import RefusedFigure

if TYPE_CHECKING:
    from pytest_hwqueue.metrics.interference import LatencyRatioResult
    from pytest_hwqueue.metrics.latency import LatencySummary

Summary = TypeVar("Summary", "LatencySummary", "LatencyRatioResult")


class Refused:
    """A refused figure: falsy, ``null`` in JSON; comparing or computing with it raises.

    Attributes:
        reason: what is wrong, and what to do about it.

    """

    __slots__ = ("reason",)

    def __init__(self, reason: str) -> None:
        self.reason = reason

    def __bool__(self) -> bool:
        return False

    def __repr__(self) -> str:
        return f"refused ({self.reason})"

    def __format__(self, specification: str) -> str:
        if specification:
            self._refuse()
        return repr(self)

    def __eq__(self, other: object) -> bool:
        if isinstance(other, (int, float)):
            self._refuse()
        return isinstance(other, Refused) and other.reason == self.reason

    def __hash__(self) -> int:
        return hash(self.reason)

    def _refuse(self, *_: object) -> NoReturn:
        __tracebackhide__ = True
        raise RefusedFigure(self.reason)

    __lt__ = __le__ = __gt__ = __ge__ = _refuse
    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = _refuse
    __truediv__ = __rtruediv__ = __floordiv__ = __rfloordiv__ = __mod__ = __rmod__ = _refuse
    __pow__ = __rpow__ = __neg__ = __pos__ = __abs__ = __round__ = _refuse
    __float__ = __int__ = _refuse


def _null_if_refused(value: Any) -> Any:
    return None if isinstance(value, Refused) else value


Percentile = Annotated[float | None, PlainSerializer(_null_if_refused, return_type=float | None)]
"""A percentile, or a ratio at one; None if refused. A test's `Refused` is written as null."""


def guarded(summary: Summary, what: str, remedy: str) -> Summary:
    """Return a copy of a summary in which each refused percentile is a `Refused`.

    Args:
        summary: as recorded.
        what: owner of the summary, such as a cell's id.
        remedy: how to get the missing samples.

    """
    refused: dict[str, Any] = {
        name: Refused(f"{label(name)} of {what} is refused: {reason}; {remedy}")
        for name, reason in summary.refused.items()
        if getattr(summary, name, 0) is None
    }
    return replace(summary, **refused)


def label(name: str) -> str:
    """Return a percentile's display name: ``P99`` for ``p99``, ``P99.9`` for ``p999``."""
    return "P99.9" if name == "p999" else name.upper()
