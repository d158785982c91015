"""The workloads that the checks over all of them take."""

from __future__ import annotations

from pytest_hwqueue.workloads.registry import WORKLOADS, workload_class
from pytest_hwqueue.workloads.workload import Workload

EVERYONE: dict[str, type[Workload]] = {name: workload_class(name) for name in WORKLOADS}


def least_and_recommended() -> list[tuple[str, int]]:
    """Each workload with the fewest streams it takes, and with those it should have."""
    return [
        (name, streams)
        for name in EVERYONE
        for streams in sorted(
            {EVERYONE[name].stream_range.least, EVERYONE[name].stream_range.recommended}
        )
    ]
