"""`hwq list`: the workloads and their parameters."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, get_args, get_origin

from pytest_hwqueue.reports.document import (
    Column,
    Document,
    Heading,
    Paragraph,
    Part,
    Row,
    Table,
)
from pytest_hwqueue.settings.options import SIZES
from pytest_hwqueue.workloads.registry import WORKLOADS, workload_class

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pydantic.fields import FieldInfo

    from pytest_hwqueue.workloads.workload import Workload

_SIZES = tuple(size for size in SIZES if size != "auto")


@dataclass(frozen=True)
class ParameterRow:
    """A parameter of a workload; ``defaults`` are by size."""

    name: str
    type: str
    defaults: dict[str, str]
    description: str

    @property
    def by_size(self) -> str:
        """The defaults as text: ``default 1``, or ``tiny 1, small 2, full 4``."""
        if len(set(self.defaults.values())) == 1:
            return f"default {self.defaults[_SIZES[0]]}"
        return ", ".join(f"{size} {value}" for size, value in self.defaults.items())


@dataclass(frozen=True)
class WorkloadRow:
    """A workload's declaration."""

    name: str
    family: str
    mark: str
    streams: str
    recommended: int
    units: tuple[str, ...]
    tags: tuple[str, ...]
    description: str
    parameters: tuple[ParameterRow, ...]
    ratios: dict[str, str]
    collective: bool

    @property
    def facts(self) -> list[str]:
        """Lines of facts besides its description and parameters."""
        processes = (
            "several processes, by default one for each accelerator (--ranks, or torchrun's)"
            if self.collective
            else "one process"
        )
        lines = [
            f"family {self.family}, mark {self.mark}",
            f"{self.streams} streams, {self.recommended} recommended; {processes}",
            f"result in {' and '.join(self.units)}",
            f"tags: {', '.join(self.tags) or 'none'}",
        ]
        return [*lines, *(f"{name}: {text}" for name, text in self.ratios.items())]


def describe_workloads() -> list[WorkloadRow]:
    """Describe every workload of the registry, in its order."""
    return [describe_workload(name) for name in WORKLOADS]


def describe_workload(name: str) -> WorkloadRow:
    """Describe one workload; BadInput if there is none of this name."""
    return _describe(workload_class(name))


def workloads_document(rows: Sequence[WorkloadRow], verbose: bool) -> Document:
    """Return a table of workloads or, if ``verbose``, everything that each declares."""
    if not verbose:
        columns = (
            Column("name", "name"), Column("mark", "mark"), Column("family", "family", rank=1),
            Column("streams", "streams", right=True),
            Column("recommended", "recommended", right=True, rank=2),
            Column("units", "unit", rank=3), Column("tags", "tags", rank=4),
        )  # fmt: skip
        table = [
            Row({
                "name": row.name, "mark": row.mark, "family": row.family, "streams": row.streams,
                "recommended": str(row.recommended), "units": ", ".join(row.units),
                "tags": ", ".join(row.tags),
            }, opens=True, below=[row.description])
            for row in rows
        ]  # fmt: skip
        return Document([Table(columns, table)])
    parts: list[Part] = []
    sizes = [Column(size, size) for size in _SIZES]
    for row in rows:
        parts += [Heading(row.name), Paragraph(row.description, "")]
        parts += map(Paragraph, row.facts)
        parameters = [
            Row({"name": each.name, **each.defaults}, below=[f"{each.description} ({each.type})"])
            for each in row.parameters
        ]
        if parameters:
            parts.append(Table([Column("name", "parameter"), *sizes], parameters))
    return Document([*parts, Paragraph(
        "Under tiny, small and full are the defaults at these sizes. To set a parameter: --param "
        "NAME=VALUE, or --name VALUE behind the name of one workload."
    )])  # fmt: skip


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
        ratios={ratio.name: ratio.description for ratio in workload.ratios},
        collective=workload.collective,
    )


def _parameters(workload: type[Workload]) -> tuple[ParameterRow, ...]:
    from pytest_hwqueue.workloads.workload import parameters_for

    values = {size: parameters_for(workload, size, {}) for size in _SIZES}
    return tuple(
        ParameterRow(
            name=name,
            type=_type_text(field),
            defaults={size: _value_text(getattr(values[size], name)) for size in _SIZES},
            description=field.description or "",
        )
        for name, field in workload.parameter_model.model_fields.items()
    )


def _value_text(value: object) -> str:
    return "not set" if value is None else str(value)


def _type_text(field: FieldInfo) -> str:
    if get_origin(field.annotation) is Literal:
        return " | ".join(str(choice) for choice in get_args(field.annotation))
    optional = [each for each in get_args(field.annotation) if each is not type(None)]
    annotation = optional[0] if len(optional) == 1 else field.annotation
    text = getattr(annotation, "__name__", str(annotation))
    signs = {"ge": "≥", "gt": ">", "le": "≤", "lt": "<"}
    bounds = [
        f"{sign} {getattr(constraint, name)}"
        for constraint in field.metadata
        for name, sign in signs.items()
        if hasattr(constraint, name)
    ]
    return " ".join([text, *bounds])
