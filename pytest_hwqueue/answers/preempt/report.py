"""The answer of ``hwq preempt`` as a document: each mode's law, and the waits it rests on."""

from __future__ import annotations

from collections.abc import Sequence

from pytest_hwqueue.answers.preempt.file import PreemptFile, PreemptionLaw, Wait
from pytest_hwqueue.data.document.charts import waits_chart
from pytest_hwqueue.data.document.document import (
    Chart,
    Column,
    Command,
    Document,
    Heading,
    Headline,
    Paragraph,
    Part,
    Row,
    Table,
)
from pytest_hwqueue.data.document.drawing import Spec, stacked_svg
from pytest_hwqueue.data.document.notes import SIMULATED, Notes, on_device
from pytest_hwqueue.data.metrics.estimate import Estimate
from pytest_hwqueue.data.metrics.numbers import (
    REFUSED,
    PrintedFigure,
    counted,
    grouped,
    microseconds,
    times,
)
from pytest_hwqueue.data.metrics.preemption import matters_us

_LENGTH, _WAIT = "length of the victim's kernels, µs (log)", "P99 of the wait, µs (log)"
_NOTE = "dotted: a whole kernel"
_BRACKETS = (
    "A wait is a request's latency from its scheduled arrival, less the median of the urgent "
    "tenant alone under the same mode. Percentiles are means over rounds{fresh}, and brackets 95 % "
    "intervals."
)
# A share of what is in flight that is as good as all of it: P99 is 0.99 of a uniform rest.
_NEARLY = 0.9
# No more kernels, or blocks, than one and a half are one.
_ONE = 1.5
_LEAST_DRAWN_US = 1.0
_COLUMNS = (
    Column("law", "mode"),
    Column("kernel", "kernel"),
    Column("p50", "P50", "of the wait", rank=1, shares=("p50", "p99")),
    Column("p99", "P99", "of the wait", shares=("p50", "p99")),
    Column("rounds", "rounds", right=True, rank=3, kept=False),
    Column("requests", "n", right=True, rank=2),
    Column("left", "left out", right=True, rank=4, kept=False),
)


def title(found: PreemptFile) -> str:
    """Return the question that is answered, and the device."""
    return f"How long does an urgent kernel wait behind a victim's?{on_device(found)}"


def preempt_document(found: PreemptFile) -> Document:
    """Return each law in a sentence, the chart, and the waits."""
    parts: list[Part] = [Heading(title(found), 1)]
    if not found.complete:
        parts.append(Paragraph("INCOMPLETE: interrupted before all was measured.", "bold red"))
    if found.simulated:
        parts.append(Paragraph(SIMULATED, "bold"))
    parts += [Paragraph(sentence(law), "bold") for law in found.laws]
    parts += [Paragraph(f"{law.id}: {law.reason}", "red") for law in found.laws if law.reason]
    parts += _chart(found)
    if any(law.waits for law in found.laws):
        fresh = "" if found.simulated else ", each of fresh processes"
        parts += [_table(found.laws), Paragraph(_BRACKETS.format(fresh=fresh))]
        parts += [Paragraph(line) for line in (*_alone(found.laws), *_proofs(found.laws))]
    commands = [Command(found.command)] * bool(found.command)
    return Document([*parts, *commands])


def laws_headline(results: Sequence[PreemptFile]) -> Headline:
    """Return what a page says first of laws."""
    sentences = [sentence(law) for each in results for law in each.laws]
    if not sentences:
        return Headline("warn", "No preemption law was measured.")
    if any(each.simulated for each in results):
        sentences[0] = f"Simulated, not measured: {sentences[0]}"
    return Headline("plain", sentences[0], sentences[1:])


def preempt_svg(found: PreemptFile) -> str | None:
    """Plot the waits; None if there are none.

    Raises:
        ModuleNotFoundError: if vl-convert is not installed; the text says how to get it.

    """
    heading = f"{title(found)}\n{SIMULATED}" if found.simulated else title(found)
    charts = [(each.title, each.spec) for each in _chart(found) if each.spec is not None]
    return stacked_svg(heading, charts, _NOTE) if charts else None


def sentence(law: PreemptionLaw) -> str:
    """Return a law in words, with the numbers that it rests on."""
    return f"{law.id} {_said(law)}."


def _said(law: PreemptionLaw) -> str:
    if law.verdict == "not measured":
        return "was not measured at enough lengths"
    if law.verdict == "bounded":
        return f"waits ≤ {_highest(law)} whatever the victim: {_why_bounded(law)}"
    if law.verdict == "no line":
        assert law.misfit_us is not None
        return (
            f"has no linear law: the P99 of the wait lies up to {microseconds(law.misfit_us)} from "
            "a straight line; its percentiles by length stand below"
        )
    slope, intercept = _law_in_numbers(law)
    if law.verdict == "shorter":
        return f"waits {slope} × {_what(law)} {intercept}: preempts {_where(law)}"
    if law.verdict == "waits":
        return f"waits {slope} × {_what(law)} {intercept}: {_level(law)}"
    longest_us = max(wait.asked_us for wait in law.waits)
    if matters_us(longest_us) >= longest_us / 2:
        return (
            f"is undecided: the slope is {slope} of a kernel, which beside kernels of "
            f"{longest_us:g} µs and less may be the host's own delays; longer --lengths"
        )
    return (
        f"is undecided: the slope is {slope} of a kernel, and below "
        f"{matters_us(longest_us) / longest_us:.2g} or above 0.5 would decide; more --rounds, or "
        "longer --lengths"
    )


def _law_in_numbers(law: PreemptionLaw) -> tuple[str, str]:
    assert law.slope.value is not None
    assert law.intercept_us.value is not None
    # The sign stands for itself.
    slope = times(law.slope.value, law.slope.interval)
    shown = microseconds(law.intercept_us.value, law.intercept_us.interval)
    number = f"+ {shown}" if law.intercept_us.value >= 0 else f"- {str(shown).lstrip('-')}"
    return f"{slope.number} {slope.interval}".rstrip(), number


def _what(law: PreemptionLaw) -> str:
    return "a kernel" if law.depth > 1 else "the kernel under way"


def _level(law: PreemptionLaw) -> str:
    """Return what a wait of so many kernels means."""
    if law.depth == 1 or law.slope.high < _ONE:
        return "no preemption below kernel level"
    if law.slope.low > _ONE and law.slope.high >= _NEARLY * law.depth:
        return f"for everything in flight, which are {law.depth} kernels"
    if law.slope.low <= _ONE:
        return f"for the kernel under way, or for more of the {law.depth} in flight"
    return f"for some of the {law.depth} kernels in flight"


def _where(law: PreemptionLaw) -> str:
    """Return at which point a kernel gives way that is not waited for to its end."""
    if law.waves > 1 and 1 / _ONE < law.slope.low * law.waves <= law.slope.high * law.waves < _ONE:
        return f"where its blocks end, each of which lasts 1/{law.waves} of it"
    return "within a kernel, later in a long one"


def _why_bounded(law: PreemptionLaw) -> str:
    if not law.waves:
        return "its one block leaves room"
    longest_us = max(
        float(each.kernel_us) for each in law.waits if each.kernel_us.value is not None
    )
    if _highest_us(law) > longest_us / 2:
        return "not for its kernels, and too long to tell whether it preempts them"
    return "preempts, or has room beside it"


def _highest(law: PreemptionLaw) -> PrintedFigure:
    """Return the upper end of the longest wait."""
    return microseconds(_highest_us(law))


def _highest_us(law: PreemptionLaw) -> float:
    return max(wait.p99_us.high for wait in law.waits if wait.p99_us.interval)


def _table(laws: Sequence[PreemptionLaw]) -> Table:
    notes = Notes()
    rows = []
    for law in (each for each in laws if any(wait.requests for wait in each.waits)):
        alone = Row(
            {"law": law.id, "kernel": "alone"}, {"p99": [_us(law.alone_p99_us)]}, opens=True
        )
        alone.texts["requests"] = str(law.alone_p50_us.n)
        alone.texts["rounds"] = str(law.alone_p99_us.n)
        rows.append(alone)
        for wait in law.waits:
            rows.append(_row(law, wait, notes))
    return Table(_COLUMNS, rows, notes.lines(len(laws)))


def _row(law: PreemptionLaw, wait: Wait, notes: Notes) -> Row:
    for name, figure in (("kernel", wait.kernel_us), ("P99", wait.p99_us)):
        if figure.value is None:
            notes.refuse(name, figure.refused, law.id, f"{wait.asked_us:g} µs")
    texts = {
        "law": law.id, "rounds": str(len(wait.rounds_p99_us)), "requests": str(wait.requests),
        "left": str(wait.left_out),
    }  # fmt: skip
    if wait.kernel_us.value is None:
        texts["kernel"] = f"{microseconds(wait.asked_us)} asked"
    figures = {"p50": [_us(wait.p50_us)], "p99": [_us(wait.p99_us)]}
    return Row(texts, {"kernel": [_us(wait.kernel_us)], **figures})


def _alone(laws: Sequence[PreemptionLaw]) -> list[str]:
    """Say what a request takes alone, which is no wait."""
    known = grouped((str(_us(law.alone_p50_us)), law.id) for law in laws if law.waits)
    said = [f"{median} ({', '.join(names)})" for median, names in known.items()]
    return [f"The urgent tenant alone takes at the median {'; '.join(said)}."] if said else []


def _proofs(laws: Sequence[PreemptionLaw]) -> list[str]:
    """Say by what modes were proven, and what probes saw of their priority."""
    said = []
    for law in (each for each in laws if each.proof):
        probed = [f"{verdict} in {counted(n, 'window')}" for verdict, n in law.priority.items()]
        priority = f"; priority {', '.join(probed)}" if probed else ""
        said.append(f"{law.id}: {law.proof}{priority}")
    return said


def _us(of: Estimate) -> PrintedFigure:
    return REFUSED if of.value is None else microseconds(of.value, of.interval)


def _chart(found: PreemptFile) -> list[Chart]:
    """Return the chart of waits over lengths, a curve for each law; nothing without a wait."""
    curves = {law.id: _points(law) for law in found.laws}
    drawn = {name: points for name, points in curves.items() if points}
    if not drawn:
        return []
    spec = waits_chart(drawn, _LENGTH, _WAIT, simulated=found.simulated)
    left_out = {name: "it has no wait" for name, points in curves.items() if not points}
    low = any(point["y"] == _LEAST_DRAWN_US for points in drawn.values() for point in points)
    note = f"{_NOTE}; less than {_LEAST_DRAWN_US:g} µs is drawn there" if low else _NOTE
    return [Chart("Wait over the length of the victim's kernels", spec, note, left_out)]


def _points(law: PreemptionLaw) -> list[Spec]:
    """Return a law's waits; a logarithmic axis has no place for none, or less."""
    return [
        {
            "x": wait.kernel_us.value,
            "y": max(wait.p99_us.value, _LEAST_DRAWN_US),
            "y_low": None if of_low is None else max(of_low, _LEAST_DRAWN_US),
            "y_high": None if of_high is None else max(of_high, _LEAST_DRAWN_US),
        }
        for wait in law.waits
        for of_low, of_high in [wait.p99_us.ends]
        if wait.kernel_us.value is not None and wait.p99_us.value is not None
    ]
