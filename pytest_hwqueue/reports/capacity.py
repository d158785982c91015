"""The result of ``hwq capacity`` in a terminal, in Markdown and as a plot, and its progress."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.status import Status
from rich.text import Text

from pytest_hwqueue.capacity.result import CapacityCase, CapacityFile, CapacityRate, front
from pytest_hwqueue.capacity.search import RateVerdict
from pytest_hwqueue.metrics.numbers import counted, figure
from pytest_hwqueue.records.tenants import ColocationRecord
from pytest_hwqueue.reports.charts import RatesCurve, rates_chart
from pytest_hwqueue.reports.drawing import stacked_svg
from pytest_hwqueue.reports.grid import Column, Grid, Row, paragraph, print_below
from pytest_hwqueue.reports.markdown import code, markdown_table, plain
from pytest_hwqueue.reports.which.words import SIMULATED, printed
from pytest_hwqueue.scenarios.planned_runs import Case
from pytest_hwqueue.which.file import WhichFigure

_SUMMARY = ("scheduler", "capacity, /s", "broke first", "held at, /s", "P99 there, ms")
_RATES = ("scheduler", "rate, /s", "verdict", "windows", "P99, ms")


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
    return [*_SUMMARY, *(f"lost by {name} there, %" for name in found.others)]


def summary_row(found: CapacityFile, case: CapacityCase) -> list[str]:
    """Return a scheduler's row: its capacity, and what was seen at the greatest rate that held."""
    held = case.held[-1:]
    there = [f"{held[0].rate_per_s:.4g}", *_seen(found, held[0])] if held else []
    row = [case.id, capacity(case), ", ".join(case.broke_first) or "—", *there]
    return row + ["—"] * (len(summary_head(found)) - len(row))


def ended_early(case: CapacityCase) -> list[str]:
    """Return the line below a scheduler's row that says so, if its search ended early."""
    return [f"ended early, {case.reason}"] if case.reason else []


def rates_head(found: CapacityFile) -> list[str]:
    """Return the headings of the table of rates."""
    return [*_RATES, *(f"lost by {name}, %" for name in found.others)]


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
    """Return why ends of intervals are missing, where the search came to its end."""
    lines = [] if found.complete else ["INCOMPLETE: interrupted; the same command continues."]
    for case in found.cases:
        if case.capacity_per_s.reason and found.complete and not case.reason:
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
    of, low = best.capacity_per_s, best.capacity_per_s.low or 0.0
    sentence = f"Most load was shown to hold under {best.id}: {low:.4g} /s"
    if of.high is None:
        sentence += "; no rate was shown to break"
        sentence += ", but the search ended early." if best.reason else "."
    else:
        about = "" if of.value is None else f", at about {figure(of.value, (low, of.high)).number}"
        sentence += f"; {of.high:.4g} /s was shown to break, and the capacity lies between{about}."
    alike = [
        case.id
        for case in found.cases
        if case is not best
        and case.rates
        and (case.capacity_per_s.high is None or case.capacity_per_s.high > low)
    ]
    if alike:
        sentence += f" {_listed(alike)} may carry as much: the intervals overlap."
    early = [case.id for case in found.cases if case.reason and case is not best]
    if early:
        sentence += f" Ended early, and may carry more than was found: {_listed(early)}."
    return sentence


def _listed(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


def draw_capacity(found: CapacityFile, console: Console) -> None:
    """Print the capacities, every rate, and the answer."""
    console.print(Text(title(found), style="bold"))
    if found.simulated:
        console.print(Text(SIMULATED, style="bold yellow"))
    for line in filter(None, (found.description, settings(found))):
        console.print(paragraph(line, console.width))
    head = summary_head(found)
    rows = [_row(head, summary_row(found, case), ended_early(case), True) for case in found.cases]
    _draw(rows, console)
    head = rates_head(found)
    for case in found.cases:
        rows = [
            _row(head, texts, goals_not_met(rate), number == 0)
            for number, (texts, rate) in enumerate(
                zip(rates_rows(found, case), case.rates, strict=True)
            )
        ]
        if rows:
            console.print()
            _draw(rows, console)
    for line in remarks(found):
        console.print(paragraph(line, console.width))
    for line in answers(found):
        console.print()
        console.print(paragraph(line, console.width, style="bold"))


def _row(head: Sequence[str], texts: Sequence[str], below: list[str], opens: bool) -> Row:
    return Row(
        texts=dict(zip(head, texts, strict=True)), opens=opens, below=[below] if below else []
    )


def _draw(rows: Sequence[Row], console: Console) -> None:
    grid = Grid([Column(name, name) for name in rows[0].texts], rows)
    if grid.width <= console.width:
        grid.draw(console)
        return
    # Too narrow for a table: one line for each figure.
    for row in rows:
        parts = [f"{name}: {text}" for name, text in row.texts.items() if text]
        console.print(paragraph(" · ".join(parts), console.width, style=""))
        print_below(console, row.below, console.width)


def capacity_markdown(found: CapacityFile) -> str:
    """Return everything the terminal shows, with a final newline."""
    blocks = [f"## {plain(title(found))}"]
    if found.simulated:
        blocks.append(f"**{plain(SIMULATED)}**")
    blocks += [plain(line) for line in (found.description, settings(found)) if line]
    rows = [summary_row(found, case) for case in found.cases]
    rows = [
        ["; ".join([row[0], *ended_early(case)]), *row[1:]]
        for row, case in zip(rows, found.cases, strict=True)
    ]
    blocks.append(markdown_table(summary_head(found), [[*map(plain, row)] for row in rows]))
    rows = [
        [*row, ", ".join(goals_not_met(rate)) or "all met"]
        for case in found.cases
        for row, rate in zip(rates_rows(found, case), case.rates, strict=True)
    ]
    head = [*rates_head(found), "goals"]
    blocks.append(markdown_table(head, [[*map(plain, row)] for row in rows]))
    blocks.append("Capacities lie between the greatest rate shown to hold and the least shown to "
                  "break; other brackets are 95 % intervals.")  # fmt: skip
    blocks += [plain(line) for line in remarks(found)]
    blocks += [f"**{plain(line)}**" for line in answers(found)]
    if found.command:
        blocks.append(f"Command: {code(found.command)}")
    return "\n\n".join(blocks) + "\n"


def capacity_svg(found: CapacityFile) -> str:
    """Plot each scheduler's P99 and the others' loss against the rate, one chart below the other.

    A band reaches from the greatest rate shown to hold to the least shown to break. Grey steps join
    what no other rate or scheduler beats in load and loss.

    Raises:
        ModuleNotFoundError: if vl-convert is not installed; the text says how to get it.

    """
    rate = f"requests of {found.tenant} per second"
    curves = [
        RatesCurve(
            f"{case.id}, {capacity(case)} /s",
            _points([(each, each.p99_ms) for each in case.rates], 1.0), _band(case),
        )
        for case in found.cases
    ]  # fmt: skip
    title_ = f"P99 of {found.tenant}"
    chart = rates_chart(curves, rate, f"{title_}, ms (log)", goal=found.p99_goal_ms, log=True)
    charts = [(title_ if found.p99_goal_ms is None else f"{title_}; dotted: the goal", chart)]
    for other in found.others:
        curves = [
            RatesCurve(
                case.id, _points([(r, r.lost[other]) for r in case.rates if other in r.lost])
            )
            for case in found.cases
        ]
        best = [(each.rate_per_s, each.lost[other].value) for _, each in front(found.cases, other)]
        steps = [(at, 100 * lost) for at, lost in best if lost is not None]
        y = f"throughput alone that {other} loses, %"
        charts.append((f"Loss of {other}", rates_chart(curves, rate, y, front=steps)))
    heading = f"{title(found)}\n{SIMULATED}" if found.simulated else title(found)
    return stacked_svg(heading, charts, "filled: held; cross: broke; hollow: undecided")


def _band(case: CapacityCase) -> tuple[float, float] | None:
    low, high = case.capacity_per_s.low, case.capacity_per_s.high
    return (low, high) if low and high else None


def _points(
    seen: Sequence[tuple[CapacityRate, WhichFigure]], scale: float = 100.0
) -> list[tuple[float, float, float | None, float | None, str]]:
    return [
        (
            rate.rate_per_s, scale * of.value, None if of.low is None else scale * of.low,
            None if of.high is None else scale * of.high, rate.verdict or "undecided",
        )
        for rate, of in seen
        if of.value is not None
    ]  # fmt: skip


class SearchProgress:
    """A transient line on a terminal, and a permanent one for each verdict and each failure."""

    def __init__(self) -> None:
        self._console = Console(stderr=True, highlight=False, soft_wrap=True)
        self._status = Status("", console=self._console)
        self._what, self._windows = "", 0

    def __enter__(self) -> SearchProgress:
        """Show the line."""
        self._status.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Remove the line."""
        self._status.stop()

    def window_begins(self, case: Case, rate_per_s: float, number: int) -> None:
        """Note the window that follows."""
        self._what = f"{case.id} at {rate_per_s:.4g}/s, window {number}"
        self._status.update(self._what)

    def run_is_at(self, stage: str, done: int, planned: int) -> None:
        """Note the current run's progress."""
        self._status.update(f"{self._what}: {stage}" + (f" {done}/{planned}" if planned else ""))

    def run_ended(self, record: ColocationRecord) -> None:
        """Count a run, and report one that failed."""
        self._windows += 1
        if record.status != "ok":
            self.say(f"{record.id} run {record.run} {record.status}: {record.reason}")

    def rate_is_decided(self, case: Case, rate_per_s: float, verdict: RateVerdict) -> None:
        """Report a verdict."""
        self.say(f"{case.id} at {rate_per_s:.4g}/s: {verdict} ({self._windows} runs so far)")

    def say(self, text: str) -> None:
        """Print a permanent line."""
        self._console.print(f"hwq capacity: {text}", markup=False)
