"""Measure the gate's error rates, power and speed on simulated runs.

python tools/gate_rates.py alarms [--suites 60]   unchanged suites of 100 cells, 35 noise models
python tools/gate_rates.py sessions               the same under session effects, vouched for or not
python tools/gate_rates.py small                  unchanged cells with few baseline runs
python tools/gate_rates.py power [--cells 4000]   one regressed cell of 100, and ten of 100
python tools/gate_rates.py speed                  time and memory for 10,000 cells of 12 runs

Runs are simulated samples (1000 each) reduced to their P99; the gate is the package's own.
"""

from __future__ import annotations

import argparse
import math
import resource
import time
from collections.abc import Callable, Iterator
from dataclasses import astuple, dataclass
from functools import cache

import numpy as np
from numpy.typing import NDArray
from scipy.signal import lfilter
from scipy.stats import beta

from pytest_hwqueue.gate.cell_gate import CellGate
from pytest_hwqueue.gate.quantity import P99
from pytest_hwqueue.gate.runs import ProcessRun
from pytest_hwqueue.gate.settings import GateSettings
from pytest_hwqueue.gate.suite_gate import SuiteGate

Floats = NDArray[np.float64]

SAMPLES = 1000
POOL_RUNS = 4000
SUITE_CELLS = 100
SETTINGS = GateSettings()


# ------------------------------------------------------------------ samples within a run
def _lognormal(rng: np.random.Generator, runs: int) -> Floats:
    return np.exp(0.10 * rng.standard_normal((runs, SAMPLES)))


def _heavy(rng: np.random.Generator, runs: int) -> Floats:
    """3 % of the requests have a Pareto tail."""
    tail = 1.3 * (1 + rng.pareto(3.0, (runs, SAMPLES)))
    return np.where(rng.random((runs, SAMPLES)) < 0.03, tail, _lognormal(rng, runs))


def _two_modes(share: float, factor: float) -> Callable[[np.random.Generator, int], Floats]:
    def samples(rng: np.random.Generator, runs: int) -> Floats:
        slow = rng.random((runs, SAMPLES)) < share
        return np.where(slow, factor, 1.0) * np.exp(0.05 * rng.standard_normal((runs, SAMPLES)))

    return samples


def _autoregressive(rng: np.random.Generator, runs: int) -> Floats:
    innovations = rng.standard_normal((runs, SAMPLES + 100))
    series = lfilter([math.sqrt(1 - 0.95**2)], [1, -0.95], innovations, axis=1)
    return np.exp(0.10 * series[:, 100:])


def _drift(rng: np.random.Generator, runs: int) -> Floats:
    """Each run warms up or throttles with a slope of its own."""
    slopes = 0.10 * rng.standard_normal((runs, 1))
    return _lognormal(rng, runs) * np.exp(np.linspace(-0.5, 0.5, SAMPLES) * slopes)


def _bursts(rng: np.random.Generator, runs: int) -> Floats:
    """A neighbour slows 0.2 to 3 % of a run by 1.5 to 3, half a time a run on average."""
    samples = _lognormal(rng, runs)
    for run, count in enumerate(rng.poisson(0.5, runs)):
        for _ in range(count):
            length = max(1, int(SAMPLES * rng.uniform(0.002, 0.03)))
            start = rng.integers(0, SAMPLES - length + 1)
            samples[run, start : start + length] *= rng.uniform(1.5, 3.0)
    return samples


WITHIN: dict[str, Callable[[np.random.Generator, int], Floats]] = {
    "lognormal": _lognormal,
    "heavy tail": _heavy,
    "bimodal": _two_modes(0.15, 1.4),
    "shoulder at P99": _two_modes(0.01, 2.0),
    "autoregressive": _autoregressive,
    "drift": _drift,
    "bursts": _bursts,
}

# Between runs: standard deviation of the logarithm, and normal or Student's t with 3 degrees.
BETWEEN = ((0.0, "normal"), (0.02, "normal"), (0.05, "normal"), (0.10, "normal"), (0.05, "t3"))


@cache
def pool(within: str) -> Floats:
    """Return ln P99 of simulated runs of one noise model, to draw from."""
    rng = np.random.default_rng([17, list(WITHIN).index(within)])
    parts = [WITHIN[within](rng, 500) for _ in range(POOL_RUNS // 500)]
    return np.concatenate([np.log(np.quantile(part, 0.99, axis=1)) for part in parts])


@dataclass(frozen=True)
class Noise:
    """Noise of ln P99: within a run, between runs, and between sessions (``tau``).

    A share ``common`` of the sessions' variance is the same for all cells of a suite.
    """

    within: str
    sd: float
    kind: str = "normal"
    tau: float = 0.0
    common: float = 0.0

    def runs(self, rng: np.random.Generator, cells: int, runs: int) -> Floats:
        """Return ln P99 of shape (cells, runs), without session effects."""
        z = rng.standard_normal((cells, runs))
        if self.kind == "t3":
            z = rng.standard_t(3, (cells, runs)) / math.sqrt(3)
        drawn = pool(self.within)[rng.integers(0, POOL_RUNS, (cells, runs))]
        return np.asarray(drawn + self.sd * z)

    def sessions(self, rng: np.random.Generator, cells: int, sessions: int) -> Floats:
        """Return session effects of shape (cells, sessions)."""
        shared = math.sqrt(self.common) * rng.standard_normal((1, sessions))
        own = math.sqrt(1 - self.common) * rng.standard_normal((cells, sessions))
        return np.asarray(self.tau * (shared + own))


def models(tau: float = 0.0, common: float = 0.0) -> Iterator[Noise]:
    """Yield the 35 noise models."""
    for within in WITHIN:
        for sd, kind in BETWEEN:
            yield Noise(within, sd, kind, tau, common)


# ------------------------------------------------------------------ driving the gate
def as_runs(logs: Floats, sessions: list[str]) -> list[ProcessRun]:
    """Return one cell's runs."""
    return [
        ProcessRun(math.exp(log), SAMPLES, session)
        for log, session in zip(logs.tolist(), sessions, strict=True)
    ]


def judge_suite(
    rng: np.random.Generator,
    noise: Noise,
    rise: Floats,
    settings: GateSettings = SETTINGS,
    runs: int = 10,
    sessions: int = 5,
) -> tuple[list[str], int]:
    """Drive one suite through the gate; return the cells' states and the new runs spent."""
    cells = len(rise)
    of_run = np.arange(runs) * sessions // runs
    old = noise.runs(rng, cells, runs) + noise.sessions(rng, cells, sessions)[:, of_run]
    new = noise.runs(rng, cells, settings.last_look) + noise.sessions(rng, cells, 1)
    new = new + rise[:, None]
    keys = [f"cell {i:03d}" for i in range(cells)]
    names = [f"s{session}" for session in of_run]
    gate = SuiteGate(settings, {key: as_runs(old[i], names) for i, key in enumerate(keys)})
    coming = {
        key: iter(as_runs(new[i], ["new"] * settings.last_look)) for i, key in enumerate(keys)
    }
    spent = 0
    while wanted := gate.wanted():
        for key, count in wanted:
            for _ in range(count):
                gate.add(key, next(coming[key]))
                spent += 1
    verdicts = gate.verdicts()
    return [verdicts[key].state for key in keys], spent


def judge_cell(
    rng: np.random.Generator, noise: Noise, rise: float, runs: int = 10
) -> tuple[bool, int]:
    """Judge one cell of 100 alone, the others unchanged; return whether it is convicted."""
    old = as_runs(noise.runs(rng, 1, runs)[0], [f"s{i}" for i in range(runs)])
    cell = CellGate(old, P99, SETTINGS, SUITE_CELLS)
    new = noise.runs(rng, 1, SETTINGS.last_look)[0] + rise
    for run in as_runs(new, ["new"] * SETTINGS.last_look):
        cell.add(run)
    return cell.p <= SETTINGS.rate / SUITE_CELLS, len(cell.new)


@dataclass(frozen=True)
class Tally:
    """What unchanged suites of 100 cells brought."""

    suites: int = 0
    suites_with_alarm: int = 0
    alarms: int = 0
    inconclusive: int = 0
    new_runs: int = 0

    def __add__(self, other: Tally) -> Tally:
        return Tally(*(a + b for a, b in zip(astuple(self), astuple(other), strict=True)))

    def row(self, name: str) -> str:
        """Return one line; the upper bound is Clopper and Pearson's, one-sided."""
        cells = self.suites * SUITE_CELLS
        bad, all_suites = self.suites_with_alarm, self.suites
        upper = float(beta.ppf(0.95, bad + 1, all_suites - bad)) if bad < all_suites else 1.0
        return (
            f"{name:46s} {cells:7d} cells: alarms in {bad} of {all_suites} suites = "
            f"{bad / all_suites:.2%} (95 % upper bound {upper:.2%}), {self.alarms / cells:.1e} a "
            f"cell; inconclusive {self.inconclusive / cells:.2%}; new runs a cell "
            f"{self.new_runs / cells:.2f}"
        )


def count_alarms(noises: list[Noise], suites: int, seed: int, sessions: int = 5) -> Tally:
    """Judge unchanged suites, so many of each noise model."""
    rng = np.random.default_rng(seed)
    tally = Tally()
    for noise in noises:
        for _ in range(suites):
            states, runs = judge_suite(rng, noise, np.zeros(SUITE_CELLS), sessions=sessions)
            alarms = states.count("regression")
            tally += Tally(1, int(alarms > 0), alarms, states.count("inconclusive"), runs)
    return tally


# ------------------------------------------------------------------ commands
def alarms(options: argparse.Namespace) -> None:
    """Unchanged suites, per noise model family and in all."""
    total = Tally()
    for within in WITHIN:
        noises = [noise for noise in models() if noise.within == within]
        tally = count_alarms(noises, options.suites, options.seed)
        print(tally.row(within), flush=True)
        total += tally
    print(total.row("all 35 models"))


def sessions(options: argparse.Namespace) -> None:
    """Session effects that tau = 0.5 % vouches for, and effects that it does not."""
    total = Tally()
    for common, name in ((0.0, "each cell its own"), (1.0, "common to all cells")):
        tally = count_alarms(list(models(0.005, common)), options.suites, options.seed)
        print(tally.row(f"session sd 0.5 %, {name}"), flush=True)
        total += tally
    print(total.row("session sd 0.5 %, both"), flush=True)
    for tau in (0.01, 0.02):
        for count in (5, 1):
            noises = [Noise("lognormal", 0.02, tau=tau)]
            tally = count_alarms(noises, options.suites * 2, options.seed, count)
            where = f"{count} session{'s' * (count > 1)}"
            print(tally.row(f"session sd {tau:.0%} not vouched for, {where}"), flush=True)


def small(options: argparse.Namespace) -> None:
    """Unchanged cells with few baseline runs."""
    for runs in (1, 2, 3, 4, 5):
        rng = np.random.default_rng(options.seed)
        alarms_by_model = [
            (sum(judge_cell(rng, noise, 0.0, runs)[0] for _ in range(options.cells)), noise)
            for noise in models()
        ]
        total = sum(count for count, _ in alarms_by_model)
        most, noise = max(alarms_by_model, key=lambda pair: pair[0])
        cells = options.cells * len(alarms_by_model)
        print(
            f"K={runs}: {total} false alarms of {cells} cells = {total / cells:.1e}; most under "
            f"{noise.within} {noise.sd:.0%} {noise.kind}: {most / options.cells:.1e}",
            flush=True,
        )


def power(options: argparse.Namespace) -> None:
    """The share of regressed cells that is found."""
    for within, sd in (
        [("lognormal", sd) for sd in (0.0, 0.01, 0.02, 0.03, 0.05, 0.10)]
        + [(within, 0.03) for within in ("bimodal", "drift", "autoregressive")]
        + [(within, 0.02) for within in ("heavy tail", "bursts")]
    ):
        noise = Noise(within, sd)
        cells = options.cells if (within, sd) == ("lognormal", 0.03) else options.cells // 4
        found = []
        for rise in (0.05, 0.10, 0.20, 0.50):
            rng = np.random.default_rng(options.seed)
            judged = [judge_cell(rng, noise, math.log1p(rise)) for _ in range(cells)]
            share = sum(convicted for convicted, _ in judged) / cells
            runs = sum(spent for _, spent in judged) / cells
            found.append(f"+{rise:.0%} {share:.3f} ({runs:.1f})")
        total = math.hypot(sd, float(pool(within).std()))
        print(f"{within:15s} {sd:3.0%} (total {total:.3f}), {cells} cells: {'  '.join(found)}")
    rise_of = np.zeros(SUITE_CELLS)
    rise_of[:10] = math.log1p(0.10)
    rng = np.random.default_rng(options.seed)
    suites = max(1, options.cells // 20)
    hits = false = 0
    false_shares = 0.0
    for _ in range(suites):
        states, _ = judge_suite(rng, Noise("lognormal", 0.03), rise_of, sessions=10)
        found_here, wrong = states[:10].count("regression"), states[10:].count("regression")
        hits += found_here
        false += wrong > 0
        false_shares += wrong / max(1, found_here + wrong)
    print(
        f"10 of 100 cells +10 %, lognormal 3 %: found {hits / suites / 10:.3f}, a false alarm "
        f"among the others in {false / suites:.1%} of {suites} suites, "
        f"{false_shares / suites:.2%} of the regressions reported are false"
    )


def speed(options: argparse.Namespace) -> None:
    """Time and memory of the engine alone, on this process."""
    for cells in (1000, 10_000, 20_000):
        rng = np.random.default_rng(options.seed)
        logs = Noise("lognormal", 0.03).runs(rng, cells, 25)
        names = [f"s{i}" for i in range(10)]
        old = {f"cell {i}": as_runs(logs[i, :10], names) for i in range(cells)}
        new = {f"cell {i}": as_runs(logs[i, 10:], ["new"] * 15) for i in range(cells)}
        begin = time.process_time()
        gate = SuiteGate(SETTINGS, old)
        for key, runs in new.items():
            for run in runs[: SETTINGS.first_runs]:
                gate.add(key, run)
        gate.verdicts()
        first = time.process_time() - begin
        for runs_so_far in range(SETTINGS.first_runs, SETTINGS.last_look):
            for key, _ in gate.wanted():
                gate.add(key, new[key][runs_so_far])
        gate.verdicts()
        peak_mib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        print(
            f"{cells} cells: first pass (10 + 2 runs) judged in {first:.2f} s of CPU, with re-runs "
            f"{time.process_time() - begin:.2f} s, peak memory of the process {peak_mib:.0f} MiB"
        )


def main() -> None:
    """Run one measurement."""
    commands = {command.__name__: command for command in (alarms, sessions, small, power, speed)}
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=commands)
    parser.add_argument("--suites", type=int, default=60, help="suites per noise model")
    parser.add_argument("--cells", type=int, default=4000, help="cells per row")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    commands[options.what](options)


if __name__ == "__main__":
    main()
