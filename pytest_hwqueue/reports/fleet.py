"""The verdicts on a fleet's GPUs: terminal, Markdown, JSON."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import asdict

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from pytest_hwqueue.fleet.outliers import ALL_FIGURES, NAMED, RATE, FleetVerdict, GpuVerdict
from pytest_hwqueue.reports.markdown import markdown_table, plain

SCHEMA = "pytest-hwqueue/fleet-verdicts/1"
_STYLES = {"ok": "green", "not judged": "cyan"}
_WIDTH = 80
_SHOWN_OK = 20
_HEAD = ("node", "GPU", "verdict", "time", "why")


def print_fleet(found: FleetVerdict, console: Console | None = None) -> None:
    """Print a row for each GPU, those named first, and what the fleet could have shown."""
    console = console or Console(width=_WIDTH, highlight=False)
    table = Table(*_HEAD, box=None, pad_edge=False)
    shown = found.gpus[: len(found.named) + _SHOWN_OK]
    for gpu in shown:
        style = _STYLES.get(gpu.verdict, "bold red")
        verdict = f"[{style}]{gpu.verdict}[/]"
        cells = [gpu.node, gpu.device, _deviation(gpu), "\n".join(gpu.reasons)]
        node, device, deviation, why = map(escape, cells)
        table.add_row(node, device, verdict, deviation, why)
    console.print(table)
    if len(shown) < len(found.gpus):
        console.print(f"and {len(found.gpus) - len(shown)} more, none of them named")
    for line in remarks(found):
        console.print(escape(line))


def fleet_markdown(found: FleetVerdict) -> str:
    """Return the table of all GPUs in GitHub-flavoured Markdown, with a final newline."""
    rows = [
        [gpu.node, gpu.device, gpu.verdict, _deviation(gpu), "; ".join(gpu.reasons)]
        for gpu in found.gpus
    ]
    table = markdown_table(_HEAD, [[*map(plain, row)] for row in rows])
    return "\n\n".join(["## GPUs", table, *map(plain, remarks(found))]) + "\n"


def fleet_json(found: FleetVerdict) -> str:
    """Return all verdicts and figures, with a final newline."""
    content = {
        "schema": SCHEMA,
        "named": len(found.named),
        "rate": RATE,
        "gpus": [asdict(gpu) for gpu in found.gpus],
        "smallest": found.smallest,
    }
    return json.dumps(content, indent=1) + "\n"


def remarks(found: FleetVerdict) -> list[str]:
    """Return counts of verdicts, and the smallest deviation each model could have shown."""
    counts = Counter(gpu.verdict for gpu in found.gpus)
    named = sum(counts[verdict] for verdict in NAMED)
    parts = ", ".join(f"{count} {verdict}" for verdict, count in counts.items())
    lines = [f"{len(found.gpus)} GPUs: {parts}; {named} named"]
    for model, figures in found.smallest.items():
        if figures:
            least = ", ".join(f"{name} {100 * each:.1f} %" for name, each in figures.items())
            lines.append(f"{model}: could have shown, as more time than the median GPU's: {least}")
    if any(found.smallest.values()):
        lines.append(f"a healthy fleet has a GPU named in at most {RATE:.0%} of checks")
    if any(gpu.model.startswith("simulated") for gpu in found.gpus):
        lines.append("simulated: these figures are a model's, not a GPU's")
    return lines


def _deviation(gpu: GpuVerdict) -> str:
    if not gpu.deviations:
        return "-"
    overall = gpu.deviations.get(ALL_FIGURES, next(iter(gpu.deviations.values())))
    return f"{100 * overall:+.1f} %"
