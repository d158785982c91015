"""An event that stands for a point and knows only which one it is."""

from __future__ import annotations

from pytest_hwqueue.devices.protocol import Event


class Numbered:
    """Passed as soon as it is made; events are numbered as they are made."""

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
