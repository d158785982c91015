"""A history as JSON, with a published schema: every session, and what was found in them."""

from __future__ import annotations

from typing import Any, Final, Literal

from pydantic import Field

from pytest_hwqueue.metrics.plain_data import PlainData

SCHEMA: Final = "pytest-hwqueue/history/1"

Plain = str | int | float | bool | None


class SessionFigure(PlainData):
    """One session of a series."""

    session: str
    when: str = Field(description="its first run; UTC, ISO 8601")
    runs: int = Field(description="behind the value")
    commits: list[str] = Field(description="measured; -dirty: tracked files were changed")
    value: float = Field(description="geometric mean over its runs, in the quantity's unit")


class CommitLine(PlainData):
    """A commit between two sessions."""

    commit: str
    subject: str


class FoundChange(PlainData):
    """A place where a series changed."""

    index: int = Field(description="among the sessions, of the first one after the change; from 0")
    session: str
    when: str
    ratio: float = Field(
        description="mean level after over that before, each up to the next change; above 1 is "
        "slower, or more throughput"
    )
    interval: tuple[float, float] = Field(description="95 %, of the ratio")
    confidence: float = Field(description="1 - p of a permutation test that picks its place too")
    worse: bool
    below_gate: bool | None = Field(
        description="whether it is less than gate_detects; null: not worse, or not known"
    )
    old_commit: str | None
    new_commit: str | None
    commits: list[CommitLine] | None = Field(
        description="between them, oldest first; null: the repository here does not know both"
    )
    also_changed: dict[str, tuple[Plain, Plain]] = Field(
        description="other soft fields of the fingerprint that changed there, old and new"
    )


class ModesFigure(PlainData):
    """Two groups of sessions within a level."""

    ratio: float = Field(description="slower group over faster group")
    slower_share: float


class DriftFigure(PlainData):
    """A trend that a straight line explains better than steps do."""

    per_session: float = Field(description="change, as a fraction")
    whole: float = Field(description="over the whole series, as a fraction")
    p: float


class SeriesHistory(PlainData):
    """One figure of one cell on one machine."""

    cell: str = Field(description="the cell's id")
    workload: str = Field(description="or test")
    figure: str = Field(description="the requested figure")
    quantity: str = Field(description="the one that is shown: a lower quantile where n is small")
    label: str = Field(description="of the quantity, for people")
    unit: str
    higher_is_worse: bool
    simulated: bool = Field(description="whether a model's figures, and none measured")
    machine: int = Field(description="of the cell, in order of time, from 1")
    machine_fields: dict[str, Plain] = Field(description="in which the cell's machines differ")
    sessions: list[SessionFigure]
    refused: int = Field(description="sessions left out: too short, or without a figure above 0")
    sd: float | None = Field(
        description="between sessions of one level, of the logarithm; null: too few sessions"
    )
    gate_detects: float | None = Field(
        description="least worsening that the gate finds with 10 runs of 10 such sessions, as a "
        "fraction; null: too few sessions to tell"
    )
    total_ratio: float | None = Field(description="last level over first; null without sessions")
    changes: list[FoundChange]
    accumulated: bool = Field(
        description="whether steps, or a drift, that the gate would rather miss add up to one that "
        "it would find"
    )
    modes: ModesFigure | None = Field(description="null: not bimodal")
    drift: DriftFigure | None = Field(description="null: no drift, or steps explain it")
    resemblance: float | None = Field(
        description="lag-1 correlation of sessions, where it makes change points uncertain"
    )
    notes: list[str]


class HistoryFile(PlainData):
    """The history of one or more sources of runs."""

    schema_: Literal["pytest-hwqueue/history/1"] = Field(SCHEMA, alias="schema")
    sources: list[str]
    rate: float = Field(description="share of flat series that may have a change point")
    pool_machines: bool
    sessions: int
    series: list[SeriesHistory]


def json_schema() -> dict[str, Any]:
    """Return the JSON Schema of the file."""
    return HistoryFile.model_json_schema(by_alias=True)
