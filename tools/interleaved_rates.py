"""Simulates cells measured by `hwq ab`: looks that acquit, and one that convicts.

    python tools/interleaved_rates.py --cells 1000

One figure a cell, whose logarithm is normal between runs; the error rate is that of one cell of
100. Prints a Markdown table.
"""

from __future__ import annotations

import argparse
from collections import Counter
from dataclasses import replace

import numpy as np

from pytest_hwqueue.gate.cell_gate import CellGate
from pytest_hwqueue.gate.conclude import conclude
from pytest_hwqueue.gate.quantity import P99
from pytest_hwqueue.gate.runs import ProcessRun
from pytest_hwqueue.gate.settings import GateSettings
from pytest_hwqueue.interleaved.looks import acquitted_early, looks
from pytest_hwqueue.verdicts.judging import judged_once

_CELLS = 100
_SPREADS = (0.02, 0.03, 0.05, 0.1, 0.2)
_CHANGES = (0.0, 0.1, 0.2, 0.5)


def judged(
    generator: np.random.Generator, sd: float, change: float, settings: GateSettings
) -> tuple[str, int]:
    """Measure and judge one cell; return the verdict's state, and the runs spent on each side."""
    logs = generator.normal(0, sd, (2, settings.pairs))
    old, new = (
        [ProcessRun(float(np.exp(value)), 1000, "one") for value in side]
        for side in (logs[0], logs[1] + np.log1p(change))
    )
    for pairs in looks(settings.pairs):
        cell = CellGate(old[:pairs], P99, judged_once(settings, pairs), _CELLS)
        for run in new[:pairs]:
            cell.add(run)
        verdict = conclude(cell, cell.p <= settings.rate / _CELLS)
        if acquitted_early(verdict, settings.detect):
            break
    return verdict.state, pairs


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--cells", type=int, default=1000, help="of each figure")
    parser.add_argument("--pairs", type=int, default=12)
    given = parser.parse_args()
    settings = replace(GateSettings(), tau=0.0, pairs=given.pairs)
    generator = np.random.default_rng(14)
    print(
        "| sd between runs | unchanged: pass / inconclusive / regression | its runs, both sides | "
        + " | ".join(f"{100 * change:+.0f} % found (passes)" for change in _CHANGES[1:])
        + " |"
    )
    print("|---" * (3 + len(_CHANGES[1:])) + "|")
    for sd in _SPREADS:
        parts = []
        for change in _CHANGES:
            found = [judged(generator, sd, change, settings) for _ in range(given.cells)]
            states = Counter(state for state, _ in found)
            share = {state: f"{100 * count / given.cells:.3g} %" for state, count in states.items()}
            if change:
                parts.append(f"{share.get('regression', '0 %')} ({share.get('pass', '0 %')})")
                continue
            named = ("pass", "inconclusive", "regression")
            parts.append(" / ".join(share.get(state, "0 %") for state in named))
            parts.append(f"{2 * sum(pairs for _, pairs in found) / given.cells:.1f}")
        print(f"| {100 * sd:g} % | {' | '.join(parts)} |")


if __name__ == "__main__":
    main()
