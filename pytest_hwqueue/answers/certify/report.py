"""The answer of ``hwq certify`` as a document: what is shown, refuted and not decided, and why."""

from __future__ import annotations

from collections.abc import Sequence

from pytest_hwqueue.answers.certify.file import (
    CertificateFile,
    ResourceResult,
    ShareResult,
    WaitResult,
)
from pytest_hwqueue.data.document.document import (
    Column,
    Command,
    Document,
    Heading,
    Headline,
    Level,
    Paragraph,
    Part,
    Row,
    Table,
)
from pytest_hwqueue.data.document.notes import SIMULATED, on_device
from pytest_hwqueue.data.metrics.estimate import Estimate
from pytest_hwqueue.data.metrics.numbers import (
    REFUSED,
    PrintedFigure,
    counted,
    grouped,
    listed,
    microseconds,
    milliseconds,
    percent,
    printed,
)
from pytest_hwqueue.data.resources import Resource

_WORDS: dict[Resource, str] = {
    "multiprocessors": "multiprocessors",
    "blocks": "the start of blocks",
    "l2": "the L2 cache",
    "memory": "memory bandwidth",
    "copies": "copies to the device",
    "launches": "launches from the host",
}
_SENTENCES = {
    "shown": "{mode} is shown to keep {what}.",
    "refuted": "{mode} does NOT keep {what}.",
    "not decided": "It is not decided whether {mode} keeps {what}.",
}
_COLUMNS = (
    Column("resource", "resource"),
    Column("verdict", "apart"),
    Column("alone", "alone", rank=1),
    Column("beside", "beside", rank=1),
    Column("slower", "slower"),
    Column("native", "under native", rank=2),
    Column("rounds", "rounds", right=True, rank=3, kept=False),
)
_READ = (
    "Alone, beside: mean time of the victim's iteration, alone and beside a stressor of the same "
    "resource, under the mode. Brackets are 95 % intervals over rounds{fresh}, of each claim by "
    "itself. A claim is shown if the victim is at most {bound} slower by all of the interval, and "
    "the stressor does slow it under native; refuted if it is slower by all of it."
)


def title(found: CertificateFile) -> str:
    """Return the question that is answered, and the device."""
    return f"Does {found.mode} keep tenants apart?{on_device(found)}"


def certificate_document(found: CertificateFile) -> Document:
    """Return the answer in sentences, and the table that it rests on."""
    parts: list[Part] = [Heading(title(found), 1)]
    if not found.complete:
        parts.append(Paragraph("INCOMPLETE: interrupted before all was measured.", "bold red"))
    if found.simulated:
        parts.append(Paragraph(SIMULATED, "bold"))
    parts += [Paragraph(line, "bold") for line in sentences(found)]
    parts += [Paragraph(f"failed: {line}", "red") for line in found.failures]
    fresh = "" if found.simulated else ", each of fresh processes"
    parts.append(_table(found))
    if found.share is not None and found.share.share.value is not None:
        parts.append(Paragraph(_of_share(found.share)))
    if found.wait is not None and found.wait.p99_us.value is not None:
        parts.append(Paragraph(_of_wait(found.wait)))
    parts.append(Paragraph(_READ.format(fresh=fresh, bound=f"{100 * found.bound:g} %")))
    if found.proof:
        parts.append(Paragraph(f"Proven active: {found.proof}"))
    commands = [Command(found.command)] * bool(found.command)
    return Document([*parts, *commands])


def certificates_headline(results: Sequence[CertificateFile]) -> Headline:
    """Return what a page says first of certificates."""
    lines = [line for each in results for line in sentences(each)]
    if any(each.simulated for each in results):
        lines[0] = f"Simulated, not measured: {lines[0]}"
    verdicts = [verdict for each in results for verdict in each.verdicts]
    level: Level = "warn" if not verdicts or "not decided" in verdicts else "good"
    if "refuted" in verdicts or any(each.failures for each in results):
        level = "bad"
    return Headline(level, lines[0], lines[1:])


def sentences(found: CertificateFile) -> list[str]:
    """Return what the mode is shown to do, and what not, in a sentence each, the claims first."""
    claims = [each for each in found.resources if each.claimed]
    said = []
    for verdict, sentence in _SENTENCES.items():
        kept = [
            *_claims(claims, verdict),
            *_share_claim(found.share, verdict),
            *_wait_claim(found.wait, verdict),
        ]
        if kept:
            said.append(sentence.format(mode=found.mode, what=listed(kept)))
    if not found.verdicts:
        said.append(f"{found.mode} claims none of these, and is held to none (--claims).")
    others = [each for each in found.resources if each.verdict == "not claimed"]
    if others:
        figures = [f"{_WORDS[each.resource]} {printed(each.slower, percent)}" for each in others]
        said.append(f"Not claimed; slower beside the stressor: {'; '.join(figures)}.")
    unknown = grouped(
        (each.reason, _WORDS[each.resource])
        for each in found.resources
        if each.verdict == "not measured"
    )
    said += [f"Not measured: {listed(which)}: {reason}." for reason, which in unknown.items()]
    return said


def _claims(claims: Sequence[ResourceResult], verdict: str) -> list[str]:
    return [
        f"{_WORDS[each.resource]} apart ({_why(each)})"
        for each in claims
        if each.verdict == verdict
    ]


def _why(claim: ResourceResult) -> str:
    figure = f"{printed(claim.slower, percent)} slower beside the stressor"
    if claim.verdict != "not decided":
        return figure
    return claim.reason if claim.slower.value is None else f"{figure}; {claim.reason}"


def _share_claim(share: ShareResult | None, verdict: str) -> list[str]:
    if share is None or share.verdict != verdict:
        return []
    if share.claimed is None:
        return [f"the victim's share ({share.reason})"]
    has = f"{printed(share.share, percent)} of native's products"
    if verdict == "not decided":
        has = share.reason if share.share.value is None else f"{has}; {share.reason}"
    return [f"the victim's share at most {percent(share.claimed)} ({has})"]


def _wait_claim(wait: WaitResult | None, verdict: str) -> list[str]:
    if wait is None or wait.verdict != verdict:
        return []
    has = f"P99 {printed(wait.p99_us, microseconds)} beside products"
    if verdict == "not decided":
        has = wait.reason if wait.p99_us.value is None else f"{has}; {wait.reason}"
    return [f"an urgent kernel's wait at most {wait.bound_ms:g} ms ({has})"]


def _of_wait(wait: WaitResult) -> str:
    return (
        "Wait: an urgent small product's latency from its scheduled arrival beside products that "
        f"never pause, less its median alone, {printed(wait.alone_p50_us, microseconds)}. Mean of "
        f"the P99 of {counted(wait.p99_us.n, 'round')}."
    )


def _of_share(share: ShareResult) -> str:
    if share.claimed is None or share.bound is None:
        return f"Share of the multiprocessors: not decided: {share.reason}."
    return (
        f"Share of the multiprocessors: at most {percent(share.claimed)}, and {share.verdict} "
        f"up to {percent(share.bound)}. Alone the victim computes {printed(share.share, percent)} "
        "of the products that it does under native."
    )


def _table(found: CertificateFile) -> Table:
    rows = []
    for each in found.resources:
        texts: dict[str, str] = {"resource": each.resource, "verdict": each.verdict}
        texts["rounds"] = str(each.slower.n) if each.slower.n else ""
        figures = {
            "alone": [_ms(each.alone_ms)],
            "beside": [_ms(each.beside_ms)],
            "slower": [printed(each.slower, percent)],
            "native": [printed(each.native_slower, percent)],
        }
        known = {name: shown for name, shown in figures.items() if shown != [REFUSED]}
        rows.append(Row(texts, known))
    return Table(_COLUMNS, rows)


def _ms(of: Estimate) -> PrintedFigure:
    return REFUSED if of.value is None else milliseconds(of.value)
