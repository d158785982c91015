"""What neighbours cost each cell, against its quiet turn in the same run: lines for people."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from pytest_hwqueue.baselines.record import RunRecord
from pytest_hwqueue.noise.losses import Loss, paired_losses
from pytest_hwqueue.noise.specification import NONE, noise_id
from pytest_hwqueue.reports.numbers import percent

Figure = Callable[[RunRecord], float | None]


def noise_lines(records: Sequence[RunRecord]) -> list[str]:
    """Return a line for each cell and noise; none where no noise was asked for.

    Each says what share of the work was lost, and how much longer the slowest requests took, as
    means over the runs with a 95 % interval of the paired runs.
    """
    cells: dict[str, dict[str, list[RunRecord]]] = {}
    for record in records:
        if record.noise is not None:
            noise = record.noise.noise
            variant = record.cell.variant.removesuffix(noise_id(noise)).rstrip("-")
            quiet = record.cell.model_copy(update={"variant": variant}).id
            cells.setdefault(quiet, {}).setdefault(noise, []).append(record)
    lines = []
    for cell, by_noise in cells.items():
        if NONE not in by_noise or len(by_noise) < 2:
            continue
        rate = paired_losses(_by_run(by_noise, _throughput), higher_is_worse=False)
        tail_name, tail_of = _tail(by_noise)
        tail = paired_losses(_by_run(by_noise, tail_of), higher_is_worse=True)
        unit = next((r.metrics.throughput[0].unit for r in by_noise[NONE] if _throughput(r)), "")
        for noise in rate:
            if rate[noise].value is None:
                lines.append(f"{cell} beside {noise}: no pair of runs in which it was felt")
                continue
            parts = [
                f"{_shown(rate[noise])} of {unit}",
                f"{tail_name} longer by {_shown(tail[noise])}",
            ]
            parts += [f"{_delay(by_noise[noise])} of its time waiting for a core"]
            refused = {**rate[noise].refused, **tail[noise].refused}
            parts += [f"no {what}: {reason}" for what, reason in refused.items()]
            lines.append(f"{cell} beside {noise}: lost {'; '.join(parts)}")
    return lines


def _by_run(by_noise: dict[str, list[RunRecord]], figure: Figure) -> dict[str, list[float | None]]:
    runs = sorted({record.run for records in by_noise.values() for record in records})
    found: dict[str, list[float | None]] = {}
    for noise, records in by_noise.items():
        of_run = {record.run: record for record in records}
        found[noise] = [_counting(of_run.get(run), figure) for run in runs]
    return found


def _counting(record: RunRecord | None, figure: Figure) -> float | None:
    """Return the figure of a run that went well and in which the noise was felt."""
    if record is None or record.status != "ok" or record.noise is None:
        return None
    return None if record.noise.status == "not applied" else figure(record)


def _throughput(record: RunRecord) -> float | None:
    return record.metrics.throughput[0].value if record.metrics.throughput else None


def _tail(by_noise: dict[str, list[RunRecord]]) -> tuple[str, Figure]:
    """Return the highest percentile that all runs have."""

    def p99(record: RunRecord) -> float | None:
        return None if record.metrics.latency is None else record.metrics.latency.p99

    def p50(record: RunRecord) -> float | None:
        return None if record.metrics.latency is None else record.metrics.latency.p50

    records = [record for each in by_noise.values() for record in each if record.status == "ok"]
    return ("P99", p99) if all(p99(record) is not None for record in records) else ("P50", p50)


def _shown(loss: Loss) -> str:
    return "—" if loss.value is None else str(percent(loss.value, loss.interval))


def _delay(records: Sequence[RunRecord]) -> str:
    """Return the share of its measuring for which the process could have run and did not."""
    rounds = [record.noise for record in records if record.noise is not None]
    known = [r for r in rounds if r.measured_run_delay_s is not None and r.duration_s > 0]
    if not known:
        return "—"
    delay_s = sum(r.measured_run_delay_s or 0.0 for r in known)
    return str(percent(delay_s / sum(r.duration_s for r in known)))
