"""The schema of ``hwq capacity``'s result: the load each scheduler carries, and how it is known."""

from __future__ import annotations

from typing import Final, Literal

from pydantic import Field

from pytest_hwqueue.capacity.rates import RateVerdict
from pytest_hwqueue.devices.fingerprint import Fingerprint
from pytest_hwqueue.metrics.plain_data import PlainData
from pytest_hwqueue.which.file import WhichFigure, WhichGoal

SCHEMA: Final = "pytest-hwqueue/capacity/1"


class CapacityRate(PlainData):
    """What was seen at one arrival rate."""

    rate_per_s: float
    verdict: RateVerdict | None = Field(description="null if it was interrupted before that")
    windows: int
    p99_ms: WhichFigure = Field(description="of the tenant; its interval counts queueing together")
    goals: list[WhichGoal] = Field(description="with the intervals that decided")
    lost: dict[str, WhichFigure] = Field(
        description="share of its throughput alone that each other tenant loses"
    )
    records: list[str] = Field(description="files of its windows")


class CapacityCase(PlainData):
    """The capacity under one scheduler."""

    id: str
    variant: str | None
    placement: str
    scheduler: str
    capacity_per_s: WhichFigure = Field(
        description="greatest rate at which all goals hold; from the greatest rate shown to hold "
        "to the least shown to break. low is 0 if none held, high null if none broke"
    )
    broke_first: list[str] = Field(description="goals missed at the least rate that broke")
    reason: str = Field("", description="why the search ended early; empty if it did not")
    rates: list[CapacityRate] = Field(description="ascending")

    @property
    def held(self) -> list[CapacityRate]:
        """The rates up to the capacity's lower end that held."""
        low = self.capacity_per_s.low or 0.0
        return [each for each in self.rates if each.verdict == "held" and each.rate_per_s <= low]


class CapacityFile(PlainData):
    """How much load of one tenant a scenario carries under each scheduler."""

    schema_: Literal["pytest-hwqueue/capacity/1"] = Field(SCHEMA, alias="schema")
    scenario: str
    description: str
    tenant: str = Field(description="whose arrival rate was searched")
    p99_goal_ms: float | None = Field(description="strictest bound on its P99, if any")
    others: list[str] = Field(description="tenants whose loss is reported")
    device: str
    simulated: bool
    complete: bool = Field(description="false: interrupted before the search ended")
    error: float = Field(description="most probability of a wrong verdict at a rate, both sides")
    windows_at_most: int = Field(description="of one rate")
    requests: int = Field(description="expected in a window")
    seed: int
    command: str
    version: str | None = None
    git_commit: str | None
    git_dirty: bool | None = None
    fingerprint: Fingerprint | None
    cases: list[CapacityCase]

    @property
    def device_name(self) -> str:
        """Name of the device, or its label if the name is not known."""
        if self.fingerprint is None:
            return self.device
        return str(self.fingerprint.hard.get("device_name", self.device))
