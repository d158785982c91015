"""The schema of ``*.hwq.yaml``: tenants that share a device, schedulers and goals.

`read_scenario` reads a file or reports everything that is wrong with it; `json_schema` describes
such files to editors.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Discriminator,
    Field,
    GetPydanticSchema,
    PrivateAttr,
    Tag,
    ValidationError,
    ValidationInfo,
    model_validator,
)
from pydantic_core import core_schema

from pytest_hwqueue.data.errors import BadScenario, nearest
from pytest_hwqueue.data.records.placement import TenantPlacement
from pytest_hwqueue.data.records.plan import Tenant
from pytest_hwqueue.engine.scenarios.checks import check_names
from pytest_hwqueue.engine.scenarios.fields import (
    ArrivalText,
    FunctionName,
    GoalText,
    ModelName,
    Name,
    NameInGoals,
    NoiseName,
    SchedulerField,
    Seconds,
    ServerFields,
    ShareField,
    WorkloadField,
    expanded,
)
from pytest_hwqueue.engine.scenarios.goals import Goal
from pytest_hwqueue.engine.scenarios.located_yaml import (
    LocatedYaml,
    Problem,
    field_name,
    may_be_secret,
    read_yaml,
)
from pytest_hwqueue.engine.tenants.arrivals import CLIENT, trace_sha256
from pytest_hwqueue.engine.tenants.servers import secrets_of

# An H200's clocks, and a model's latency, are where they stay after half of it.
_WARMUP_S = 1.0
_SHORT_S = 5.0
# Where pydantic speaks of Python's types.
_GIVE = {
    "tuple_type": "give a list",
    "dict_type": "give a table of fields",
    "model_type": "give a table of fields",
    "too_short": "give at least one",
}


class _Model(BaseModel):
    # Strict: "8" is not 8, and yes is no number.
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)


_Value = str | int | float | bool


class TenantChange(_Model):
    """What a variant may change about a tenant."""

    batch: int | None = Field(None, ge=1, description="inputs in one request, of a model")
    parameters: dict[str, _Value | list[_Value]] = Field(
        default_factory=dict,
        description="of a workload or model, by name; of a function, passed to it by keyword",
    )
    arrival: ArrivalText = Field(
        default_factory=lambda: "closed",
        description="when requests arrive; by default closed: each when the last is done, or a "
        "delay after that",
    )
    priority: int = Field(0, description="larger is more urgent; the scheduler in use maps it")
    share: ShareField | None = Field(
        None, description="of the device, for schedulers that divide it"
    )
    streams: int = Field(1, ge=1, description="created for this tenant alone")
    concurrency: int | None = Field(
        None,
        ge=1,
        description="how many of its requests are served at once; of a server, the most "
        "connections; by default 1",
    )
    start: Seconds | None = Field(
        None,
        description="begins to serve so long after the window has begun; by default with it",
    )
    requests: int | None = Field(
        None,
        ge=1,
        description="so many in each window, which ends once every tenant that counts its requests "
        "has served them, and after the duration at the latest; by default as many as there is "
        "time for",
    )
    deadline_ms: float | None = Field(
        None, gt=0,
        description="latency within which a request is attained; by default the tenant's P99 goal",
    )  # fmt: skip

    _trace_sha256: str | None = PrivateAttr(None)

    @model_validator(mode="after")
    def _look_at_trace(self, info: ValidationInfo) -> TenantChange:
        # Without a file there is no context, and no arrival but the default.
        if info.context is not None:
            self._trace_sha256 = trace_sha256(self.arrival, info.context["folder"])
        return self

    def given(self) -> dict[str, Any]:
        """Return the fields that were given, as `Tenant` has them."""
        given = {name: getattr(self, name) for name in self.model_fields_set}
        if "arrival" in given:
            given["trace_sha256"] = self._trace_sha256
        if "start" in given:
            given["start_s"] = given.pop("start") or 0.0
        if "concurrency" in given:
            given["concurrency"] = given["concurrency"] or 1
        return given


class TenantFields(TenantChange):
    """One model, workload, function or server, asked repeatedly."""

    name: NameInGoals = Field(description="for goals and results")
    model: ModelName | None = Field(
        None, description="what it runs; this, a workload, a function or a server"
    )
    workload: WorkloadField | None = Field(
        None, description="of the suite; a request is one iteration of it"
    )
    function: FunctionName | None = Field(
        None, description="your own, which prepares and returns the step that is one request"
    )
    server: ServerFields | None = Field(None, description="your own; a request is one to it")

    def tenant(self) -> Tenant:
        """Return the tenant as a plan has it."""
        server = self.server and self.server.server()
        arrival = {"arrival": CLIENT} if server is not None and server.client is not None else {}
        return Tenant(**{**self.given(), "server": server, **arrival})


_Modes = Annotated[
    tuple[SchedulerField, ...], Field(min_length=1, strict=False), AfterValidator(expanded)
]
# The quiet is always the first.
_Noises = Annotated[
    tuple[NoiseName, ...],
    Field(strict=False),
    AfterValidator(lambda names: tuple(dict.fromkeys((None, *names))) if names else names),
]


def _list_or_table(value: object) -> str:
    return "table" if isinstance(value, dict) else "list"


_Placement = Annotated[TenantPlacement, Field(strict=False)]
# A list is for the scenario's placement; a table has a list for each placement.
_Schedulers = Annotated[
    Annotated[_Modes, Tag("list")]
    | Annotated[
        Annotated[dict[_Placement, _Modes], Field(min_length=1)],
        Tag("table"),
    ],
    Discriminator(_list_or_table),
]

_ALL = "all"
_PLACES = [_ALL, *(each.value for each in TenantPlacement)]
_Place = Annotated[str, GetPydanticSchema(lambda *_: core_schema.literal_schema(_PLACES))]
_GoalList = Annotated[tuple[GoalText, ...], Field(strict=False)]
# A list holds in every placement; a table has a list for each placement, and one for all of them.
_Goals = Annotated[
    Annotated[_GoalList, Tag("list")]
    | Annotated[
        Annotated[dict[_Place, _GoalList], Field(min_length=1)],
        Tag("table"),
    ],
    Discriminator(_list_or_table),
]


class Variant(_Model):
    """The scenario with something changed."""

    name: NameInGoals
    only: Annotated[tuple[NameInGoals, ...], Field(min_length=1, strict=False)] | None = Field(
        None, description="tenants that run; by default all"
    )
    set: dict[NameInGoals, TenantChange] = Field(
        default_factory=dict, description="what is changed, by tenant"
    )
    schedulers: _Schedulers | None = Field(None, description="in place of the scenario's")
    goals: _Goals = Field((), description="in addition to the scenario's")


class Scenario(_Model):
    """Tenants that share a device."""

    model_config = ConfigDict(title="pytest-hwqueue scenario")

    name: Name
    description: str = ""
    duration: Seconds = Field(description="length of the measuring window")
    ci_duration: Seconds | None = Field(
        None, description="its length at sizes tiny and small; by default 5s, or less if it is less"
    )
    warmup: Seconds = Field(
        default_factory=lambda: _WARMUP_S,
        description="for how long each tenant runs before; by default 1s",
    )
    placement: _Placement | None = Field(
        None, description="a process for each tenant (the default), or threads of one process"
    )
    schedulers: _Schedulers = Field(
        default_factory=lambda: ("native",),
        description="modes to run under, each a test; a list, or a list for each placement; "
        "a setting may have alternatives",
    )
    noise: _Noises = Field(
        (),
        description="what loads the CPU during each test, in turn with the quiet; needs a real "
        "device",
    )
    tenants: Annotated[tuple[TenantFields, ...], Field(min_length=1, strict=False)]
    goals: _Goals = Field(
        (),
        description="what shall hold in every variant, under every scheduler; a list, or a list "
        "for each placement and for all of them",
    )
    variants: Annotated[tuple[Variant, ...], Field(strict=False)] = Field(
        (), description="each runs under every scheduler; the scenario by itself then does not"
    )

    def secrets(self) -> frozenset[str]:
        """Return what must not be written or shown, as `servers.secrets_of` says."""
        servers = [tenant.server for tenant in self.tenants if tenant.server is not None]
        return frozenset(secret for each in servers for secret in secrets_of(each.server()))

    def duration_s(self, size: str) -> float:
        """Return the window's length at a size (`full`, `small` or `tiny`) in seconds."""
        if size == "full":
            return self.duration
        return self.ci_duration or min(self.duration, _SHORT_S)

    def tenants_of(self, variant: Variant | None) -> tuple[Tenant, ...]:
        """Return the tenants of a variant, with its changes; None is the scenario itself."""
        tenants = tuple(each.tenant() for each in self.tenants)
        if variant is None:
            return tenants
        running = tuple(
            replace(tenant, **variant.set[tenant.name].given())
            if tenant.name in variant.set
            else tenant
            for tenant in tenants
            if variant.only is None or tenant.name in variant.only
        )
        return running if variant.only is None else _from_the_first(running)

    def goals_of(self, variant: Variant | None, placement: TenantPlacement) -> tuple[Goal, ...]:
        """Return the goals of a variant in a placement; None is the scenario itself."""
        given = (self.goals,) if variant is None else (self.goals, variant.goals)
        return tuple(goal for goals in given for goal in _goals_in(placement, goals))


def _from_the_first(tenants: tuple[Tenant, ...]) -> tuple[Tenant, ...]:
    """Return tenants whose starts count from the first of them: nobody else is there before."""
    first_s = min((tenant.start_s for tenant in tenants), default=0.0)
    return tuple(replace(tenant, start_s=tenant.start_s - first_s) for tenant in tenants)


def _goals_in(placement: TenantPlacement, goals: _Goals) -> Iterable[Goal]:
    if isinstance(goals, dict):
        return (goal for place in goals if place in (_ALL, placement) for goal in goals[place])
    return goals


def read_scenario(file: Path) -> Scenario:
    """Read a scenario file.

    Raises:
        BadScenario: naming line, field and reason of everything that is wrong.

    """
    try:
        text = file.read_text(encoding="utf-8")
    except OSError as error:
        reason = f"cannot be read: {error.strerror or error}"
        raise BadScenario(file, [Problem(1, "", reason)]) from error
    except UnicodeDecodeError as error:
        raise BadScenario(file, [Problem(1, "", f"is not UTF-8 text: {error}")]) from error
    return parse_scenario(text, file)


def parse_scenario(text: str, file: Path) -> Scenario:
    """Read the text of a scenario file; trace files are looked up next to ``file``.

    Raises:
        BadScenario: naming line, field and reason of everything that is wrong.

    """
    located = read_yaml(text)
    problems = list(located.problems)
    if not isinstance(located.data, dict):
        if not problems:
            found = "empty" if located.data is None else type(located.data).__name__
            problems = [Problem(1, "", f"a scenario is a table of fields; this file is {found}")]
        raise BadScenario(file, problems)
    scenario = None
    try:
        scenario = Scenario.model_validate(located.data, context={"folder": file.parent})
    except ValidationError as error:
        problems += _translated(error, located)
    problems += [
        Problem(located.line(path), field_name(path), reason)
        for path, reason in check_names(located.data)
    ]
    if problems or scenario is None:
        raise BadScenario(file, problems)
    return scenario


def json_schema() -> dict[str, Any]:
    """JSON Schema of a scenario file, for editors."""
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        **Scenario.model_json_schema(),
    }


def _translated(error: ValidationError, located: LocatedYaml) -> Iterable[Problem]:
    """Translate pydantic's errors into the file's terms."""
    refused = {problem.field for problem in located.problems}
    for found in error.errors():
        path = _path(found["loc"], located.data, found["type"] == "missing")
        field = field_name(path)
        # What YAML's reader refused has no value left to judge.
        if field not in refused:
            yield Problem(located.line(path), field, _reason(dict(found), path))


def _path(loc: tuple[str | int, ...], data: Any, missing: bool) -> tuple[str | int, ...]:
    """Return an error's path in the data, without the type names that pydantic inserts."""
    path: list[str | int] = []
    for part in loc:
        if part in data if isinstance(data, dict) else isinstance(part, int):
            path.append(part)
            data = data[part]
    return (*path, loc[-1]) if missing else tuple(path)


def _reason(found: dict[str, Any], path: tuple[str | int, ...]) -> str:
    kind, value = found["type"], found["input"]
    if kind == "missing":
        return "is missing"
    if kind == "extra_forbidden":
        return f"unknown field; {nearest(str(path[-1]), list(_fields(path)))}"
    if kind == "value_error":
        return str(found["ctx"]["error"])
    shown = f", not {value!r}" if isinstance(value, _Value) else ""
    if may_be_secret(path):
        shown = f", not {type(value).__name__}"
    if kind in _GIVE:
        return f"{_GIVE[kind]}{shown}"
    return f"{found['msg'][0].lower()}{found['msg'][1:]}{shown}"


def _fields(path: tuple[str | int, ...]) -> Iterable[str]:
    """Fields of the table in which an unknown one stands."""
    if path[0] == "tenants":
        return (ServerFields if "server" in path[:-1] else TenantFields).model_fields
    if path[0] == "variants" and len(path) > 2:
        return TenantChange.model_fields if "set" in path[:-1] else Variant.model_fields
    return Scenario.model_fields
