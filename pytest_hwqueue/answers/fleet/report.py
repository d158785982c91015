"""The verdicts on a fleet's GPUs: a document, JSON, Prometheus's text, commands that drain nodes.

Prometheus gets its text-based exposition format, version 0.0.4.
"""

from __future__ import annotations

import json
import re
import shlex
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from pytest_hwqueue.answers.fleet.outliers import RATE
from pytest_hwqueue.answers.fleet.verdicts import ALL_FIGURES, NAMED, FleetVerdict, GpuVerdict
from pytest_hwqueue.answers.page.render import Page, write_page
from pytest_hwqueue.data.document.charts import as_it_is, coloured_by, mark, tooltip, view
from pytest_hwqueue.data.document.document import (
    Chart,
    Column,
    Document,
    FoldedPart,
    Heading,
    Headline,
    Paragraph,
    Part,
    Row,
    Table,
)
from pytest_hwqueue.data.document.drawing import colour
from pytest_hwqueue.data.metrics.numbers import counted, grouped

SCHEMA = "pytest-hwqueue/fleet-verdicts/1"
_STYLES = {"ok": "", "not judged": "cyan"}
# Colours of the page's style sheet; other verdicts have that of a regression.
_TONES = {
    "ok": "good",
    "not judged": "soft",
    "unreachable": "ink",
    "unstable": "warn",
    "different": "sim",
}
_MOST_FINE = 16
# A deviation as strong as this is drawn in full.
_STRONG = 0.05


def fleet_document(found: FleetVerdict) -> Document:
    """Return a row for each GPU, those named first, what the fleet could have shown, and a map.

    More than 16 GPUs without a finding are folded.
    """
    shown = [gpu for gpu in found.gpus if gpu.verdict != "ok" or gpu.reasons]
    fine = [gpu for gpu in found.gpus if gpu.verdict == "ok" and not gpu.reasons]
    if len(fine) <= _MOST_FINE:
        shown, fine = [*found.gpus], []
    parts: list[Part] = [Heading("GPUs", 1)]
    if shown:
        parts.append(_table(shown))
    if fine:
        parts.append(FoldedPart(f"{counted(len(fine), 'other GPU')} ok", _table(fine)))
    return Document([*parts, *map(Paragraph, remarks(found)), _map(found)])


def _table(gpus: Sequence[GpuVerdict]) -> Table:
    columns = (
        Column("node", "node"), Column("gpu", "GPU"), Column("verdict", "verdict"),
        Column("time", "time", right=True),
    )  # fmt: skip
    rows = []
    for gpu in gpus:
        style = _STYLES.get(gpu.verdict, "bold red")
        # A name such as cuda:3 follows the order in which a process sees the GPUs.
        identity = [gpu.called] if gpu.verdict in NAMED and gpu.uuid else []
        rows.append(Row(_said(gpu), style=style, opens=True, below=[*gpu.reasons, *identity]))
    return Table(columns, rows)


def _said(gpu: GpuVerdict) -> dict[str, str]:
    """Return what a table and a map say of a GPU."""
    overall = _overall(gpu)
    time = "-" if overall is None else f"{100 * overall:+.1f} %"
    return {"node": gpu.node, "gpu": gpu.device, "verdict": gpu.verdict, "time": time}


def _map(found: FleetVerdict) -> Chart:
    """Return a chart of nodes and GPUs, coloured by verdict; pale is near the median GPU."""
    names = dict.fromkeys(gpu.device for gpu in sorted(found.gpus, key=_place))
    rows = [{**_said(gpu), "opacity": _opacity(gpu)} for gpu in found.gpus]
    colours: dict[str, str] = {
        verdict: colour(_TONES.get(verdict, "bad"))
        for verdict in (*NAMED, "not judged", "ok")
        if any(gpu.verdict == verdict for gpu in found.gpus)
    }
    where = {
        "x": {"field": "gpu", "type": "nominal", "sort": list(names), "axis": {"title": "GPU"}},
        "y": {"field": "node", "type": "nominal", "axis": {"title": "node"}},
    }
    encoding = {
        **where, "fill": coloured_by("verdict", colours), "opacity": as_it_is("opacity"),
        "tooltip": tooltip({name: name for name in ("node", "gpu", "verdict", "time")}),
    }  # fmt: skip
    spec = view(
        mark("rect", encoding, rows, stroke=colour("line")),
        simulated=_is_simulated(found), description="GPUs by node",
        height={"step": 14},
    )  # fmt: skip
    return Chart("Nodes and GPUs", spec, "By verdict; the paler, the nearer to the median GPU.")


def _place(gpu: GpuVerdict) -> tuple[int, str]:
    """Order names by the number that they end in."""
    number = re.search(r"\d+$", gpu.device)
    return int(number[0]) if number else 0, gpu.device


def _opacity(gpu: GpuVerdict) -> float:
    if gpu.verdict in NAMED:
        return 1.0
    return round(0.15 + min(1.0, abs(_overall(gpu) or 0.0) / _STRONG) * 0.6, 3)


def fleet_json(found: FleetVerdict) -> str:
    """Return all verdicts and figures, with a final newline."""
    content = {
        "schema": SCHEMA,
        "named": len(found.named),
        "rate": RATE,
        "gpus": [asdict(gpu) for gpu in found.gpus],
        "reference": found.reference,
        "smallest": found.smallest,
        "smallest_of_nodes": found.smallest_of_nodes,
    }
    return json.dumps(content, indent=1) + "\n"


def drain_commands(found: FleetVerdict, system: str) -> list[str]:
    """Return a command for each node with a named GPU, of ``slurm`` or ``kubernetes``."""
    by_node = grouped((gpu.node, f"{gpu.called} {gpu.verdict}") for gpu in found.named)
    if system == "kubernetes":
        return [f"kubectl cordon -- {shlex.quote(node)}" for node in sorted(by_node)]
    return [
        f"scontrol update {shlex.quote(f'nodename={node}')} state=drain "
        f"reason={shlex.quote('hwq: ' + ', '.join(by_node[node]))}"
        for node in sorted(by_node)
    ]


_HEAD = (
    "# HELP hwq_fleet_named Whether the GPU was named: 1 yes, 0 no.\n# TYPE hwq_fleet_named gauge"
)
_DEVIATION = (
    "# HELP hwq_fleet_deviation_ratio Time relative to the median GPU of its model, less 1.\n"
    "# TYPE hwq_fleet_deviation_ratio gauge"
)


def prometheus_text(found: FleetVerdict) -> str:
    """Return the file's text, with a final newline."""
    lines = [_HEAD]
    for gpu in found.gpus:
        labels = _labels(**_whose(gpu), verdict=gpu.verdict)
        lines.append(f"hwq_fleet_named{labels} {int(gpu.verdict in NAMED)}")
    lines.append(_DEVIATION)
    for gpu in found.gpus:
        for figure, deviation in gpu.deviations.items():
            labels = _labels(**_whose(gpu), figure=figure)
            lines.append(f"hwq_fleet_deviation_ratio{labels} {deviation:.6g}")
    return "\n".join(lines) + "\n"


def _whose(gpu: GpuVerdict) -> dict[str, str]:
    return {"node": gpu.node, "device": gpu.device, "uuid": gpu.uuid, "pci": gpu.pci}


def _labels(**values: str) -> str:
    # A label's value is escaped as a string of JSON is.
    pairs = (f"{name}={json.dumps(value, ensure_ascii=False)}" for name, value in values.items())
    return "{" + ",".join(pairs) + "}"


def remarks(found: FleetVerdict) -> list[str]:
    """Return counts of verdicts, and the smallest deviation each model could have shown."""
    counts = Counter(gpu.verdict for gpu in found.gpus)
    named = sum(counts[verdict] for verdict in NAMED)
    parts = ", ".join(f"{count} {verdict}" for verdict, count in counts.items())
    lines = [f"{counted(len(found.gpus), 'GPU')}: {parts}; {named} named"]
    if found.reference:
        lines.append(f"compared with {counted(found.reference, 'GPU')} measured before, too")
    shown = (
        ("a GPU", "the others of its node", found.smallest),
        ("a node", "other nodes", found.smallest_of_nodes),
    )
    for what, others, smallest in shown:
        for model, figures in smallest.items():
            if figures:
                least = ", ".join(f"{name} {100 * each:.1f} %" for name, each in figures.items())
                lines.append(
                    f"{model}: {what} is named from this much more time than {others}: {least}"
                )
    if any(found.smallest.values()) or any(found.smallest_of_nodes.values()):
        lines.append(f"a healthy fleet has a GPU named in at most {RATE:.0%} of checks")
    if _is_simulated(found):
        lines.append("simulated: these figures are a model's, not a GPU's")
    return lines


def write_fleet_page(path: Path, found: FleetVerdict, document: Document) -> None:
    """Write a page with the verdict in a sentence, and a fleet's document.

    Raises:
        RecordError: if it cannot be written.
        ModuleNotFoundError: if a package is missing; the text says how to get it.

    """
    models = sorted({gpu.model for gpu in found.gpus if gpu.model})
    write_page(path, Page(_verdict(found), models, _is_simulated(found), [], [document]))


def _verdict(found: FleetVerdict) -> Headline:
    every = counted(len(found.gpus), "GPU")
    if found.named:
        worst = found.named[0]
        among = " among others" if len(found.named) > 1 else ""
        named = f"{len(found.named)} of {every} named: {worst.node}/{worst.called} is"
        return Headline("bad", f"{named} {worst.verdict}{among}.")
    if any(gpu.verdict == "not judged" for gpu in found.gpus):
        return Headline("warn", f"No GPU of {every} is named, but not all were judged.")
    return Headline("good", f"No GPU of {every} is named.")


def _is_simulated(found: FleetVerdict) -> bool:
    return any(gpu.model.startswith("simulated") for gpu in found.gpus)


def _overall(gpu: GpuVerdict) -> float | None:
    return gpu.deviations.get(ALL_FIGURES, next(iter(gpu.deviations.values()), None))
