"""The evidence that a scheduler mode was active, as the mode gives it and records keep it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, ClassVar

from pydantic import ConfigDict, Field

from pytest_hwqueue.data.metrics.estimate import PlainData
from pytest_hwqueue.data.metrics.interference import PriorityEffect


@dataclass(frozen=True)
class Proof:
    """Evidence that the scheduler mode was active."""

    __pydantic_config__: ClassVar[ConfigDict] = PlainData.model_config

    mode: Annotated[str, Field(description="as requested")]
    evidence: Annotated[str, Field(description="what was found, in words")]
    device_priorities: Annotated[
        tuple[int, ...], Field(description="of all streams, in the device's own numbers")
    ]
    effective: Annotated[
        bool | None,
        Field(
            description="whether less urgent work was seen held up for more urgent work; null if "
            "that cannot be seen from outside, or was not looked for"
        ),
    ] = None
    counts: Annotated[
        dict[str, int],
        Field(description="how often what was seen, by name; in samples unless stated"),
    ] = field(default_factory=dict)
    priority: Annotated[
        PriorityEffect | None,
        Field(description="what a probe before the window saw; null where none ran"),
    ] = None
