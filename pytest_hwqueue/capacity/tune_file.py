"""The schema of ``hwq tune``'s result: what was tried, and whether the best was confirmed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Final, Literal

from pydantic import Field

from pytest_hwqueue.capacity.tuning import Confirmation, Trial
from pytest_hwqueue.metrics.plain_data import PlainData
from pytest_hwqueue.scenarios.goals import GoalResult
from pytest_hwqueue.which.file import WhichFigure, WhichGoal
from pytest_hwqueue.which.table import figure_of

SCHEMA: Final = "pytest-hwqueue/tune/1"


class TuneTrial(PlainData):
    """One proposal; the best of many looks better than it is."""

    scheduler: str
    score: float | None = Field(
        description="share of native's throughput that the others keep if all goals' figures keep "
        "their bounds, else minus the logarithm of how far the worst is beyond; null if it failed"
    )
    goals: list[WhichGoal]
    reason: str = Field("", description="why it failed")


class TuneFile(PlainData):
    """Trials in the order measured, and the winner beside native in fresh windows."""

    schema_: Literal["pytest-hwqueue/tune/1"] = Field(SCHEMA, alias="schema")
    scenario: str
    case: str = Field(description="the searched case: variant, placement and mode")
    device: str
    simulated: bool
    complete: bool = Field(description="false: interrupted, so nothing was confirmed")
    seed: int
    command: str
    space: dict[str, tuple[int, int]] = Field(description="least and most value of each parameter")
    trials: list[TuneTrial]
    winner: str | None = Field(description="of the search; null if every trial failed")
    won: bool = Field(description="whether fresh windows showed it to be better than native")
    reason: str
    goals: list[WhichGoal] = Field(description="of the winner, in fresh windows")
    native_goals: list[WhichGoal]
    kept: dict[str, WhichFigure] = Field(description="throughput as a share of native's")


def trial_data(trial: Trial) -> TuneTrial:
    """Return a trial as plain data."""
    return TuneTrial(
        scheduler=trial.scheduler, score=trial.score, goals=_goals(trial.goals),
        reason=trial.reason,
    )  # fmt: skip


def confirmation_data(found: Confirmation) -> dict[str, object]:
    """Return the fields of a `TuneFile` that a confirmation fills."""
    return {
        "won": found.won,
        "reason": found.reason,
        "goals": _goals(found.goals),
        "native_goals": _goals(found.native_goals),
        "kept": {name: figure_of(estimate) for name, estimate in found.kept.items()},
    }


def _goals(results: Sequence[GoalResult]) -> list[WhichGoal]:
    return [WhichGoal(**asdict(goal)) for goal in results]
