"""What a workload declares of its figures, which are computed from this and its samples."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

from pydantic import ConfigDict, Field

from pytest_hwqueue.data.metrics.estimate import PlainData

SampleOf = Literal["iteration", "launch", "request", "call"]
"""What one sample of a judged series is of."""


@dataclass(frozen=True)
class Primary:
    """The series by which a cell is judged: the latency that its user waits for, or the pace."""

    __pydantic_config__: ClassVar[ConfigDict] = PlainData.model_config

    name: Annotated[
        str,
        Field(description="of one sample, such as token; pace where iterations are not waited for"),
    ]
    per: Annotated[
        SampleOf,
        Field(
            description="iteration: a whole one; launch: each launch with this tag; request: "
            "launches of one request, on any streams; call: each launching call of the host, while "
            "a thread for each stream makes them"
        ),
    ]


ITERATION = Primary("iteration", "iteration")
PACE = Primary("pace", "iteration")
"""Of cells whose iterations are not waited for, which have no latency."""


@dataclass(frozen=True)
class LatencyRatio:
    """A ratio: the latency of a tagged launch over that of a reference."""

    __pydantic_config__: ClassVar[ConfigDict] = PlainData.model_config

    name: str
    tag: str
    reference: str
    description: str


@dataclass(frozen=True)
class Traffic:
    """What one rank's collectives of an iteration exchange."""

    __pydantic_config__: ClassVar[ConfigDict] = PlainData.model_config

    array_bytes: Annotated[
        int,
        Field(
            description="sizes of the whole arrays as nccl-tests count them, of all streams "
            "together"
        ),
    ]
    bus_factor: Annotated[
        float, Field(description="bus bandwidth divided by algorithm bandwidth; 0 for one rank")
    ]
    reference: Annotated[
        str | None, Field(description="the pass that does nothing else; null is the cell")
    ]


class DeclaredFigures(PlainData):
    """What a workload declares of its figures: they are computed from this and the samples."""

    ratios: list[LatencyRatio] = Field(default_factory=list)
    overlap: tuple[str, str] | None = Field(
        None, description="the references that compute alone, and that communicate alone"
    )
    traffic: Traffic | None = None
