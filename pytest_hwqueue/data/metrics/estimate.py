"""A number with its interval, or the reason for having none.

A share (a loss, an efficiency) or a ratio is refused

- if its interval is wider than 1, which is 100 percentage points or once the reference, and wider
  than the figure itself: "lost -485 % [-13535, 75]" does not say whether anything was lost, while
  "8.4 times as long [7.9, 9.0]" says how much longer;
- if all of it lies outside what is possible: 2 streams do not do 162 times the work of one. A
  figure without an interval is refused only for this reason.

Goals' verdicts do not use this rule: even a wide interval may lie on one side of a bound.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from numbers import Real
from typing import Annotated, Any, TypeVar

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainSerializer,
    WithJsonSchema,
)
from pydantic_core import PydanticSerializationError, to_json

from pytest_hwqueue.data.errors import RefusedFigure, in_utf8

Interval = tuple[float, float]

# Pydantic's copies have sets of their own.
_NOT_KEPT: set[str] = set()


class PlainData(BaseModel):
    """Data that JSON can hold: it has no infinity and no NaN, so neither has this."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    def model_post_init(self, _: Any, /) -> None:
        """Forget which fields were given: nobody asks, and it is a third of a record's memory."""
        # Emptied, the sets would still take 15 kB of the 127 kB of a cell's record.
        self.__pydantic_fields_set__ = _NOT_KEPT

    def model_dump_json(self, *, indent: int | None = None, **how: Any) -> str:
        """Return the data as JSON; see `errors.in_utf8`."""
        try:
            return super().model_dump_json(indent=indent, **how)
        except PydanticSerializationError:
            # Of a text that names such a path, or a key: most have none, and need no second look.
            return to_json(data_in_utf8(self.model_dump(**how)), indent=indent).decode()


def data_in_utf8(data: Any) -> Any:
    """Return plain data with all its texts, keys too, as `errors.in_utf8` returns them."""
    if isinstance(data, str):
        return in_utf8(data)
    if isinstance(data, dict):
        return {data_in_utf8(key): data_in_utf8(value) for key, value in data.items()}
    if isinstance(data, (list, tuple)):
        return [*map(data_in_utf8, data)]
    return data


def _null_if_infinite(value: float | None) -> float | None:
    return None if value is None or math.isinf(value) else value


_IN_JSON = PlainSerializer(_null_if_infinite, return_type=float | None)
_NULLABLE = WithJsonSchema({"anyOf": [{"type": "number"}, {"type": "null"}]})


def _end(infinite: float) -> Any:
    return BeforeValidator(lambda given: infinite if given is None else given)


def _operations(name: str) -> tuple[Callable[[Estimate, object], Any], ...]:
    """Return an operation on an estimate's value and a number or estimate, and its reflection."""
    compute = getattr(operator, name)

    def operation(self: Estimate, other: object) -> Any:
        __tracebackhide__ = True
        return compute(float(self), float(other)) if isinstance(other, Real) else NotImplemented

    def reflected(self: Estimate, other: object) -> Any:
        __tracebackhide__ = True
        return compute(float(other), float(self)) if isinstance(other, Real) else NotImplemented

    return operation, reflected


class Estimate(PlainData):
    """A number with its 95 % interval, or the reason why there is none.

    It compares and computes as its value does. A refused one raises `RefusedFigure` then, since
    ``None < 12.0`` would be a TypeError that names neither the figure nor what it lacks. It has no
    truth value: whether 0 and a refused one are true depends on who asks.
    """

    model_config = ConfigDict(allow_inf_nan=True)

    value: Annotated[float | None, _IN_JSON] = Field(None, description="in `unit`; null: refused")
    low: Annotated[float, _end(-math.inf), _IN_JSON, _NULLABLE] = Field(
        -math.inf, description="lower end of the 95 % interval; null: it has none"
    )
    high: Annotated[float, _end(math.inf), _IN_JSON, _NULLABLE] = Field(
        math.inf, description="upper end likewise"
    )
    n: int = Field(0, description="samples or requests that it rests on; of two sides, the fewer")
    unit: str = Field("", description="of value and ends; empty for a share of one or a ratio")
    refused: str = Field(
        "",
        description="why the value, or an end of its interval, is missing, or sessions left out",
    )
    sessions: int = Field(
        1,
        description="sessions that it rests on; a ratio is formed within each, and the spread "
        "between them is in its interval",
    )
    drift: float | None = Field(
        None,
        description="how far a line through its window rises, as a share of the window's mean, "
        "which the interval then is of; null: no drift stands out",
    )

    @property
    def interval(self) -> Interval | None:
        """Both ends of the interval; None unless it has both."""
        return None if math.isinf(self.low) or math.isinf(self.high) else (self.low, self.high)

    @property
    def ends(self) -> tuple[float | None, float | None]:
        """Both ends of the interval, as JSON has them: None for one that is missing."""
        return _null_if_infinite(self.low), _null_if_infinite(self.high)

    def scaled(self, factor: float, unit: str) -> Estimate:
        """Return it in another unit, by a factor that is not negative."""
        return self.model_copy(
            update={
                "value": None if self.value is None else self.value * factor,
                "low": self.low * factor,
                "high": self.high * factor,
                "unit": unit,
            }
        )

    def without_value(self, reason: str) -> Estimate:
        """Return it refused for a reason."""
        update = {
            "value": None, "low": -math.inf, "high": math.inf, "refused": reason, "drift": None
        }  # fmt: skip
        return self.model_copy(update=update)

    def informative(
        self, *, least: float = -math.inf, most: float = math.inf, unit: str = "%"
    ) -> Estimate:
        """Return it, or refused if it says too little to be printed.

        Args:
            least: the smallest possible value of this share or ratio, 1 being 100 % or once the
                reference.
            most: the greatest possible value.
            unit: of the figures in the reason: ``%`` or ``×``.

        """
        if self.value is None:
            return self
        reason = _too_little(self.value, self.interval, least, most, unit)
        return self.without_value(reason) if reason else self

    def __float__(self) -> float:
        __tracebackhide__ = True
        if self.value is None:
            raise RefusedFigure(self.refused)
        return self.value

    def __bool__(self) -> bool:
        raise TypeError(f"{self!r} is neither true nor false; compare it, or look at its value")

    def __str__(self) -> str:
        return f"refused ({self.refused})" if self.value is None else str(self.value)

    def __repr__(self) -> str:
        interval = "" if self.value is None else f" [{self.low:.6g}, {self.high:.6g}]"
        return f"<{self}{f' {self.unit}' * bool(self.unit)}{interval}, n={self.n}>"

    def __format__(self, specification: str) -> str:
        __tracebackhide__ = True
        return format(float(self), specification) if specification else str(self)

    def __eq__(self, other: object) -> bool:
        __tracebackhide__ = True
        if isinstance(other, Real) and not isinstance(other, Estimate):
            return float(self) == other
        return super().__eq__(other)

    def __hash__(self) -> int:
        return hash((self.value, self.low, self.high, self.n, self.unit, self.refused))

    __lt__, __gt__ = _operations("lt")
    __le__, __ge__ = _operations("le")
    __add__, __radd__ = _operations("add")
    __sub__, __rsub__ = _operations("sub")
    __mul__, __rmul__ = _operations("mul")
    __truediv__, __rtruediv__ = _operations("truediv")
    __floordiv__, __rfloordiv__ = _operations("floordiv")
    __mod__, __rmod__ = _operations("mod")
    __pow__, __rpow__ = _operations("pow")

    def __neg__(self) -> float:
        return -float(self)

    def __abs__(self) -> float:
        return abs(float(self))

    def __int__(self) -> int:
        return int(float(self))

    def __round__(self, digits: int | None = None) -> float:
        return round(float(self), digits)


# `pytest.approx` compares numbers only, and finds all else unequal.
Real.register(Estimate)

Summary = TypeVar("Summary", bound=PlainData)


def named(summary: Summary, what: str, remedy: str) -> Summary:
    """Return a copy of a summary whose refused estimates say whose they are.

    Args:
        summary: as recorded.
        what: owner of the summary, such as a cell's id.
        remedy: how to get the missing samples.

    """
    changed = {}
    for name, given in summary:
        if not isinstance(given, Estimate) or given.value is not None:
            continue
        whose = f"{label(name)} of {what} is refused: "
        # A test's record says so already.
        if not given.refused.startswith(whose):
            reason = f"{whose}{given.refused}; {remedy}"
            changed[name] = given.model_copy(update={"refused": reason})
    return summary.model_copy(update=changed)


def label(name: str) -> str:
    """Return a percentile's display name: ``P99`` for ``p99``, ``P99.9`` for ``p999``."""
    return "P99.9" if name == "p999" else name.upper()


WIDEST = 1.0
"""Width up to which an interval always tells something: 100 percentage points."""


def _too_little(
    value: float, interval: Interval | None, least: float, most: float, unit: str
) -> str:
    """Return why a figure says too little to be printed; empty if it may be."""
    low, high = (value, value) if interval is None else interval
    if low > most:
        return f"{_text(low, unit)} is more than is possible, {_text(most, unit)} at most"
    if high < least:
        return f"{_text(high, unit)} is less than is possible, {_text(least, unit)} at least"
    if high - low > max(WIDEST, abs(value)):
        than = "100 percentage points" if unit == "%" else "once the reference"
        return (
            f"its interval, {_text(low, unit)} to {_text(high, unit)}, is wider than {than} and "
            "than the figure itself"
        )
    return ""


def _text(value: float, unit: str) -> str:
    if math.isinf(value):
        return "-∞" if value < 0 else "∞"
    return f"{value * 100:.4g} %" if unit == "%" else f"{value:.3g}×"
