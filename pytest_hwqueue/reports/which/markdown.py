"""The table of ``hwq which`` in GitHub-flavoured Markdown, for results pages and pull requests."""

from __future__ import annotations

from collections.abc import Sequence

from pytest_hwqueue.reports.markdown import code, markdown_table, plain
from pytest_hwqueue.reports.notes import Notes
from pytest_hwqueue.reports.which.words import (
    LABELS,
    SIMULATED,
    answers,
    commands,
    effective,
    failure,
    figures,
    goal_counts,
    goal_lines,
    incomplete,
    last_outputs,
    printed,
    proof_line,
    session_title,
    settings,
    several_sessions,
    tenant_lines,
    title,
    trend_title,
)
from pytest_hwqueue.which.file import WhichCase, WhichFile
from pytest_hwqueue.which.trend import Trend, trends


def which_markdown(found: WhichFile) -> str:
    """Return everything the terminal shows, with a final newline."""
    blocks = [f"## {plain(title(found))}"]
    if found.simulated:
        blocks.append(f"**{plain(SIMULATED)}**")
    described = (
        found.description,
        "; ".join(settings(found)),
        several_sessions(found),
        *tenant_lines(found),
    )
    blocks += [plain(line) for line in described if line]
    blocks += _table(found, found.cases)
    for trend in trends(found):
        blocks += [f"### {plain(trend_title(trend))}", _trend(trend)]
    for session in found.sessions:
        if session.cases:
            blocks.append(f"### {plain(session_title(found, session))}")
            blocks += _table(found, session.cases)
    blocks += [
        f"{code(case.id)}\n\n```text\n{text}\n```"
        for case in found.cases
        for text in last_outputs(case)
    ]
    goals = [
        f"- {code(case.id)} {plain(line)}" for case in found.cases for line in goal_lines(case)
    ]
    if goals:
        blocks += ["### Goals", "\n".join(goals)]
    proofs = [
        f"- {code(case.id)} {plain(proof_line(found, case))}"
        for case in found.cases
        if case.proof is not None
    ]
    if proofs:
        blocks += ["### Proof", "\n".join(proofs)]
    blocks += [f"**{plain(line)}**" for line in (incomplete(found), *answers(found)) if line]
    blocks += [f"Command: {code(command)}" for command in commands(found)]
    return "\n\n".join(blocks) + "\n"


def _table(found: WhichFile, cases: Sequence[WhichCase]) -> list[str]:
    """Return a table of these cases, and what was refused in it."""
    several = len(found.sessions) > 1
    names = ("scheduler", "tenant", *["sessions"] * several, "n")
    searched = any(each.capacity_per_s for case in cases for each in case.tenants)
    keys = [key for key in LABELS if key != "capacity" or searched]
    head = (*names, *(LABELS[key] for key in keys), "goals", "proof")
    notes = Notes()
    rows = []
    for case in cases:
        if case.status != "ok":
            rows.append([code(case.id), f"**{plain(failure(case))}**", *[""] * (len(head) - 2)])
        for index, tenant in enumerate(case.tenants):
            shown = figures(case, tenant, notes)
            cells = [plain(str(shown[key])) if key in shown else "" for key in keys]
            first = index == 0
            rows.append(
                [
                    code(case.id) if first else "",
                    plain(tenant.name),
                    *[str(case.sessions) if first else ""] * several,
                    str(tenant.issued),
                    *cells,
                    goal_counts(case) if first else "",
                    effective(found, case) if first else "",
                ]
            )
    blocks = [markdown_table(head, rows)]
    blocks.append("Brackets are 95 % intervals; latency counts from the scheduled arrival.")
    refused = [f"- {plain(line)}" for line in notes.lines(sum(c.status == "ok" for c in cases))]
    return blocks + ["\n".join(refused)] * bool(refused)


def _trend(trend: Trend) -> str:
    rows = [
        [code(name), *(plain(str(printed(row[each], "ms"))) if each in row else ""
                       for each in trend.variants)]
        for name, row in trend.rows.items()
    ]  # fmt: skip
    return markdown_table(["scheduler", *map(plain, trend.variants)], rows)
