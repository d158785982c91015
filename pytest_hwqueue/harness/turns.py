"""The order of turns in which steady machine drift affects all alike: ABC CBA ABC."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

Item = TypeVar("Item")


def turns(items: Sequence[Item], rounds: int) -> list[tuple[int, Item]]:
    """Return each round's number, from 1, with each item; every second round is reversed.

    Raises:
        ValueError: if there are no items, or ``rounds`` is below 1.
    """
    if not items or rounds < 1:
        raise ValueError(f"there must be items and rounds, are {len(items)} and {rounds}")
    return [
        (number, item)
        for number in range(1, rounds + 1)
        for item in items[:: 1 if number % 2 else -1]
    ]
