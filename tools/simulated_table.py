"""The suite's cells as a simulated device has them, beside those measured, as Markdown.

    python -m tools.simulated_table [SIMULATED MEASURED] [--baselines FOLDER]

Compares the cells that both baselines have: sim-h200/reference and nvidia-h200/reference, unless
others are named. Figures are geometric means over runs, of a cell's primary latency. Run it from
the top of the tree.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from pytest_hwqueue.data.metrics.numbers import counted, figure
from pytest_hwqueue.judge.baselines.runs import CellBaseline
from pytest_hwqueue.judge.baselines.store import Store
from pytest_hwqueue.judge.figures import figure as gated_figure
from pytest_hwqueue.judge.words import mean_value
from tools.noise_table import print_table

_HEAD = (
    "workload", "latency of a", "streams", "dispatch", "P50 ms, measured", "simulated", "ratio",
    "P99 ms, measured", "simulated", "ratio", "",
)  # fmt: skip
_FIGURES = ("p50", "p99")
WITHIN, BEYOND = 1.25, 2.0
_NS_PER_MS = 1e6
_REFERENCES = ("sim-h200/reference", "nvidia-h200/reference")


class Pair(NamedTuple):
    """A cell of both baselines."""

    simulated: CellBaseline
    measured: CellBaseline

    def figures(self, name: str) -> tuple[float, float]:
        """Return the measured and the simulated figure, in ns."""
        return _mean(name, self.measured), _mean(name, self.simulated)

    def ratio(self, name: str) -> float:
        """Return the simulated figure over the measured one."""
        measured, simulated = self.figures(name)
        return simulated / measured


def pairs(simulated: str, measured: str, folder: Path) -> list[Pair]:
    """Return the cells of two baselines that differ by their device alone; by workload.

    Parameters may differ: `torch_compile` is simulated as what it compiles.
    """
    by_setting = _by_setting(measured, folder)
    found = _by_setting(simulated, folder)
    return [Pair(found[each], by_setting[each]) for each in sorted(found) if each in by_setting]


def off(found: list[Pair]) -> Mapping[str, float]:
    """Return the ratio of P99 of the workloads whose P99 is off by more than twofold."""
    ratios = {pair.simulated.header.cell.name: pair.ratio("p99") for pair in found}
    return {name: ratio for name, ratio in ratios.items() if _is_off(ratio)}


def _is_off(ratio: float) -> bool:
    return not 1 / BEYOND <= ratio <= BEYOND


def main() -> None:
    """Print the table, and what it comes to."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("names", nargs="*", metavar="DEVICE/NAME", default=[*_REFERENCES])
    parser.add_argument("--baselines", type=Path, default=Path("baselines"), metavar="FOLDER")
    given = parser.parse_args()
    if len(given.names) != len(_REFERENCES):
        parser.error("name two baselines: SIMULATED MEASURED")
    simulated, measured = given.names
    found = pairs(simulated, measured, given.baselines)
    print_table(_HEAD, [_row(pair) for pair in found], [])
    ratios = [pair.ratio("p99") for pair in found]
    near = sum(1 / WITHIN <= ratio <= WITHIN for ratio in ratios)
    print(
        f"\nOf {counted(len(found), 'cell')}, P99 of {near} is within {100 * (WITHIN - 1):.0f} %, "
        f"and that of {sum(map(_is_off, ratios))} off by more than {BEYOND:.0f}×."
    )


def _row(pair: Pair) -> list[str]:
    cell = pair.simulated.header.cell
    row = [cell.name, pair.simulated.header.sample.primary, str(cell.streams), cell.dispatch]
    for name in _FIGURES:
        row += [str(figure(each / _NS_PER_MS)) for each in pair.figures(name)]
        row.append(f"{pair.ratio(name):.2f}")
    return [*row, "**off**" if _is_off(pair.ratio("p99")) else ""]


def _by_setting(name: str, folder: Path) -> dict[tuple[str, ...], CellBaseline]:
    device, _, own = name.rpartition("/")
    found: dict[tuple[str, ...], CellBaseline] = {}
    for each in Store(folder).read(own, device).values():
        cell = each.header.cell
        setting = (
            cell.name, str(cell.streams), cell.scheduler, cell.dispatch, cell.sync_mode,
            cell.size or "",
        )  # fmt: skip
        found[setting] = each
    return found


def _mean(name: str, cell: CellBaseline) -> float:
    gated = gated_figure(name, cell.runs, ())
    value = None
    if gated is not None and gated.quantity.name == name:
        value = mean_value([gated.run(run) for run in cell.runs])
    if value is None:
        raise SystemExit(f"{cell.header.cell.id} has too few samples for {name}: record it again")
    return value


if __name__ == "__main__":
    main()
