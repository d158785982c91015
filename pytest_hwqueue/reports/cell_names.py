"""What distinguishes a table's cells, and what they have in common."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from rich.text import Text

from pytest_hwqueue.metrics.numbers import counted
from pytest_hwqueue.records.cell import Cell, RunRecord

# The key of the setting, its heading, and how a cell says it.
_SETTINGS: tuple[tuple[str, str, Callable[[Cell], str]], ...] = (
    ("device", "device", lambda cell: cell.device),
    ("streams", "streams", lambda cell: str(cell.streams)),
    ("scheduler", "scheduler", lambda cell: cell.scheduler),
    ("dispatch", "dispatch", lambda cell: cell.dispatch),
    ("size", "size", lambda cell: cell.size or ""),
    ("sync_mode", "sync mode", lambda cell: cell.sync_mode),
    ("variant", "variant", lambda cell: cell.variant),
)


class CellNames:
    """Names cells by what varies among them; at least one cell."""

    def __init__(self, cells: Sequence[Cell]) -> None:
        self._first = cells[0]
        self.file = _common_file(cells)
        self.varying = [
            setting for setting in _SETTINGS if len({setting[2](cell) for cell in cells}) > 1
        ]

    def workload(self, cell: Cell) -> str:
        """Return the cell's name without the file that all cells share."""
        return cell.name.removeprefix(f"{self.file}::") if self.file else cell.name

    def in_short(self, cell: Cell) -> str:
        """Return the cell's name and what varies, such as ``moe s8 eager``."""
        return " ".join([self.workload(cell), *self.settings(cell, short=True)])

    def settings(self, cell: Cell, *, short: bool = False, streams: bool = True) -> list[str]:
        """Return the settings that vary: ``8 streams`` and ``graph``, or short, ``s8``.

        Args:
            cell: one of the cells.
            short: for a line that has little room.
            streams: whether their number is one of them.

        """
        said = {key: say(cell) for key, _, say in self.varying if streams or key != "streams"}
        if "streams" in said:
            said["streams"] = f"s{cell.streams}" if short else counted(cell.streams, "stream")
        return [text for text in said.values() if text]

    def constants(self) -> list[str]:
        """Return the settings that all cells share, as far as a reader needs them."""
        cell = self._first
        varying = {setting[0] for setting in self.varying}
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


def title(subject: str, records: Sequence[RunRecord], what: str) -> Text:
    """Return a table's heading: its subject, the devices, and how many cells are not fine."""
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
    text = Text.assemble((subject, "bold"), f" on {devices}{what}")
    bad = [record.status for record in records if record.status != "ok"]
    if bad:
        counts = ", ".join(f"{bad.count(status)} {status}" for status in dict.fromkeys(bad))
        text.append(f" · {counts} of {counted(len(records), 'cell')}", style="red")
    return text


def how_timed(records: Sequence[RunRecord]) -> str:
    """Return who saw the latency of whole iterations: the host, or the device's events."""
    host = [bool(record.samples and record.samples.host_ns) for record in records]
    if all(host):
        return "seen by the host"
    if not any(host):
        return "device time, from events"
    return "seen by the host or, where a note says so, from events"


def _common_file(cells: Sequence[Cell]) -> str:
    """Return the file that all cells' names start with, if it is one file."""
    files = {cell.name.partition("::")[0] if "::" in cell.name else "" for cell in cells}
    return files.pop() if len(files) == 1 else ""
