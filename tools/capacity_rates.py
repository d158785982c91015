"""How often the interval of `hwq capacity` holds the capacity that theory gives.

    python -m tools.capacity_rates [--searches 80] [--processes 2]

Prints a Markdown table of whole searches on the simulated H200: one tenant alone multiplies
matrices for requests that arrive at random, which is a queue with one server and a fixed service
time (M/D/1). The first design has windows and time in plenty; the second has what two minutes on a
real device leave.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Sequence
from multiprocessing import Pool
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import NamedTuple

import numpy as np
from click.testing import CliRunner
from scipy.optimize import brentq

from pytest_hwqueue.answers.which.capacity_file import CapacityFile
from pytest_hwqueue.cli.main import main as hwq
from pytest_hwqueue.data.records.tenants import read_colocation

_NS_PER_MS = 1e6
_SCENARIO = """\
name: queue
duration: 5s
warmup: 100ms
tenants:
  - {name: high, workload: large_gemm_only, arrival: "poisson: 500/s", parameters: {PARAMETERS}}
goals:
  - high.p99 < GOAL ms
"""


class Design(NamedTuple):
    """Searches of one kind: the product, bounds on its P99, and the command's own options."""

    product: str
    parameters: str
    goals_ms: Sequence[float]
    window: str
    time: str


class Search(NamedTuple):
    """What one search found; ``theory_per_s`` is the capacity of the queue that it searched."""

    theory_per_s: float
    low_per_s: float
    value_per_s: float | None
    high_per_s: float
    windows: int
    verdicts: int
    wrong: int
    broke_first: list[str]


DESIGNS = (
    Design("its default", "", (1.5, 3.5), "100ms", "120s"),
    Design("4096", "mm_dim: 4096", (13.0, 26.0), "5s", "96s"),
)


def waits_at_most(services: float, load: float) -> float:
    """Return P(wait <= so many service times) of M/D/1.

    By Erlang, Nyt Tidsskrift for Matematik B 20, 1909, in the form of Gross et al., Fundamentals of
    Queueing Theory, 5th ed., section 6.1.
    """
    terms = (
        (-load * (services - k)) ** k / math.factorial(k) * math.exp(load * (services - k))
        for k in range(int(services) + 1)
    )
    return (1 - load) * math.fsum(terms)


def load_with_p99(services: float) -> float:
    """Return the load at which 1 % of requests take more than so many service times, with waits."""
    return float(brentq(lambda load: waits_at_most(services - 1, load) - 0.99, 0.05, 0.99))


def service_ms(record: Path) -> float:
    """Return the mean time in service of a record's requests, in ms.

    Raises:
        ValueError: if it varies by more than 2 %, where theory's queue does not hold.

    """
    times = read_colocation(record).tenants[0].requests
    assert times is not None
    due, done = np.array(times.scheduled_ns), np.array(times.finished_ns)
    service = done - np.maximum(due, np.concatenate([[0], done[:-1]]))
    if service.std() >= 0.02 * service.mean():
        raise ValueError(f"{record}: the time in service varies too much for this theory")
    return float(service.mean() / _NS_PER_MS)


def search(design: Design, goal_ms: float, seed: int) -> Search:
    """Run one search, with the command itself."""
    with TemporaryDirectory() as folder:
        file, result = Path(folder, "queue.hwq.yaml"), Path(folder, "capacity.json")
        text = _SCENARIO.replace("PARAMETERS", design.parameters).replace("GOAL", str(goal_ms))
        file.write_text(text, encoding="utf-8")
        ran = CliRunner().invoke(
            hwq,
            ["capacity", str(file), "--tenant", "high", "--device", "sim:h200", "--size", "full",
             "--window", design.window, "--time", design.time, "--seed", str(seed),
             "--dir", folder, "--json", str(result)],
        )  # fmt: skip
        if ran.exit_code != 0:
            raise RuntimeError(ran.output)
        (case,) = CapacityFile.model_validate_json(result.read_bytes()).cases
        served_ms = service_ms(next(Path(folder).glob("*/queue*.json")))
    theory = load_with_p99(goal_ms / served_ms) / served_ms * 1000
    judged = [each for each in case.rates if each.verdict in ("held", "broken")]
    wrong = [each for each in judged if (each.verdict == "held") != (each.rate_per_s < theory)]
    found = case.capacity_per_s
    return Search(
        theory, found.low, found.value, found.high,
        sum(each.windows for each in case.rates), len(judged), len(wrong), case.broke_first,
    )  # fmt: skip


def _search(task: tuple[int, float, int]) -> Search:
    number, goal_ms, seed = task
    return search(DESIGNS[number], goal_ms, seed)


def row(design: Design, found: Sequence[Search]) -> list[str]:
    """Return a design's counts and medians, as cells of a table."""
    holding = sum(each.low_per_s < each.theory_per_s < each.high_per_s for each in found)
    closed = [each for each in found if each.low_per_s > 0 and math.isfinite(each.high_per_s)]
    ends = [each.high_per_s / each.low_per_s for each in closed]
    off = [
        abs(each.value_per_s / each.theory_per_s - 1)
        for each in found
        if each.value_per_s is not None
    ]
    return [
        design.product,
        f"{' and '.join(f'{goal:g}' for goal in design.goals_ms)} ms",
        design.window,
        design.time,
        f"{holding} of {len(found)}",
        f"{sum(each.wrong for each in found)} of {sum(each.verdicts for each in found):,}",
        f"{median(ends):.1f}" if ends else "",
        f"{100 * median(off):.1f} %" if off else "",
        f"{median(each.windows for each in found):.0f}",
        f"{len(found) - len(closed)}",
    ]


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--searches", type=int, default=80, help="for each goal")
    parser.add_argument("--first-seed", type=int, default=100)
    parser.add_argument("--processes", type=int, default=2)
    given = parser.parse_args(arguments)
    print(
        "| product | goals | `--window` | `--time` | intervals that hold the theory's capacity "
        "| wrong verdicts of rates | ends differ by a factor of | capacity off by | windows "
        "| an end open |\n|---|---|---|---|---:|---:|---:|---:|---:|---:|"
    )
    with Pool(given.processes) as pool:
        for number, design in enumerate(DESIGNS):
            tasks = [
                (number, goal_ms, given.first_seed * (1 + at))
                for goal_ms in design.goals_ms
                for at in range(given.searches)
            ]
            found = pool.map(_search, tasks, chunksize=1)
            print(f"| {' | '.join(row(design, found))} |", flush=True)


if __name__ == "__main__":
    main()
