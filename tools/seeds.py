"""What others published and asked, beside what the records here show, as Markdown.

    python -m tools.seeds loads|ratios|targets|bert

loads: the rows of two models on one GPU; ratios: of their P99s; targets: what a scheduler was asked
to reach, judged on the records of the high load; bert: three tasks alone, at once and in order. The
published figures are of an MI308X, for orientation: another GPU has others. Run it from the top of
the tree.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from pytest_hwqueue.answers.which.file import NOT_MEASURED, WhichCase, WhichFile, WhichTenant
from pytest_hwqueue.answers.which.runs import entries, read_runs
from pytest_hwqueue.answers.which.table import table
from pytest_hwqueue.data.document.document import markdown_table, plain
from pytest_hwqueue.data.metrics.estimate import Estimate
from pytest_hwqueue.data.metrics.numbers import figure, printed
from pytest_hwqueue.engine.scenarios.file import read_scenario
from pytest_hwqueue.engine.scenarios.goals import GoalResult, parse_goal
from pytest_hwqueue.engine.scenarios.planned_runs import cases

_SCENARIOS, _RECORDS = Path("benchmarks/scenarios"), Path("baselines/nvidia-h200/co-location")
_LATENCIES = ("mean", "p50", "p95", "p99", "max")


class Stored(NamedTuple):
    """A session with stored records: its scenario, their folder in ``_RECORDS``, its windows."""

    scenario: str
    folder: str
    windows: str


_TARGETS = Stored("high_load_targets", "high_load_targets", "180 s")
# What the session above leaves out: a traced window of stream priorities, and other modes.
_TRACED = Stored("high_load_targets", "high_load_targets-threads", "20 s, then 60 s traced")
_XSCHED = Stored("high_load", "high_load-xsched", "60 s")
_OTHER_MODES = Stored("high_load", "high_load", "2 × 30 s")
_STANDARD_LOAD = Stored("standard_load", "standard_load-60s", "60 s")


class Load(NamedTuple):
    """A published row: the urgent tenant's latencies in ms, and the other's images per second."""

    sessions: tuple[Stored, ...]
    alone: bool
    requests: int | None
    rate_per_s: float | None
    latency_ms: dict[str, float]
    images_per_s: float | None


LOADS = {
    "alone": Load((_TARGETS,), True, None, None, {"p99": 2.71}, None),
    "standard load": Load((_STANDARD_LOAD,), False, None, None, {"p99": 2.65}, 1331.7),
    "high load": Load(
        (_TARGETS, _XSCHED, _OTHER_MODES), False, 3596, 19.98,
        {"mean": 8.14, "p50": 7.55, "p95": 15.23, "p99": 19.62, "max": 23.97}, 2015.7,
    ),
}  # fmt: skip
RATIOS = (
    ("high load", "alone", 7.24), ("high load", "standard load", 7.4),
    ("standard load", "alone", 0.98),
)  # fmt: skip

# Of three BERT tasks: the means in ms.
_BERT = Stored("bert_study", "bert_study", "60 s")
BERT_MS = {
    "alone": (6.37,), "one after the other": (6.40, 6.39), "at_once": (12.34, 13.63, 13.63),
    "in_order": (),
}  # fmt: skip


def measured(session: Stored, *, judged_by: str | None = None) -> WhichFile:
    """Return the table of a session's records, by its own scenario's goals or another's."""
    found = read_scenario(_SCENARIOS / f"{judged_by or session.scenario}.hwq.yaml")
    wanted = cases(found.model_copy(update={"name": session.scenario}))
    return table(entries(wanted), read_runs(wanted, [_RECORDS / session.folder]))


def loads() -> Iterator[str]:
    """Yield the published rows, and those of the records below each."""
    latencies = (f"{_label(name)}, ms" for name in _LATENCIES)
    head = ["load", "where", "windows", "n", "rate/s", *latencies, "images/s of low"]
    rows = []
    for name, load in LOADS.items():
        told = [_number(load.latency_ms.get(each)) for each in _LATENCIES]
        counts = [_number(load.requests), _number(load.rate_per_s)]
        rows.append([name, "published, MI308X", "", *counts, *told, _number(load.images_per_s)])
        seen: set[str] = set()
        for session in load.sessions:
            for case in measured(session).cases:
                solo = case.id == "solo high"
                if solo != load.alone or case.id in ("solo low", *seen) or _is_missing(case):
                    continue
                seen.add(case.id)
                mode = "alone" if solo else case.id
                rows.append([name, f"H200, `{mode}`", session.windows, *_figures(case)])
    yield markdown_table(head, rows)


def _is_missing(case: WhichCase) -> bool:
    return case.status == NOT_MEASURED


def _figures(case: WhichCase) -> list[str]:
    if case.status != "ok":
        return [f"{case.status}: {plain(case.reason)}", *[""] * (len(_LATENCIES) + 2)]
    high = case.tenant("high")
    low = next((each for each in case.tenants if each.name == "low"), None)
    images = "" if low is None else _value(low.throughput_items_per_s)
    return [
        str(high.issued), _value(high.requests_per_s),
        *(_value(_latency(high, name)) for name in _LATENCIES), images,
    ]  # fmt: skip


def _latency(tenant: WhichTenant, name: str) -> Estimate:
    found = {
        "mean": tenant.mean_ms, "p50": tenant.p50_ms, "p95": tenant.p95_ms, "p99": tenant.p99_ms,
        "max": tenant.max_ms,
    }  # fmt: skip
    return found[name]


def ratios() -> Iterator[str]:
    """Yield the ratios of P99 that were asked for; of two sessions they have no interval."""
    p99 = {}
    for name, load in LOADS.items():
        wanted = "solo high" if load.alone else "native"
        (case,) = (each for each in measured(load.sessions[0]).cases if each.id == wanted)
        p99[name] = case.tenant("high").p99_ms.value
    rows = []
    for a, b, published in RATIOS:
        ours, theirs = p99[a], p99[b]
        here = "—" if ours is None or theirs is None else f"{ours / theirs:.2f} ×"
        rows.append([f"{a} to {b}", f"{published} ×", here])
    yield markdown_table(["P99 of high, under native", "published, MI308X", "H200"], rows)


def targets() -> Iterator[str]:
    """Yield the verdict on each target under each scheduler, on the records of the high load."""
    columns: dict[str, list[GoalResult]] = {}
    for session in LOADS["high load"].sessions:
        for case in measured(session, judged_by="high_load_targets").cases:
            if case.role == "case" and not _is_missing(case):
                columns.setdefault(case.id, case.goals)
    for case in measured(_TRACED, judged_by="high_load_targets").cases:
        traced = {each.goal: each for each in case.goals if each.figure.value is not None}
        if case.id in columns:
            columns[case.id] = [
                each if each.figure.value is not None else traced.get(each.goal, each)
                for each in columns[case.id]
            ]
    rows = []
    for goal in dict.fromkeys(each.goal for goals in columns.values() for each in goals):
        results = ([each for each in goals if each.goal == goal] for goals in columns.values())
        rows.append([plain(goal), *(_verdict(each[0]) if each else "—" for each in results)])
    yield markdown_table(["target", *(f"`{name}`" for name in columns)], rows)


def _verdict(result: GoalResult) -> str:
    # Of the longest of these requests both ends are the value itself.
    alone = parse_goal(result.goal).of_these_requests
    found = result.figure.model_copy(update={"low": 0.0, "high": math.inf} if alone else {})
    return f"{result.verdict} {_value(found)}"


def bert() -> Iterator[str]:
    """Yield the mean of each task, published and measured."""
    found = measured(_BERT).cases
    alone = [case.tenants[0] for case in found if case.id.startswith("at_once-solo ")]
    rows = []
    for variant, published in BERT_MS.items():
        if published:
            rows.append([variant, "published, MI308X", *map(_number, published)])
        if variant == "one after the other":
            rows.append([variant, "H200", *(_value(each.mean_ms) for each in alone)])
        for case in found:
            if case.variant == variant and case.role == "case" and case.status == "ok":
                mode = case.id.removeprefix(f"{variant}-")
                means = (_value(each.mean_ms) for each in case.tenants)
                rows.append([variant, f"H200, `{mode}`", *means])
    width = max(map(len, rows))
    filled = [[*row, *[""] * (width - len(row))] for row in rows]
    yield markdown_table(["tasks", "where", "first", "second", "third"], filled)


def _label(name: str) -> str:
    return name if name in ("mean", "max") else name.upper()


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:g}"


def _value(estimate: Estimate) -> str:
    """Return a figure without its unit, which the heading has, as the tables have it."""
    if estimate.value is None and estimate.low > 0:
        return f"\\> {figure(estimate.low)}"
    return plain(str(printed(estimate, figure)))


def main(arguments: Sequence[str] | None = None) -> None:
    """Print one table."""
    parts = {each.__name__: each for each in (loads, ratios, targets, bert)}
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("part", choices=parts)
    for line in parts[parser.parse_args(arguments).part]():
        print(line)


if __name__ == "__main__":
    main()
