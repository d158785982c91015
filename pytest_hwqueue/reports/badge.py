"""A comparison as a badge: the JSON that shields.io's endpoint badge reads.

The format: https://shields.io/badges/endpoint-badge
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

from pydantic import BaseModel, Field

from pytest_hwqueue.errors import RecordError, files, translated
from pytest_hwqueue.gate.verdict import State
from pytest_hwqueue.metrics.numbers import counted
from pytest_hwqueue.records.cell import SessionFile
from pytest_hwqueue.reports.judgement_file import SCHEMA

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
