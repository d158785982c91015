"""Counts how soon `hwq history` finds planted steps, and what it finds in flat histories.

    python tools/history_rates.py --histories 100

Histories of 60 sessions whose figures' logarithms are normal between sessions; a step is after the
30th. Prints Markdown tables.
"""

from __future__ import annotations

import argparse

import numpy as np

from pytest_hwqueue.history.analysis import RATE
from pytest_hwqueue.history.change_points import find_change_points

_SESSIONS, _PLACE = 60, 30
# A change point this many sessions from the step is that step's.
_NEAR = 3
_SPREADS = (0.01, 0.02, 0.03)
_STEPS = (0.02, 0.05, 0.1)


def found_after(step: float, sd: float, generator: np.random.Generator) -> int | None:
    """Return after how many sessions at the new level the step is found, or None if never."""
    values = np.exp(generator.normal(0, sd, _SESSIONS))
    values[_PLACE:] *= 1 + step
    for sessions in range(_PLACE + 1, _SESSIONS + 1):
        found = find_change_points(values[:sessions], RATE)
        if any(abs(each.index - _PLACE) <= _NEAR for each in found):
            return sessions - _PLACE
    return None


def alarms(sd: float, generator: np.random.Generator) -> tuple[bool, bool]:
    """Return whether a flat history has a change point at its end, and at any of its sessions."""
    values = np.exp(generator.normal(0, sd, _SESSIONS))
    seen = [
        bool(find_change_points(values[:sessions], RATE)) for sessions in range(2, _SESSIONS + 1)
    ]
    return seen[-1], any(seen)


def main() -> None:
    """Print how soon steps are found, and false change points."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--histories", type=int, default=100)
    histories = parser.parse_args().histories
    print("| step | sd between sessions | found | median sessions until then | 90 % within |")
    print("|---|---|---|---|---|")
    for step in _STEPS:
        for sd in _SPREADS:
            generator = np.random.default_rng([round(1000 * step), round(1000 * sd)])
            after = [found_after(step, sd, generator) for _ in range(histories)]
            known = sorted(_SESSIONS if each is None else each for each in after)
            shown = [
                "not found" if count == _SESSIONS else str(count)
                for count in (known[histories // 2], known[round(0.9 * histories) - 1])
            ]
            found = sum(each is not None for each in after)
            print(f"| {step:.0%} | {sd:.0%} | {found} of {histories} | {' | '.join(shown)} |",
                  flush=True)  # fmt: skip
    generator = np.random.default_rng(0)
    flat = [alarms(0.02, generator) for _ in range(histories)]
    print(f"\nFlat histories with a change point: {sum(end for end, _ in flat)} of {histories} at "
          f"the end, {sum(ever for _, ever in flat)} at some time when looked at after every "
          "session.")  # fmt: skip


if __name__ == "__main__":
    main()
