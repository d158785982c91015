"""Goals such as ``high.latency_p99_ms < 10``: parsing, and comparison with measurements.

A goal is met if the whole interval of its figure satisfies it, missed if no part of it does, and
undecided otherwise.
"""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from pydantic import Field

from pytest_hwqueue.data.errors import BadInput, meant
from pytest_hwqueue.data.metrics.estimate import Estimate, PlainData
from pytest_hwqueue.data.metrics.numbers import duration
from pytest_hwqueue.engine.scenarios.deciding import decided_by_s
from pytest_hwqueue.engine.tenants import DEVICE

if TYPE_CHECKING:
    from pytest_hwqueue.data.figures.of_requests import Estimator, ServedRequests, TimesOf

GoalVerdict = Literal["met", "missed", "undecided"]
EndedBy = Literal["", "duration", "requests", "trace"]

NATIVE, SOLO = "native", "solo"
REFERENCES = (NATIVE, SOLO)
"""References that are no tenants: the same run under native, and the tenant alone under native."""
RESERVED = (*REFERENCES, DEVICE)
"""What no tenant is called; `DEVICE` is all tenants together."""

CONFIDENCE = 0.95
_PERCENTILES = {"p50": 0.5, "p90": 0.9, "p95": 0.95, "p99": 0.99, "p999": 0.999}
_NS = {"us": 1e3, "ms": 1e6, "s": 1e9}
# Units of each figure, by their factor to the unit in which it is measured.
FIGURES: dict[str, dict[str, float]] = {
    **dict.fromkeys(_PERCENTILES, _NS),
    "mean": _NS,
    "max": _NS,
    "attainment": {"%": 0.01},
    "throughput": {"/s": 1.0},
    "variation": {"%": 0.01},
    **{f"{what}_{name}": _NS for what in ("ttft", "ttfo", "tbt", "wait") for name in _PERCENTILES},
    "goodput": {"/s": 1.0},
    "busy": {"%": 0.01},
    "switches": {"/s": 1.0},
}
OF_TOKENS = tuple(name for name in FIGURES if name.startswith(("ttf", "tbt", "goodput")))
"""Figures of servers that stream tokens."""
_TRACED = ("busy", "switches", *(name for name in FIGURES if name.startswith("wait")))
_OF_DEVICE = ("busy", "switches")
_LONG = re.compile(r"(?:latency_|((?:tt(?:ft|fo)|tbt|wait)_))(p[0-9]+|mean|max)_(us|ms|s)")
_COMPARISONS: dict[str, Callable[[float, float], bool]] = {
    "<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge,
}  # fmt: skip
_NAME = "[A-Za-z][A-Za-z0-9_]*"
_GOAL = re.compile(rf"({_NAME})\.({_NAME})\s*(<=|>=|<|>)\s*(.+)")
_BOUND = re.compile(
    r"([0-9]+(?:\.[0-9]+)?(?:e[+-]?[0-9]+)?)\s*(%|us|µs|ms|s|/s)?"
    rf"(?:\s*(of|x|×)\s+({_NAME}))?"
)
_USAGE = (
    "write TENANT.FIGURE < BOUND (or <=, >, >=), such as high.latency_p99_ms < 10, "
    "low.throughput >= 80% of native, high.p99 <= 1.3 x solo, device.busy > 85%"
)


@dataclass(frozen=True)
class Goal:
    """A bound on a tenant's figure; ``str`` gives its text, with one spelling for each goal.

    Attributes:
        tenant: whose figure; `DEVICE` for all tenants together.
        figure: of `FIGURES`.
        comparison: ``<``, ``<=``, ``>`` or ``>=``.
        number: as written, in ``unit``.
        unit: of the figure's; with a reference ``%`` or ``x``.
        reference: ``native``, ``solo``, another tenant of the same run, a variant of the scenario,
            or None.

    """

    tenant: str
    figure: str
    comparison: str
    number: float
    unit: str
    reference: str | None = None

    def __str__(self) -> str:
        """Such as ``high.p99 < 10 ms`` or ``low.throughput >= 80% of native``."""
        bound = repr(self.number).removesuffix(".0")
        bound += f" {self.unit}" if self.unit[0].isalpha() else self.unit
        if self.reference is not None:
            bound += f" {self.reference}" if self.unit == "x" else f" of {self.reference}"
        return f"{self.tenant}.{self.figure} {self.comparison} {bound}"

    @property
    def about_latency(self) -> bool:
        """Whether slow requests can make it missed."""
        return self.figure in _PERCENTILES or self.figure in ("mean", "max", "attainment")

    @property
    def quantile(self) -> float | None:
        """Of the latency, such as 0.99; None if the figure is no percentile."""
        return _PERCENTILES.get(self.figure)

    @property
    def traced(self) -> bool:
        """Whether it is judged by a traced window, apart from those that are measured."""
        return self.figure in _TRACED

    @property
    def of_these_requests(self) -> bool:
        """Whether it is of the requests measured alone, and so not met before the last one."""
        return self.figure == "max"

    @property
    def factor(self) -> float:
        """One unit in terms of the figure's own: ns, requests per second, a share or a ratio."""
        if self.reference is None:
            return FIGURES[self.figure][self.unit]
        return 0.01 if self.unit == "%" else 1.0

    @property
    def bound(self) -> float:
        """The number in the figure's own unit."""
        return self.number * self.factor


class GoalResult(PlainData):
    """A goal's outcome."""

    goal: str = Field(description="its text")
    verdict: GoalVerdict
    figure: Estimate = Field(
        default=Estimate(),
        description="in the goal's unit: `ms`, `%`, `/s`, `x` …; its value is null if it is "
        "infinite; without a figure n is 0",
    )
    confidence: float = Field(
        CONFIDENCE, description="of the figure's interval; more where windows are looked at often"
    )
    reason: str = Field("", description="why, if undecided")
    decided_by_s: float | None = Field(
        None,
        description="length of a window that would decide it if it is undecided; null if none of "
        "up to 24 h would, or that cannot be told",
    )
    rate_per_s: float | None = Field(
        None, description="requests of the tenant in these windows, for which that holds"
    )
    ended_by: EndedBy = Field(
        "",
        description="what ended the window that leaves it undecided: `requests` that are counted, "
        "or of a traced one `trace`, which holds no more kernels, or `duration`, the measuring "
        "time, which it does not exceed; else empty",
    )

    def __str__(self) -> str:
        """Return one line of text."""
        parts, found = [], self.figure
        if found.n:
            low, high = (_plain(end) for end in found.ends)
            sessions = f" in {found.sessions} sessions" if found.sessions > 1 else ""
            between = f"{100 * self.confidence:.4g}% interval {low} to {high}, "
            if parse_goal(self.goal).of_these_requests:
                between = "of these alone, "
            parts.append(f"{_plain(found.value)} {found.unit}, {between}n = {found.n}{sessions}")
        if self.reason:
            parts.append(self.reason)
        if self.decided_by_s is not None:
            parts.append(
                f"a window of {duration(math.ceil(self.decided_by_s))} would decide it at "
                f"{_plain(self.rate_per_s)}/s"
            )
        return f"{self.verdict}: {self.goal} ({'; '.join(parts)})"


def parse_goal(text: str) -> Goal:
    """Parse a goal.

    Raises:
        BadInput: naming the part that was wrong and what is valid.

    """
    found = _GOAL.fullmatch(text.strip())
    if found is None:
        raise BadInput(f"{text!r} is no goal; {_USAGE}")
    tenant, name, comparison, rest = found.groups()
    figure, implied = _figure(name)
    bound = _BOUND.fullmatch(rest.strip())
    number = math.inf if bound is None else float(bound[1])
    if bound is None or not math.isfinite(number):
        raise BadInput(f"the bound {rest.strip()!r} is not valid; {_USAGE}")
    unit, link, reference = bound[2], bound[3], bound[4]
    unit = "us" if unit == "µs" else unit
    if tenant == DEVICE and figure not in _OF_DEVICE:
        raise BadInput(
            f"{figure} is a tenant's: write TENANT.{name}; of all tenants together there are "
            + " and ".join(f"{DEVICE}.{each}" for each in _OF_DEVICE)
        )
    if figure == "switches" and tenant != DEVICE:
        raise BadInput(
            f"{figure} are between tenants: write {DEVICE}.{figure}, such as "
            f"{DEVICE}.{figure} < 2000/s"
        )
    if figure in _TRACED and link is not None:
        raise BadInput(
            f"{text!r}: {figure} is of one traced window, and is only held to a bound of its own, "
            f"in {', '.join(FIGURES[figure])}"
        )
    if figure == "max" and (link is not None or comparison in (">", ">=")):
        raise BadInput(
            f"{text!r}: the longest of some requests grows with their number, so it can only be "
            "below a bound of its own, such as max < 15 ms; percentiles can be compared"
        )
    if link is None:
        goal = Goal(tenant, figure, comparison, number, _unit(figure, unit or implied))
        if figure in ("attainment", "busy") and goal.bound > 1:
            raise BadInput(f"the bound {rest.strip()!r} is not valid; no share is above 100%")
        return goal
    if (link, unit) not in (("of", "%"), ("x", None), ("×", None)):
        raise BadInput(
            f"the bound {rest.strip()!r} is not valid; relative bounds are 80% of {reference} or "
            f"1.3 x {reference}"
        )
    if reference == tenant:
        raise BadInput(
            f"{tenant} is compared with itself; give native, solo, another tenant, or a variant"
        )
    return Goal(tenant, figure, comparison, number, "%" if link == "of" else "x", reference)


def latency_bound_ns(goals: Iterable[Goal], tenant: str) -> float | None:
    """Return the strictest absolute upper bound on a tenant's P99 among goals, or None."""
    bounds = [
        goal.bound
        for goal in goals
        if (goal.tenant, goal.figure, goal.reference) == (tenant, "p99", None)
        and goal.comparison in ("<", "<=")
    ]
    return min(bounds, default=None)


def evaluate(
    goal: Goal,
    windows: Sequence[ServedRequests],
    reference: Sequence[ServedRequests] | None = None,
    within_ns: float | None = None,
    *,
    confidence: float = CONFIDENCE,
) -> GoalResult:
    """Compare a goal with measurements, at 95 % confidence for each goal by itself.

    Windows of several sessions are combined as `data.figures.over_sessions` says.

    Args:
        goal: the goal.
        windows: of its tenant; at least one. Of a goal that is `Goal.traced`: as
            `engine.tenants.device_use.used` returns them.
        reference: windows of the reference; None without one. The same object as ``windows`` if
            the run is its own reference: then the ratio is exactly 1.
        within_ns: latency that a request must keep to count as attained; for ``attainment``.
        confidence: of the interval, in place of 95 %.

    Raises:
        ValueError: if ``reference`` or ``within_ns`` is missing.

    """
    from pytest_hwqueue.data.figures import over_sessions as sessions

    estimator = estimator_of(goal, within_ns)
    if goal.reference is None:
        estimate = sessions.absolute(estimator, windows, confidence)
    elif reference is None:
        raise ValueError(f"{goal} needs windows of {goal.reference}")
    elif reference is windows:
        issued, measured = sum(w.issued for w in windows), len({w.session for w in windows})
        estimate = Estimate(value=1.0, low=1.0, high=1.0, n=issued, sessions=measured)
    else:
        estimate = sessions.ratio(estimator, windows, reference, confidence)
    if estimate.value is None:
        reason = estimate.refused or f"{goal.reference} has nothing to divide by"
        figure = Estimate(unit=goal.unit, refused=reason)
        return GoalResult(goal=str(goal), verdict="undecided", figure=figure, reason=reason)
    verdict = _verdict(goal, estimate)
    reason, longer, rate = "", None, None
    if verdict == "undecided":
        reason = estimate.refused or "the interval reaches to both sides of the bound"
        # A traced window has a plan of its own.
        if not goal.traced:
            longer = decided_by_s(goal, windows, estimate, confidence, within_ns)
            rate = sum(w.issued for w in windows) / sum(w.window_ns for w in windows) * 1e9
    figure = estimate.scaled(1 / goal.factor, goal.unit)
    if math.isinf(estimate.value):
        figure = figure.model_copy(update={"value": None})
    return GoalResult(
        goal=str(goal),
        verdict=verdict,
        figure=figure,
        confidence=confidence,
        reason=reason,
        decided_by_s=longer,
        rate_per_s=rate,
    )


def _figure(name: str) -> tuple[str, str | None]:
    """Return the figure, and the unit that its long name implies."""
    long = _LONG.fullmatch(name)
    figure, implied = ((long[1] or "") + long[2], long[3]) if long else (name, None)
    if figure in FIGURES:
        return figure, implied
    names = [*FIGURES, *(f"latency_{percentile}_ms" for percentile in _PERCENTILES)]
    raise BadInput(
        f"there is no figure {name!r}; {meant(name, names)}there are "
        f"{', '.join(FIGURES)}, and names such as "
        "latency_p99_ms"
    )


def _unit(figure: str, unit: str | None) -> str:
    units = FIGURES[figure]
    if unit in units:
        assert unit is not None
        return unit
    given = "has no unit" if unit is None else f"is in {unit!r}"
    raise BadInput(f"the bound of {figure} {given}; give it in {', '.join(units)}")


def estimator_of(goal: Goal, within_ns: float | None) -> Estimator:
    """Return what estimates a goal's figure; ``within_ns`` as `evaluate` takes it."""
    from pytest_hwqueue.data.figures import of_requests as figures

    times: dict[str, TimesOf] = {
        "": "latency_ns", "ttft": "ttft_ns", "ttfo": "ttfo_ns", "tbt": "tbt_ns",
        "wait": "wait_ns",
    }  # fmt: skip
    figure = goal.figure
    of, _, name = figure.rpartition("_")
    if name in _PERCENTILES:
        return figures.percentile(_PERCENTILES[name], times[of])
    if figure == "attainment":
        if within_ns is None:
            raise ValueError("attainment needs the latency within which a request counts")
        return figures.attainment(within_ns)
    others = {
        "mean": figures.mean,
        "max": figures.longest,
        "throughput": figures.throughput,
        "variation": figures.variation,
        "goodput": figures.goodput,
        "busy": figures.busy,
        "switches": figures.switches,
    }
    return others[figure]


def _verdict(goal: Goal, estimate: Estimate) -> GoalVerdict:
    fulfils = _COMPARISONS[goal.comparison]
    ends = [fulfils(end, goal.bound) for end in (estimate.low, estimate.high)]
    if all(ends):
        return "met"
    return "undecided" if any(ends) else "missed"


def _plain(value: float | None) -> str:
    return "infinity" if value is None else f"{value:.4g}"
