"""How often `hwq fleet` names a healthy GPU, and how often it finds a bad one.

    python -m tools.fleet_rates [--fleets 200] [--bad 20] [--runs FAMILY ...] [--speeds KIND ...]

Prints a Markdown table. GPUs have seven figures of six runs each; they differ by 1 % (standard
deviation) and their runs by 0.5 %. Runs vary normally, by Student's t with three degrees of
freedom, normally but for one of 20 that is ten times as far off, or by 0.1 % but for one of 20 that
takes 2 to 20 % longer. A GPU's own speed is one for all of its figures, or another in each. In a
bad fleet one GPU is 5 % slow in everything, and the runs of another vary normally by 5 %.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from pytest_hwqueue.answers.fleet.verdicts import FleetVerdict, Gpu, judge_fleet

Logs = NDArray[np.float64]
Runs = Callable[[np.random.Generator, tuple[int, ...]], Logs]
_FIGURES, _REPEATS, _NODE, _SEED = 7, 6, 8, 60
_OF_GPUS, _OF_RUNS = 0.01, 0.005
_SLOW, _UNSTEADY = 0.05, 10.0
SHAPES = (8, 64, 512)


def _student(generator: np.random.Generator, shape: tuple[int, ...]) -> Logs:
    return np.asarray(generator.standard_t(3, shape) / math.sqrt(3))


def _contaminated(generator: np.random.Generator, shape: tuple[int, ...]) -> Logs:
    far = np.where(generator.random(shape) < 0.05, 10.0, 1.0)
    return np.asarray(far * generator.standard_normal(shape))


def _stalled(generator: np.random.Generator, shape: tuple[int, ...]) -> Logs:
    stalls = generator.uniform(0.02, 0.2, shape) / _OF_RUNS
    usual = 0.2 * generator.standard_normal(shape)
    return np.asarray(usual + np.where(generator.random(shape) < 0.05, stalls, 0.0))


RUNS: dict[str, Runs] = {
    "normal": lambda generator, shape: generator.standard_normal(shape),
    "Student's t, 3": _student,
    "1 of 20 ten times as far": _contaminated,
    "1 of 20 stalls": _stalled,
}
SPEEDS = ("its own in each figure", "one for all figures")


def fleet(
    generator: np.random.Generator, gpus: int, runs: Runs, speeds: str, *, bad: bool
) -> list[Gpu]:
    """Return a fleet; of a bad one the first GPU is slow, and the last one unsteady."""
    # Seven figures share one speed, or have seven.
    own = generator.standard_normal((gpus, 1 if speeds == SPEEDS[1] else _FIGURES))
    logs = _OF_RUNS * runs(generator, (gpus, _FIGURES, _REPEATS))
    if bad:
        logs[-1] = _UNSTEADY * _OF_RUNS * generator.standard_normal(logs.shape[1:])
    logs += _OF_GPUS * own[:, :, np.newaxis]
    if bad:
        logs[0] += math.log1p(_SLOW)
    return [
        Gpu(
            f"node{at // _NODE}", f"gpu{at % _NODE}", "model",
            log_times={f"figure {number}": tuple(each) for number, each in enumerate(table)},
        )
        for at, table in enumerate(logs.tolist())
    ]  # fmt: skip


def _verdict(found: FleetVerdict, node: str, device: str) -> str:
    return next(gpu.verdict for gpu in found.gpus if (gpu.node, gpu.device) == (node, device))


def row(runs: str, speeds: str, gpus: int, fleets: int, bad: int) -> list[str]:
    """Return the counts of one kind of fleet, as cells of a table."""
    generator = np.random.default_rng([_SEED, gpus, SPEEDS.index(speeds), *runs.encode()])
    named = {"slow": 0, "unstable": 0}
    for _ in range(fleets):
        found = judge_fleet(fleet(generator, gpus, RUNS[runs], speeds, bad=False))
        for verdict in named:
            named[verdict] += any(gpu.verdict == verdict for gpu in found.gpus)
    slow = unsteady = others = 0
    for _ in range(bad):
        found = judge_fleet(fleet(generator, gpus, RUNS[runs], speeds, bad=True))
        last = gpus - 1
        slow += _verdict(found, "node0", "gpu0") == "slow"
        unsteady += _verdict(found, f"node{last // _NODE}", f"gpu{last % _NODE}") == "unstable"
        guilty = {("node0", "gpu0"), (f"node{last // _NODE}", f"gpu{last % _NODE}")}
        others += any((gpu.node, gpu.device) not in guilty for gpu in found.named)
    shown = [f"{100 * count / fleets:.1f} %" for count in named.values()] if fleets else ["", ""]
    return [
        runs, speeds, str(gpus), *shown,
        *(f"{count}/{bad}" if bad else "" for count in (slow, unsteady, others)),
    ]  # fmt: skip


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--fleets", type=int, default=200)
    parser.add_argument("--bad", type=int, default=20)
    parser.add_argument("--runs", nargs="*", default=list(RUNS), choices=list(RUNS))
    parser.add_argument("--speeds", nargs="*", default=list(SPEEDS), choices=list(SPEEDS))
    parser.add_argument("--gpus", nargs="*", type=int, default=list(SHAPES))
    given = parser.parse_args(arguments)
    print(
        "| runs vary | speed of a GPU | GPUs | healthy fleets with a slow one "
        "| with an unstable one | 5 % slow found | unstable found | another named |"
    )
    print("|---|---|---:|---:|---:|---:|---:|---:|")
    for runs in given.runs:
        for speeds in given.speeds:
            for gpus in given.gpus:
                counts = row(runs, speeds, gpus, given.fleets, given.bad)
                print(f"| {' | '.join(counts)} |", flush=True)


if __name__ == "__main__":
    main()
