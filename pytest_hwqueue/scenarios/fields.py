"""Parses the text of scenario fields into values."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator, BeforeValidator, ValidationInfo, WithJsonSchema

from pytest_hwqueue.errors import (
    BadArrival,
    BadFunction,
    BadGoal,
    BadNoise,
    BadScheduler,
    shortened,
)
from pytest_hwqueue.noise import command
from pytest_hwqueue.noise.names import NOISES, noise_file
from pytest_hwqueue.scenarios.goals import RESERVED, Goal, parse_goal
from pytest_hwqueue.schedulers.syntax import parse_scheduler
from pytest_hwqueue.tenancy.arrivals import parse_arrival
from pytest_hwqueue.workloads.own_function import PATTERN, find
from pytest_hwqueue.workloads.registry import WORKLOADS
from pytest_hwqueue.workloads.tenants.names import MODELS

_NUMBER = r"[0-9]+(?:\.[0-9]+)?"
_NAME = r"[A-Za-z][A-Za-z0-9_]*"
_DURATION = rf"({_NUMBER})\s*(ms|s|m|h)"
_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}
# Nothing is measured for longer: what asks for more has a wrong unit.
_LONGEST_S = 366 * 24 * 3600.0
_SHARE = rf"({_NUMBER})\s*%"
_OF_PEAK = re.compile(rf"{_SHARE}\s+of\s+peak")


@dataclass(frozen=True)
class TenantArrival:
    """When a tenant's requests arrive; the rate may be a share of its peak.

    Attributes:
        text: for `parse_arrival`; as in the file if the rate is a share.
        of_peak: the share; None if the rate is known.

    """

    text: str
    of_peak: float | None = None

    def at(self, peak_per_s: float) -> str:
        """Return the text for `parse_arrival`, given the requests per second at the peak."""
        if self.of_peak is None:
            return self.text
        return _OF_PEAK.sub(f"{self.of_peak * peak_per_s:.6g}/s", self.text)


def _text(value: object, what: str) -> str:
    # YAML reads 1:30 as 90, and on as true: what is shown is not always what was written.
    if not isinstance(value, str):
        raise ValueError(f"{value!r} is not text; give {what}")
    return value.strip()


def _read_name(value: object) -> str:
    what = "letters, digits and underscores, a letter first"
    name = _text(value, what)
    if re.fullmatch(_NAME, name) is None:
        raise ValueError(f"{name!r} is no name; give {what}")
    return name


def _read_tenant_name(value: object) -> str:
    name = _read_name(value)
    if name in RESERVED:
        raise ValueError(f"{name!r} means something else in goals; choose another name")
    return name


def _read_seconds(value: object) -> float:
    what = "a duration above 0 with its unit, such as 180s, 3m or 500ms"
    text = _text(value, what)
    found = re.fullmatch(_DURATION, text)
    seconds = float(found[1]) * _SECONDS[found[2]] if found else 0.0
    if not 0 < seconds <= _LONGEST_S:
        raise ValueError(f"{shortened(text)!r} is no duration; give {what}, of at most a year")
    return seconds


def _read_share(value: object) -> float:
    what = "a share above 0 and up to 100%, such as 75%"
    text = _text(value, what)
    found = re.fullmatch(_SHARE, text)
    share = float(found[1]) / 100 if found else 0.0
    if not 0 < share <= 1:
        raise ValueError(f"{text!r} is no share; give {what}")
    return share


def _read_arrival(value: object, info: ValidationInfo) -> TenantArrival:
    text = _text(value, "closed, or a rate such as constant: 20/s")
    assert info.context is not None
    folder: Path = info.context["folder"]
    found = _OF_PEAK.search(text)
    arrival = TenantArrival(text)
    if found is not None:
        arrival = TenantArrival(text, float(found[1]) / 100)
        if not 0 < float(found[1]) <= 100:
            raise ValueError(f"{found[0]!r} is no share of the peak; give one up to 100%")
    try:
        parse_arrival(arrival.at(1.0), folder)
    except BadArrival as error:
        raise ValueError(f"{error}; a rate may also be a share, such as 20% of peak") from None
    return arrival


def _read_scheduler(value: object) -> str:
    text = _text(value, "a scheduler mode, such as native")
    try:
        return str(parse_scheduler(text))
    except BadScheduler as error:
        # Unquoted, YAML takes what is behind a comma for the next mode.
        hint = '; quote a mode that has commas: "xsched:level=1,threshold=1"' if "=" in text else ""
        raise ValueError(f"{error}{hint}") from None


def _read_noise(value: object, info: ValidationInfo) -> str:
    name = _text(value, "a noise, such as cpu")
    assert info.context is not None
    if name in NOISES:
        return name
    if not name.endswith((".yaml", ".yml")):
        near = nearest(name, NOISES)
        raise ValueError(f"there is no noise {name!r}; {near}, or give a description's file")
    try:
        command.load(noise_file(name, info.context["folder"]), ())
    except BadNoise as error:
        raise ValueError(str(error)) from None
    return name


def _read_function(value: object, info: ValidationInfo) -> str:
    text = _text(value, "a function, such as my_module:make_step")
    assert info.context is not None
    try:
        find(text, info.context["folder"])
    except BadFunction as error:
        raise ValueError(str(error)) from None
    return text


def _read_goal(value: object) -> Goal:
    try:
        return parse_goal(_text(value, "a goal, such as high.latency_p99_ms < 10"))
    except BadGoal as error:
        raise ValueError(str(error)) from None


def nearest(name: str, known: Iterable[str]) -> str:
    """Return which known name was probably meant, and all known names."""
    names = list(dict.fromkeys(known))
    near = get_close_matches(name, names, 1)
    hint = f"did you mean {near[0]}? " if near else ""
    return f"{hint}there are {', '.join(names) or 'none'}"


def _known(what: str, names: Mapping[str, object]) -> AfterValidator:
    def check(name: str) -> str:
        if name not in names:
            raise ValueError(f"there is no {what} {name!r}; {nearest(name, names)}")
        return name

    return AfterValidator(check)


def _written(pattern: str, *examples: str) -> WithJsonSchema:
    schema = {"type": "string", "pattern": pattern}
    return WithJsonSchema({**schema, "examples": list(examples)} if examples else schema)


Name = Annotated[str, BeforeValidator(_read_name), _written(f"^{_NAME}$")]
TenantName = Annotated[str, BeforeValidator(_read_tenant_name), _written(f"^{_NAME}$")]
Seconds = Annotated[
    float, BeforeValidator(_read_seconds), _written(f"^{_DURATION}$", "180s", "3m", "500ms")
]
ShareField = Annotated[float, BeforeValidator(_read_share), _written(f"^{_SHARE}$", "75%")]
ArrivalText = Annotated[
    TenantArrival,
    BeforeValidator(_read_arrival),
    _written(
        "^(closed|(constant|poisson|lognormal|trace)\\s*:.+)$",
        "closed", "constant: 20/s", "poisson: 20% of peak", "lognormal: 20/s, sigma=1.0",
        "trace: arrivals.txt",
    ),
]  # fmt: skip
NoiseName = Annotated[
    str, BeforeValidator(_read_noise), _written(".", *NOISES.built_in, "my_neighbour.yaml")
]
SchedulerField = Annotated[
    str, BeforeValidator(_read_scheduler), _written(".", "native", "xsched:level=1,threshold=1")
]
FunctionName = Annotated[
    str, BeforeValidator(_read_function), _written(f"^{PATTERN}$", "my_module:make_step")
]
GoalText = Annotated[
    Goal,
    BeforeValidator(_read_goal),
    _written(
        rf"^{_NAME}\.{_NAME}\s*[<>]=?\s*{_NUMBER}",
        "high.latency_p99_ms < 10", "high.attainment >= 99%", "low.throughput >= 80% of native",
        "high.p99 <= 1.3 x solo",
    ),
]  # fmt: skip
ModelName = Annotated[str, _known("model", MODELS)]
WorkloadField = Annotated[str, _known("workload", WORKLOADS)]
