"""Timelines of streams: the kernels that are stored next to a record, as columns."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pytest_hwqueue.errors import RecordError
from pytest_hwqueue.metrics.delay_evidence import DeviceWork
from pytest_hwqueue.metrics.switching import ready_delays
from pytest_hwqueue.metrics.timeline import Timeline
from pytest_hwqueue.records.timelines import Kept, TimelineFile, read_kept

_WORK = re.compile(r"(?P<whose>.+) work")
_OF_A_CELL = "causes"
_TRACED = "requests while traced"


@dataclass(frozen=True)
class _Bar:
    row: str
    name: str
    ready_ns: int | None
    start_ns: int
    end_ns: int


def timelines(folder: Path, file: TimelineFile | None, most: int) -> list[dict[str, Any]]:
    """Return the timelines stored next to a record, each as columns of its kernels.

    Args:
        folder: the record's.
        file: the record's own; None if nothing is stored.
        most: kernels to keep of each; of more, the first that started are kept, and it is said.

    Returns:
        for each its title, its rows, and by start ``row`` and ``name`` (as indices), ``ready``,
        ``start`` and ``end`` in ns from the first start; a ``ready`` is None where it is not known.
        If the file cannot be read, one with the reason in ``refused``.

    """
    if file is None:
        return []
    try:
        kept = read_kept(folder, file)
        return [_view(title, total, bars, most) for title, total, bars in _all(kept, most) if bars]
    except (RecordError, ValueError) as error:
        return [{"title": file.file, "refused": str(error)}]


def _all(kept: Kept, most: int) -> Iterable[tuple[str, int, list[_Bar]]]:
    """Return each timeline's title, number of kernels and bars, at least the first ``most``."""
    for name in kept.about:
        if f"{name} waits" in kept.tables:
            timeline = kept.timeline(name)
            assert timeline is not None
            yield name, len(timeline.kernels), _of_timeline(timeline)
    traced: list[_Bar] = []
    total = 0
    for table, columns in kept.tables.items():
        found = _WORK.fullmatch(table)
        if found:
            whose = found["whose"]
            owner = "" if whose == _OF_A_CELL else whose.removeprefix("tenant ")
            # Of several tenants' kernels, the first ones are among each tenant's first.
            traced += _of_work(kept.work(whose, owner, most))
            total += len(columns["name"])
    yield _TRACED, total, traced


def _of_timeline(timeline: Timeline) -> list[_Bar]:
    delays = {each.kernel: each.delay_ns for each in ready_delays(timeline)}
    return [
        _Bar(
            f"stream {one.stream}", one.name,
            one.start_ns - delays[index] if index in delays else None, one.start_ns, one.end_ns,
        )
        for index, one in enumerate(timeline.kernels)
    ]  # fmt: skip


def _of_work(work: Sequence[DeviceWork]) -> list[_Bar]:
    return [
        _Bar(
            f"{one.owner}, stream {one.stream}" if one.owner else f"stream {one.stream}",
            one.name, one.ready_ns, one.start_ns, one.end_ns,
        )
        for one in work
    ]  # fmt: skip


def _view(title: str, total: int, bars: list[_Bar], most: int) -> dict[str, Any]:
    bars.sort(key=lambda bar: bar.start_ns)
    kept = bars[:most]
    rows = sorted({bar.row for bar in kept}, key=_by_number)
    names = list(dict.fromkeys(bar.name for bar in kept))
    row_of = {row: index for index, row in enumerate(rows)}
    name_of = {name: index for index, name in enumerate(names)}
    zero = bars[0].start_ns
    return {
        "title": title,
        "rows": rows,
        "names": names,
        "kernels": total,
        "left_out": total - len(kept),
        "row": [row_of[bar.row] for bar in kept],
        "name": [name_of[bar.name] for bar in kept],
        "ready": [None if bar.ready_ns is None else bar.ready_ns - zero for bar in kept],
        "start": [bar.start_ns - zero for bar in kept],
        "end": [bar.end_ns - zero for bar in kept],
    }


def _by_number(row: str) -> tuple[str, int]:
    owner, _, number = row.rpartition(" ")
    return owner, int(number)
