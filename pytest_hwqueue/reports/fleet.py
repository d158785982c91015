"""The verdicts on a fleet's GPUs, as a document and as JSON."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import asdict

from pytest_hwqueue.fleet.outliers import ALL_FIGURES, NAMED, RATE, FleetVerdict, GpuVerdict
from pytest_hwqueue.metrics.numbers import counted
from pytest_hwqueue.reports.document import Column, Document, Heading, Paragraph, Row, Table

SCHEMA = "pytest-hwqueue/fleet-verdicts/1"
_STYLES = {"ok": "", "not judged": "cyan"}


def fleet_document(found: FleetVerdict) -> Document:
    """Return a row for each GPU, those named first, and what the fleet could have shown."""
    columns = (
        Column("node", "node"), Column("gpu", "GPU"), Column("verdict", "verdict"),
        Column("time", "time", right=True),
    )  # fmt: skip
    rows = [
        Row(
            {"node": gpu.node, "gpu": gpu.device, "verdict": gpu.verdict, "time": _deviation(gpu)},
            style=_STYLES.get(gpu.verdict, "bold red"), opens=True,
            below=list(gpu.reasons),
        )
        for gpu in found.gpus
    ]  # fmt: skip
    return Document([Heading("GPUs", 1), Table(columns, rows), *map(Paragraph, remarks(found))])


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
    lines = [f"{counted(len(found.gpus), 'GPU')}: {parts}; {named} named"]
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
