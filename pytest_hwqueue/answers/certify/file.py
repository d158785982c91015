"""The schema of ``hwq certify``'s result."""

from __future__ import annotations

from typing import Final, Literal

from pydantic import Field

from pytest_hwqueue.data.metrics.estimate import Estimate, PlainData
from pytest_hwqueue.data.metrics.isolation import ClaimVerdict
from pytest_hwqueue.data.records.origin import Origin
from pytest_hwqueue.data.resources import Resource

KIND: Final = "pytest-hwqueue/certificate/"
"""How the schema of every version begins."""


class ResourceResult(PlainData):
    """A victim alone and beside a stressor of the same resource, under the mode."""

    resource: Resource
    claimed: bool = Field(description="whether the mode is held to keep it apart")
    verdict: ClaimVerdict | Literal["not claimed", "not measured"]
    reason: str = Field("", description="why it was not measured, or is not decided")
    alone_ms: Estimate = Field(description="mean time of the victim's iteration, alone")
    beside_ms: Estimate = Field(description="the same beside the stressor")
    slower: Estimate = Field(
        description="how much longer it takes beside the stressor, as a share of its time alone: "
        "the geometric mean over rounds"
    )
    native_slower: Estimate = Field(
        description="the same under native, in the same placement; refused if the mode is not held "
        "to it, or is native itself"
    )


class ShareResult(PlainData):
    """What the victim gets of the multiprocessors, by the rate of its products."""

    claimed: float | None = Field(
        description="share that the mode gives it at most, of 1; null if it is one of a number of "
        "multiprocessors that nobody knows"
    )
    bound: float | None = Field(description="share up to which the claim holds")
    verdict: ClaimVerdict
    reason: str = Field("", description="why it is not decided")
    share: Estimate = Field(description="its rate alone, as a share of its rate alone under native")


class WaitResult(PlainData):
    """How long an urgent kernel of the victim waits beside products that never pause."""

    bound_ms: float = Field(description="P99 of the wait that is claimed at most")
    verdict: ClaimVerdict
    reason: str = Field("", description="why it is not decided")
    alone_p50_us: Estimate = Field(
        description="mean of the rounds' median latencies alone, which is no wait"
    )
    p99_us: Estimate = Field(description="mean of the rounds' P99, less that median")


class CertificateFile(Origin):
    """What a mode is shown to keep apart, and what not."""

    schema_: Literal["pytest-hwqueue/certificate/1"] = Field(
        "pytest-hwqueue/certificate/1", alias="schema"
    )
    mode: str = Field(description="such as threads-green-context:victim=64")
    bound: float = Field(
        description="a victim that is slower by up to this share is kept apart; by so much of "
        "itself a share may be exceeded"
    )
    resources: list[ResourceResult]
    share: ShareResult | None = Field(description="null if the mode gives the victim no share")
    wait: WaitResult | None = Field(None, description="null unless it was asked for")
    failures: list[str] = Field(
        description="windows without a figure, and why, such as where the mode is not proven active"
    )
    proof: str = Field(
        "",
        description="evidence of the last window that the mode was active; empty where simulated",
    )

    @property
    def verdicts(self) -> list[str]:
        """Of all claims."""
        of_resources = [each.verdict for each in self.resources if each.claimed]
        others = [each.verdict for each in (self.share, self.wait) if each is not None]
        return [*of_resources, *others]
