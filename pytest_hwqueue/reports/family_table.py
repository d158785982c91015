"""The table of one family: a row per cell, in as many columns as fit the terminal."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from rich.console import Console
from rich.text import Text

from pytest_hwqueue.metrics.numbers import counted
from pytest_hwqueue.records.cell import Cell, RunRecord
from pytest_hwqueue.reports.cell_rows import PERCENTILES, CellRows, other_series
from pytest_hwqueue.reports.grid import Column, Grid, Row, flow, paragraph, print_below
from pytest_hwqueue.reports.notes import Notes

_LATENCY = ("p50", "p95", "p99")
_TIMES = (*_LATENCY, "p999", "max")
_DEVICE = ("after_other", "after_same", "in_flight", "overlap", "memory")
# From the most columns to the fewest. What has no column goes into a line below its cell, except
# P95, P99.9 and the maximum, which narrow tables leave to the records.
_LAYOUTS: tuple[tuple[str, ...], ...] = (
    (*_LATENCY, "p999", "max", "throughput", "throughput_interval", *_DEVICE),
    (*_LATENCY, "p999", "max", "throughput", *_DEVICE),
    (*_LATENCY, "throughput", *_DEVICE),
    (*_LATENCY, "p999", "max", "throughput", "throughput_interval"),
    (*_LATENCY, "p999", "max", "throughput"),
    (*_LATENCY, "throughput"),
    (*_LATENCY, "p999", "max"),
    _LATENCY,
    ("p50", "p99"),
)
# Each layout with names on one line, then folded; at last with settings below the name.
_ATTEMPTS = tuple(
    (layout, folded, False) for layout in _LAYOUTS for folded in (False, True)
) + tuple((layout, True, True) for layout in _LAYOUTS[-2:])
_FIGURES = (
    Column("n", "n", right=True),
    Column("p50", "P50", shares=_TIMES),
    Column("p95", "P95", shares=_TIMES),
    Column("p99", "P99", shares=_TIMES),
    Column("p999", "P99.9", shares=_TIMES),
    Column("max", "max", shares=_TIMES),
    Column("throughput", "throughput", unit_in_header=False),
    Column("after_other", "ready→start", "after other"),
    Column("after_same", "ready→start", "after same"),
    Column("in_flight", "kernels", "in flight"),
    Column("overlap", "overlap"),
    Column("memory", "peak", "memory", unit_in_header=False),
)
_SHARE_OF_NAME = 0.3

# What distinguishes cells: the key of the column, its heading, and how a cell says it.
_SETTINGS: tuple[tuple[str, str, Callable[[Cell], str]], ...] = (
    ("device", "device", lambda cell: cell.device),
    ("streams", "streams", lambda cell: str(cell.streams)),
    ("scheduler", "scheduler", lambda cell: cell.scheduler),
    ("dispatch", "dispatch", lambda cell: cell.dispatch),
    ("size", "size", lambda cell: cell.size or ""),
    ("sync_mode", "sync mode", lambda cell: cell.sync_mode),
    ("variant", "variant", lambda cell: cell.variant),
)


class FamilyTable:
    """One family's records, laid out for a given width."""

    def __init__(self, family: str, records: Sequence[RunRecord], width: int) -> None:
        self._family = family
        self._records = records
        self._width = width
        cells = [record.cell for record in records]
        self._file = _common_file(cells)
        self._varying = [
            setting for setting in _SETTINGS if len({setting[2](cell) for cell in cells}) > 1
        ]

    def draw(self, console: Console) -> None:
        """Print title, table and notes."""
        console.print(self._title())
        constants = self._constants()
        if constants:
            text = flow(constants, self._width)
            text.stylize("dim")
            console.print(text)
        for layout, folded, merged in _ATTEMPTS:
            grid, notes = self._grid(layout, folded, merged)
            if grid.width <= self._width:
                width = grid.draw(console)
                break
        else:
            width, notes = self._width, self._draw_stacked(console)
        for line in notes.lines(len(self._records)):
            console.print(paragraph(line, width))

    def _title(self) -> Text:
        records = self._records
        # A record of a process that died may have no fingerprint; another one knows its device.
        known: dict[str, str] = {}
        for record in records:
            hard = record.fingerprint.hard if record.fingerprint is not None else {}
            if "device_name" in hard:
                known[record.cell.device] = str(hard["device_name"])
        names: dict[str, list[str]] = {}
        for label in dict.fromkeys(record.cell.device for record in records):
            names.setdefault(known.get(label, "unknown device"), []).append(label)
        devices = ", ".join(f"{name} ({', '.join(labels)})" for name, labels in names.items())
        family = f"{self._family} in {self._file}" if self._file else self._family
        title = Text.assemble((family, "bold"), f" on {devices}: {self._what()}")
        bad = [record.status for record in records if record.status != "ok"]
        if bad:
            counts = ", ".join(f"{bad.count(status)} {status}" for status in dict.fromkeys(bad))
            title.append(f" · {counts} of {counted(len(records), 'cell')}", style="red")
        return title

    def _what(self) -> str:
        measured = [record for record in self._records if record.samples is not None]
        if not measured:
            return "nothing was measured"
        whole = [record for record in measured if record.primary.per == "iteration"]
        if not whole:
            return "latency of what stands behind each name, from events"
        host = [bool(record.samples and record.samples.host_ns) for record in whole]
        if all(host):
            how = "seen by the host"
        elif not any(host):
            how = "device time, from events"
        else:
            how = "seen by the host or, where a note says so, from events"
        if len(whole) == len(measured):
            return f"latency per iteration, {how}"
        return f"latency of what stands behind each name; whole iterations {how}"

    def _constants(self) -> list[str]:
        cell = self._records[0].cell
        varying = {setting[0] for setting in self._varying}
        parts = []
        if "streams" not in varying:
            parts.append(counted(cell.streams, "stream"))
        if "scheduler" not in varying:
            parts.append(f"scheduler {cell.scheduler}")
        if "dispatch" not in varying:
            parts.append(f"dispatch {cell.dispatch}")
        if "size" not in varying and cell.size:
            parts.append(f"size {cell.size}")
        if "sync_mode" not in varying and cell.sync_mode != "per_iteration":
            parts.append(f"sync mode {cell.sync_mode}")
        if "variant" not in varying and cell.variant:
            parts.append(cell.variant)
        return parts

    def _grid(self, layout: tuple[str, ...], folded: bool, merged: bool) -> tuple[Grid, Notes]:
        # A percentile that was refused everywhere has no column: the option's help says what it
        # needs, and P50 to P99 say it below the table.
        if all(_refused(record, "p999") for record in self._records):
            layout = tuple(key for key in layout if key != "p999")
        notes = Notes()
        rows: list[Row] = []
        ratios = [name for record in self._records for name in record.metrics.ratios]
        once = len(ratios) > len(set(ratios))
        for record in self._records:
            cell_rows = CellRows(record, self._name(record.cell), layout, notes)
            found = cell_rows.rows(self._identity(record.cell), once)
            if merged:
                _merge(found[0], self._settings(record.cell))
            rows += found
        widest = max(16, int(self._width * _SHARE_OF_NAME)) if folded else None
        columns = [Column("workload", "workload", widest=widest)]
        if not merged:
            columns += [
                Column(key, header, right=key == "streams", widest=widest)
                for key, header, _ in self._varying
            ]
        columns += [c for c in _FIGURES if c.key in ("n", *layout)]
        return Grid(columns, rows), notes

    def _identity(self, cell: Cell) -> dict[str, str]:
        name = cell.name.removeprefix(f"{self._file}::") if self._file else cell.name
        return {"workload": name} | {key: say(cell) for key, _, say in self._varying}

    def _name(self, cell: Cell) -> str:
        name, settings = self._identity(cell)["workload"], self._settings(cell)
        return f"{name} ({settings})" if settings else name

    def _settings(self, cell: Cell) -> str:
        """Return what distinguishes the cell besides its name, such as ``8 streams, graph``."""
        said = {key: say(cell) for key, _, say in self._varying}
        if "streams" in said:
            said["streams"] = counted(cell.streams, "stream")
        return ", ".join(filter(None, said.values()))

    def _draw_stacked(self, console: Console) -> Notes:
        """Print cells one below the other, for terminals too narrow for a table."""
        notes = Notes()
        for record in self._records:
            name = self._name(record.cell)
            cell_rows = CellRows(record, name, ("p50", "p95", "p99"), notes)
            for row in cell_rows.rows({"workload": name}, True):
                console.print(Text(row.texts["workload"], style=row.style or "bold"))
                parts = [f"n {row.texts['n']}"] if "n" in row.texts else []
                parts += [
                    f"{PERCENTILES[key]} {figures[0]}" for key, figures in row.figures.items()
                ]
                print_below(console, ([parts] if parts else []) + row.below, self._width)
        return notes


def _merge(row: Row, settings: str) -> None:
    if settings:
        row.texts["workload"] += f"\n  {settings}"


def _refused(record: RunRecord, key: str) -> bool:
    summaries = [record.metrics.latency, *other_series(record).values()]
    return all(summary is None or getattr(summary, key) is None for summary in summaries)


def _common_file(cells: Sequence[Cell]) -> str:
    """Return the file that all cells' names start with, if it is one file."""
    files = {cell.name.partition("::")[0] if "::" in cell.name else "" for cell in cells}
    return files.pop() if len(files) == 1 else ""
