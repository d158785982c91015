"""A comparison as JSON: the verdicts and every figure behind them, and in short, as a badge.

What the gate and the comparison return is what is written: `Judgement` and its parts. Only a
cell's verdict and a verdict's quantity are no objects of their own: their fields stand among those
of their owner. The file has a published schema; the badge is what the endpoint badge of
shields.io reads: https://shields.io/badges/endpoint-badge
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Final, Literal, get_args

from pydantic import BaseModel, Field, TypeAdapter

from pytest_hwqueue.baselines.runs import FieldDifference
from pytest_hwqueue.errors import RecordError, files, translated
from pytest_hwqueue.gate.verdict import State
from pytest_hwqueue.metrics.numbers import counted
from pytest_hwqueue.records.cell import SessionFile
from pytest_hwqueue.verdicts.judging import Judgement

SCHEMA: Final = "pytest-hwqueue/judgement/1"


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
            verdict = cell | {"quantity": cell, "companion": companion}
            cells.append(cell | {"verdict": verdict})
        return TypeAdapter(Judgement).validate_python(content | {"verdicts": cells})


def judgement_text(content: dict[str, Any]) -> str:
    """Return what `judgement_file` returned as JSON, with a newline at the end."""
    return json.dumps(content, ensure_ascii=False, allow_nan=False, separators=(",", ":")) + "\n"


def json_schema() -> dict[str, Any]:
    """Return the JSON Schema of the file."""
    schema: dict[str, Any] = _adapter().json_schema(by_alias=True, mode="serialization")
    types = schema["$defs"]
    quantity, verdict, cell = types.pop("Quantity"), types.pop("Verdict"), types["CellVerdict"]
    types["Companion"]["properties"] |= quantity["properties"]
    del cell["properties"]["verdict"]
    cell["properties"] |= verdict["properties"] | quantity["properties"]
    cell["description"] += f"\n\n{verdict['description']}"
    cell["required"] = ["cell", "figure", *verdict["required"]]
    for each in (schema, *types.values()):
        each["additionalProperties"] = False
    return schema


def _flat(cell: dict[str, Any]) -> dict[str, Any]:
    verdict = cell.pop("verdict")
    flat: dict[str, Any] = cell | verdict | verdict["quantity"]
    if companion := verdict["companion"]:
        flat["companion"] = companion | companion["quantity"]
    return flat


@cache
def _adapter() -> TypeAdapter[JudgementFile]:
    return TypeAdapter(JudgementFile)


_LABEL = "tail latency"
_SIMULATED = re.compile(r"[\[-]sim:")
_BAD = ("failed", "timeout", "invalid")


class JudgedFile(BaseModel):
    """What a badge tells of a comparison's file; `judgement_file` writes the rest."""

    schema_: Literal["pytest-hwqueue/judgement/1"] = Field(alias="schema")
    exit_status: int
    counts: dict[State, int]
    missing: list[Any]
    verdicts: list[dict[str, Any]]


@dataclass(frozen=True)
class Compared:
    """What a badge is made from.

    Attributes:
        judgements: of one session or of one `hwq compare`; empty if nothing was compared.
        cells: ids of the cells.
        failed: how many runs came to nothing.
        finished: whether the session reached its end.

    """

    judgements: tuple[JudgedFile, ...]
    cells: tuple[str, ...]
    failed: int = 0
    finished: bool = True

    def count(self, state: State) -> int:
        """How many verdicts are in this state."""
        return sum(each.counts.get(state, 0) for each in self.judgements)


def read_compared(path: Path) -> Compared:
    """Read a session's JSON file, or that of `hwq compare`.

    Raises:
        RecordError: naming the file, if it is neither.

    """
    with files("read", path), translated(RecordError, f"{path} {_NEITHER}", ValueError):
        content = json.loads(path.read_bytes())
        if isinstance(content, dict) and content.get("schema") == SCHEMA:
            judgement = JudgedFile.model_validate(content)
            return Compared(
                (judgement,), tuple(str(each.get("cell", "")) for each in judgement.verdicts)
            )
        session = SessionFile.model_validate(content)
        judgements = tuple(map(JudgedFile.model_validate, session.judgements))
    return Compared(
        judgements,
        tuple(str(record.get("cell", "")) for record in session.records),
        sum(record.get("status") in _BAD for record in session.records),
        session.session.finished is not None and not session.session.interrupted,
    )


_NEITHER = "is neither a session's file (--hwq-json) nor one of `hwq compare --json`"


def badge(compared: Compared) -> dict[str, Any]:
    """Return the badge's JSON. What judged nothing is never green."""
    message, color = _message(compared)
    label = _LABEL + " (simulated)" * any(map(_SIMULATED.search, compared.cells))
    return {"schemaVersion": 1, "label": label, "message": message, "color": color}


def _message(compared: Compared) -> tuple[str, str]:
    regressions = compared.count("regression")
    if regressions:
        return counted(regressions, "regression"), "red"
    if compared.failed:
        return f"{counted(compared.failed, 'run')} failed", "red"
    if not compared.finished:
        return "not finished", "lightgrey"
    if not compared.judgements:
        return "not compared", "lightgrey"
    if not any(each.verdicts for each in compared.judgements):
        return "nothing judged", "lightgrey"
    missing = sum(len(each.missing) for each in compared.judgements)
    counts = {state: compared.count(state) for state in get_args(State)} | {"missing": missing}
    message = ", ".join(f"{count} {what}" for what, count in counts.items() if count)
    good = compared.count("pass") + compared.count("improvement")
    if any(each.exit_status for each in compared.judgements):
        return message, "orange"
    if not good:
        return message, "lightgrey"
    undecided = compared.count("inconclusive") + compared.count("incomparable") + missing
    return message, "yellow" if undecided else "brightgreen"
