"""A table of launch_contention over launchers, as Markdown: the calls, their control, their rate.

    python -m tools.launching_table FOLDER

Where the control explains too much of P99, the row has the latencies under the name of whose they
are, and no rate: they are no figures of the driver. Run it from the top of the tree.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path

from pytest_hwqueue.data.document.document import plain
from pytest_hwqueue.data.metrics.estimate import Interval
from pytest_hwqueue.data.metrics.latency import LatencySummary
from pytest_hwqueue.data.metrics.launching import CONTROL
from pytest_hwqueue.data.metrics.numbers import (
    PrintedFigure,
    figure,
    milliseconds,
    percent,
    printed,
    rate_of,
    time_unit,
)
from pytest_hwqueue.data.records.cell import RunRecord, read_record
from tools.noise_table import print_table

_HEAD = (
    "launchers", "inside a call at once", "whose", "n", "P50 [95 %]", "P99 [95 %]",
    "control, P50", "control, P99", "of P99 without the driver", "launches/s [95 %]",
)  # fmt: skip


def main() -> None:
    """Print the table of a folder's records."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("folder", type=Path, metavar="FOLDER")
    print_table(_HEAD, sorted(_rows(parser.parse_args().folder), key=lambda row: int(row[0])), [])


def _rows(folder: Path) -> Iterator[list[str]]:
    for path in folder.glob("launch_contention*.json"):
        record = read_record(path)
        found = None if record.samples is None else record.samples.launching
        if found is None:
            continue
        if CONTROL not in record.metrics.tags:
            yield [str(record.cell.streams), "", "never all at once", *[""] * (len(_HEAD) - 3)]
            continue
        whose, calls = _calls(record)
        control = record.metrics.tags[CONTROL]
        of_all = record.metrics.throughput
        yield [
            str(record.cell.streams), "" if found.inside is None else str(figure(found.inside)),
            whose, str(calls.n), *_times(calls, told=True), *_times(control, told=False),
            "" if found.explained is None else str(percent(found.explained)),
            plain(str(rate_of(of_all[0]))) if of_all else "",
        ]  # fmt: skip


def _calls(record: RunRecord) -> tuple[str, LatencySummary]:
    """Return whose the latencies of launching calls are, and the latencies."""
    if record.metrics.latency is not None:
        return "the driver's", record.metrics.latency
    name = next(each for each in record.metrics.tags if each not in (CONTROL, "iteration"))
    return f"of the {name}", record.metrics.tags[name]


def _times(summary: LatencySummary, *, told: bool) -> list[str]:
    """Return P50 and P99, with their intervals if ``told``."""

    def shown(ms: float, ends: Interval | None) -> PrintedFigure:
        return milliseconds(ms, time_unit(ms * 1e6, [ms * 1e6]), ends if told else None)

    return [plain(str(printed(each, shown))) for each in (summary.p50, summary.p99)]


if __name__ == "__main__":
    main()
