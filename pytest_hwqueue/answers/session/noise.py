"""Lines on what noise cost each cell, and what pinning, priority or a scheduler won back of it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from pytest_hwqueue.data.document.notes import by_kind
from pytest_hwqueue.data.metrics.estimate import Estimate
from pytest_hwqueue.data.metrics.numbers import counted, figure, grouped, percent, printed
from pytest_hwqueue.data.noise_names import NONE, noise_id
from pytest_hwqueue.data.records.cell import Cell, RunRecord
from pytest_hwqueue.engine.tenants import TENANTS
from pytest_hwqueue.judge.losses import (
    RecordFigure,
    by_run,
    core_speed,
    device_interrupts,
    higher_in_every_run,
    paired_losses,
    tail_figure,
    throughput,
    waiting_share,
    won_back,
)

# What runs beside the measured process under each of the remedies too.
_LOAD = "cpu"
_REMEDIES = {
    "optimised": "pinning and a raised priority",
    "isolated": "neighbours kept off its cores",
}
_NATIVE = "native"


def noise_lines(records: Sequence[RunRecord]) -> list[str]:
    """Return a line per cell and noise, `remedy_lines`, then the remedies for what was lost.

    There is none if no noise was requested. Each of the first says what share of the work was lost,
    and how much longer the slowest requests took, as means over the runs of a session with a 95 %
    interval of the paired runs.
    """
    cells = grouped(
        (quiet_cell(record.cell, record.noise.noise).id, (record.noise.noise, record))
        for record in records
        if record.noise is not None
    )
    lines = []
    advice: list[tuple[str, str]] = []
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
            whose = next(filter(None, map(_several, by_noise[noise])), "")
            parts.append(
                f"all {whose} together waited for a core for {share} of the time"
                if whose
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
            if noise not in _REMEDIES and max(rate[noise].low, tail[noise].low) > 0:
                advice += [(each, cell) for each in _remedies(by_noise, noise, core[noise])]
    return [*lines, *remedy_lines(records), *_advice_lines(advice)]


def _remedies(
    by_noise: Mapping[str, Sequence[RunRecord]], noise: str, slower_core: Estimate
) -> list[str]:
    """Return what rose in every run beside a loss, each with its remedies."""
    found = []
    waited = _rise(by_noise, noise, waiting_share)
    if waited is not None:
        before, after = map(percent, waited)
        beside = "" if noise == _LOAD else f" beside {_LOAD}"
        tried = [
            f"{remedy} (measured{beside} above)"
            if name in by_noise
            else f"{remedy} (noise {name} measures it{beside})"
            for name, remedy in _REMEDIES.items()
        ]
        found.append(
            f"waiting for a core took {after} of the time, {before} in the quiet: "
            f"{', '.join(tried)}; not measured here: a cpuset or a greater cpu.weight for its "
            "cgroup, isolcpus= and nohz_full= for its cores at boot"
        )
    interrupts = _rise(by_noise, noise, device_interrupts)
    if interrupts is not None:
        before, after = map(figure, interrupts)
        found.append(
            f"the machine's devices raised {after} interrupts a second, {before} in the quiet; not "
            "measured here: IRQ affinity away from its cores (/proc/irq/N/smp_affinity_list)"
        )
    if slower_core.value is not None and slower_core.low > 0:
        found.append(
            "its core did less in the same CPU time, which pinning does not win back; not measured "
            "here: cores whose hyperthreads stay empty, or a machine of its own"
        )
    return [f"under {noise}: {each}" for each in found]


def _several(record: RunRecord) -> str:
    """Return whose processes a record's noise was felt by, where they are several."""
    if record.family == TENANTS:
        return "tenants"
    return "" if record.ranks is None else "ranks"


def _advice_lines(advice: Iterable[tuple[str, str]]) -> list[str]:
    """Return a line for each remedy; cells that differ in numbers alone share it."""
    return [
        f"remedies for {cells[0]} {text}"
        if len(cells) == 1
        else f"remedies for {counted(len(cells), 'cell')}, as for {cells[0]} {text}"
        for text, cells in by_kind(advice).values()
    ]


def _rise(
    by_noise: Mapping[str, Sequence[RunRecord]], noise: str, shown: RecordFigure
) -> tuple[float, float] | None:
    runs = by_run({name: by_noise[name] for name in (NONE, noise)}, shown)
    return higher_in_every_run(runs[NONE], runs[noise])


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
    for name, of_record, worse in ((unit, throughput, False), (tail_name, tail_of, True)):
        lost, won = won_back(*by_run(sides, of_record).values(), higher_is_worse=worse)
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
