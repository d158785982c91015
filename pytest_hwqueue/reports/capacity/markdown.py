"""The result of ``hwq capacity`` in GitHub-flavoured Markdown."""

from __future__ import annotations

from pytest_hwqueue.capacity.file import CapacityFile
from pytest_hwqueue.reports.capacity.words import (
    answers,
    goals_not_met,
    rates_head,
    rates_rows,
    remarks,
    settings,
    summary_head,
    summary_row,
    title,
)
from pytest_hwqueue.reports.markdown import code, markdown_table, plain
from pytest_hwqueue.reports.which.words import SIMULATED


def capacity_markdown(found: CapacityFile) -> str:
    """Return everything the terminal shows, with a final newline."""
    blocks = [f"## {plain(title(found))}"]
    if found.simulated:
        blocks.append(f"**{plain(SIMULATED)}**")
    blocks += [plain(line) for line in (found.description, settings(found)) if line]
    rows = [summary_row(found, case) for case in found.cases]
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
