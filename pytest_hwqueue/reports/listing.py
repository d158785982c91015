"""What `hwq list` shows: the workloads and their parameters."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, get_args, get_origin

from pytest_hwqueue.options import SIZES
from pytest_hwqueue.workloads.registry import WORKLOADS, workload_class

if TYPE_CHECKING:
    from pydantic.fields import FieldInfo

    from pytest_hwqueue.workloads.protocol import Workload

_SIZES = tuple(size for size in SIZES if size != "auto")


@dataclass(frozen=True)
class ParameterRow:
    """A parameter of a workload; ``defaults`` are by size."""

    name: str
    type: str
    defaults: dict[str, str]
    description: str


@dataclass(frozen=True)
class WorkloadRow:
    """What a workload declares of itself."""

    name: str
    family: str
    mark: str
    streams: str
    recommended: int
    units: tuple[str, ...]
    tags: tuple[str, ...]
    description: str
    parameters: tuple[ParameterRow, ...]


def describe_workloads() -> list[WorkloadRow]:
    """Describe every workload of the registry, in its order."""
    return [_describe(workload_class(name)) for name in WORKLOADS]


def print_workloads(rows: list[WorkloadRow], verbose: bool) -> None:
    """Print a table of workloads and, if ``verbose``, one of each workload's parameters."""
    from rich.table import Table

    from pytest_hwqueue.reports.doctor import make_console

    console = make_console()
    table = Table("Name", "Family", "Mark", "Streams", "Recommended", "Unit", "Tags", "Description")
    for row in rows:
        table.add_row(
            row.name, row.family, row.mark, row.streams, str(row.recommended),
            ", ".join(row.units), ", ".join(row.tags), row.description,
        )  # fmt: skip
    for column in table.columns[:5]:
        column.overflow, column.no_wrap = "fold", True
    console.print(table)
    for row in rows if verbose else ():
        parameters = Table(
            "Parameter", "Type", *_SIZES, "Description",
            title=f"{row.name} (--param NAME=VALUE)", title_justify="left",
        )  # fmt: skip
        for parameter in row.parameters:
            defaults = [parameter.defaults[size] for size in _SIZES]
            parameters.add_row(parameter.name, parameter.type, *defaults, parameter.description)
        console.print(parameters)


def _describe(workload: type[Workload]) -> WorkloadRow:
    limits = workload.stream_range
    return WorkloadRow(
        name=workload.name,
        family=workload.family,
        mark=workload.mark,
        streams=f"{limits.least}–{limits.most}",
        recommended=limits.recommended,
        units=tuple(f"{unit}/s" for unit in workload.units),
        tags=workload.tags,
        description=workload.description,
        parameters=_parameters(workload),
    )


def _parameters(workload: type[Workload]) -> tuple[ParameterRow, ...]:
    from pytest_hwqueue.workloads.protocol import parameters_for

    values = {size: parameters_for(workload, size, {}) for size in _SIZES}
    return tuple(
        ParameterRow(
            name=name,
            type=_type_text(field),
            defaults={size: str(getattr(values[size], name)) for size in _SIZES},
            description=field.description or "",
        )
        for name, field in workload.parameter_model.model_fields.items()
    )


def _type_text(field: FieldInfo) -> str:
    if get_origin(field.annotation) is Literal:
        return " | ".join(str(choice) for choice in get_args(field.annotation))
    text = getattr(field.annotation, "__name__", str(field.annotation))
    signs = {"ge": "≥", "gt": ">", "le": "≤", "lt": "<"}
    bounds = [
        f"{sign} {getattr(constraint, name)}"
        for constraint in field.metadata
        for name, sign in signs.items()
        if hasattr(constraint, name)
    ]
    return " ".join([text, *bounds])
