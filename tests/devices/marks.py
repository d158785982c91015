"""Events that stand for points, and those that Kineto writes of what took time."""

from __future__ import annotations

from typing import Any

from pytest_hwqueue.devices.protocol import Event


class Numbered:
    """An event that is passed as soon as it is made, and numbered."""

    made = 0

    def __init__(self) -> None:
        self.number = Numbered.made
        Numbered.made += 1

    def query(self) -> bool:
        return True

    def synchronize(self) -> None:
        return None


def distance(start: Event, end: Event) -> int:
    """How many events later the second one was made."""
    assert isinstance(start, Numbered)
    assert isinstance(end, Numbered)
    return end.number - start.number


def complete(
    category: str, name: str, start_ns: int, ns: int, tid: int = 0, pid: int = 0, **arguments: Any
) -> dict[str, Any]:
    """What Kineto writes of a call, a range or a kernel."""
    return {
        "ph": "X", "cat": category, "name": name, "pid": pid, "tid": tid, "ts": start_ns / 1000,
        "dur": ns / 1000, "args": arguments,
    }  # fmt: skip
