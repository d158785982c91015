"""Tables of a session under noise: what each cost, and what the CPU did meanwhile, as Markdown.

    python -m tools.noise_table FOLDER [--causes FOLDER]

FOLDERs are those of sessions with --hwq-noise, as `.hwqueue` has them. Losses and counts come from
the measured passes of all runs of the first, launch pairs and causes from the traced passes
(--hwq-causes=always) of the second, or of the first too. Counts are per 1,000 kernels, which is
what other tools call launches. Run it from the top of the tree.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from pytest_hwqueue.answers.session.noise import quiet_cell, remedy_lines
from pytest_hwqueue.data.document.document import markdown_table, plain
from pytest_hwqueue.data.document.notes import Notes
from pytest_hwqueue.data.metrics.estimate import Estimate
from pytest_hwqueue.data.metrics.numbers import figure, percent, printed
from pytest_hwqueue.data.noise_names import NOISES, NONE
from pytest_hwqueue.data.records.cell import RunRecord, read_record
from pytest_hwqueue.data.records.counters import CpuCounters, PerThousand
from pytest_hwqueue.data.records.noise import Causes
from pytest_hwqueue.judge.losses import (
    by_run,
    core_speed,
    paired_losses,
    tail_figure,
    throughput,
)

_COUNTED = (
    "scenario", "runs", "work/s", "lost [95 %]", "{tail} longer [95 %]", "switches/1K",
    "soft IRQ/1K", "hard IRQ/1K", "waiting for a core", "core did less [95 %]",
)  # fmt: skip
_TRACED = (
    "scenario", "pairs without / with a switch", "gap without, P50 / P90 / P99 µs",
    "gap with, P50 / P90 / P99 µs", "penalty µs [95 %]", "time lost to switches", "interrupts",
    "slowest 1 %", "slowest 5 %",
)  # fmt: skip
_INTERRUPTS = (
    "scenario", "kind", "type", "number", "total ms", "mean µs", "max µs", "of the run",
    "raised by",
)  # fmt: skip
_OTHER_FILES = ("session.json", "which.json")
# Cells that were run once more for their causes, and scenarios.
_OTHER_FOLDERS = {"causes", "scenarios"}
_SLOWEST = {"p99": "1 %", "p95": "5 %"}


def main() -> None:
    """Print up to three tables for each cell."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("folder", type=Path, metavar="FOLDER")
    parser.add_argument("--causes", type=Path, metavar="FOLDER")
    given = parser.parse_args()
    cells = _by_cell(given.folder)
    traced_cells = cells if given.causes is None else _by_cell(given.causes)
    for cell, by_noise in cells.items():
        print(f"\n### {plain(cell)}\n")
        tail, _ = tail_figure(by_noise)
        head = [each.format(tail=tail) for each in _COUNTED]
        notes = Notes()
        rows = _counted_rows(by_noise, notes)
        print_table(head, rows, notes.lines(len(rows)))
        won = remedy_lines([record for records in by_noise.values() for record in records])
        if won:
            print("", *(f"- {plain(line)}" for line in won), sep="\n")
        notes = Notes()
        traced = _traced_rows(traced_cells.get(cell, {}), notes)
        if traced:
            print()
            print_table(_TRACED, traced, notes.lines(len(traced)))
        notes = Notes()
        interrupts = _interrupt_rows(traced_cells.get(cell, {}), notes)
        if interrupts:
            print()
            print_table(_INTERRUPTS, interrupts, notes.lines(len(interrupts)))


def print_table(head: Sequence[str], rows: Sequence[Sequence[str]], notes: Sequence[str]) -> None:
    """Print a table, and its notes below it."""
    print(markdown_table(head, rows))
    if notes:
        print("", *(f"- {plain(line)}" for line in notes), sep="\n")


def _by_cell(folder: Path) -> dict[str, dict[str, list[RunRecord]]]:
    """Return the records of a folder by cell and noise, the noises in their order."""
    cells: dict[str, dict[str, list[RunRecord]]] = {}
    for record in _records(folder):
        if record.noise is None:
            continue
        noise = record.noise.noise
        cells.setdefault(quiet_cell(record.cell, noise).id, {}).setdefault(noise, []).append(record)
    return {
        cell: dict(sorted(found.items(), key=lambda item: _place(item[0])))
        for cell, found in cells.items()
    }


def _place(noise: str) -> tuple[int, str]:
    """Order built-in noises as their list does, and others behind them by name."""
    names = [*NOISES]
    return names.index(noise) if noise in names else len(names), noise


def _counted_rows(by_noise: Mapping[str, Sequence[RunRecord]], notes: Notes) -> list[list[str]]:
    rates = by_run(by_noise, throughput)
    tail_name, tail = tail_figure(by_noise)
    lost = paired_losses(rates, higher_is_worse=False)
    slower = paired_losses(by_run(by_noise, core_speed), higher_is_worse=False)
    longer = paired_losses(by_run(by_noise, tail), higher_is_worse=True)
    rows = []
    for noise, records in by_noise.items():
        known = [rate for rate in rates[noise] if rate is not None]
        counters = [one.counters for one in records if one.counters is not None]
        rates_of = [one.per_1000_kernels for one in counters if one.per_1000_kernels is not None]
        rows.append(
            [
                noise,
                f"{len(known)} of {len(records)}",
                str(figure(statistics.geometric_mean(known))) if known else "—",
                "" if noise == NONE else _loss("lost", lost, noise, notes),
                "" if noise == NONE else _loss(f"{tail_name} longer", longer, noise, notes),
                _middle(_switches(one) for one in rates_of),
                _middle(_sum(one.system_softirqs) for one in rates_of),
                _middle(_sum(one.system_interrupts) for one in rates_of),
                _waiting(counters),
                "" if noise == NONE else _loss("core did less", slower, noise, notes),
            ]
        )
    return rows


def _traced_rows(by_noise: Mapping[str, Sequence[RunRecord]], notes: Notes) -> list[list[str]]:
    rows = []
    for noise, causes in _traced(by_noise):
        pairs = causes.launch_pairs
        row = [noise]
        if pairs is None:
            row += ["not seen"] * 5
        else:
            penalty = pairs.penalty
            notes.note(penalty.difference, "penalty", noise)
            if not pairs.gaps_without_switch:
                notes.refuse("P90 and P99 of gaps", "they were not kept", noise)
            row += [
                f"{pairs.without_switch:,} / {pairs.with_switch:,}",
                _gaps(penalty.second.median, pairs.gaps_without_switch),
                _gaps(penalty.first.median, pairs.gaps_with_switch),
                str(printed(penalty.difference, figure)),
                "—" if pairs.lost_share is None else str(percent(pairs.lost_share)),
            ]
        if causes.interrupts is None:
            row.append("not seen")
        else:
            spent = sum(one.time_ns for one in causes.interrupts) / 1e6
            share = sum(one.share_of_run for one in causes.interrupts)
            row.append(f"{figure(spent)} ms, {percent(share)}")
        for name, slowest in _SLOWEST.items():
            tail = causes.tails.get(name)
            if tail is None and name in causes.refused:
                notes.refuse(f"slowest {slowest}", causes.refused[name], noise)
            row.append("—" if tail is None else tail.words)
        rows.append(row)
    return rows


def _interrupt_rows(by_noise: Mapping[str, Sequence[RunRecord]], notes: Notes) -> list[list[str]]:
    """Return a row for each type of interrupt in the traced threads' time, the costliest first."""
    rows = []
    for noise, causes in _traced(by_noise):
        for one in causes.interrupts or []:
            if one.max_ns is None:
                notes.refuse("max", "it was not kept", f"{noise} {one.name}")
            rows.append(
                [
                    noise,
                    one.kind,
                    one.name,
                    f"{one.number:,}",
                    str(figure(one.time_ns / 1e6)),
                    str(figure(one.mean_ns / 1e3)),
                    "—" if one.max_ns is None else str(figure(one.max_ns / 1e3)),
                    str(percent(one.share_of_run)),
                    ", ".join(f"{who} {number:,}" for who, number in one.raised_by.items()),
                ]
            )
    return rows


def _traced(by_noise: Mapping[str, Sequence[RunRecord]]) -> Iterator[tuple[str, Causes]]:
    """Yield what the last traced pass beside each noise saw."""
    for noise, records in by_noise.items():
        traced = [record.causes for record in records if record.causes is not None]
        if traced:
            # Of several runs one is shown: their requests are not of one pass.
            yield noise, traced[-1]


def _switches(rates: PerThousand) -> float | None:
    if rates.voluntary is None or rates.involuntary is None:
        return None
    return rates.voluntary + rates.involuntary


def _sum(rates: Mapping[str, float] | None) -> float | None:
    return None if rates is None else sum(rates.values())


def _waiting(counters: Sequence[CpuCounters]) -> str:
    shares = [waited[1] for one in counters if (waited := one.waited_most()) is not None]
    return str(percent(statistics.median(shares))) if shares else "—"


def _middle(values: Iterable[float | None]) -> str:
    known = [value for value in values if value is not None]
    return str(figure(statistics.median(known))) if known else "—"


def _gaps(median: Estimate, others: Mapping[str, Estimate]) -> str:
    known = [median, *(others.get(name, Estimate()) for name in ("p90", "p99"))]
    return " / ".join(printed(each, figure).number for each in known)


def _loss(figure: str, losses: Mapping[str, Estimate], noise: str, notes: Notes) -> str:
    if losses[noise].refused:
        notes.refuse(figure, losses[noise].refused, noise)
    return str(printed(losses[noise], percent))


def _records(folder: Path) -> Iterator[RunRecord]:
    for path in sorted(folder.rglob("*.json")):
        apart = _OTHER_FOLDERS & set(path.relative_to(folder).parts[:-1])
        if path.name not in _OTHER_FILES and not apart:
            yield read_record(path)


if __name__ == "__main__":
    main()
