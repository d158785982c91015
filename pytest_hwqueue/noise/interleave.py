"""The order in which noises take turns, so that what changes on the host falls on all alike."""

from __future__ import annotations

from collections.abc import Sequence


def interleaved(
    noises: Sequence[str], rounds: int, *, mirrored: bool = False
) -> list[tuple[int, str]]:
    """Return the turns: every noise once in each round, the rounds one after the other.

    Args:
        noises: names, each once.
        rounds: how often each takes its turn.
        mirrored: turn every second round around, ABC CBA ABC: a steady drift over two rounds then
            falls on all noises alike (for two of them, ABBA). Otherwise ABC ABC ABC: all turns of
            a noise lie equally far apart.

    Returns:
        Pairs of the round, from 1, and the noise.

    Raises:
        ValueError: if there are no noises, one is given twice, or ``rounds`` is below 1.

    """
    if not noises or len(set(noises)) < len(noises):
        raise ValueError(f"noises must be one or more, each once, are {list(noises)}")
    if rounds < 1:
        raise ValueError(f"rounds must be 1 or more, is {rounds}")
    turns = []
    for round_ in range(1, rounds + 1):
        backwards = mirrored and round_ % 2 == 0
        turns += [(round_, noise) for noise in (reversed(noises) if backwards else noises)]
    return turns
