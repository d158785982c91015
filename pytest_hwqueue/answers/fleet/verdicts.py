"""What each GPU of a fleet is called, and why; suspicious ones are measured again before that."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, TypeVar

import numpy as np
from numpy.typing import NDArray

from pytest_hwqueue.answers.fleet.outliers import (
    LEAST,
    LEAST_EFFECT,
    LEAST_REPEATS,
    RATE,
    Deviations,
    Floats,
    compare,
    distances,
    scores,
    spreads,
    unsteady,
)
from pytest_hwqueue.data.metrics.numbers import counted
from pytest_hwqueue.data.records.fingerprint import Value

Verdict = Literal["ok", "slow", "unstable", "different", "faulty", "unreachable", "not judged"]
NAMED: tuple[Verdict, ...] = ("unreachable", "faulty", "different", "unstable", "slow")
"""Verdicts that name a GPU, the most severe first."""
ALL_FIGURES = "all figures"
"""The mean of a GPU's deviations: a GPU slow in everything stands out of it most."""


@dataclass(frozen=True)
class GpuIdentity:
    """Which GPU of a fleet it is.

    Attributes:
        node: name of its machine.
        device: its name there.
        model: such as NVIDIA H200; empty if not known.
        uuid: its own, whatever it is called; empty if not known, as of a simulated one.
        pci: its address on its machine's bus; empty if not known.

    """

    node: str
    device: str
    model: str = ""
    uuid: str = ""
    pci: str = ""

    @property
    def called(self) -> str:
        """Its name with what tells it from every other GPU, as far as known.

        A name such as ``cuda:3`` follows the order in which a process sees the GPUs.
        """
        known = ", ".join(filter(None, (self.uuid, self.pci)))
        return f"{self.device} ({known})" if known else self.device


@dataclass(frozen=True, kw_only=True)
class Gpu(GpuIdentity):
    """What was measured on one GPU.

    Attributes:
        conditions: driver, clocks and settings, by field of the fingerprint.
        log_times: by figure, logarithms of times, in the order measured.
        faults: what its driver reports, in words.
        unreachable: why nothing was measured; empty if something was.
        day: when it was measured, as 2026-11-28.

    """

    conditions: dict[str, Value] = field(default_factory=dict)
    log_times: dict[str, tuple[float, ...]] = field(default_factory=dict)
    faults: tuple[str, ...] = ()
    unreachable: str = ""
    day: str = ""


@dataclass(frozen=True, kw_only=True)
class GpuVerdict(GpuIdentity):
    """The verdict on one GPU, with its reasons.

    ``deviations`` are relative to the median GPU of its model, by figure; 0.05 is 5 % slower.
    ``slow`` and ``slow_node`` are what it is called slow for, by figure: how much slower it is than
    the others of its node, and how much slower its node is than other nodes.
    """

    verdict: Verdict
    reasons: tuple[str, ...] = ()
    deviations: dict[str, float] = field(default_factory=dict)
    slow: dict[str, float] = field(default_factory=dict)
    slow_node: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class FleetVerdict:
    """All GPUs, those named first.

    ``smallest`` is the least deviation of a GPU from the others of its node that the fleet could
    have shown, by model and figure, and ``smallest_of_nodes`` that of a node from others;
    ``reference``, how many GPUs measured before they were compared with.
    """

    gpus: tuple[GpuVerdict, ...]
    smallest: dict[str, dict[str, float]]
    smallest_of_nodes: dict[str, dict[str, float]]
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
    found = [_named(gpu, "unreachable", (gpu.unreachable,)) for gpu in gpus if gpu.unreachable]
    smallest: dict[str, dict[str, float]] = {}
    of_nodes: dict[str, dict[str, float]] = {}
    reached = [gpu for gpu in gpus if not gpu.unreachable]
    for model in sorted({gpu.model for gpu in reached}):
        of_model = [gpu for gpu in reached if gpu.model == model]
        usual = _most([repr(gpu.conditions) for gpu in of_model], "")
        known = [
            each for each in reference if (each.model, repr(each.conditions)) == (model, usual)
        ]
        verdicts, judged = _judge_model([*of_model, *known])
        of_reference = zip(known, verdicts[len(of_model) :], strict=True)
        before = {(gpu.node, gpu.device): (gpu.day, each) for gpu, each in of_reference}
        found += [_since(each, before) for each in verdicts[: len(of_model)]]
        compared += len(known)
        smallest[model] = {name: each.gpu.smallest for name, each in judged.items() if each.gpu}
        of_nodes[model] = {name: each.node.smallest for name, each in judged.items() if each.node}
    found.sort(key=_severity)
    return FleetVerdict(tuple(found), smallest, of_nodes, compared)


def _since(gpu: GpuVerdict, before: Mapping[tuple[str, str], tuple[str, GpuVerdict]]) -> GpuVerdict:
    """Add to a slow GPU's reasons what it was in the reference, if it is there."""
    day, earlier = before.get((gpu.node, gpu.device), ("", gpu))
    named = {**gpu.slow, **gpu.slow_node}
    if earlier is gpu or not (named and earlier.deviations):
        return gpu
    then = ", ".join(f"{name} {100 * earlier.deviations[name]:+.1f} %" for name in named)
    return replace(gpu, reasons=(*gpu.reasons, f"{day}, beside the median GPU: {then}"))


# Unsuspicious GPUs of each node, and of others, that are measured again beside the suspicious ones.
_PARTNERS = 8
# Of what it was at first: what a deviation must be again.
_STANDS = 0.5
# Times the largest spread of the others' own runs: what that of an unstable one must exceed again.
_UNSTEADY = 2


def to_measure_again(found: FleetVerdict) -> set[tuple[str, str]]:
    """Return node and name of suspicious GPUs, and of some of their nodes and of other nodes."""
    wanted: set[tuple[str, str]] = set()
    for model in {gpu.model for gpu in found.gpus if gpu.verdict in _SUSPICIOUS}:
        of_model = [gpu for gpu in found.gpus if gpu.model == model]
        bad = [gpu for gpu in of_model if gpu.verdict in _SUSPICIOUS]
        good = [gpu for gpu in of_model if gpu.verdict == "ok"]
        nodes = {gpu.node for gpu in bad}
        elsewhere = [gpu for gpu in good if gpu.node not in nodes]
        beside = [[gpu for gpu in good if gpu.node == node] for node in nodes]
        partners = [gpu for group in (elsewhere, *beside) for gpu in group[:_PARTNERS]]
        wanted |= {(gpu.node, gpu.device) for gpu in (*bad, *partners)}
    return wanted


def confirmed(found: FleetVerdict, again: Sequence[Gpu]) -> FleetVerdict:
    """Judge suspicious GPUs by what they did when they were measured again, too.

    One stays slow if its deviation from the others measured again, or its node's from those of
    other nodes, is at least half of the first in one of its figures, and worth naming; unstable, if
    its own runs spread more than twice as much as those of each other one. That only takes names
    back: the rate of false ones holds.
    """
    measured = {(gpu.node, gpu.device): gpu for gpu in again if gpu.log_times}
    judged = []
    for gpu in found.gpus:
        own = measured.get((gpu.node, gpu.device)) if gpu.verdict in _SUSPICIOUS else None
        others = [] if own is None else [
            other
            for each in found.gpus
            if each.verdict == "ok" and each.model == gpu.model
            and (other := measured.get((each.node, each.device)))
        ]  # fmt: skip
        if own is None or not others:
            judged.append(gpu)
            continue
        if gpu.verdict == "slow":
            node = [each for each in measured.values() if each.node == gpu.node]
            beside = [each for each in others if each.node == gpu.node] or others
            elsewhere = [each for each in others if each.node != gpu.node]
            stands = _is_slow_again([own], beside, gpu.slow) or (
                _is_slow_again(node, elsewhere, gpu.slow_node)
            )
        else:
            least = max(_UNSTEADY * max(map(_spread, others)), math.log1p(LEAST_EFFECT))
            stands = _spread(own) > least
        if stands:
            judged.append(replace(gpu, reasons=(*gpu.reasons, "measured again: likewise")))
        else:
            reasons = (f"{gpu.verdict} at first, and not when measured again", *gpu.reasons)
            judged.append(replace(gpu, verdict="ok", reasons=reasons))
    return replace(found, gpus=tuple(sorted(judged, key=_severity)))


def _is_slow_again(
    gpus: Sequence[Gpu], others: Sequence[Gpu], deviations: Mapping[str, float]
) -> bool:
    """Return whether GPUs are half as slow as at first in a figure; what has no other, is."""
    least = math.log1p(LEAST_EFFECT)
    for name, deviation in deviations.items():
        by = _log_median(gpus, name) - _log_median(others, name)
        if math.isnan(by) or by >= max(_STANDS * math.log1p(deviation), least):
            return True
    return False


def _log_median(gpus: Sequence[Gpu], figure: str) -> float:
    """Return the median of the GPUs' medians in a figure; not a number if none has it."""
    medians = []
    for gpu in gpus:
        if figure == ALL_FIGURES:
            medians.append(np.mean([np.median(each) for each in gpu.log_times.values()]))
        elif figure in gpu.log_times:
            medians.append(np.median(gpu.log_times[figure]))
    return float(np.median(medians)) if medians else math.nan


def _spread(gpu: Gpu) -> float:
    return max(float(spreads(np.array([each]))[0]) for each in gpu.log_times.values())


T = TypeVar("T", bound=Hashable)


@dataclass(frozen=True)
class _Judged:
    """All GPUs of a model in one figure; arrays have shape (GPUs,).

    Attributes:
        deviation: relative to the median GPU.
        gpu: each compared with the others of its node.
        node: its node compared with others.
        spread: of a GPU's own repeats, relative, as `spreads` has it.
        unstable: whether a GPU is named for it.

    """

    deviation: Floats
    gpu: Deviations | None
    node: Deviations | None
    spread: Floats
    unstable: NDArray[np.bool_]


def _judge_model(gpus: Sequence[Gpu]) -> tuple[list[GpuVerdict], dict[str, _Judged]]:
    # Only those measured as most are compared, in what all of these have: one that was interrupted
    # and measured again has more repeats.
    measured = [frozenset(gpu.log_times) for gpu in gpus if gpu.log_times]
    figures = sorted(_most(measured, frozenset[str]()))

    def repeats_of(gpu: Gpu) -> int:
        return min((len(gpu.log_times.get(name, ())) for name in figures), default=0)

    repeats = _most([each for gpu in gpus if (each := repeats_of(gpu))], 0)
    whole = [gpu for gpu in gpus if repeats and repeats_of(gpu) >= repeats]
    short = ""
    if len(whole) < LEAST:
        alike = counted(len(whole), "comparable GPU")
        short = f"{alike} of this model: at least {LEAST} are needed"
    elif repeats < LEAST_REPEATS:
        short = f"{repeats} repeats: at least {LEAST_REPEATS} are needed"
    judged = {} if short else _judge_figures(whole, figures, repeats)
    usual = _usual_conditions(gpus)
    beside = " beside the others of its node" if len({gpu.node for gpu in whole}) > 1 else ""
    verdicts = []
    for gpu in gpus:
        unlike = _unlike(gpu, usual)
        if short or gpu not in whole:
            reason = short or "figures or repeats are missing"
            verdicts.append(_without_figures(gpu, unlike, reason))
        else:
            verdicts.append(_verdict(gpu, unlike, whole.index(gpu), judged, beside))
    return verdicts, judged


def _most(values: Sequence[T], otherwise: T) -> T:
    """Return the most frequent value, the first of several."""
    return Counter(values).most_common(1)[0][0] if values else otherwise


def _judge_figures(gpus: Sequence[Gpu], figures: Sequence[str], repeats: int) -> dict[str, _Judged]:
    tables = {name: np.array([gpu.log_times[name][:repeats] for gpu in gpus]) for name in figures}
    far = {name: distances(times) for name, times in tables.items()}
    spread = {name: spreads(times) for name, times in tables.items()}
    if len(tables) > 1:
        tables[ALL_FIGURES] = np.mean(list(tables.values()), axis=0)
        # A bad moment is one for all figures: a repeat counts once, with all of them.
        far[ALL_FIGURES] = np.mean([scores(each) for each in far.values()], axis=0)
        spread[ALL_FIGURES] = np.mean(list(spread.values()), axis=0)
    nodes = sorted({gpu.node for gpu in gpus})
    groups = [nodes.index(gpu.node) for gpu in gpus]
    # A GPU, a node, and a GPU's own repeats are each asked after.
    alpha = RATE / (3 * len(tables))
    judged = {}
    for name, times in tables.items():
        medians = np.median(times, axis=1)
        of_gpus = compare(times, groups, alpha)
        # One that is slow by itself does not make its node slow.
        usual = ~of_gpus.slow if of_gpus else np.full(len(gpus), True)
        medians_of_nodes = np.array(
            [np.median(times[np.equal(groups, at) & usual], axis=0) for at in range(len(nodes))]
        )
        of_nodes = compare(medians_of_nodes, [0] * len(nodes), alpha)
        judged[name] = _Judged(
            deviation=np.expm1(medians - np.median(medians)),
            gpu=of_gpus,
            node=of_nodes
            and replace(of_nodes, deviation=of_nodes.deviation[groups], slow=of_nodes.slow[groups]),
            spread=spread[name],
            unstable=(spread[name] > LEAST_EFFECT) & unsteady(far[name], alpha),
        )
    return judged


def _sure(gpu: Gpu, unlike: Sequence[str], otherwise: Verdict) -> Verdict:
    """Return the verdict that needs no figures, if there is one."""
    return "faulty" if gpu.faults else "different" if unlike else otherwise


def _without_figures(gpu: Gpu, unlike: Sequence[str], reason: str) -> GpuVerdict:
    verdict = _sure(gpu, unlike, "not judged")
    return _named(gpu, verdict, (*gpu.faults, *unlike, reason))


def _named(gpu: Gpu, verdict: Verdict, reasons: tuple[str, ...]) -> GpuVerdict:
    return GpuVerdict(
        gpu.node, gpu.device, gpu.model, gpu.uuid, gpu.pci, verdict=verdict, reasons=reasons
    )


def _verdict(
    gpu: Gpu, unlike: Sequence[str], at: int, judged: Mapping[str, _Judged], beside: str
) -> GpuVerdict:
    slow = _slow({name: each.gpu for name, each in judged.items()}, at)
    slow_node = _slow({name: each.node for name, each in judged.items()}, at)
    unsteady = [
        f"{name}: own runs spread {100 * each.spread[at]:.1f} %, "
        f"usual {100 * float(np.median(each.spread)):.1f} %"
        for name, each in judged.items()
        if each.unstable[at]
    ]
    any_figure = next(iter(judged.values()))
    compared = any_figure.node is not None or (
        any_figure.gpu is not None and bool(np.isfinite(any_figure.gpu.deviation[at]))
    )
    if not (compared or unsteady):
        reason = (
            f"compared are GPUs of one node, and nodes: at least {LEAST} GPUs with another on "
            f"their node, or {LEAST} nodes, are needed"
        )
        return _without_figures(gpu, unlike, reason)
    reasons = (
        *gpu.faults, *unlike, *unsteady,
        *(f"{name}: {100 * by:+.1f} % time{beside}" for name, by in slow.items()),
        *(f"{name}: {100 * by:+.1f} % time of its node beside other nodes"
          for name, by in slow_node.items()),
    )  # fmt: skip
    by_figures: Verdict = "unstable" if unsteady else "slow" if slow or slow_node else "ok"
    deviations = {name: float(each.deviation[at]) for name, each in judged.items()}
    found = _named(gpu, _sure(gpu, unlike, by_figures), reasons)
    return replace(found, deviations=deviations, slow=slow, slow_node=slow_node)


def _slow(figures: Mapping[str, Deviations | None], at: int) -> dict[str, float]:
    """Return the figures that a GPU is named for, and by how much it deviates in them."""
    return {
        name: float(each.deviation[at]) for name, each in figures.items() if each and each.slow[at]
    }


def _usual_conditions(gpus: Sequence[Gpu]) -> dict[str, str]:
    """Return the conditions in which more than half of the GPUs agree, as they are written out."""
    usual = {}
    for name in sorted({name for each in gpus for name in each.conditions}):
        (value, count), *_ = Counter(repr(each.conditions.get(name)) for each in gpus).most_common()
        if 2 * count > len(gpus):
            usual[name] = value
    return usual


def _unlike(gpu: Gpu, usual: Mapping[str, str]) -> list[str]:
    """Return the conditions in which a GPU differs from most of its model."""
    return [
        f"{name} is {own}, usually {value}"
        for name, value in usual.items()
        if (own := repr(gpu.conditions.get(name))) != value
    ]
