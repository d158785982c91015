"""What noise cost each cell, and what pinning, priority or a scheduler won back of it.

By rounds against their quiet turns, with intervals.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeVar

from pytest_hwqueue.gate.statistics import MeanDifference, compare_pairs
from pytest_hwqueue.gate.verdict import GateSettings
from pytest_hwqueue.metrics.estimate import untold
from pytest_hwqueue.metrics.latency import CONFIDENCE, shortfall
from pytest_hwqueue.metrics.numbers import percent
from pytest_hwqueue.noise.names import NONE, noise_id
from pytest_hwqueue.records.cell import Cell, RunRecord
from pytest_hwqueue.tenancy import TENANTS

RecordFigure = Callable[[RunRecord], float | None]
Key = TypeVar("Key", bound=Hashable)
# What runs beside the measured process under each of the remedies too.
_LOAD, _REMEDIES = "cpu", ("optimised", "isolated")
_NATIVE = "native"
_LEAST_PAIRS = 2


@dataclass(frozen=True)
class Loss:
    """What a noise cost, as a share of the quiet figure: 0.088 is 8.8 %; below 0 is a gain.

    Also what a remedy won back; below 0 is what it cost.

    Attributes:
        noise: its name.
        value: None if refused.
        interval: two-sided, of this noise alone; None if refused.
        pairs: number of rounds with a figure for both the noise and the quiet turn.
        left_out: number of rounds that lack one.
        confidence: of the interval.
        refused: why ``value`` or ``interval`` is None, or the ``sign`` of what was won is unknown.

    """

    noise: str
    value: float | None
    interval: tuple[float, float] | None
    pairs: int
    left_out: int
    confidence: float
    refused: dict[str, str] = field(default_factory=dict)

    @property
    def undecided(self) -> bool:
        """Whether the sign is unknown."""
        return self.interval is None or self.interval[0] <= 0 <= self.interval[1]


def noise_lines(records: Sequence[RunRecord]) -> list[str]:
    """Return a line per cell and noise, then `remedy_lines`; none if no noise was requested.

    Each says what share of the work was lost, and how much longer the slowest requests took, as
    means over the runs of a session with a 95 % interval of the paired runs.
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
    return lines + remedy_lines(records)


def remedy_lines(records: Sequence[RunRecord]) -> list[str]:
    """Return a line for each remedy that a session measured beside the same noise without it.

    Pinning and isolation are compared with the same load, schedulers with native; see `won_back`.
    """
    cells: dict[str, dict[tuple[str, str], list[RunRecord]]] = {}
    for record in records:
        if record.noise is not None:
            noise, mode = record.noise.noise, record.cell.scheduler
            cell = quiet_cell(record.cell, noise).model_copy(update={"scheduler": _NATIVE})
            cells.setdefault(cell.id, {}).setdefault((mode, noise), []).append(record)
    lines = []
    for measured in cells.values():
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
        if not won.pairs:
            return "no run of all three in which all went well and it was felt"
        of = f"{_shown(lost)} {'longer' if worse else 'lost'} {name}"
        reason = next(iter(won.refused.values()), "")
        if won.value is None:
            parts.append(f"{name} refused: {reason}")
        elif won.undecided:
            parts.append(f"undecided: {_shown(won)} of {of} won back, {reason}")
        elif won.value > 0:
            parts.append(f"won back {_shown(won)} of {of}")
        else:
            assert won.interval is not None
            cost = percent(-won.value, (-won.interval[1], -won.interval[0]))
            parts.append(f"cost {cost} on top of {of}")
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
        return None if record.metrics.latency is None else record.metrics.latency.p99.value

    def p50(record: RunRecord) -> float | None:
        return None if record.metrics.latency is None else record.metrics.latency.p50.value

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


def paired_losses(
    figures: Mapping[str, Sequence[float | None]],
    *,
    higher_is_worse: bool,
    confidence: float = CONFIDENCE,
) -> dict[str, Loss]:
    """Return what each noise cost.

    The value comes from the mean of the pairs' differences of logarithms, so it is the loss of the
    geometric mean of their ratios; the interval is the paired t's. For a rate the loss is (quiet -
    noisy) / quiet, for a latency (noisy - quiet) / quiet.

    Args:
        figures: by noise, each round's figure (a rate or a latency, above 0); None where the
            noise was not applied or the round failed. ``none`` must be among them.
        higher_is_worse: True for latencies, False for rates.
        confidence: of each interval, between 0 and 1.

    Raises:
        ValueError: if ``none`` is missing, the numbers of rounds differ, or a figure is not finite
            and above 0.

    """
    if NONE not in figures:
        raise ValueError(f"there are no figures of {NONE!r} to compare with")
    for noise, of_rounds in figures.items():
        if len(of_rounds) != len(figures[NONE]):
            raise ValueError(f"{noise} has {len(of_rounds)} rounds, {NONE} {len(figures[NONE])}")
        bad = [each for each in of_rounds if each is not None and not 0 < each < math.inf]
        if bad:
            raise ValueError(f"a figure of {noise} is not finite and above 0: {bad[0]}")
    return {
        noise: _loss(noise, figures[NONE], of_rounds, higher_is_worse, confidence)
        for noise, of_rounds in figures.items()
        if noise != NONE
    }


def won_back(
    quiet: Sequence[float | None],
    without: Sequence[float | None],
    with_remedy: Sequence[float | None],
    *,
    higher_is_worse: bool,
    confidence: float = CONFIDENCE,
) -> tuple[Loss, Loss]:
    """Return what a noise cost without a remedy, and what the remedy won back of it.

    Of each round's figure without the noise, under it, and under it with the remedy, as in
    `paired_losses`; only rounds that have all three count. For a rate (with - without) / quiet is
    won back, for a latency (without - with) / quiet, of the rounds' geometric means. The interval
    is the paired t's, with the error of the difference of both ratios by the delta method (Casella
    and Berger, Statistical Inference, 2nd ed., 5.5.4), exact for small differences. It is wider by
    the spread of the quiet figures on both sides: a difference within that is no finding.
    """
    rounds = [
        (base, noisy, remedied)
        for base, noisy, remedied in zip(quiet, without, with_remedy, strict=True)
        if base is not None and noisy is not None and remedied is not None
    ]
    bases, noisy, remedied = ([each[side] for each in rounds] for side in range(3))
    lost = paired_losses(
        {NONE: bases, "noise": noisy, "remedy": remedied},
        higher_is_worse=higher_is_worse, confidence=confidence,
    )["noise"]  # fmt: skip
    lost = replace(lost, left_out=len(quiet) - len(rounds))
    if not rounds:
        return lost, lost
    logs = [
        [math.log(figure / base) for figure, base in zip(side, bases, strict=True)]
        for side in (noisy, remedied)
    ]
    before, after = (math.exp(math.fsum(side) / len(side)) for side in logs)
    value = before - after if higher_is_worse else after - before
    if len(rounds) < _LEAST_PAIRS:
        return lost, replace(lost, value=value)
    # The derivative of a mean's exponential is that exponential.
    scaled = [before * each for each in logs[0]], [after * each for each in logs[1]]
    floor = GateSettings().floor * max(before, after)
    low, high = compare_pairs(*scaled, floor).interval(0.0, confidence)
    half = (high - low) / 2
    if (reason := untold(value, (value - half, value + half))) is not None:
        return lost, replace(lost, value=None, interval=None, refused={"value": reason})
    spread = max(bases) / min(bases) - 1
    won = replace(
        lost, value=value, interval=(value - half - spread, value + half + spread), refused={}
    )
    if won.undecided:
        alone = abs(value) > half
        sign = f"quiet runs alone differ by {percent(spread)}" if alone else "its interval spans 0"
        won.refused["sign"] = sign
    return lost, won


def _loss(
    noise: str,
    quiet: Sequence[float | None],
    noisy: Sequence[float | None],
    higher_is_worse: bool,
    confidence: float,
) -> Loss:
    pairs = [
        (math.log(before), math.log(after))
        for before, after in zip(quiet, noisy, strict=True)
        if before is not None and after is not None
    ]
    value = interval = None
    refused = {}
    if not pairs:
        refused["value"] = refused["interval"] = shortfall(1, 0, "rounds")
    else:
        mean = math.fsum(after - before for before, after in pairs) / len(pairs)
        value = _share(mean, higher_is_worse)
        if len(pairs) < _LEAST_PAIRS:
            refused["interval"] = shortfall(_LEAST_PAIRS, len(pairs), "rounds")
        else:
            before, after = zip(*pairs, strict=True)
            difference = compare_pairs(before, after, GateSettings().floor)
            interval = _interval(difference, higher_is_worse, confidence)
            if interval is None:
                refused["interval"] = "rounds differ too much for any bound to be a number"
        reason = untold(value, interval or (-math.inf, math.inf)) if len(pairs) > 1 else None
        if reason is not None:
            value = interval = None
            refused = {"value": reason}
    return Loss(
        noise=noise, value=value, interval=interval, pairs=len(pairs),
        left_out=len(quiet) - len(pairs), confidence=confidence, refused=refused,
    )  # fmt: skip


def _interval(
    difference: MeanDifference, higher_is_worse: bool, confidence: float
) -> tuple[float, float] | None:
    try:
        low, high = (
            _share(bound, higher_is_worse) for bound in difference.interval(0.0, confidence)
        )
    except OverflowError:
        return None
    return min(low, high), max(low, high)


def _share(log_ratio: float, higher_is_worse: bool) -> float:
    return math.expm1(log_ratio) if higher_is_worse else -math.expm1(log_ratio)
