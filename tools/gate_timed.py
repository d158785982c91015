"""Measure what the gate does with runs that end by time, from their samples.

python tools/gate_timed.py timed      400 unchanged suites whose runs end by time
python tools/gate_timed.py monotone   one cell from x 1.1 to x 1000, with and without a time cap
python tools/gate_timed.py real --data FILE.npz
                                      measured runs of unchanged code, dealt at random

Samples are cut to the least number among a cell's runs, as a comparison cuts them.
"""

from __future__ import annotations

import argparse
import math
from collections import Counter
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from scipy.stats import beta

from pytest_hwqueue.gate.quantity import P99, Quantity, fall_back
from pytest_hwqueue.gate.runs import ProcessRun, figure_of
from pytest_hwqueue.gate.settings import GateSettings
from pytest_hwqueue.gate.suite_gate import SuiteGate
from pytest_hwqueue.gate.verdict import Verdict

Floats = NDArray[np.float64]
Samples = tuple[Floats, ...]

SETTINGS = GateSettings()
OLD, MOST_NEW = 10, SETTINGS.last_look
ALL = OLD + MOST_NEW
SAMPLES = 1000
WITHIN_SD = 0.10


def upper_bound(count: int, total: int) -> float:
    """Return Clopper and Pearson's one-sided 95 % upper bound of a share."""
    return float(beta.ppf(0.95, count + 1, total - count)) if count < total else 1.0


def run_of(samples: Floats, n: int, quantity: Quantity, session: str) -> ProcessRun:
    """Return a run's figures at its first ``n`` samples; the time per iteration is of all."""
    assert quantity.quantile is not None
    figure = figure_of(samples, quantity.quantile, n)
    return ProcessRun(figure, n, session, iteration_ns=float(samples.mean()))


def at_least_n(old: Samples, new: Samples) -> tuple[list[ProcessRun], list[ProcessRun], Quantity]:
    """Return all runs cut to the least n, at P99 or the quantile that stands in for it."""
    n = min(len(samples) for samples in (*old, *new))
    quantity = fall_back(P99, n) or P99
    return (
        [run_of(samples, n, quantity, f"s{i}") for i, samples in enumerate(old)],
        [run_of(samples, n, quantity, "new") for samples in new],
        quantity,
    )


def drive_suite(cells: dict[str, tuple[Samples, Samples]]) -> dict[str, Verdict]:
    """Judge cells by samples as a comparison does: anew at each look, at its least n."""
    taken = dict.fromkeys(cells, 0)
    while True:
        stated = {key: at_least_n(old, new[: taken[key]]) for key, (old, new) in cells.items()}
        gate = SuiteGate(
            SETTINGS,
            {key: old for key, (old, _, _) in stated.items()},
            {key: quantity for key, (_, _, quantity) in stated.items()},
        )
        for key, (_, coming, _) in stated.items():
            for run in coming:
                gate.add(key, run)
        wanted = gate.wanted()
        if not wanted:
            return gate.verdicts()
        for key, count in wanted:
            taken[key] += count


# ------------------------------------------------------------------ commands
def simulated(
    rng: np.random.Generator, runs: int, sd: float, slower: float = 1.0, cap: float = math.inf
) -> Samples:
    """Return runs of 1000 samples of about 1 ms, or as many as fit into ``cap`` seconds."""
    made = []
    for level in np.exp(sd * rng.standard_normal(runs)) * slower * 1e6:
        samples = level * np.exp(WITHIN_SD * rng.standard_normal(SAMPLES))
        if cap < math.inf:
            fits = int((np.cumsum(samples) <= cap * 1e9 * rng.uniform(0.95, 1.05)).sum())
            samples = samples[: max(1, fits)]
        made.append(samples)
    return tuple(made)


def timed(options: argparse.Namespace) -> None:
    """Unchanged suites of 16 cells whose runs end after 0.9 s, some 900 samples."""
    cells, suites, failed = 16, options.suites, 0
    for sd in (0.03, 0.05, 0.10, 0.15):
        rng = np.random.default_rng([options.seed, int(100 * sd)])
        states: Counter[str] = Counter()
        runs = bad = 0
        for _ in range(suites):
            suite = {
                f"c{i}": (simulated(rng, OLD, sd, cap=0.9), simulated(rng, MOST_NEW, sd, cap=0.9))
                for i in range(cells)
            }
            verdicts = drive_suite(suite).values()
            states.update(f"{v.state} ({v.reason})" for v in verdicts)
            runs += sum(len(v.new) for v in verdicts)
            bad += any(v.state in ("regression", "incomparable") for v in verdicts)
        failed += bad
        told = ", ".join(
            f"{state} {count / suites / cells:.2%}" for state, count in states.most_common()
        )
        print(
            f"{sd:.0%} between runs: {bad} of {suites} suites fail; {told}; new runs a cell "
            f"{runs / suites / cells:.2f}",
            flush=True,
        )
    print(f"in all: {failed} of {4 * suites} fail")


FACTORS = (1.0, 1.1, 1.2, 1.5, 2, 3, 5, 10, 20, 50, 100, 150, 300, 1000)


def monotone(options: argparse.Namespace) -> None:
    """The same cells, slower and slower: with all samples, and under a cap of 1.5 s."""
    order = ("pass", "inconclusive", "regression")
    for cap in (math.inf, 1.5):
        ranks = []
        for factor in FACTORS:
            verdicts = []
            for cell in range(options.monotone_cells):
                # The same noise at every factor.
                rng = np.random.default_rng([options.seed, cell])
                old = simulated(rng, OLD, 0.03, cap=cap)
                new = simulated(rng, MOST_NEW, 0.03, factor, cap)
                verdicts.append(drive_suite({"cell": (old, new)})["cell"])
            ranks.append([order.index(verdict.state) for verdict in verdicts])
            said = Counter(f"{v.state} ({v.reason})" for v in verdicts)
            n = np.median([min(run.n for run in v.new) for v in verdicts])
            print(
                f"cap {cap:g} s, x {factor:g}, n = {n:.0f}: "
                + ", ".join(f"{name} {count}" for name, count in said.most_common()),
                flush=True,
            )
        weaker = int((np.diff(np.array(ranks), axis=0) < 0).any(axis=1).sum())
        falls = int((np.diff(np.array(ranks), axis=0) < 0).sum())
        print(
            f"cap {cap:g} s: {falls} verdicts weaker than at the lesser slowdown ({weaker} steps)"
        )


def real(options: argparse.Namespace) -> None:
    """Measured runs of unchanged code, dealt at random into old and new, ended by time."""
    data = np.load(options.data)
    for name in (key for key in data.files if data[key].ndim == 2):
        rng = np.random.default_rng(options.seed)
        measured = data[name].astype(np.float64) * 1e3
        bad, states, runs = 0, Counter[str](), 0
        for _ in range(options.real_cells):
            dealt = measured[rng.permutation(len(measured))[:ALL]]
            # Runs end when they have taken as long as nine tenths of the median run.
            cap = 0.9 * np.median(measured.sum(axis=1)) * rng.uniform(0.95, 1.05, ALL)
            fits = (np.cumsum(dealt, axis=1) <= cap[:, None]).sum(axis=1)
            cut = [samples[: max(1, n)] for samples, n in zip(dealt, fits, strict=True)]
            verdict = drive_suite({"cell": (tuple(cut[:OLD]), tuple(cut[OLD:]))})["cell"]
            bad += verdict.state in ("regression", "incomparable")
            states.update([f"{verdict.state} ({verdict.reason})"])
            runs += len(verdict.new)
        told = ", ".join(f"{s} {c / options.real_cells:.1%}" for s, c in states.most_common())
        print(
            f"{name}: {bad} of {options.real_cells} cells fail at the rate of one cell, 1 % (upper "
            f"bound {upper_bound(bad, options.real_cells):.2%}); {told}; new runs "
            f"{runs / options.real_cells:.1f}",
            flush=True,
        )


def main() -> None:
    """Run one measurement."""
    commands = {f.__name__: f for f in (timed, monotone, real)}
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=commands)
    parser.add_argument("--suites", type=int, default=100, help="timed suites per noise")
    parser.add_argument("--monotone-cells", type=int, default=100, help="cells per factor")
    parser.add_argument("--real-cells", type=int, default=2000, help="cells per workload")
    parser.add_argument("--data", type=Path, help="arrays of samples in us, of shape (runs, n)")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    commands[options.what](options)


if __name__ == "__main__":
    main()
