"""A comparison as JSON: the verdicts and every figure behind them.

What the gate and the comparison return is what is written: `Judgement` and its parts. Only a
cell's verdict, its quantity and what was compared of it are no objects of their own: their fields
stand among those of their owner. The file has a published schema.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Final, Literal, get_args

from pydantic import Field, TypeAdapter

from pytest_hwqueue.data.errors import RecordError, in_utf8, translated
from pytest_hwqueue.judge.baselines.runs import FieldDifference
from pytest_hwqueue.judge.judging import Judgement
from pytest_hwqueue.judge.verdict import State

SCHEMA: Final = "pytest-hwqueue/judgement/1"

# What stands of a quantity that was not compared. Of one that was, the verdict has the p.
_NOT_COMPARED: Mapping[str, Any] = {
    "ratio": None, "interval": None, "sd": None, "sd_is_floor": False, "detectable": None,
    "upper": None, "set_aside": [],
}  # fmt: skip


@dataclass(frozen=True)
class JudgementFile(Judgement):
    """A comparison of two sources of runs.

    Attributes:
        test: label of the newer side.
        exit_status: that the comparison ended with.
        counts: verdicts in each state.

    """

    test: str
    exit_status: int
    counts: dict[State, int]
    schema_: Annotated[
        Literal["pytest-hwqueue/judgement/1"], Field(serialization_alias="schema")
    ] = SCHEMA


def judgement_file(
    judgement: Judgement, new: str, status: int, hard: Mapping[str, tuple[FieldDifference, ...]]
) -> dict[str, Any]:
    """Return a comparison as a file's content.

    Args:
        judgement: what it found.
        new: label of the newer side.
        status: the resulting exit status.
        hard: conditions that differ, by cell id.

    """
    verdicts = tuple(
        replace(each, differences=(*hard.get(each.cell_id, ()), *each.differences))
        for each in judgement.verdicts
    )
    counts = {state: judgement.count(state) for state in get_args(State)}
    file = JudgementFile(
        **vars(replace(judgement, verdicts=verdicts)), test=new, exit_status=status, counts=counts
    )
    content: dict[str, Any] = _adapter().dump_python(file, mode="json", by_alias=True)
    content["verdicts"] = [_flat(each) for each in content["verdicts"]]
    return content


def judgement_of(content: dict[str, Any], path: Path) -> Judgement:
    """Return the comparison that `judgement_file` wrote, and a file holds.

    Raises:
        RecordError: naming the file, if it is none.

    """
    with translated(RecordError, f"{path} is damaged", ValueError, LookupError, TypeError):
        cells = []
        for cell in content["verdicts"]:
            companion = cell["companion"] and cell["companion"] | {"quantity": cell["companion"]}
            compared = cell["ratio"] is not None
            main = cell | {"quantity": cell, "on_trial": True} if compared else None
            verdict = cell | {"quantity": cell, "main": main, "companion": companion}
            cells.append(cell | {"verdict": verdict})
        return TypeAdapter(Judgement).validate_python(content | {"verdicts": cells})


def judgement_text(content: dict[str, Any]) -> str:
    """Return what `judgement_file` returned as JSON, with a newline at the end."""
    text = json.dumps(content, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return f"{in_utf8(text)}\n"


def json_schema() -> dict[str, Any]:
    """Return the JSON Schema of the file."""
    schema: dict[str, Any] = _adapter().json_schema(by_alias=True, mode="serialization")
    types = schema["$defs"]
    quantity, verdict, cell = types.pop("Quantity"), types.pop("Verdict"), types["CellVerdict"]
    compared = types["Comparison"]["properties"]
    del cell["properties"]["verdict"], verdict["properties"]["main"]
    cell["properties"] |= verdict["properties"] | quantity["properties"]
    cell["properties"] |= {
        name: compared[name] if value is not None else _or_null(compared[name])
        for name, value in _NOT_COMPARED.items()
    }
    compared |= quantity["properties"]
    for each in (verdict, types["Comparison"]):
        cell["description"] += f"\n\n{each['description']}"
    cell["required"] = ["cell", "figure", *verdict["required"]]
    for each in (schema, *types.values()):
        each["additionalProperties"] = False
    return schema


def _flat(cell: dict[str, Any]) -> dict[str, Any]:
    verdict = cell.pop("verdict")
    main = verdict.pop("main") or _NOT_COMPARED
    shown = {name: main[name] for name in _NOT_COMPARED}
    flat: dict[str, Any] = cell | verdict | verdict["quantity"] | shown
    if companion := verdict["companion"]:
        flat["companion"] = companion | companion["quantity"]
    return flat


def _or_null(field: dict[str, Any]) -> dict[str, Any]:
    """Return the schema of a field that may be null."""
    if "anyOf" in field:
        return field
    title = {"title": field["title"]}
    inner = {name: value for name, value in field.items() if name != "title"}
    return {"anyOf": [inner, {"type": "null"}], **title}


@cache
def _adapter() -> TypeAdapter[JudgementFile]:
    return TypeAdapter(JudgementFile)
