"""Planted causes against named ones, on the host and on simulated devices: the confusion table.

    python -m tests.engine.causes.confusion [--plants 100] [--level rusage ...] [--kind sleep ...]
        [--json]

On the host every kind of delay is planted into every 25th request, with what is to be had here of
each: perf with tracepoints, perf's switches alone, and rusage. Where tracefs is not mounted, the
command mounts it for itself. A planted request counts if the plant, by its own clock, is at least
half of what it took beyond the median (of a neighbour, nine tenths), and if it is above P95: else
something else on this machine was, and it is called spoiled. A case is right if its cause and what
that names are those that were planted. Run it from the top of the tree, where little else runs.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import cast

from pytest_hwqueue.data.metrics.attribution import RequestCause
from pytest_hwqueue.data.metrics.latency import share_of
from pytest_hwqueue.data.metrics.timeline import Span, length, union, within
from pytest_hwqueue.engine.causes.perf_events import RING_BYTES, PerfTracer, Tracing, open_tracing
from pytest_hwqueue.engine.causes.traced_cell import causes_of_pass
from pytest_hwqueue.engine.causes.traced_pass import TracedPass, TracePlan, traced_pass
from pytest_hwqueue.engine.cell.program import eager
from pytest_hwqueue.parts.devices.host import HostDevice
from pytest_hwqueue.parts.devices.protocol import Stream
from pytest_hwqueue.parts.devices.telemetry import TelemetryLog, Unavailable
from tests.engine.causes.victims import mounting

from .planted_causes import KINDS, CannotPlant, Kind, Outside, Plant
from .planted_tenants import TENANT_KINDS
from .traced import tracing_by

LEVELS = ("perf", "switches", "rusage")
_EVERY = 25
_MOST_REQUESTS = 200_000
_USUAL_NS = 500_000
_UNEXPLAINED = "unexplained"
_TARGET = 0.95


@dataclass
class Row:
    """What became of one kind of plant at one level.

    Attributes:
        device: "cpu" or "sim:h200".
        level: of the CPU's trace; ``switches`` is perf without tracepoints.
        planted: the kind.
        expected: the cause and the name that are right.
        counted: planted requests that were judged.
        spoiled: those that something else delayed more, or that are not above P95.
        right: of those counted.
        named: how often each cause was given, with what it names where that is short.
        refused: why there are none; empty if there are.

    """

    device: str
    level: str
    planted: str
    expected: str
    counted: int = 0
    spoiled: int = 0
    right: int = 0
    named: Counter[str] = field(default_factory=Counter)
    refused: str = ""

    def judge(self, found: RequestCause | None, cause: str | None, what: str) -> None:
        """Count a planted request with what it was given."""
        if found is None:
            self.spoiled += 1
            return
        self.counted += 1
        self.named[f"{found.cause}: {found.what}" if found.cause else _UNEXPLAINED] += 1
        self.right += found.cause == cause and (cause is None or what in (found.what or ""))


@contextmanager
def only(level: str) -> Iterator[None]:
    """Have passes traced at a level, where that or a better one is to be had."""

    def opened(tids: Collection[int] | None = None, ring_bytes: int = RING_BYTES) -> Tracing:
        if level == "perf":
            return open_tracing(tids, ring_bytes)
        if level == "switches":
            return Tracing("perf", (), PerfTracer(tids, None, ring_bytes))
        return Tracing("rusage", (), None)

    with tracing_by(opened):
        yield


def host_row(kind: Kind, level: str, plants: int) -> Row:
    """Plant a kind of delay into requests of the host device, and see what it is called."""
    cause, what = kind.expected(level)
    row = Row("cpu", level, kind.name, f"{cause}: {what}" if cause else _UNEXPLAINED)
    if cause is None:
        row.refused = "not to be told at this level"
        return row
    try:
        with kind.opened(plants) as plant, only(level):
            passed, spans = _traced(kind, plant, plants)
    except CannotPlant as error:
        row.refused = str(error)
        return row
    if passed.tracing.refused:
        row.refused = "; ".join(one.reason for one in passed.tracing.refused)
        return row
    _, attribution = causes_of_pass(HostDevice(), passed)
    tail = attribution.tails["p95"]
    found = {one.request: one for one in tail.requests}
    delays = union(spans)
    for request in passed.requests:
        delayed_ns = length(within(delays, request.started_ns, request.finished_ns))
        if delayed_ns < _USUAL_NS:
            continue
        beyond_ns = request.finished_ns - request.started_ns - tail.median_ns
        mostly = delayed_ns >= kind.mostly * beyond_ns
        row.judge(found.get(request.number) if mostly else None, cause, what)
    return row


def _traced(kind: Kind, plant: Plant | Outside, plants: int) -> tuple[TracedPass, list[Span]]:
    """Return a traced pass, and when the plant itself was the delay."""
    device = HostDevice()
    spans: list[Span] = []
    number = 0
    usual = device.kernel_of(_USUAL_NS)

    def planted() -> None:
        begin_ns = device.clock_ns()
        delayed_ns = cast(Plant, plant)()
        spans.append((begin_ns, begin_ns + delayed_ns))

    def enqueue(streams: Sequence[Stream]) -> None:
        nonlocal number
        number += 1
        if number == 1 and isinstance(plant, Outside):
            plant.begin()
        due = kind.where != "outside" and number % _EVERY == 0
        if due and kind.where == "launching thread":
            planted()
        streams[0].launch(usual)
        if due and kind.where == "stream":
            streams[1].launch(planted)

    plan = TracePlan(plants * _EVERY, 120_000_000_000)
    if isinstance(plant, Outside):
        plan = TracePlan(_MOST_REQUESTS, plant.takes_ns)
    log = TelemetryLog(Unavailable("not asked for"), clock_ns=device.clock_ns)
    with device.open_streams(2) as pool:
        usual()
        program = eager(device, enqueue, False)
        passed = traced_pass(device, pool, program, plan, lambda done: None)
        passed.telemetry = log.finish()
    return passed, plant.end() if isinstance(plant, Outside) else spans


def rows(plants: int, levels: Sequence[str], kinds: Collection[str]) -> Iterator[Row]:
    """Yield a row for each kind and level; say on stderr which is next."""

    def tell(text: str) -> None:
        print(text, file=sys.stderr, flush=True)

    for level in levels:
        for kind in KINDS:
            if not kinds or kind.name in kinds:
                tell(f"{kind.name} at {level}")
                yield host_row(kind, level, plants)
    for name, (cause, what, run) in TENANT_KINDS.items():
        if kinds and name not in kinds:
            continue
        tell(f"{name} on sim:h200")
        row = Row("sim:h200", "none", name, f"{cause}: {what}" if cause else _UNEXPLAINED)
        for found in run(plants):
            row.judge(found, cause, what)
        yield row


def in_words(found: Sequence[Row]) -> str:
    """Return the rows as a table in Markdown, and below it how many are right in all."""
    lines = [
        "| device, level | planted | right | of them named | spoiled |",
        "|---|---|---|---|---|",
    ]
    for row in found:
        right, named = "", f"not planted: {row.refused}"
        if not row.refused:
            right = f"{row.right} of {row.counted}"
            named = ", ".join(f"{count} {name}" for name, count in row.named.most_common(3))
        spoiled = row.spoiled or ""
        lines.append(
            f"| {row.device}, {row.level} | {row.planted} | {right} | {named} | {spoiled} |"
        )
    hits, counted = sum(row.right for row in found), sum(row.counted for row in found)
    if counted:
        found_right = share_of(hits, counted).scaled(100, "%")
        share = f"{found_right:.1f} % [{found_right.low:.1f}, {found_right.high:.1f}]"
        lines += ["", f"{hits} of {counted} right: {share}"]
    return "\n".join(lines)


def main() -> int:
    """Print the table; 1 if less than 95 % are right."""
    arguments = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    arguments.add_argument("--plants", type=int, default=100, help="of each kind, at each level")
    arguments.add_argument("--level", action="append", choices=LEVELS, help="default: all")
    names = [*(kind.name for kind in KINDS), *TENANT_KINDS]
    arguments.add_argument("--kind", action="append", choices=names, help="default: all")
    arguments.add_argument("--json", action="store_true", help="print rows as JSON")
    given = arguments.parse_args()
    if given.plants < 4:
        # Below, 25 requests each give no P95.
        arguments.error(f"--plants is {given.plants}; give at least 4")
    if mounting():
        os.execvp(mounting()[0], [*mounting(), sys.executable, "-m", __spec__.name, *sys.argv[1:]])
    found = list(rows(given.plants, given.level or LEVELS, given.kind or ()))
    print(json.dumps([vars(row) for row in found]) if given.json else in_words(found))
    counted = sum(row.counted for row in found)
    return int(not counted or sum(row.right for row in found) < _TARGET * counted)


if __name__ == "__main__":
    sys.exit(main())
