"""What a session knows about a workload without importing it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class StreamRange:
    """How many streams a workload can use; every stream it is given gets work."""

    least: int
    recommended: int
    most: int


@dataclass(frozen=True)
class Declaration:
    """What is known about a workload without importing it.

    Attributes:
        name: as users request it.
        family: the table that lists it.
        mark: its priority, as a pytest mark.
        stream_range: how many streams it can use.
        place: its class, as ``module:Class``.
        collective: whether it runs collectives, on ranks started for it.
        no_graph: why an iteration cannot be captured as a graph; empty if it can.

    """

    name: str
    family: str
    mark: str
    stream_range: StreamRange
    place: str
    collective: bool = False
    no_graph: str = ""

    def streams_refusal(self, streams: int) -> str | None:
        """Return why it cannot use so many streams, or None."""
        least, most = self.stream_range.least, self.stream_range.most
        if least <= streams <= most:
            return None
        return f"{self.name} takes {least} to {most} streams (--hwq-streams={streams})"

    def graph_refusal(self, ranks: int) -> str:
        """Return why dispatch `auto` does not capture for this many ranks; empty if it does."""
        if self.no_graph or ranks == 1 or not self.collective:
            return self.no_graph
        return f"capturing the collectives of {ranks} ranks into a graph has not been tried"
