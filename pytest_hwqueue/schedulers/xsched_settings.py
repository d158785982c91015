"""XSched's parameters: policies, commands in flight, and which of them the simulator models."""

from __future__ import annotations

from collections.abc import Mapping

from pytest_hwqueue.errors import BadScheduler
from pytest_hwqueue.schedulers.declaration import Preemption, SimulatedSharing

# Of xserver, by name; the server speaks of them by number.
POLICIES = {
    "HPF": 1, "HHPF": 2, "CHPF": 3, "UP": 4, "PUP": 5, "KEDF": 7, "LAX": 8, "AWF": 9, "CFS": 10,
    "MLFQ": 11,
}  # fmt: skip

# What XSched itself uses where nothing is set.
THRESHOLD, BATCH = 16, 8


def in_flight(parameters: Mapping[str, str]) -> tuple[int, int]:
    """Return XSched's threshold and batch size, in commands.

    If only the threshold is given, the batch is half of it, as in XSched's own 16 and 8.
    """
    threshold = int(parameters.get("threshold", THRESHOLD))
    default = max(1, threshold // 2) if "threshold" in parameters else BATCH
    return threshold, int(parameters.get("batch", default))


def check_in_flight(parameters: Mapping[str, str]) -> None:
    """Raise BadScheduler if the batch exceeds the threshold."""
    threshold, batch = in_flight(parameters)
    if batch > threshold:
        raise BadScheduler(
            f"xsched: batch={batch} is more than threshold={threshold}, which ends every process "
            "under XSched; give a batch of at most the threshold"
        )


def simulated(parameters: Mapping[str, str]) -> SimulatedSharing | None:
    """Return the simulator's model of XSched, which covers only level 1 by priority, or None."""
    others = {"level": "1", "policy": "HPF", "auto": "on"}
    if any(parameters.get(name, value) != value for name, value in others.items()):
        return None
    # At its threshold XSched waits for a batch to end before it hands on the next.
    preemption = Preemption(*in_flight(parameters), THRESHOLD - BATCH)
    return SimulatedSharing(priorities="all", preemption=preemption)
