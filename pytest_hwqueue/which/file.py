"""The schema of ``hwq which``'s result: every figure of its table."""

from __future__ import annotations

from typing import Final, Literal

from pydantic import Field

from pytest_hwqueue.devices.fingerprint import Fingerprint
from pytest_hwqueue.metrics.interference import EffectVerdict
from pytest_hwqueue.metrics.numbers import PlainData
from pytest_hwqueue.records.cell import Status
from pytest_hwqueue.scenarios.goals import GoalVerdict

SCHEMA: Final = "pytest-hwqueue/which/1"

NOT_MEASURED: Final = "not measured"

Role = Literal["case", "reference", "solo"]
PriorityProof = EffectVerdict | Literal["not probed"]


class WhichFigure(PlainData):
    """A number with its 95 % interval, or the reason why there is none."""

    value: float | None = None
    low: float | None = None
    high: float | None = Field(None, description="null with a value: there is no upper end")
    n: int = Field(0, description="requests that it rests on; of two sides, the fewer")
    sessions: int = Field(
        1,
        description="sessions that it rests on; a ratio is formed within each, and the spread "
        "between them is in its interval",
    )
    reason: str = Field(
        "",
        description="why the value, or an end of its interval, is missing, or sessions are left "
        "out",
    )


class WhichTenant(PlainData):
    """What one tenant got in all windows of a case."""

    name: str
    work: str = Field(
        "", description="what it ran, and how many at once; empty if records do not say"
    )
    priority: int
    issued: int
    completed: int
    failed: int
    unserved: int
    failed_for: dict[str, int] = Field(
        default_factory=dict, description="how many failed, by the three most frequent reasons"
    )
    p50_ms: WhichFigure = Field(description="latency, from the scheduled arrival")
    p95_ms: WhichFigure
    p99_ms: WhichFigure
    max_ms: WhichFigure = Field(description="the longest of these windows; without an interval")
    attained_within_ms: float | None = Field(
        None, description="the tenant's deadline_ms, or its P99 goal; null without either"
    )
    attainment: WhichFigure | None = Field(None, description="share of requests within that")
    unit: str = Field(description="what an item is: images, TFLOP, …")
    throughput_items_per_s: WhichFigure
    throughput_loss: WhichFigure | None = Field(
        description="share of the throughput under native at the same placement that is lost; "
        "null for native itself, and alone"
    )
    p50_over_solo: WhichFigure | None = Field(description="null for what is solo itself")
    p99_over_solo: WhichFigure | None
    throughput_over_solo: WhichFigure | None = Field(
        None, description="compares cases that different sessions measured; null likewise"
    )
    capacity_per_s: WhichFigure | None = Field(
        None,
        description="greatest rate of its requests at which all goals hold, as `hwq capacity` "
        "finds it; null unless that was searched for",
    )


class WhichGoal(PlainData):
    """A goal's outcome."""

    goal: str
    verdict: GoalVerdict
    value: float | None = Field(None, description="in ``unit``, as are the interval's ends")
    low: float | None = None
    high: float | None = None
    unit: str = ""
    n: int = 0
    reason: str = Field("", description="why, if undecided")
    sessions: int = Field(1, description="that the figure rests on")
    decided_by_s: float | None = Field(
        None, description="length of a window that would decide it in 4 of 5 cases, if undecided"
    )
    rate_per_s: float | None = Field(None, description="of the tenant's requests, to that end")


class WhichProof(PlainData):
    """Evidence that the mode was active, of the last window."""

    evidence: str
    effective: bool | None = Field(
        description="whether less urgent work was seen held up in every window; false if in one it "
        "was looked for and not seen; null if it was not looked for"
    )
    counts: dict[str, int] = Field(
        default_factory=dict, description="how often what was seen, in all windows"
    )
    priority: PriorityProof | None = Field(
        None,
        description="whether probes proved that the mode serves urgent tenants first: the worst of "
        "all windows; null where the mode's evidence needs no probe",
    )
    priority_evidence: str = Field("", description="the probe's figures, or why not proven")


class WhichCase(PlainData):
    """Tenants under one scheduler, or a case that others are compared with."""

    id: str
    role: Role = Field(
        description="case: requested; reference: native, for comparison with others; solo: a "
        "tenant alone under native"
    )
    variant: str | None
    placement: str
    scheduler: str
    status: Status | Literal["not measured"]
    reason: str = Field("", description="why, for every status but ok")
    window_s: float = Field(0.0, description="length of all its windows together")
    sessions: int = Field(0, description="that measured it")
    records: list[str] = Field(default_factory=list, description="files, in the order measured")
    tenants: list[WhichTenant] = Field(default_factory=list)
    goals: list[WhichGoal] = Field(default_factory=list)
    proof: WhichProof | None = Field(None, description="null where simulated, and where not ok")
    last_output: dict[str, str] = Field(
        default_factory=dict, description="of tenants of a case that is not ok, by name"
    )

    @property
    def met_all(self) -> bool:
        """Whether it has goals and met them all."""
        return bool(self.goals) and all(goal.verdict == "met" for goal in self.goals)

    def with_capacity(self, name: str, capacity_per_s: WhichFigure) -> WhichCase:
        """Return the case with a tenant's capacity."""
        tenants = [
            each.model_copy(update={"capacity_per_s": capacity_per_s})
            if each.name == name
            else each
            for each in self.tenants
        ]
        return self.model_copy(update={"tenants": tenants})

    def tenant(self, name: str) -> WhichTenant:
        """Return a tenant; KeyError if there is none of this name."""
        for tenant in self.tenants:
            if tenant.name == name:
                return tenant
        raise KeyError(name)


class WhichChoice(PlainData):
    """The choice among a variant's cases, by their ids."""

    variant: str | None
    goals: bool = Field(description="whether there are any")
    met: list[str] = Field(description="all goals")
    missed: list[str] = Field(description="at least one goal")
    undecided: list[str] = Field(description="no goal missed, but not all shown to be met")
    without_figures: list[str]
    less_urgent: list[str] = Field(description="tenants of less than the highest priority")
    best: str | None = Field(
        description="of those that met all goals, the one under which the less urgent tenants "
        "have most throughput (of several sessions: most of that alone); of several tenants the "
        "one that loses most counts"
    )
    alike: list[str] = Field(
        description="others whose intervals of that throughput overlap with the best's"
    )


class WhichSession(PlainData):
    """One session on one GPU, and what it says by itself."""

    folder: str
    device_uuid: str = Field(description="empty if the device has none")
    started: str = Field(description="UTC, ISO 8601")
    command: str
    version: str | None = None
    git_commit: str | None
    git_dirty: bool | None = None
    cases: list[WhichCase] = Field(
        description="what it measured, by its own records alone; empty if it is the only session, "
        "whose figures are the table's"
    )


class WhichFile(PlainData):
    """The best scheduler for a mix of tenants: every case, its figures, and the choice."""

    schema_: Literal["pytest-hwqueue/which/1"] = Field(SCHEMA, alias="schema")
    scenario: str
    description: str
    device: str = Field(description="label, such as cuda; empty if nothing was measured")
    simulated: bool = Field(description="whether all figures are a model's, and none measured")
    complete: bool = Field(description="false: interrupted before all was measured")
    seed: int | None
    command: str
    version: str | None = None
    git_commit: str | None
    git_dirty: bool | None = None
    fingerprint: Fingerprint | None
    cases: list[WhichCase]
    choices: list[WhichChoice] = Field(description="for each variant")
    sessions: list[WhichSession] = Field(default_factory=list, description="oldest first")

    @property
    def device_name(self) -> str:
        """Name of the device, or its label if the name is not known."""
        if self.fingerprint is None:
            return self.device
        return str(self.fingerprint.hard.get("device_name", self.device))

    @property
    def device_uuids(self) -> list[str]:
        """The GPUs, each once."""
        return list(dict.fromkeys(session.device_uuid for session in self.sessions))
