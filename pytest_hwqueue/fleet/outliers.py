"""GPUs of a fleet that differ from the others.

Figures are logarithms of times, so that a deviation is a relative one. A GPU's repeats are split:
the first, third, … raise suspicion, the others confirm it; both must pass the same threshold. What
is compared are the halves' medians, against the median of all GPUs, in units of the fleet's own
spread: the root mean square of the three quarters of GPUs nearest to it. So up to a quarter of the
fleet can be bad and hide nothing. The spread of a GPU's own repeats is compared likewise.

The threshold is the quantile of the largest of these in healthy fleets of the same size, simulated
as normal with a fixed seed; it holds for small fleets too, where the spread itself is uncertain.
Bonferroni's correction divides the rate among figures and both questions.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Literal

from pytest_hwqueue.baselines.runs import ENVIRONMENT_FIELDS
from pytest_hwqueue.devices.fingerprint import Value
from pytest_hwqueue.metrics.numbers import counted

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]

LEAST_GPUS = 5
"""With fewer of a model nothing is judged."""
LEAST_REPEATS = 4
"""Two in each half."""
RATE = 0.01
"""Most healthy fleets in which a GPU is named."""
LEAST_EFFECT = 0.02
"""Smallest relative deviation, and smallest relative spread, that is worth naming."""

# GPUs of one model are not believed to agree better, whatever a few of them do.
_LEAST_SPREAD = 0.001
_FLEETS, _BATCH, _SEED = 20_000, 500, 20_260
_NEAREST = 0.75


@dataclass(frozen=True)
class Judged:
    """All GPUs of a model in one figure; arrays have shape (GPUs,).

    Attributes:
        deviation: relative to the median GPU, from all repeats; 0.05 is 5 % slower.
        slow: whether a GPU is named for it.
        spread: relative standard deviation of a GPU's own repeats.
        unstable: whether a GPU is named for it.
        smallest: least relative deviation that this fleet could have shown.

    """

    deviation: Floats
    slow: NDArray[np.bool_]
    spread: Floats
    unstable: NDArray[np.bool_]
    smallest: float


def judge(log_times: Floats, figures: int) -> Judged:
    """Judge one figure.

    Args:
        log_times: shape (GPUs, repeats), natural logarithms of times, repeats in their order.
        figures: how many are judged of this fleet; they share the rate of false names.

    Raises:
        ValueError: if there are fewer than `LEAST_GPUS` or `LEAST_REPEATS`, or a time is not
            finite.

    """
    import numpy as np

    gpus, repeats = log_times.shape
    if gpus < LEAST_GPUS or repeats < LEAST_REPEATS:
        raise ValueError(
            f"{gpus} GPUs with {repeats} repeats cannot be judged: at least {LEAST_GPUS} with "
            f"{LEAST_REPEATS} can"
        )
    if not np.isfinite(log_times).all():
        raise ValueError("a time is not positive and finite")
    alpha = RATE / (2 * figures)
    halves = log_times[:, 0::2], log_times[:, 1::2]
    least = math.log1p(LEAST_EFFECT)
    limits = [_location_limit(half, alpha) for half in halves]
    slow = np.logical_and.reduce(
        [_deviations(half) > max(limit, least) for half, limit in zip(halves, limits, strict=True)]
    )
    unstable = np.logical_and.reduce([_unsteady(half, alpha) for half in halves])
    return Judged(
        deviation=np.expm1(_deviations(log_times)),
        slow=slow,
        spread=log_times.std(axis=1, ddof=1),
        unstable=unstable,
        smallest=math.expm1(max(*limits, least)),
    )


def _deviations(log_times: Floats) -> Floats:
    import numpy as np

    medians: Floats = np.median(log_times, axis=1)
    return medians - float(np.median(medians))


def _location_limit(log_times: Floats, alpha: float) -> float:
    """Return the least deviation beyond chance, in logarithms."""
    deviations = _deviations(log_times)
    spread = float(_robust_spread(deviations[None, :])[0])
    return location_threshold(len(deviations), alpha) * max(spread, _LEAST_SPREAD)


def _unsteady(log_times: Floats, alpha: float) -> NDArray[np.bool_]:
    import numpy as np

    spreads = log_times.std(axis=1, ddof=1)
    usual = max(float(np.median(spreads)), _LEAST_SPREAD)
    limit = spread_threshold(*log_times.shape, alpha) * usual
    return np.asarray(spreads > max(limit, LEAST_EFFECT))


def _robust_spread(deviations: Floats) -> Floats:
    """Return each row's spread: of the three quarters nearest to zero; shape (rows,)."""
    import numpy as np

    kept = math.ceil(_NEAREST * deviations.shape[1])
    nearest = np.sort(np.abs(deviations), axis=1)[:, :kept]
    return np.asarray(np.sqrt((nearest**2).mean(axis=1)))


@lru_cache(maxsize=64)
def location_threshold(gpus: int, alpha: float) -> float:
    """Return the 1 - alpha quantile of a healthy fleet's largest deviation over its spread."""
    import numpy as np

    random = np.random.default_rng(_SEED)
    largest = []
    for _ in range(_FLEETS // _BATCH):
        values = random.standard_normal((_BATCH, gpus))
        values -= np.median(values, axis=1, keepdims=True)
        largest.append(values.max(axis=1) / _robust_spread(values))
    return float(np.quantile(np.concatenate(largest), 1 - alpha))


@lru_cache(maxsize=64)
def spread_threshold(gpus: int, repeats: int, alpha: float) -> float:
    """Return the 1 - alpha quantile of a healthy fleet's largest spread over the median one."""
    import numpy as np

    random = np.random.default_rng(_SEED)
    largest = []
    for _ in range(_FLEETS // _BATCH):
        # The variance of normal repeats: chi-squared over its degrees of freedom.
        spreads = np.sqrt(random.chisquare(repeats - 1, (_BATCH, gpus)))
        largest.append(spreads.max(axis=1) / np.median(spreads, axis=1))
    return float(np.quantile(np.concatenate(largest), 1 - alpha))


Verdict = Literal["ok", "slow", "unstable", "different", "faulty", "unreachable", "not judged"]
NAMED: tuple[Verdict, ...] = ("unreachable", "faulty", "different", "unstable", "slow")
"""Verdicts that name a GPU, the most severe first."""
ALL_FIGURES = "all figures"
"""The mean of a GPU's deviations: a GPU slow in everything stands out of it most."""


@dataclass(frozen=True)
class Gpu:
    """What was measured on one GPU.

    Attributes:
        node: name of its machine.
        device: its name there.
        model: such as NVIDIA H200.
        conditions: driver, clocks and settings, by field of the fingerprint.
        log_times: by figure, logarithms of times, in the order measured.
        faults: what its driver reports, in words.
        unreachable: why nothing was measured; empty if something was.

    """

    node: str
    device: str
    model: str = ""
    conditions: dict[str, Value] = field(default_factory=dict)
    log_times: dict[str, tuple[float, ...]] = field(default_factory=dict)
    faults: tuple[str, ...] = ()
    unreachable: str = ""


@dataclass(frozen=True)
class GpuVerdict:
    """The verdict on one GPU, with its reasons.

    ``deviations`` are relative to the median GPU, by figure; 0.05 is 5 % slower. ``slow_in`` are
    the figures for which it is called slow.
    """

    node: str
    device: str
    model: str
    verdict: Verdict
    reasons: tuple[str, ...] = ()
    deviations: dict[str, float] = field(default_factory=dict)
    slow_in: tuple[str, ...] = ()


@dataclass(frozen=True)
class FleetVerdict:
    """All GPUs, those named first.

    ``smallest`` is the least deviation that the fleet could have shown, by model and figure;
    ``reference``, how many GPUs measured before they were compared with.
    """

    gpus: tuple[GpuVerdict, ...]
    smallest: dict[str, dict[str, float]]
    reference: int = 0

    @property
    def named(self) -> tuple[GpuVerdict, ...]:
        """The GPUs that need attention."""
        return tuple(gpu for gpu in self.gpus if gpu.verdict in NAMED)


_SUSPICIOUS: tuple[Verdict, ...] = ("unstable", "slow")


def _severity(gpu: GpuVerdict) -> tuple[int, str, str]:
    order: tuple[Verdict, ...] = (*NAMED, "not judged", "ok")
    return order.index(gpu.verdict), gpu.node, gpu.device


def judge_fleet(gpus: Sequence[Gpu], reference: Sequence[Gpu] = ()) -> FleetVerdict:
    """Compare the GPUs of each model with each other, and with those of a reference.

    Of the reference only GPUs count that were measured under the conditions of most of ``gpus`` of
    their model. It gets no verdicts.
    """
    compared = 0
    found: list[GpuVerdict] = []
    smallest: dict[str, dict[str, float]] = {}
    for gpu in gpus:
        if gpu.unreachable:
            verdict = GpuVerdict(gpu.node, gpu.device, gpu.model, "unreachable", (gpu.unreachable,))
            found.append(verdict)
    reached = [gpu for gpu in gpus if not gpu.unreachable]
    for model in sorted({gpu.model for gpu in reached}):
        of_model = [gpu for gpu in reached if gpu.model == model]
        usual = Counter(repr(gpu.conditions) for gpu in of_model).most_common(1)[0][0]
        known = [
            gpu for gpu in reference if gpu.model == model and repr(gpu.conditions) == usual
        ]  # fmt: skip
        judged, least = _judge_model([*of_model, *known])
        found += judged[: len(of_model)]
        compared += len(known)
        smallest[model] = least
    found.sort(key=_severity)
    return FleetVerdict(tuple(found), smallest, compared)


# Unsuspicious GPUs that are measured again beside the suspicious ones of their model.
_PARTNERS = 8
# Of what it was at first: what a deviation must be again.
_STANDS = 0.5
# Times the largest spread of the others' own runs: what that of an unstable one must exceed again.
_UNSTEADY = 2


def to_measure_again(found: FleetVerdict) -> set[tuple[str, str]]:
    """Return node and name of suspicious GPUs, and of enough others to compare them with."""
    wanted: set[tuple[str, str]] = set()
    for model in {gpu.model for gpu in found.gpus if gpu.verdict in _SUSPICIOUS}:
        of_model = [gpu for gpu in found.gpus if gpu.model == model]
        good = [gpu for gpu in of_model if gpu.verdict == "ok"][:_PARTNERS]
        bad = [gpu for gpu in of_model if gpu.verdict in _SUSPICIOUS]
        wanted |= {(gpu.node, gpu.device) for gpu in (*good, *bad)}
    return wanted


def confirmed(found: FleetVerdict, again: Sequence[Gpu]) -> FleetVerdict:
    """Judge suspicious GPUs by what they did when they were measured again, too.

    One stays slow if its deviation from the others measured again is at least half of the first in
    one of its figures, and worth naming; unstable, if its own runs spread more than twice as
    much as those of each other one. That only takes names back: the rate of false ones holds.
    """
    import numpy as np

    def log_medians(gpu: Gpu) -> dict[str, float]:
        medians = {name: float(np.median(each)) for name, each in gpu.log_times.items()}
        return {**medians, ALL_FIGURES: float(np.mean(list(medians.values())))}

    def spread(gpu: Gpu) -> float:
        return max(float(np.std(each, ddof=1)) for each in gpu.log_times.values())

    measured = {(gpu.node, gpu.device): gpu for gpu in again if gpu.log_times}
    medians = {place: log_medians(gpu) for place, gpu in measured.items()}
    judged = []
    for gpu in found.gpus:
        own = gpu.node, gpu.device
        others = [
            place
            for each in found.gpus
            if (place := (each.node, each.device)) in measured
            and each.verdict == "ok" and each.model == gpu.model
        ]  # fmt: skip
        if gpu.verdict not in _SUSPICIOUS or own not in measured or not others:
            judged.append(gpu)
            continue
        least = math.log1p(LEAST_EFFECT)
        if gpu.verdict == "slow":
            stands = any(
                medians[own][name] - float(np.median([medians[each][name] for each in others]))
                >= max(_STANDS * math.log1p(gpu.deviations[name]), least)
                for name in gpu.slow_in
            )
        else:
            theirs = max(spread(measured[each]) for each in others)
            stands = spread(measured[own]) > max(_UNSTEADY * theirs, least)
        if stands:
            judged.append(replace(gpu, reasons=(*gpu.reasons, "measured again: likewise")))
        else:
            reasons = (f"{gpu.verdict} at first, and not when measured again", *gpu.reasons)
            judged.append(replace(gpu, verdict="ok", reasons=reasons))
    return replace(found, gpus=tuple(sorted(judged, key=_severity)))


def comparable_conditions(hard: dict[str, Value], soft: dict[str, Value]) -> dict[str, Value]:
    """Return the fields of a fingerprint in which healthy GPUs of a model agree."""
    known = {
        *ENVIRONMENT_FIELDS, "driver_version", "cuda_driver_version", "pcie_link_width",
        "nvlinks_active",
    }  # fmt: skip
    return {**hard, **{name: value for name, value in soft.items() if name in known}}


def _judge_model(gpus: Sequence[Gpu]) -> tuple[list[GpuVerdict], dict[str, float]]:
    repeats = max((len(each) for gpu in gpus for each in gpu.log_times.values()), default=0)
    # Only those measured alike are compared; each figure by the repeats that all of them have.
    figures = sorted({name for gpu in gpus for name in gpu.log_times})
    whole = [
        gpu for gpu in gpus
        if all(len(gpu.log_times.get(name, ())) >= repeats for name in figures)
    ]  # fmt: skip
    odd_ones = [_unlike(gpu, gpus) for gpu in gpus]
    short = ""
    if len(whole) < LEAST_GPUS:
        alike = counted(len(whole), "comparable GPU")
        short = f"{alike} of this model: at least {LEAST_GPUS} are needed"
    elif repeats < LEAST_REPEATS:
        short = f"{repeats} repeats: at least {LEAST_REPEATS} are needed"
    judged = {} if short else _judge_figures(whole, figures, repeats)
    verdicts = []
    for gpu, unlike in zip(gpus, odd_ones, strict=True):
        reason = short or ("" if gpu in whole else "figures or repeats are missing")
        at = None if reason else whole.index(gpu)
        verdicts.append(_verdict(gpu, unlike, at, judged, reason))
    return verdicts, {name: each.smallest for name, each in judged.items()}


def _judge_figures(gpus: Sequence[Gpu], figures: Sequence[str], repeats: int) -> dict[str, Judged]:
    import numpy as np

    tables = {name: np.array([gpu.log_times[name][:repeats] for gpu in gpus]) for name in figures}
    if len(tables) > 1:
        tables[ALL_FIGURES] = np.mean(list(tables.values()), axis=0)
    return {name: judge(table, len(tables)) for name, table in tables.items()}


def _verdict(
    gpu: Gpu, unlike: Sequence[str], at: int | None, judged: dict[str, Judged], reason: str
) -> GpuVerdict:
    known: Verdict | None = "faulty" if gpu.faults else "different" if unlike else None
    if at is None:
        reasons = (*gpu.faults, *unlike, reason)
        return GpuVerdict(gpu.node, gpu.device, gpu.model, known or "not judged", reasons)
    deviations = {name: float(each.deviation[at]) for name, each in judged.items()}
    unsteady = [
        f"{name}: own runs spread {100 * each.spread[at]:.1f} %, "
        f"usual {100 * _usual_spread(each):.1f} %"
        for name, each in judged.items()
        if each.unstable[at]
    ]
    slow_in = tuple(name for name, each in judged.items() if each.slow[at])
    slow = [f"{name}: {100 * deviations[name]:+.1f} % time" for name in slow_in]
    verdict = known or ("unstable" if unsteady else "slow" if slow else "ok")
    reasons = (*gpu.faults, *unlike, *unsteady, *slow)
    return GpuVerdict(gpu.node, gpu.device, gpu.model, verdict, reasons, deviations, slow_in)


def _usual_spread(judged: Judged) -> float:
    """Return the median GPU's spread of its own repeats."""
    import numpy as np

    return float(np.median(judged.spread))


def _unlike(gpu: Gpu, gpus: Sequence[Gpu]) -> list[str]:
    """Return the conditions in which a GPU differs from most of its model."""
    found = []
    for name in sorted({name for each in gpus for name in each.conditions}):
        values = Counter(repr(each.conditions.get(name)) for each in gpus)
        usual, count = values.most_common(1)[0]
        own = repr(gpu.conditions.get(name))
        if own != usual and 2 * count > len(gpus):
            found.append(f"{name} is {own}, usually {usual}")
    return found
