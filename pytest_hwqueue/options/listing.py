"""`hwq list`: the workloads and their parameters."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, get_args, get_origin

from pytest_hwqueue.data.document.document import (
    Column,
    Document,
    Heading,
    Paragraph,
    Part,
    Row,
    Table,
)
from pytest_hwqueue.options.options import SIZES
from pytest_hwqueue.parts.devices.simulated.profile import BUILT_IN, load_profile
from pytest_hwqueue.parts.workloads.registry import (
    WORKLOADS,
    Declaration,
    declaration,
    workload_class,
)

if TYPE_CHECKING:
    from pydantic.fields import FieldInfo

    from pytest_hwqueue.parts.workloads.workload import Workload

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


def facts_of(workload: type[Workload]) -> list[str]:
    """Return lines on what a workload declares besides its description and parameters."""
    processes = (
        "several processes, by default one for each accelerator (--ranks, or torchrun's)"
        if workload.collective
        else "one process"
    )
    streams = workload.stream_range
    return [
        f"family {workload.family}, mark {workload.mark}",
        f"{streams.least}–{streams.most} streams, {streams.recommended} recommended; {processes}",
        f"result in {' and '.join(f'{unit}/s' for unit in workload.units)}",
        f"tags: {', '.join(workload.tags) or 'none'}",
        *(f"{ratio.name}: {ratio.description}" for ratio in workload.ratios),
        *_doubts(workload),
    ]


def _doubts(workload: Declaration | type[Workload]) -> list[str]:
    """Return on which simulated devices a workload is known to be far off."""
    ratios = {
        f"sim:{name}": load_profile(name).not_calibrated.get(workload.name) for name in BUILT_IN
    }
    return [
        f"{label} is not calibrated for it: P99 {ratio:.2f} of the measured"
        for label, ratio in ratios.items()
        if ratio is not None
    ]


def workloads_document(*, verbose: bool) -> Document:
    """Return a table of all workloads or, if ``verbose``, everything that each declares."""
    if not verbose:
        # Without importing any of them, and so without torch.
        declared = [declaration(name) for name in WORKLOADS]
        columns = (
            Column("name", "name"), Column("mark", "mark"), Column("family", "family", rank=1),
            Column("streams", "streams", right=True),
            Column("recommended", "recommended", right=True, rank=2),
            Column("units", "unit", rank=3), Column("tags", "tags", rank=4),
        )  # fmt: skip
        table = [
            Row({
                "name": each.name, "mark": each.mark, "family": each.family,
                "streams": f"{each.stream_range.least}–{each.stream_range.most}",
                "recommended": str(each.stream_range.recommended),
                "units": ", ".join(f"{unit}/s" for unit in each.units),
                "tags": ", ".join(each.tags),
            }, opens=True, below=[each.description, *_doubts(each)])
            for each in declared
        ]  # fmt: skip
        return Document([Table(columns, table)])
    parts: list[Part] = []
    sizes = [Column(size, size) for size in _SIZES]
    for workload in map(workload_class, WORKLOADS):
        parts += [Heading(workload.name), Paragraph(workload.description, "")]
        parts += map(Paragraph, facts_of(workload))
        parameters = [
            Row({"name": each.name, **each.defaults}, below=[f"{each.description} ({each.type})"])
            for each in parameters_of(workload)
        ]
        if parameters:
            parts.append(Table([Column("name", "parameter"), *sizes], parameters))
    return Document([*parts, Paragraph(
        "Under tiny, small and full are the defaults at these sizes. To set a parameter: --param "
        "NAME=VALUE, or --name VALUE behind the name of one workload."
    )])  # fmt: skip


def parameters_of(workload: type[Workload]) -> list[ParameterRow]:
    """Return a workload's parameters in the order declared."""
    from pytest_hwqueue.parts.workloads.workload import parameters_for

    values = {size: parameters_for(workload, size, {}) for size in _SIZES}
    return [
        ParameterRow(
            name=name,
            type=_type_text(field),
            defaults={size: _value_text(getattr(values[size], name)) for size in _SIZES},
            description=field.description or "",
        )
        for name, field in workload.parameter_model.model_fields.items()
    ]


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
