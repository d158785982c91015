"""What every record of a run says, be it of one cell or of tenants together."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from pytest_hwqueue.data.metrics.estimate import PlainData
from pytest_hwqueue.data.records.fingerprint import Fingerprint
from pytest_hwqueue.data.records.noise import NoiseRound
from pytest_hwqueue.data.records.sealed import SealedData
from pytest_hwqueue.data.records.timelines import TimelineFile

Status = Literal["ok", "failed", "timeout", "invalid", "skipped"]


class Repeatable(PlainData):
    """What it takes to measure something again: the command, and the code."""

    command: str
    version: str | None = Field(None, description="pytest-hwqueue's; null where it is not known")
    git_commit: str | None = Field(
        None,
        description="checked out in the tree under test; null where that is no git repository and "
        "--hwq-commit does not state it; `missing` in the fingerprint has the reason",
    )
    git_dirty: bool | None = Field(
        None,
        description="whether tracked files differed from that commit; null where it is not known",
    )


class Run(Repeatable, SealedData):
    """The head of a record: how the run went, on what, and how to repeat it."""

    run: int = Field(1, description="which run of the same in its session, from 1")
    status: Status
    reason: str = Field("", description="why, for every status but ok")
    stage: str = Field("", description="where it went wrong, such as set-up or measure")
    started: str = Field(description="UTC, ISO 8601")
    duration_s: float
    seed: int
    fingerprint: Fingerprint | None = None
    noise: NoiseRound | None = Field(
        None, description="the noise that ran, and whether it was felt; null if none was asked for"
    )
    timelines: TimelineFile | None = Field(
        None,
        description="the file next to the record with its timelines and traced kernels; null where "
        "there are none; of several ranks, rank 0's",
    )
    notes: list[str] = Field(default_factory=list, description="what a reader should know")
    faults: list[str] = Field(
        default_factory=list, description="planted on purpose; such a record measures nothing"
    )

    def head(self) -> dict[str, Any]:
        """Return these fields by name, for another record of the same run."""
        return {name: getattr(self, name) for name in Run.model_fields}
