"""Charts of the page: series of samples, timelines, causes, scaling."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pytest_hwqueue.errors import RecordError
from pytest_hwqueue.harness.summary import find_sweeps
from pytest_hwqueue.metrics.attribution import UNEXPLAINED, DeviceWork
from pytest_hwqueue.metrics.estimate import Estimate
from pytest_hwqueue.metrics.numbers import counted, milliseconds, percent, printed, time_unit
from pytest_hwqueue.metrics.switching import ready_delays
from pytest_hwqueue.metrics.timeline import Timeline
from pytest_hwqueue.records.noise import Causes, TailCauses, causes_line
from pytest_hwqueue.records.timelines import Kept, TimelineFile, read_kept
from pytest_hwqueue.reports.document import Bullets, Column, Heading, Paragraph, Part, Row, Table
from pytest_hwqueue.reports.page.cells import PageCell
from pytest_hwqueue.reports.scaling import scaling_parts

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


MOST_DRAWN = 6000
"""Samples that one chart draws of all runs together; a browser draws more too slowly."""

_LEAST_OF_A_RUN = 200
_POINTS = 240
_SPARK_WIDTH, _SPARK_HEIGHT, _SPARK_POINTS = 120, 28, 100


def in_order(samples_ns: Sequence[int], runs: int) -> dict[str, Any]:
    """Return a run's samples in the order taken: ``at`` (from 0; None for all) and ``ns``.

    Of more than `MOST_DRAWN` in all, the least and the greatest of each stretch are kept.

    Args:
        samples_ns: shape (n,).
        runs: how many runs share the chart.

    """
    most = max(_LEAST_OF_A_RUN, MOST_DRAWN // max(1, runs))
    at = _extremes(samples_ns, most)
    kept = [int(samples_ns[each]) for each in at]
    return {"at": at if len(at) < len(samples_ns) else None, "ns": kept, "n": len(samples_ns)}


def survival(samples_ns: Sequence[float], failed: int = 0) -> dict[str, Any]:
    """Return a complementary distribution: ``ns`` ascending, and how many took ``as_long`` of n.

    Requests that never completed count among those that took longer. Every point is a sample; of
    many samples those are kept whose shares are evenly spaced on a logarithmic axis.

    Args:
        samples_ns: shape (n,), at least one, in any order.
        failed: requests without a latency.

    """
    import numpy as np

    ordered = np.sort(np.asarray(samples_ns, dtype=np.float64))
    n = ordered.size
    # Ranks from the slowest, 1, to the fastest, n.
    ranks = np.unique(np.rint(np.geomspace(1, n, _POINTS)).astype(np.int64))[::-1]
    return {
        "ns": [round(each) for each in ordered[n - ranks].tolist()],
        "as_long": (ranks + failed).tolist(),
        "n": n + failed,
    }


def spark(samples_ns: Sequence[int]) -> str:
    """Return the path of an SVG of 120 by 28: samples in order, least below, greatest on top."""
    at = _extremes(samples_ns, _SPARK_POINTS)
    if not at:
        return ""
    values = [samples_ns[each] for each in at]
    low, high = min(values), max(values)
    last = max(1, len(samples_ns) - 1)
    scale = (_SPARK_HEIGHT - 4) / (high - low) if high > low else 0.0
    middle = 0.0 if high > low else _SPARK_HEIGHT / 2 - 2
    points = (
        f"{_SPARK_WIDTH * index / last:.1f} {_SPARK_HEIGHT - 2 - middle - (ns - low) * scale:.1f}"
        for index, ns in zip(at, values, strict=True)
    )
    return f"M{'L'.join(points)}"


def _extremes(samples: Sequence[int], most: int) -> list[int]:
    """Return the indices of at most ``most`` samples: each stretch's least and greatest."""
    import numpy as np

    n = len(samples)
    if n <= most:
        return list(range(n))
    values: NDArray[np.int64] = np.asarray(samples, dtype=np.int64)
    edges = np.linspace(0, n, most // 2 + 1).astype(int)
    kept = {
        int(first + chosen)
        for first, end in pairwise(edges)
        for chosen in (values[first:end].argmin(), values[first:end].argmax())
    }
    return sorted(kept)


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
        return [
            _timeline_of(title, total, bars, most)
            for title, total, bars in _all(kept, most)
            if bars
        ]
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


def _timeline_of(title: str, total: int, bars: list[_Bar], most: int) -> dict[str, Any]:
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


_NS_PER_MS = 1e6


def causes_parts(causes: Causes | None) -> list[Part]:
    """Return the causes of a run's slow requests; nothing if nobody looked for them."""
    if causes is None:
        return []
    line = causes_line(causes, "a traced pass of its own")
    parts: list[Part] = [Heading("Causes of the tail"), Paragraph(line, "")]
    for name, tail in causes.tails.items():
        parts += _tail(name, tail)
    refused = [f"{name.upper()} refused: {reason}" for name, reason in causes.refused.items()]
    parts += [Paragraph(line, "yellow") for line in refused]
    return [*parts, *map(Paragraph, causes.limits)]


def _tail(name: str, tail: TailCauses) -> list[Part]:
    unit = time_unit(tail.threshold_ms * _NS_PER_MS)
    title = (
        f"{counted(tail.requests, 'request')} above {name.upper()} of "
        f"{milliseconds(tail.threshold_ms, unit)}; the median took "
        f"{milliseconds(tail.median_ms, time_unit(tail.median_ms * _NS_PER_MS))}"
    )
    columns = (
        Column("cause", "cause"), Column("share", "share of these requests", bars=True),
        Column("named", "who or what they waited for", "(requests)"),
    )  # fmt: skip
    # What no cause explains comes last, whatever its share.
    ordered = sorted(tail.shares.items(), key=lambda each: (each[0] == UNEXPLAINED, -each[1]))
    rows = [_cause(cause, share, tail) for cause, share in ordered if share > 0]
    not_seen = {cause: [reason] for cause, reason in tail.not_seen.items()}
    unseen: list[Part] = [Paragraph("Causes that could not be seen here:"), Bullets(not_seen)]
    return [Heading(title, 3), Table(columns, rows), *unseen * bool(not_seen)]


def _cause(cause: str, share: Estimate, tail: TailCauses) -> Row:
    named = [f"{each.what} ({each.requests})" for each in tail.named.get(cause, [])]
    if cause == UNEXPLAINED and tail.unexplained_in:
        named = [
            f"lost on the {place}: {printed(part, percent)}"
            for place, part in tail.unexplained_in.items()
            if part > 0
        ]
    return Row(
        {"cause": cause, "named": "; ".join(named)},
        {"share": [printed(share, percent)]},
        opens=True,
    )


def scaling_by_cell(cells: Sequence[PageCell]) -> dict[str, list[Part]]:
    """Return the scaling of each cell that was measured at several counts, by the cell's key."""
    found: dict[str, list[Part]] = {}
    sessions: dict[Any, list[PageCell]] = {}
    for cell in cells:
        sessions.setdefault(cell.folder, []).append(cell)
    for those in sessions.values():
        keys = {id(cell.shown): cell.key for cell in those}
        for sweep in find_sweeps([cell.shown for cell in those]):
            parts = scaling_parts(sweep, set())
            found |= {keys[id(record)]: parts for record in sweep}
    return found
