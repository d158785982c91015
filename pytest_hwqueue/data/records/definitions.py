"""Versions of what figures mean: figures of two versions are never compared.

A name outlives its meaning: ``burst`` on 32 streams was once timed one stream at a time. Whoever
changes what a figure means raises its version here (or its workload's), so that a stored run of
another version, or of none, is ``incomparable`` and not a regression.
"""

from __future__ import annotations

from collections.abc import Mapping

from pytest_hwqueue.data.records.declared import SampleOf

VERSIONS: Mapping[str, int] = {
    # The latency that is judged, by what one sample is of.
    "iteration": 1,
    # Version 1 timed launches by events in a synchronised iteration, or one by one under a tracer.
    "launch": 2,
    "request": 1,
    "call": 1,
    # What is judged beside it.
    "throughput": 1,
    "tags": 1,
    "ratios": 1,
}

OWN_TEST = 2
"""Version of what a test's own cells are of. Those of version 1 were named by their file's name and
function alone, so tests of several folders or classes could be in one."""


def definitions(per: SampleOf, workload: int) -> dict[str, int]:
    """Return the versions of a cell's figures, by figure.

    Args:
        per: what a sample of its judged latency is of.
        workload: version of what its workload does.

    """
    figures = (per, "throughput", "tags", "ratios")
    return {"workload": workload, **{name: VERSIONS[name] for name in figures}}
