"""The table of ``hwq which`` in GitHub-flavoured Markdown, for results pages and pull requests."""

from __future__ import annotations

from pytest_hwqueue.reports.markdown import code, markdown_table, plain
from pytest_hwqueue.reports.notes import Notes
from pytest_hwqueue.reports.which.words import (
    LABELS,
    SIMULATED,
    answers,
    effective,
    failure,
    figures,
    goal_counts,
    goal_lines,
    incomplete,
    last_outputs,
    proof_line,
    settings,
    title,
)
from pytest_hwqueue.which.file import WhichFile

_HEAD = ("scheduler", "tenant", "n", *LABELS.values(), "goals", "proof")


def which_markdown(found: WhichFile) -> str:
    """Return everything the terminal shows, with a final newline."""
    notes = Notes()
    rows = []
    for case in found.cases:
        if case.status != "ok":
            rows.append([code(case.id), f"**{plain(failure(case))}**", *[""] * (len(_HEAD) - 2)])
        for index, tenant in enumerate(case.tenants):
            shown = figures(case, tenant, notes)
            cells = [plain(str(shown[key])) if key in shown else "" for key in LABELS]
            first = index == 0
            rows.append(
                [
                    code(case.id) if first else "",
                    plain(tenant.name),
                    str(tenant.issued),
                    *cells,
                    goal_counts(case) if first else "",
                    effective(found, case) if first else "",
                ]
            )
    blocks = [f"## {plain(title(found))}"]
    if found.simulated:
        blocks.append(f"**{plain(SIMULATED)}**")
    blocks += [plain(line) for line in (found.description, "; ".join(settings(found))) if line]
    blocks.append(markdown_table(_HEAD, rows))
    blocks.append("Brackets are 95 % intervals; latency counts from the scheduled arrival.")
    refused = [
        f"- {plain(line)}" for line in notes.lines(sum(case.status == "ok" for case in found.cases))
    ]
    if refused:
        blocks.append("\n".join(refused))
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
    if found.command:
        blocks.append(f"Command: {code(found.command)}")
    return "\n\n".join(blocks) + "\n"
