"""The schema of ``hwq preempt``'s result."""

from __future__ import annotations

from typing import Final, Literal

from pydantic import Field

from pytest_hwqueue.data.metrics.estimate import Estimate, PlainData
from pytest_hwqueue.data.metrics.interference import EffectVerdict
from pytest_hwqueue.data.metrics.preemption import PreemptionVerdict
from pytest_hwqueue.data.records.origin import Origin
from pytest_hwqueue.data.records.placement import TenantPlacement

KIND: Final = "pytest-hwqueue/preempt/"
"""How the schema of every version begins."""


class Wait(PlainData):
    """How long urgent kernels waited beside a victim whose kernels have one length."""

    asked_us: float = Field(description="length of the victim's kernels that was asked for")
    kernel_us: Estimate = Field(
        description="their length, measured alone under native: how much longer a request of nine "
        "takes than one of one, divided by eight; without an interval"
    )
    p50_us: Estimate = Field(description="mean of the rounds' medians")
    p99_us: Estimate = Field(description="mean of the rounds' P99")
    rounds_p99_us: list[float] = Field(description="P99 of each round that has one")
    requests: int = Field(description="urgent ones that found none before them, of all rounds")
    left_out: int = Field(description="those that found one before them, and waited for it, too")


class PreemptionLaw(PlainData):
    """The wait over the length of the victim's kernels, under one mode."""

    id: str = Field(description="such as threads-native, 1 wave, depth 8")
    placement: TenantPlacement
    scheduler: str
    waves: int = Field(
        description="how many times as many blocks the victim's kernels have as the device holds "
        "at once; 0: one block"
    )
    depth: int = Field(description="how many kernels the victim enqueues at once")
    alone_p50_us: Estimate = Field(
        description="median latency of the urgent tenant alone under this mode, which is no wait"
    )
    alone_p99_us: Estimate = Field(description="mean of the rounds' P99 alone, less that median")
    waits: list[Wait] = Field(description="by length; empty if none was measured")
    verdict: PreemptionVerdict | Literal["not measured"]
    reason: str = Field("", description="why it was not measured, or not at every length")
    slope: Estimate = Field(description="P99 of the wait per length of a kernel")
    intercept_us: Estimate = Field(description="that P99 behind kernels of no length, by the line")
    proof: str = Field(
        "",
        description="evidence of the last window that the mode was active; empty where simulated",
    )
    priority: dict[EffectVerdict, int] = Field(
        default_factory=dict,
        description="of how many windows a probe said so of the mode's priority; empty if none did",
    )
    misfit_us: float | None = Field(
        None, description="how far from the line the mean of a length lies at most"
    )
    misfit_p: float | None = Field(
        None, description="how often means on a line lie as far from one, or farther"
    )


class PreemptFile(Origin):
    """The preemption law of each mode."""

    schema_: Literal["pytest-hwqueue/preempt/1"] = Field("pytest-hwqueue/preempt/1", alias="schema")
    laws: list[PreemptionLaw]
