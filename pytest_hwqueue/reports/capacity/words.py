"""Formats the words and numbers of ``hwq capacity`` for the terminal and Markdown."""

from __future__ import annotations

from collections.abc import Sequence

from pytest_hwqueue.capacity.file import CapacityCase, CapacityFile, CapacityRate
from pytest_hwqueue.capacity.table import front
from pytest_hwqueue.metrics.numbers import counted, figure
from pytest_hwqueue.reports.which.words import printed

SUMMARY = ("scheduler", "capacity, /s", "broke first", "held at, /s", "P99 there, ms")
RATES = ("scheduler", "rate, /s", "verdict", "windows", "P99, ms")


def title(found: CapacityFile) -> str:
    """Return the question that is answered, and the device."""
    device = found.device_name
    if device and found.device != device:
        device += f" ({found.device})"
    on = f" On {device}" if device else ""
    return f"How much load of {found.tenant} does {found.scenario} carry?{on}"


def settings(found: CapacityFile) -> str:
    """Return how a rate was judged."""
    return (
        f"up to {counted(found.windows_at_most, 'window')} of {found.requests} requests for a rate "
        f"· a verdict is wrong with a probability of at most {found.error:.0%} · seed {found.seed}"
    )


def capacity(case: CapacityCase) -> str:
    """Return the capacity with its interval, or what is known of it."""
    of = case.capacity_per_s
    if of.value is not None and of.low is not None and of.high is not None:
        shown = figure(of.value, (of.low, of.high))
        return f"{shown.number} {shown.interval}"
    if of.low:
        return f"at least {of.low:.4g}"
    return "—" if of.high is None else f"below {of.high:.4g}"


def summary_head(found: CapacityFile) -> list[str]:
    """Return the headings of the table of schedulers."""
    return [*SUMMARY, *(f"lost by {name} there, %" for name in found.others)]


def summary_row(found: CapacityFile, case: CapacityCase) -> list[str]:
    """Return a scheduler's row: its capacity, and what was seen at the greatest rate that held."""
    held = case.held[-1:]
    there = [f"{held[0].rate_per_s:.4g}", *_seen(found, held[0])] if held else []
    row = [case.id, capacity(case), ", ".join(case.broke_first) or "—", *there]
    return row + ["—"] * (len(summary_head(found)) - len(row))


def rates_head(found: CapacityFile) -> list[str]:
    """Return the headings of the table of rates."""
    return [*RATES, *(f"lost by {name}, %" for name in found.others)]


def rates_rows(found: CapacityFile, case: CapacityCase) -> list[list[str]]:
    """Return a row for every rate of a scheduler."""
    return [
        [
            case.id,
            f"{rate.rate_per_s:.4g}",
            rate.verdict or "not judged",
            str(rate.windows),
            *_seen(found, rate),
        ]
        for rate in case.rates
    ]


def _seen(found: CapacityFile, rate: CapacityRate) -> list[str]:
    lost = [rate.lost.get(name) for name in found.others]
    p99 = printed(rate.p99_ms, "ms")
    return [
        " ".join(filter(None, (p99.number, p99.interval))),
        *("—" if each is None else _plain(printed(each, "%")) for each in lost),
    ]


def _plain(shown: object) -> str:
    return str(shown).replace(" %", "")


def goals_not_met(rate: CapacityRate) -> list[str]:
    """Return the goals that kept a rate from holding, with their figures."""
    return [
        f"{goal.verdict}: {goal.goal}"
        + ("" if goal.value is None else f" ({goal.value:.4g} {goal.unit})")
        for goal in rate.goals
        if goal.verdict != "met"
    ]


def remarks(found: CapacityFile) -> list[str]:
    """Return why searches ended early, and why ends of intervals are missing."""
    lines = [] if found.complete else ["INCOMPLETE: interrupted; the same command continues."]
    for case in found.cases:
        if case.reason:
            lines.append(f"{case.id}: {case.reason}")
        elif case.capacity_per_s.reason and found.complete:
            lines.append(f"{case.id}: {case.capacity_per_s.reason}; --rates searches farther")
    return lines


def answers(found: CapacityFile) -> list[str]:
    """Return the answer from the table alone: the most load, and the front of modes."""
    lines = [f"Simulated, not measured. {_most(found)}" if found.simulated else _most(found)]
    for other in found.others:
        best = front(found.cases, other)
        if best:
            points = [
                f"{name} at {rate.rate_per_s:.4g}/s loses {printed(rate.lost[other], '%').number} %"
                for name, rate in best
            ]
            lines.append(f"Not beaten in load and in what {other} loses: {'; '.join(points)}.")
    return lines


def _most(found: CapacityFile) -> str:
    known = [case for case in found.cases if case.capacity_per_s.low]
    if not known:
        return "No rate was shown to hold under any scheduler."
    best = max(known, key=lambda case: case.capacity_per_s.low or 0.0)
    sentence = f"Most load is shown to hold under {best.id}: {capacity(best)} /s."
    low = best.capacity_per_s.low or 0.0
    alike = [
        case.id
        for case in found.cases
        if case is not best
        and case.rates
        and (case.capacity_per_s.high is None or case.capacity_per_s.high > low)
    ]
    if alike:
        sentence += f" {_listed(alike)} may carry as much: the intervals overlap."
    return sentence


def _listed(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
