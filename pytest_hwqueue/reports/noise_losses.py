"""Formats what noise cost each cell, compared with its quiet turn in the same run."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import TypeVar

from pytest_hwqueue.metrics.numbers import percent
from pytest_hwqueue.noise.losses import Loss, paired_losses
from pytest_hwqueue.noise.names import NONE, noise_id
from pytest_hwqueue.records.cell import Cell, RunRecord
from pytest_hwqueue.tenancy import TENANTS

RecordFigure = Callable[[RunRecord], float | None]
Key = TypeVar("Key", bound=Hashable)


def noise_lines(records: Sequence[RunRecord]) -> list[str]:
    """Return a line per cell and noise; none if no noise was requested.

    Each says what share of the work was lost, and how much longer the slowest requests took, as
    means over the runs with a 95 % interval of the paired runs.
    """
    cells: dict[str, dict[str, list[RunRecord]]] = {}
    for record in records:
        if record.noise is not None:
            noise = record.noise.noise
            cell = quiet_cell(record.cell, noise).id
            cells.setdefault(cell, {}).setdefault(noise, []).append(record)
    lines = []
    for cell, by_noise in cells.items():
        if NONE not in by_noise or len(by_noise) < 2:
            continue
        rate = paired_losses(by_run(by_noise, throughput), higher_is_worse=False)
        tail_name, tail_of = tail_figure(by_noise)
        tail = paired_losses(by_run(by_noise, tail_of), higher_is_worse=True)
        core = paired_losses(by_run(by_noise, core_speed), higher_is_worse=False)
        unit = next((r.metrics.throughput[0].unit for r in by_noise[NONE] if throughput(r)), "")
        for noise in rate:
            if not rate[noise].pairs:
                reason = "no pair of runs in which all went well and it was felt"
                lines.append(f"{cell} under {noise}: {reason}")
                continue
            parts = [
                f"{_shown(rate[noise])} of {unit}",
                f"{tail_name} longer by {_shown(tail[noise])}",
            ]
            share = _delay(by_noise[noise])
            together = any(record.family == TENANTS for record in by_noise[noise])
            parts.append(
                f"all tenants together waited for a core for {share} of the time"
                if together
                else f"{share} of its time waiting for a core"
            )
            sides = [(f" of {unit}", rate[noise]), (f" of {tail_name}", tail[noise])]
            if core[noise].pairs:
                sides.append((" of its core's speed", core[noise]))
                parts.append(f"its core did {_shown(core[noise])} less in the same CPU time")
            # The usual reason, too few rounds, is the same for both.
            refused = dict.fromkeys(
                f"no {what}{name}: {reason}"
                for name, loss in sides
                for what, reason in loss.refused.items()
            )
            parts += refused
            lines.append(f"{cell} under {noise}: lost {'; '.join(parts)}")
    return lines


def quiet_cell(cell: Cell, noise: str) -> Cell:
    """Return a cell without its noise."""
    variant = cell.variant.removesuffix(noise_id(noise)).rstrip("-")
    return cell.model_copy(update={"variant": variant})


def by_run(
    by_noise: Mapping[Key, Sequence[RunRecord]], figure: RecordFigure
) -> dict[Key, list[float | None]]:
    """Return each run's figure, by the conditions of the run; None where it does not count.

    A run counts if it succeeded and its noise, if any, was felt.
    """
    runs = sorted({record.run for records in by_noise.values() for record in records})
    found: dict[Key, list[float | None]] = {}
    for noise, records in by_noise.items():
        of_run = {record.run: record for record in records}
        found[noise] = [_counting(of_run.get(run), figure) for run in runs]
    return found


def _counting(record: RunRecord | None, figure: RecordFigure) -> float | None:
    """Return the figure of a successful run in which the noise was felt."""
    if record is None or record.status != "ok" or record.noise is None:
        return None
    return None if record.noise.status == "not applied" else figure(record)


def throughput(record: RunRecord) -> float | None:
    """Return the rate of a cell's first unit of work."""
    return record.metrics.throughput[0].value if record.metrics.throughput else None


def core_speed(record: RunRecord) -> float | None:
    """Return the enqueuing thread's core speed per second of CPU time."""
    return None if record.noise is None else record.noise.core_speed_per_s


def tail_figure(by_noise: Mapping[Key, Sequence[RunRecord]]) -> tuple[str, RecordFigure]:
    """Return the highest percentile available in all runs."""

    def p99(record: RunRecord) -> float | None:
        return None if record.metrics.latency is None else record.metrics.latency.p99

    def p50(record: RunRecord) -> float | None:
        return None if record.metrics.latency is None else record.metrics.latency.p50

    records = [record for each in by_noise.values() for record in each if record.status == "ok"]
    return ("P99", p99) if all(p99(record) is not None for record in records) else ("P50", p50)


def _shown(loss: Loss) -> str:
    return "—" if loss.value is None else str(percent(loss.value, loss.interval))


def _delay(records: Sequence[RunRecord]) -> str:
    """Return the share of time in which the process could have run but did not."""
    rounds = [record.noise for record in records if record.noise is not None]
    known = [r for r in rounds if r.measured_run_delay_s is not None and r.duration_s > 0]
    if not known:
        return "—"
    delay_s = sum(r.measured_run_delay_s or 0.0 for r in known)
    return str(percent(delay_s / sum(r.duration_s for r in known)))
