"""How often `hwq history` finds steps that are there, and that are not, and whether intervals hold.

    python -m tools.history_rates [--histories 300] [--family NAME ...]

Prints a Markdown table. Histories of 60 sessions vary by 2 % (standard deviation of the logarithm)
in each family: independently, by three degrees of freedom of Student's t, with a lag-1 correlation
(AR), in two levels that change at random, or along a line. Each family is analysed flat, and with
one step of 6 or 10 % at a place between the 15th and the 45th session, drawn anew for each. A step
is found if a change point lies at most three sessions from it.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray
from scipy.signal import lfilter

from pytest_hwqueue.answers.history.analysis import analyse
from pytest_hwqueue.answers.history.series import Series, SeriesHistory, SessionFigure
from pytest_hwqueue.judge.verdict import GateSettings

Logs = NDArray[np.float64]
_SESSIONS, _SD, _SEED, _NEAR = 60, 0.02, 59, 3
_STEPS = (0.0, 0.06, 0.10)
_PLACES = (15, 46)
_TURNS, _APART = 0.1, 1.5


def _following(correlation: float) -> Callable[[np.random.Generator], Logs]:
    def generate(generator: np.random.Generator) -> Logs:
        own = generator.standard_normal(_SESSIONS) * math.sqrt(1 - correlation**2)
        own[0] = generator.standard_normal()
        return np.asarray(lfilter([1], [1, -correlation], own))

    return generate


def _regimes(generator: np.random.Generator) -> Logs:
    """Return two levels, 3 of their own standard deviations apart, that turn every 10 sessions."""
    level = np.cumsum(generator.random(_SESSIONS) < _TURNS) % 2
    return np.asarray(_APART * (2 * level - 1) + generator.standard_normal(_SESSIONS))


def _drift(generator: np.random.Generator) -> Logs:
    return np.asarray(generator.standard_normal(_SESSIONS) + np.linspace(0, 4, _SESSIONS))


def _heavy(generator: np.random.Generator) -> Logs:
    return np.asarray(generator.standard_t(3, _SESSIONS) / math.sqrt(3))


FAMILIES: dict[str, Callable[[np.random.Generator], Logs]] = {
    "independent": _following(0.0),
    "Student's t, 3": _heavy,
    **{f"AR {each}": _following(each) for each in (0.3, 0.5, 0.7, 0.9)},
    "regimes": _regimes,
    "drift of 8 %": _drift,
}


def history_of(logs: Logs) -> SeriesHistory:
    """Return what is said of a series of sessions."""
    sessions = [
        SessionFigure(session=str(at), when=str(at), runs=1, commits=[], value=math.exp(log))
        for at, log in enumerate(logs)
    ]
    series = Series(
        cell="cell", workload="cell", figure="p99", quantity="p99", label="P99", unit="ns",
        higher_is_worse=True, simulated=False, machine=1, machine_fields={}, sessions=sessions,
        refused=0,
    )  # fmt: skip
    return analyse([series], [], lambda *_: None, GateSettings()).series[0]


def row(family: str, step: float, histories: int) -> list[str]:
    """Return the counts of a family's histories with a step, 0 being flat; as cells of a table."""
    generator = np.random.default_rng([_SEED, round(1000 * step), *family.encode()])
    other = found = held = said = 0
    widths = []
    for _ in range(histories):
        place = int(generator.integers(*_PLACES))
        logs = _SD * FAMILIES[family](generator)
        logs[place:] += math.log1p(step)
        history = history_of(logs)
        near = [each for each in history.changes if step and abs(each.index - place) <= _NEAR]
        if len(history.changes) > len(near[:1]):
            other += 1
            said += history.resemblance is not None or history.drift is not None
        if near:
            found += 1
            low, high = near[0].interval
            held += low <= 1 + step <= high
            widths.append((high - low) / 2)
    return [
        family, f"{step:.0%}" if step else "flat", f"{100 * other / histories:.1f} %",
        f"{100 * said / other:.0f} %" if other else "",
        f"{100 * found / histories:.0f} %" if step else "",
        f"{100 * held / found:.1f} %" if found else "",
        f"± {100 * float(np.median(widths)):.1f} %" if found else "",
    ]  # fmt: skip


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--histories", type=int, default=300)
    parser.add_argument("--family", nargs="*", default=list(FAMILIES), choices=list(FAMILIES))
    given = parser.parse_args(arguments)
    print("| family | step | another step | of these warned | found | interval held | interval |")
    print("|---|---:|---:|---:|---:|---:|---:|")
    for family in given.family:
        for step in _STEPS:
            print(f"| {' | '.join(row(family, step, given.histories))} |", flush=True)


if __name__ == "__main__":
    main()
