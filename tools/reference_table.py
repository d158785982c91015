"""A table of a stored baseline, as Markdown: the figures of each cell over all its runs.

    python -m tools.reference_table DEVICE/NAME [--baselines FOLDER]

All figures are geometric means over runs. Their 95 % intervals are Student's t of the logarithms:
over runs in a baseline of one session, and over the sessions' means in one of three or more, so
that what sessions differ by is inside. Two sessions say too little about a spread: then both
sessions' means stand in parentheses. A workload's ratios follow in a table of their own. Run it
from the top of the tree.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean, stdev

from pytest_hwqueue.data.document.notes import Notes
from pytest_hwqueue.data.metrics.estimate import Estimate, Interval
from pytest_hwqueue.data.metrics.latency import CONFIDENCE
from pytest_hwqueue.data.metrics.numbers import counted, figure, percent, printed, rate, times
from pytest_hwqueue.judge.baselines.runs import CellBaseline, StoredRun, soft_fields
from pytest_hwqueue.judge.baselines.store import Store
from pytest_hwqueue.judge.figures import GatedFigure
from pytest_hwqueue.judge.figures import figure as gated_figure
from pytest_hwqueue.judge.runs import ProcessRun
from pytest_hwqueue.judge.statistics import MeanDifference
from pytest_hwqueue.judge.verdict import THROUGHPUT, GateSettings
from pytest_hwqueue.judge.words import mean_value
from tools.noise_table import print_table

_HEAD = (
    "workload", "latency of a", "streams", "dispatch", "runs", "sessions", "n", "P50 ms [95 %]",
    "P99 ms [95 %]", "sd of P99", "ms per iteration [95 %]", "throughput [95 %]", "timed by",
)  # fmt: skip
_RATIOS_HEAD = ("workload", "streams", "dispatch", "runs", "ratio", "P50 [95 %]", "P99 [95 %]")
_CONDITIONS = {"driver_version": "driver", "torch_version": "torch", "python_version": "Python"}
_NS_PER_MS = 1e6
_NONE = "—"


def main() -> None:
    """Print the table, and below it what was refused."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("name", metavar="DEVICE/NAME")
    parser.add_argument("--baselines", type=Path, default=Path("baselines"), metavar="FOLDER")
    given = parser.parse_args()
    device, _, name = given.name.rpartition("/")
    cells = sorted(Store(given.baselines).read(name, device).values(), key=_place)
    notes = Notes()
    print_table(_HEAD, [row_of(cell, notes) for cell in cells], notes.lines(len(cells)))
    notes = Notes()
    ratios = [row for cell in cells for row in ratio_rows(cell, notes)]
    if ratios:
        print()
        print_table(_RATIOS_HEAD, ratios, notes.lines(len(cells)))
    print(f"\nMeasured {conditions(cells)}.")


def row_of(cell: CellBaseline, notes: Notes) -> list[str]:
    """Return a cell's row; what its runs are too short or too few for goes into the notes."""
    what, sample, runs = cell.header.cell, cell.header.sample, cell.runs
    p99 = _gated("p99", runs)
    return [
        what.name, sample.primary, str(what.streams), what.dispatch, str(len(runs)),
        str(len({run.session for run in runs})), str(min(run.n for run in runs)),
        _time("p50", cell, notes), _time("p99", cell, notes),
        _NONE if p99 is None or len(p99) < 2 else str(percent(stdev(_logs(p99)))),
        _time("iteration_time", cell, notes),
        " · ".join(
            _with_means(str(rate(value, unit, interval(of_unit))), of_unit)
            for unit in runs[0].throughput
            if (value := mean_value(of_unit := _rates(unit, runs))) is not None
        ),
        sample.contended or sample.tags,
    ]  # fmt: skip


def ratio_rows(cell: CellBaseline, notes: Notes) -> list[list[str]]:
    """Return a row for each ratio of a cell."""
    what, rows = cell.header.cell, []
    for name in cell.runs[0].ratios:
        # Lean runs have none.
        measured = [run for run in cell.runs if name in run.ratios]
        row = [what.name, str(what.streams), what.dispatch, str(len(measured)), name]
        for quantile in ("p50", "p99"):
            runs = _gated(f"{name}.{quantile}", measured)
            value = None if runs is None else mean_value(runs)
            ends = None if runs is None or value is None else interval(runs)
            low, high = ends or (-math.inf, math.inf)
            given = Estimate(value=value, low=low, high=high, refused="a run has too few samples")
            given = given.informative(unit="×")
            notes.note(given, f"{name} at {quantile.upper()}", what.id, interval=False)
            row.append(str(printed(given, times)))
        rows.append(row)
    return rows


def conditions(cells: Sequence[CellBaseline]) -> str:
    """Return when and with what the runs were made, each value once."""
    runs = [run for cell in cells for run in cell.runs]
    soft = [soft_fields(cell.header, run) for cell in cells for run in cell.runs]
    days = sorted({run.when[:10] for run in runs})
    parts = [
        " to ".join(dict.fromkeys((days[0], days[-1]))),
        f"in {counted(len({run.session for run in runs}), 'session')}",
        f"on {counted(len({str(each.get('device_uuid')) for each in soft}), 'GPU')}",
    ]
    for field, label in _CONDITIONS.items():
        values = sorted({str(each.get(field, "not known")) for each in soft})
        parts.append(f"{label} {', '.join(values)}")
    commits = sorted({(run.commit or "not known")[:9] for run in runs})
    return "; ".join([" ".join(parts[:3]), *parts[3:], f"commit {', '.join(commits)}"])


def interval(runs: Sequence[ProcessRun]) -> Interval | None:
    """Return the interval of the runs' geometric mean; None for a single run or two sessions."""
    means = _session_means(runs)
    logs = _logs(runs) if len(means) == 1 else means
    if len(logs) < 2 or len(means) == 2:
        return None
    spread = MeanDifference(
        mean=fmean(logs), sd=max(stdev(logs), GateSettings().floor), freedom=len(logs) - 1,
        inverse_runs=1 / len(logs), session_share=0.0, seen_sd=stdev(logs),
    )  # fmt: skip
    low, high = spread.interval(0.0, CONFIDENCE)
    return math.exp(low), math.exp(high)


def _session_means(runs: Sequence[ProcessRun]) -> list[float]:
    sessions: dict[str, list[ProcessRun]] = {}
    for run in runs:
        sessions.setdefault(run.session, []).append(run)
    return [fmean(_logs(each)) for each in sessions.values()]


def _with_means(words: str, runs: Sequence[ProcessRun], unit: float = 1.0) -> str:
    """Add the means of two sessions, which make no interval."""
    means = _session_means(runs)
    if len(means) != 2:
        return words
    first, second = (figure(math.exp(mean) / unit) for mean in means)
    return f"{words} ({first}, {second})"


def _place(cell: CellBaseline) -> tuple[str, int, str]:
    return cell.header.cell.name, cell.header.cell.streams, cell.header.cell.dispatch


def _time(name: str, cell: CellBaseline, notes: Notes) -> str:
    cell_id = cell.header.cell.id
    runs = _gated(name, cell.runs)
    value = None if runs is None else mean_value(runs)
    if runs is None or value is None:
        least = min(run.n for run in cell.runs)
        notes.refuse(name, f"a run has too few samples for it ({least})", cell_id)
        return _NONE
    ends = interval(runs)
    if ends is None:
        if len(runs) == 1:
            notes.refuse("interval", "it takes two runs", cell_id)
        return _with_means(str(figure(value / _NS_PER_MS)), runs, _NS_PER_MS)
    return str(figure(value / _NS_PER_MS, (ends[0] / _NS_PER_MS, ends[1] / _NS_PER_MS)))


def _gated(name: str, runs: Sequence[StoredRun]) -> list[ProcessRun] | None:
    """Return a figure of each run; None if runs are too short and a lower quantile would stand."""
    found = gated_figure(name, runs, ())
    if found is None or found.quantity.name != name:
        return None
    return [found.run(run) for run in runs]


def _rates(unit: str, runs: Sequence[StoredRun]) -> list[ProcessRun]:
    found = GatedFigure(replace(THROUGHPUT, unit=unit), "throughput", unit)
    return [found.run(run) for run in runs]


def _logs(runs: Sequence[ProcessRun]) -> list[float]:
    return [math.log(run.value) for run in runs]


if __name__ == "__main__":
    main()
