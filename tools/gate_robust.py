"""Measure what the gate does with outliers and noisy runs. Runs are simulated figures.

python tools/gate_robust.py unchanged  the whole gate, 2,000 unchanged suites of 100 cells each
python tools/gate_robust.py power      one changed cell of 100: outliers, half of the runs, +2 %
python tools/gate_robust.py sessions   sessions that differ, and nobody vouches for by how much
python tools/gate_robust.py auto       --hwq-min-effect=auto: suites that alarm, stored and in pairs
python tools/gate_robust.py small      --hwq-min-effect=auto: +2, +3 and +5 % in one cell

OLD=20 CELLS=16 python tools/gate_robust.py ...   other numbers of baseline runs and of cells
"""

from __future__ import annotations

import argparse
import math
import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import cache

import numpy as np
from numpy.typing import NDArray
from scipy.stats import beta

from pytest_hwqueue.answers.versions.sides import acquitted_early, by_pairs, looks, reach
from pytest_hwqueue.judge.cell_gate import CellGate
from pytest_hwqueue.judge.effects import of_pairs
from pytest_hwqueue.judge.judging import judged_once
from pytest_hwqueue.judge.runs import ProcessRun
from pytest_hwqueue.judge.statistics import rejected
from pytest_hwqueue.judge.suite_gate import SuiteGate, conclude
from pytest_hwqueue.judge.verdict import P99, GateSettings, Verdict

Floats = NDArray[np.float64]
Draw = Callable[[np.random.Generator, int], Floats]

SETTINGS = GateSettings.of_options(tau=0.005)
OLD, MOST_NEW = int(os.environ.get("OLD", "10")), SETTINGS.last_look
ALL = OLD + MOST_NEW
SUITE_CELLS = int(os.environ.get("CELLS", "100"))
SAMPLES = 1000
WITHIN_SD = 0.10


# ------------------------------------------------------------------ ln figure of unchanged runs
def normal(sd: float) -> Draw:
    """Return normal noise."""
    return lambda rng, cells: sd * rng.standard_normal((cells, ALL))


def outliers(share: float, factor: float) -> Draw:
    """Return 3 % of normal noise, a share of the runs being slower by a factor."""

    def draw(rng: np.random.Generator, cells: int) -> Floats:
        slow = rng.random((cells, ALL)) < share
        return np.asarray(normal(0.03)(rng, cells) + math.log(factor) * slow)

    return draw


@cache
def truncated_pool(n: int) -> Floats:
    """Return ln P99 of the first ``n`` samples of simulated runs, to draw from."""
    rng = np.random.default_rng([19, n])
    parts = [WITHIN_SD * rng.standard_normal((500, n)) for _ in range(8)]
    return np.concatenate([np.quantile(part, 0.99, axis=1) for part in parts])


def ended_by_time(rng: np.random.Generator, cells: int) -> Floats:
    """5 % between runs; a slow run has fewer samples, and all are cut to the cell's least n."""
    level = 0.05 * rng.standard_normal((cells, ALL))
    counts = SAMPLES * np.exp(-level) * rng.uniform(0.95, 1.05, (cells, ALL))
    least = np.clip(np.round(counts.min(axis=1) / 20) * 20, 700, 1000).astype(int)
    figures = np.empty((cells, ALL))
    for n in np.unique(least):
        rows = least == n
        pool = truncated_pool(int(n))
        figures[rows] = pool[rng.integers(0, len(pool), (int(rows.sum()), ALL))]
    return np.asarray(level + figures)


MODELS: dict[str, Draw] = {
    "lognormal 3 %": normal(0.03),
    "t(2.5), scale 3 %": lambda rng, cells: 0.03 * rng.standard_t(2.5, (cells, ALL)),
    "5 % outliers x 1.5": outliers(0.05, 1.5),
    "5 % outliers x 10": outliers(0.05, 10),
    "two clocks, x 1.25 in 30 %": outliers(0.30, 1.25),
    "skewed (exponential, 5 %)": lambda rng, cells: 0.05 * rng.exponential(size=(cells, ALL)),
    "ended by time, 5 %": ended_by_time,
}


# ------------------------------------------------------------------ driving the gate
def as_runs(logs: Iterable[float], session: str = "") -> Iterator[ProcessRun]:
    """Yield runs of 1000 samples, of one session or of one each."""
    for i, log in enumerate(logs):
        yield ProcessRun(math.exp(log), SAMPLES, session or f"s{i}")


def judge(logs: Floats, settings: GateSettings = SETTINGS) -> CellGate:
    """Judge one cell of 100 by its ln figures, the first ten being the baseline's."""
    cell = CellGate(list(as_runs(logs[:OLD].tolist())), P99, settings, SUITE_CELLS)
    for run in as_runs(logs[OLD:].tolist(), "new"):
        if not cell.wanted:
            break
        cell.add(run)
    return cell


def upper_bound(count: int, total: int) -> float:
    """Return Clopper and Pearson's one-sided 95 % upper bound of a share."""
    return float(beta.ppf(0.95, count + 1, total - count)) if count < total else 1.0


# ------------------------------------------------------------------ commands
def unchanged(options: argparse.Namespace) -> None:
    """The whole gate on unchanged suites of 100 cells."""
    total_bad, suites = 0, options.cells // SUITE_CELLS
    for name, draw in MODELS.items():
        rng = np.random.default_rng(options.seed)
        bad = alarms = spent = 0
        states: Counter[str] = Counter()
        for suite in range(suites):
            judged = [judge(row) for row in draw(rng, SUITE_CELLS)]
            p_values = {str(i): cell.p for i, cell in enumerate(judged)}
            found = rejected(p_values, SETTINGS.rate, SUITE_CELLS)
            alarms += len(found)
            bad += bool(found)
            spent += sum(len(cell.new) for cell in judged)
            if suite % 10 == 0:
                states.update(conclude(cell, False).reason for cell in judged)
        seen = sum(states.values())
        undecided = sum(states[r] for r in ("blind", "likely-worse", "unstable")) / seen
        cells = suites * SUITE_CELLS
        print(f"{name:28s} {cells} cells: alarms in {bad} of {suites} suites (95 % upper bound "
              f"{upper_bound(bad, suites):.2%}), {alarms / cells:.1e} a cell; "
              f"blind {states['blind'] / seen:.2%}, inconclusive in all {undecided:.2%}; new runs "
              f"a cell {spent / cells:.2f}", flush=True)  # fmt: skip
        total_bad += bad
    total_suites = suites * len(MODELS)
    print(f"all: {total_bad} of {total_suites} suites = {total_bad / total_suites:.2%}, upper "
          f"bound {upper_bound(total_bad, total_suites):.2%}")  # fmt: skip


def changed(rise: float, noise: Draw) -> Draw:
    """Return runs of which all new ones are slower."""

    def draw(rng: np.random.Generator, cells: int) -> Floats:
        logs = noise(rng, cells)
        logs[:, OLD:] += math.log1p(rise)
        return logs

    return draw


def one_outlier(rise: float, factor: float, side: str) -> Draw:
    """Return slower new runs at 3 %; one of the baseline or of the first two is an outlier."""

    def draw(rng: np.random.Generator, cells: int) -> Floats:
        logs = changed(rise, normal(0.03))(rng, cells)
        column = rng.integers(0, OLD, cells) if side == "old" else OLD + rng.integers(0, 2, cells)
        logs[np.arange(cells), column] += math.log(factor)
        return logs

    return draw


def half_slower(rng: np.random.Generator, cells: int) -> Floats:
    """Each new run is +50 % with a probability of one half, at 3 %."""
    logs = normal(0.03)(rng, cells)
    logs[:, OLD:] += math.log(1.5) * (rng.random((cells, MOST_NEW)) < 0.5)
    return logs


def power(options: argparse.Namespace) -> None:
    """What becomes of one changed cell of 100."""
    between = {0.02: (0.005, 0.01, 0.02, 0.03, 0.05), 0.05: (0.03,), 0.10: (0.02, 0.03, 0.05),
               0.20: (0.03, 0.05, 0.10, 0.15), 0.50: (0.10, 0.15)}  # fmt: skip
    rows: dict[str, Draw] = {
        f"+{rise:.0%}, {sd:.1%} between runs": changed(rise, normal(sd))
        for rise, sds in between.items()
        for sd in sds
    }
    rows |= {
        f"+{rise:.0%}, one {side} run x {factor:g}": one_outlier(rise, factor, side)
        for side in ("new", "old")
        for rise in (0.10, 0.20, 0.30)
        for factor in (5, 10)
    }
    rows |= {
        f"+{rise:.0%}, every run an outlier (x {factor:g}) with 5 %": changed(
            rise, outliers(0.05, factor)
        )
        for factor in (1.5, 10)
        for rise in (0.10, 0.20)
    }
    rows["half of the new runs +50 %"] = half_slower
    rows |= {f"unchanged, {sd:.0%}": normal(sd) for sd in (0.01, 0.03, 0.05, 0.10, 0.15, 0.40)}
    for name, draw in rows.items():
        rng = np.random.default_rng(options.seed)
        judged = map(judge, draw(rng, options.power_cells))
        verdicts = [conclude(cell, cell.p <= SETTINGS.rate / SUITE_CELLS) for cell in judged]
        states = Counter(verdict.state for verdict in verdicts)
        blind = sum(verdict.reason == "blind" for verdict in verdicts) / len(verdicts)
        runs = sum(len(verdict.new) for verdict in verdicts) / len(verdicts)
        regression, inconclusive, good = (
            states[state] / len(verdicts) for state in ("regression", "inconclusive", "pass")
        )
        print(f"{name:42s} regression {regression:.3f}  inconclusive {inconclusive:.3f} "
              f"(blind {blind:.3f})  pass {good:.3f}  new runs {runs:.1f}",
              flush=True)  # fmt: skip


SHAPES = (5, 4), (5, 2), (10, 1), (2, 5), (1, 10)
"""Sessions of a baseline, and runs in each."""

# ln figure's standard deviation between runs, cell by cell: equal, and of P0 on an H200.
EVEN = (0.03,)
UNEVEN = (0.001, 0.001, 0.001, 0.004, 0.005, 0.007, 0.009, 0.009, 0.010, 0.010, 0.024, 0.025,
          0.036, 0.073, 0.12, 0.22)  # fmt: skip
_CHANGED = "10"

Suite = dict[str, list[ProcessRun]]


Shape = tuple[int, ...]
Drawn = Callable[[np.random.Generator, Shape], Floats]


def plain(rng: np.random.Generator, shape: Shape) -> Floats:
    """Return normal noise with an sd of 1."""
    return rng.standard_normal(shape)


def heavy(rng: np.random.Generator, shape: Shape) -> Floats:
    """Return Student's t with 2.5 degrees of freedom, of scale 1."""
    return rng.standard_t(2.5, shape)


def wild(rng: np.random.Generator, shape: Shape) -> Floats:
    """Return normal noise; one run in twenty is slower by 10 standard deviations."""
    return np.asarray(rng.standard_normal(shape) + 10 * (rng.random(shape) < 0.05))


def walk(rng: np.random.Generator, shape: Shape) -> Floats:
    """Return sessions of which each differs from the one before it: a drift."""
    return np.cumsum(rng.standard_normal(shape), axis=0)


def drawn(
    rng: np.random.Generator, shape: tuple[int, int], sds: Sequence[float],
    spreads: Sequence[float], runs: Drawn = plain, sessions: Drawn = plain, shared: bool = False,
) -> tuple[Suite, Suite]:  # fmt: skip
    """Return old runs of so many sessions, and new ones of another, by cell.

    A session moves each cell in its own way or, ``shared``, all cells alike.
    """
    old: Suite = {}
    new: Suite = {}
    number, each = shape
    common = sessions(rng, (number + 1, 1)) if shared else None
    for i in range(SUITE_CELLS):
        moves = sessions(rng, (number + 1, 1)) if common is None else common
        noise = runs(rng, (number + 1, max(each, MOST_NEW)))
        logs = spreads[i % len(spreads)] * moves + sds[i % len(sds)] * noise
        old[f"{i}"] = [run for j in range(number) for run in as_runs(logs[j, :each], f"s{j}")]
        new[f"{i}"] = list(as_runs(logs[-1, :MOST_NEW], "new"))
    return old, new


def judged(old: Suite, new: Suite, settings: GateSettings) -> dict[str, Verdict]:
    """Return the verdicts on a suite whose cells are run again as the gate asks for it."""
    gate = SuiteGate(settings, old)
    left = {key: iter(runs) for key, runs in new.items()}
    while wanted := gate.wanted():
        for key, _ in wanted:
            gate.add(key, next(left[key]))
    return gate.verdicts()


def regressions(old: Suite, new: Suite) -> set[str]:
    """Return the cells that the gate calls a regression, nobody vouching for sessions."""
    verdicts = judged(old, new, GateSettings())
    return {key for key, verdict in verdicts.items() if verdict.state == "regression"}


def sessions(options: argparse.Namespace) -> None:
    """Suites that alarm, and how often +10 % is found in one cell (3 %, or 2.4 % between runs).

    Sessions differ by so much, or by a share of what a cell's runs do; each cell has its own. In
    every second suite the one cell is slower, and only the others can alarm.
    """
    suites = options.cells // SUITE_CELLS // 10
    for name, sds, absolute, share in (
        ("3 %, not at all", EVEN, 0.0, 0.0),
        ("3 %, 1 %", EVEN, 0.01, 0.0),
        ("3 %, 2 %", EVEN, 0.02, 0.0),
        ("3 %, 3 %", EVEN, 0.03, 0.0),
        ("uneven, not at all", UNEVEN, 0.0, 0.0),
        ("uneven, 1 %", UNEVEN, 0.01, 0.0),
        ("uneven, 0.4 of runs", UNEVEN, 0.0, 0.4),
        ("uneven, 0.8 of runs", UNEVEN, 0.0, 0.8),
    ):
        spreads = [math.hypot(absolute, share * sd) for sd in sds]
        told = []
        for shape in SHAPES:
            rng = np.random.default_rng(options.seed)
            alarms = found = 0
            for suite in range(suites):
                old, new = drawn(rng, shape, sds, spreads)
                if suite % 2:
                    new[_CHANGED] = [replace(run, value=1.1 * run.value) for run in new[_CHANGED]]
                bad = regressions(old, new)
                found += suite % 2 and _CHANGED in bad
                alarms += bool(bad - {_CHANGED} if suite % 2 else bad)
            label = "{} x {}".format(*shape)
            told.append(f"{label}: {alarms / suites:.1%} {found / (suites // 2):.2f}")
        print(f"{name:22s} {suites} suites  " + "   ".join(told), flush=True)


KNOWN = (5, 4), (5, 2), (10, 1), (4, 3)
"""Baselines of enough sessions to show how these differ."""

AUTO = GateSettings.of_options(min_effect=None)
# ln figure's standard deviation between runs of an H200's 17 cells dispatched as graphs, of the
# packaged reference.
QUIET = (0.0005, 0.0006, 0.0007, 0.0008, 0.0009, 0.0011, 0.0017, 0.003, 0.003, 0.0035, 0.006)
# ... and how much their sessions differ; llm_decode's by twenty times what its runs do.
_ODD = (0.0004,) * 10 + (0.0035,)


def in_pairs(x: Floats, y: Floats, figures: int, settings: GateSettings) -> Verdict:
    """Judge one cell of a suite by pairs, as an interleaved session does.

    Args:
        x: shape (P,), logarithms of the old runs' figures.
        y: the new ones'.
        figures: that share the error rate.
        settings: of the gate.
    """
    pairs = len(x)
    old, new = (list(as_runs(side.tolist(), "one")) for side in (x, y))
    every = by_pairs(settings, pairs)
    for count in looks(pairs):
        values = [[run.value for run in side[:count]] for side in (old, new)]
        own = of_pairs(values[0], values[1], every, figures)
        cell = CellGate(old[:count], P99, judged_once(own, count), figures)
        for run in new[:count]:
            cell.add(run)
        verdict = conclude(cell, cell.p <= settings.rate / figures)
        if acquitted_early(verdict, settings.detect):
            break
    assert verdict.main is not None
    detectable, _ = reach(verdict.main.sd, own, figures)
    return replace(verdict, main=replace(verdict.main, detectable=detectable))


def auto(options: argparse.Namespace) -> None:
    """Unchanged suites that alarm where each cell has its own least effect."""
    suites = options.cells // SUITE_CELLS // 10
    rows: list[tuple[str, tuple[float, ...], tuple[float, ...], Drawn, Drawn, bool]] = []
    for sd in (0.001, 0.003, 0.005, 0.01):
        rows.append((f"{sd:.1%}; not at all", (sd,), (0.0,), plain, plain, False))
    for effect in (0.0025, 0.005, 0.01):
        for sd in (0.001, 0.003, 0.01):
            rows.append((f"{sd:.1%}; by {effect:.2%}", (sd,), (effect,), plain, plain, False))
        rows.append((f"0.3%; by {effect:.2%}, all cells alike", (0.003,), (effect,), plain, plain,
                     True))  # fmt: skip
    rows += [
        ("quiet H200; as its own", QUIET, _ODD, plain, plain, False),
        ("quiet H200; by 1 % in one cell of 11", QUIET, (0.0004,) * 10 + (0.01,), plain, plain,
         False),
        ("0.1 to 22 %; by 0.4 of runs", UNEVEN, tuple(0.4 * sd for sd in UNEVEN), plain, plain,
         False),
        ("0.3%, t(2.5); not at all", (0.003,), (0.0,), heavy, plain, False),
        ("0.3%, t(2.5); by 0.25%", (0.003,), (0.0025,), heavy, plain, False),
        ("0.3%, outliers; not at all", (0.003,), (0.0,), wild, plain, False),
        ("0.3%, outliers; by 0.25%", (0.003,), (0.0025,), wild, plain, False),
        ("0.3%; drift of 0.25% a session", (0.003,), (0.0025,), plain, walk, False),
        ("0.3%; drift of 0.50% a session", (0.003,), (0.005,), plain, walk, False),
        ("0.3%; drift of 0.25%, all cells alike", (0.003,), (0.0025,), plain, walk, True),
    ]  # fmt: skip
    for name, sds, spreads, runs, between, shared in rows:
        if options.only not in name:
            continue
        told = []
        for shape in KNOWN:
            rng = np.random.default_rng(options.seed)
            alarms = doubtful = spent = 0
            for _ in range(suites):
                old, new = drawn(rng, shape, sds, spreads, runs, between, shared)
                found = list(judged(old, new, AUTO).values())
                alarms += any(each.state == "regression" for each in found)
                doubtful += sum(each.state == "inconclusive" for each in found)
                spent += sum(len(each.new) for each in found)
            cells = suites * SUITE_CELLS
            told.append("{} x {}".format(*shape) + f": {alarms / suites:.2%} "
                        f"({doubtful / cells:.1%}, {spent / cells:.1f})")  # fmt: skip
        print(f"{name:38s} {suites} suites  " + "   ".join(told), flush=True)
    if options.only:
        return
    vouched = GateSettings.of_options(min_effect=None, tau=0.0)
    for name, noise in (("normal", plain), ("t(2.5)", heavy), ("outliers", wild)):
        told = []
        for sd in (0.001, 0.003, 0.01):
            rng = np.random.default_rng(options.seed)
            alarms = 0
            for _ in range(suites):
                old, new = drawn(rng, (1, 10), (sd,), (0.0,), noise)
                verdicts = judged(old, new, vouched).values()
                alarms += any(each.state == "regression" for each in verdicts)
            told.append(f"{sd:.1%}: {alarms / suites:.2%}")
        print(f"tau 0, 1 x 10, {name}: {suites} suites  " + "   ".join(told), flush=True)
    for name, noise in (("normal", plain), ("t(2.5)", heavy), ("outliers", wild)):
        for pairs in (12, 16):
            figures = 10 if pairs == 12 else SUITE_CELLS
            rng = np.random.default_rng(options.seed)
            alarms = doubtful = spent = 0
            count = options.cells // figures // 10
            for _ in range(count):
                logs = 0.003 * noise(rng, (figures, 2, pairs))
                logs += 0.01 * np.cumsum(rng.standard_normal((figures, 1, pairs)), axis=2)
                found = [in_pairs(each[0], each[1], figures, AUTO) for each in logs]
                alarms += any(each.state == "regression" for each in found)
                doubtful += sum(each.state == "inconclusive" for each in found)
                spent += sum(len(each.new) for each in found)
            cells = count * figures
            print(f"{pairs} pairs, {figures} figures, 0.3%, {name}, 1% of drift a pair: {count} "
                  f"suites  {alarms / count:.2%} ({doubtful / cells:.1%}, {spent / cells:.1f})",
                  flush=True)  # fmt: skip


def small(options: argparse.Namespace) -> None:
    """How often a small rise of one cell is found, and what its verdict says it can detect."""
    cells = max(1, options.power_cells // 10)
    for rise in (0.02, 0.03, 0.05):
        for sd in (0.001, 0.003, 0.005, 0.01):
            told = []
            for shape, spread in (((5, 2), 0.0), ((5, 4), 0.0), ((10, 1), 0.0), ((5, 2), 0.001),
                                  ((5, 4), 0.0025), ((1, 10), 0.0)):  # fmt: skip
                rng = np.random.default_rng(options.seed)
                verdicts = []
                for _ in range(cells):
                    old, new = drawn(rng, shape, (sd,), (spread,))
                    new[_CHANGED] = [
                        replace(run, value=run.value * (1 + rise)) for run in new[_CHANGED]
                    ]
                    verdicts.append(judged(old, new, AUTO)[_CHANGED])
                told.append("{} x {}".format(*shape) + f" by {spread:.2%}: {_summary(verdicts)}")
            for pairs, figures in ((12, 10), (16, 100)):
                rng = np.random.default_rng(options.seed)
                logs = sd * rng.standard_normal((10 * cells, 2, pairs))
                logs[:, 1] += math.log1p(rise)
                verdicts = [in_pairs(each[0], each[1], figures, AUTO) for each in logs]
                told.append(f"{pairs} pairs among {figures}: {_summary(verdicts)}")
            print(f"+{rise:.0%}, {sd:.1%}  " + "   ".join(told), flush=True)


def _summary(verdicts: Sequence[Verdict]) -> str:
    found = sum(each.state == "regression" for each in verdicts) / len(verdicts)
    reach = [each.detectable for each in verdicts if each.detectable is not None]
    runs = sum(len(each.new) for each in verdicts) / len(verdicts)
    return f"{found:.3f} (detects {np.median(reach):.1%}, {runs:.1f} runs)"


def main() -> None:
    """Run one measurement."""
    commands = {f.__name__: f for f in (unchanged, power, sessions, auto, small)}
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("what", choices=commands)
    parser.add_argument("--cells", type=int, default=200_000, help="unchanged cells per model")
    parser.add_argument("--power-cells", type=int, default=2000, help="changed cells per row")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", default="", help="rows of auto whose name has this text")
    options = parser.parse_args()
    commands[options.what](options)


if __name__ == "__main__":
    main()
