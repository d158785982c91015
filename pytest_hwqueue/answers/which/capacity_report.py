"""The result of ``hwq capacity`` as a document and as a plot, and its progress."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import replace

from pytest_hwqueue.answers.which.budget import CONFIRMING_STARTS
from pytest_hwqueue.answers.which.capacity_file import (
    CapacityCase,
    CapacityFile,
    CapacityRate,
    front,
)
from pytest_hwqueue.data.document.charts import rates_chart
from pytest_hwqueue.data.document.document import (
    Chart,
    Column,
    Command,
    Document,
    Heading,
    Paragraph,
    Part,
    Row,
    Table,
)
from pytest_hwqueue.data.document.drawing import Spec, stacked_svg
from pytest_hwqueue.data.document.notes import SIMULATED, on_device
from pytest_hwqueue.data.metrics.estimate import Estimate
from pytest_hwqueue.data.metrics.numbers import REFUSED, counted, duration, figure, in_unit, listed

_BRACKETS = (
    "Capacities lie between the greatest rate shown to hold and the least shown to break; other "
    "brackets are 95 % intervals."
)


def title(found: CapacityFile) -> str:
    """Return the question that is answered, and the device."""
    return f"How much load of {found.tenant} does {found.scenario} carry?{on_device(found)}"


def capacity(case: CapacityCase) -> str:
    """Return the capacity with its interval, or what is known of it."""
    of = case.capacity_per_s
    if of.value is not None:
        return str(figure(of.value, of.interval))
    if of.low > 0:
        return f"at least {of.low:.4g}"
    return str(REFUSED) if math.isinf(of.high) else f"below {of.high:.4g}"


def capacity_document(found: CapacityFile) -> Document:
    """Return the answer, the capacities, and every rate."""
    parts: list[Part] = [Heading(title(found), 1)]
    first, *further = answers(found)
    parts += [Paragraph(first, "bold"), *(Paragraph(line, "none") for line in further)]
    parts.append(Table(_columns(found, " there"), [_summary(found, case) for case in found.cases]))
    if not found.complete:
        parts.append(Paragraph("INCOMPLETE: interrupted; the same command continues."))
    parts += [
        Paragraph(
            f"{case.id}: {case.capacity_per_s.refused}; "
            + ("a longer --time searches on" if case.cut else "--rates searches farther")
        )
        for case in found.cases
        if case.capacity_per_s.refused and found.complete and not case.reason
    ]
    parts += _charts(found)
    for case in found.cases:
        rows = [
            replace(_seen(found, case, rate), opens=number == 0)
            for number, rate in enumerate(case.rates)
        ]
        if rows:
            parts.append(Table(_columns(found, ""), rows))
    how = (
        f"up to {counted(found.windows_at_most, 'window')} of {found.requests} requests for a "
        f"rate, {CONFIRMING_STARTS} of them {_confirming(found)} · a verdict is wrong with a "
        f"probability of at most {found.error:.0%} · seed {found.seed}"
    )
    parts += [Paragraph(line) for line in (_BRACKETS, found.description, how) if line]
    return Document([*parts, *[Command(found.command)] * bool(found.command)])


def _columns(found: CapacityFile, there: str) -> list[Column]:
    return [
        Column("case", "scheduler"),
        Column("capacity", "capacity, /s"),
        Column("broke", "broke first", rank=1),
        Column("rate", "held at, /s" if there else "rate, /s"),
        Column("verdict", "verdict"),
        Column("windows", "windows", right=True, rank=1),
        # Simulated tenants are no processes.
        *[Column("starts", "starts", right=True, rank=1)] * (not found.simulated),
        Column("p99", "P99", there.strip(), rank=2),
        *(
            Column(f"lost {name}", f"lost by {name}", there.strip(), rank=3)
            for name in found.others
        ),
    ]


def _summary(found: CapacityFile, case: CapacityCase) -> Row:
    """Return a scheduler's row: its capacity, and what was seen at the greatest rate that held."""
    row = _seen(found, case, case.held[-1]) if case.held else Row({"case": case.id})
    for key in ("verdict", "windows"):
        row.texts.pop(key, None)
    row.texts |= {"capacity": capacity(case), "broke": ", ".join(case.broke_first) or "—"}
    row.texts["starts"] = str(case.starts)
    row.below = [f"ended early, {case.reason}"] if case.reason else []
    if case.cut:
        row.below.append(
            f"its {duration(found.time_s)} were used up: with a longer --time the same command "
            "searches on, for a narrower interval"
        )
    if case.unconfirmed_per_s and not case.reason and found.complete:
        rates = listed([f"{rate:.4g}/s" for rate in case.unconfirmed_per_s])
        row.below.append(f"not confirmed in {CONFIRMING_STARTS} fresh starts: {rates}")
    return replace(row, opens=True)


def _confirming(found: CapacityFile) -> str:
    return (
        "to confirm its verdict" if found.simulated else "in fresh starts, to confirm its verdict"
    )


def _seen(found: CapacityFile, case: CapacityCase, rate: CapacityRate) -> Row:
    """Return what was seen at a rate, and the goals that kept it from holding."""
    texts = {
        "case": case.id, "rate": f"{rate.rate_per_s:.4g}", "verdict": rate.verdict or "not judged",
        "windows": str(rate.windows), "starts": str(rate.starts),
    }  # fmt: skip
    figures = {"p99": [in_unit(rate.p99_ms, "ms")]}
    for name in found.others:
        figures[f"lost {name}"] = [in_unit(rate.lost.get(name, Estimate()), "%")]
    kept_from = [
        f"{goal.verdict}: {goal.goal}"
        + ("" if goal.figure.value is None else f" ({goal.figure:.4g} {goal.figure.unit})")
        for goal in rate.goals
        # Of a rate that is broken, others need not be known.
        if goal.verdict == "missed" or (goal.verdict != "met" and rate.verdict != "broken")
    ]
    return Row(texts, figures, below=[kept_from] if kept_from else [])


def answers(found: CapacityFile) -> list[str]:
    """Return the answer from the table alone: the most load, and the front of modes."""
    lines = [f"Simulated, not measured. {_most(found)}" if found.simulated else _most(found)]
    for other in found.others:
        best = front(found.cases, other)
        if best:
            points = [
                f"{name} at {rate.rate_per_s:.4g}/s loses {in_unit(rate.lost[other], '%').number} %"
                for name, rate in best
            ]
            lines.append(f"Not beaten in load and in what {other} loses: {'; '.join(points)}.")
    return lines


def _most(found: CapacityFile) -> str:
    known = [case for case in found.cases if case.capacity_per_s.low > 0]
    if not known:
        return "No rate was shown to hold under any scheduler."
    best = max(known, key=lambda case: case.capacity_per_s.low)
    of, low = best.capacity_per_s, best.capacity_per_s.low
    sentence = f"Most load was shown to hold under {best.id}: {low:.4g} /s"
    if math.isinf(of.high):
        early = ", but the search ended early" * bool(best.reason)
        sentence += f"; no rate was shown to break{early}."
    else:
        about = "" if of.value is None else f", at about {figure(of.value, (low, of.high)).number}"
        sentence += f"; {of.high:.4g} /s was shown to break, and the capacity lies between{about}."
    others = [case for case in found.cases if case is not best]
    if alike := [case.id for case in others if case.rates and case.capacity_per_s.high > low]:
        sentence += f" {listed(alike)} may carry as much: the intervals overlap."
    if unfinished := [case.id for case in others if case.reason]:
        sentence += f" Ended early, and may carry more than was found: {listed(unfinished)}."
    return sentence


def capacity_svg(found: CapacityFile) -> str:
    """Plot each scheduler's P99 and the others' loss against the rate, one chart below the other.

    Raises:
        ModuleNotFoundError: if vl-convert is not installed; the text says how to get it.

    """
    heading = f"{title(found)}\n{SIMULATED}" if found.simulated else title(found)
    charts = [(each.title, each.spec) for each in _charts(found) if each.spec is not None]
    return stacked_svg(heading, charts, _MARKS)


_MARKS = "filled: held; cross: broke; hollow: undecided"


def _charts(found: CapacityFile) -> list[Chart]:
    """Return P99 and losses over rates.

    A band reaches from the greatest rate shown to hold to the least shown to break. Grey steps join
    what no other rate or scheduler beats in load and loss.
    """
    rate = f"requests of {found.tenant} per second"
    curves = {
        f"{case.id}, {capacity(case)} /s": _points((each, each.p99_ms) for each in case.rates)
        for case in found.cases
    }
    ends = [case.capacity_per_s.ends for case in found.cases]
    bands = [(low, high) if low and high else None for low, high in ends]
    goal, name = found.p99_goal_ms, f"P99 of {found.tenant}"
    chart = rates_chart(curves, rate, f"{name}, ms (log)", goal=goal, bands=bands, log=True)
    charts = [Chart(name if goal is None else f"{name}; dotted: the goal", chart, _MARKS)]
    for other in found.others:
        curves = {
            case.id: _points(((r, r.lost[other]) for r in case.rates if other in r.lost), 100.0)
            for case in found.cases
        }
        best = [(each.rate_per_s, each.lost[other].value) for _, each in front(found.cases, other)]
        steps = [(at, 100 * lost) for at, lost in best if lost is not None]
        y = f"throughput alone that {other} loses, %"
        drawn = rates_chart(curves, rate, y, front=steps)
        charts.append(Chart(f"Loss of {other}", drawn, _MARKS))
    return charts


def _points(seen: Iterable[tuple[CapacityRate, Estimate]], scale: float = 1.0) -> list[Spec]:
    return [
        {
            "x": rate.rate_per_s, "y": scale * of.value, "y_low": of.scaled(scale, "").ends[0],
            "y_high": of.scaled(scale, "").ends[1], "verdict": rate.verdict or "undecided",
        }
        for rate, of in seen if of.value is not None
    ]  # fmt: skip
