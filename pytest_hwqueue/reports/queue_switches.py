"""The device's own queue switch: once per device and stream count, whatever was measured."""

from __future__ import annotations

from collections.abc import Sequence

from pytest_hwqueue.metrics.numbers import counted, microseconds
from pytest_hwqueue.metrics.switching import MedianDifference
from pytest_hwqueue.records.cell import RunRecord

_WHAT = "extra wait per kernel on many streams against one, of a probe (50 µs kernels)"


def queue_switches(records: Sequence[RunRecord]) -> list[str]:
    """Return a line on all probes of several streams, by device, mode and streams; or nothing.

    Every cell's probe measures the same property of its device, so several are one figure: the
    median, and the range of all.
    """
    groups: dict[tuple[str, str, int], list[MedianDifference]] = {}
    for record in records:
        cell, found = record.cell, record.metrics.queue_switch
        if found is not None and cell.streams > 1:
            key = (cell.device, cell.scheduler, cell.streams)
            groups.setdefault(key, []).append(found.overhead)
    if not groups:
        return []
    several_devices = len({device for device, _, _ in groups}) > 1
    several_modes = len({mode for _, mode, _ in groups}) > 1
    by_text: dict[str, list[str]] = {}
    for (device, mode, streams), probes in sorted(groups.items()):
        where = [device] * several_devices + [mode] * several_modes + [str(streams)]
        by_text.setdefault(_figure(probes), []).append(" ".join(where))
    parts = [f"{text} on {', '.join(places)} streams" for text, places in by_text.items()]
    return [f"{_WHAT}: {'; '.join(parts)}"]


def _figure(probes: Sequence[MedianDifference]) -> str:
    given = [probe for probe in probes if probe.difference is not None]
    values = sorted(probe.difference for probe in given if probe.difference is not None)
    if not values:
        return f"— ({probes[-1].refused.get('difference', 'no reason was recorded')})"
    if len(given) == 1:
        return str(microseconds(values[0], given[0].interval))
    middle = microseconds(values[len(values) // 2], (values[0], values[-1]))
    return f"{middle} (middle and range of {counted(len(values), 'cell')})"
