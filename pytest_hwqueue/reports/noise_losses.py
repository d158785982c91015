"""Lines on what noise cost each cell, and what pinning, priority or a scheduler won back of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pytest_hwqueue.metrics.estimate import Estimate
from pytest_hwqueue.metrics.numbers import grouped, percent, printed
from pytest_hwqueue.noise.losses import (
    by_run,
    core_speed,
    paired_losses,
    tail_figure,
    throughput,
    won_back,
)
from pytest_hwqueue.noise.names import NONE, noise_id
from pytest_hwqueue.records.cell import Cell, RunRecord
from pytest_hwqueue.tenancy import TENANTS

# What runs beside the measured process under each of the remedies too.
_LOAD, _REMEDIES = "cpu", ("optimised", "isolated")
_NATIVE = "native"


def noise_lines(records: Sequence[RunRecord]) -> list[str]:
    """Return a line per cell and noise, then `remedy_lines`; none if no noise was requested.

    Each says what share of the work was lost, and how much longer the slowest requests took, as
    means over the runs of a session with a 95 % interval of the paired runs.
    """
    cells = grouped(
        (quiet_cell(record.cell, record.noise.noise).id, (record.noise.noise, record))
        for record in records
        if record.noise is not None
    )
    lines = []
    for cell, measured in cells.items():
        by_noise = grouped(measured)
        if NONE not in by_noise or len(by_noise) < 2:
            continue
        rate = paired_losses(by_run(by_noise, throughput), higher_is_worse=False)
        tail_name, tail_of = tail_figure(by_noise)
        tail = paired_losses(by_run(by_noise, tail_of), higher_is_worse=True)
        core = paired_losses(by_run(by_noise, core_speed), higher_is_worse=False)
        unit = next((r.metrics.throughput[0].unit for r in by_noise[NONE] if throughput(r)), "")
        for noise in rate:
            if not rate[noise].n:
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
            if core[noise].n:
                sides.append((" of its core's speed", core[noise]))
                parts.append(f"its core did {_shown(core[noise])} less in the same CPU time")
            # The usual reason, too few rounds, is the same for both.
            parts += dict.fromkeys(
                f"no {'value' if loss.value is None else 'interval'}{name}: {loss.refused}"
                for name, loss in sides
                if loss.refused
            )
            lines.append(f"{cell} under {noise}: lost {'; '.join(parts)}")
    return lines + remedy_lines(records)


def remedy_lines(records: Sequence[RunRecord]) -> list[str]:
    """Return a line for each remedy that a session measured beside the same noise without it.

    Pinning and isolation are compared with the same load, schedulers with native; see `won_back`.
    """
    cells = []
    for record in records:
        if record.noise is not None:
            noise, mode = record.noise.noise, record.cell.scheduler
            cell = quiet_cell(record.cell, noise).model_copy(update={"scheduler": _NATIVE})
            cells.append((cell.id, ((mode, noise), record)))
    lines = []
    for measured in map(grouped, grouped(cells).values()):
        for (mode, noise), remedied in measured.items():
            pairs = []
            if noise in _REMEDIES:
                pairs.append((mode, _LOAD, _pinning(remedied)))
            if mode != _NATIVE and noise != NONE:
                pairs.append((_NATIVE, noise, f"{mode} in place of {_NATIVE}"))
            for other, load, remedy in pairs:
                quiet, without = measured.get((other, NONE)), measured.get((other, load))
                if quiet and without:
                    sides = {"quiet": quiet, "without": without, "with": remedied}
                    cell_id = quiet[0].cell_id
                    lines.append(f"{cell_id} under {load}, {remedy}: {_won_words(sides)}")
    return lines


def _won_words(sides: Mapping[str, Sequence[RunRecord]]) -> str:
    unit = next((r.metrics.throughput[0].unit for r in sides["quiet"] if throughput(r)), "work")
    tail_name, tail_of = tail_figure(sides)
    parts = []
    for name, figure, worse in ((unit, throughput, False), (tail_name, tail_of, True)):
        lost, won = won_back(*by_run(sides, figure).values(), higher_is_worse=worse)
        if not won.n:
            return "no run of all three in which all went well and it was felt"
        of = f"{_shown(lost)} {'longer' if worse else 'lost'} {name}"
        if won.value is None:
            parts.append(f"{name} refused: {won.refused}")
        elif won.low <= 0 <= won.high:
            parts.append(f"undecided: {_shown(won)} of {of} won back, {won.refused}")
        elif won > 0:
            parts.append(f"won back {_shown(won)} of {of}")
        else:
            parts.append(f"cost {percent(-won.value, (-won.high, -won.low))} on top of {of}")
    return "; ".join(parts)


def _pinning(records: Sequence[RunRecord]) -> str:
    """Return what was done, as read back from the kernel."""
    done = [r.noise.remedy for r in records if r.noise is not None and r.noise.remedy is not None]
    if not done:
        return "pinning and priority"
    cores, free = (",".join(map(str, each)) for each in (done[-1].cores, done[-1].kept_free))
    kept = f" with neighbours kept off {free}" if free else ""
    return f"pinning to {cores} and nice {done[-1].nice}{kept}"


def quiet_cell(cell: Cell, noise: str) -> Cell:
    """Return a cell without its noise."""
    variant = cell.variant.removesuffix(noise_id(noise)).rstrip("-")
    return cell.model_copy(update={"variant": variant})


def _shown(loss: Estimate) -> str:
    return str(printed(loss, percent))


def _delay(records: Sequence[RunRecord]) -> str:
    """Return the share of time in which the process could have run but did not."""
    rounds = [record.noise for record in records if record.noise is not None]
    known = [r for r in rounds if r.measured_run_delay_s is not None and r.duration_s > 0]
    if not known:
        return "—"
    delay_s = sum(r.measured_run_delay_s or 0.0 for r in known)
    return str(percent(delay_s / sum(r.duration_s for r in known)))
