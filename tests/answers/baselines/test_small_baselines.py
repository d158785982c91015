"""Baselines of few cells, runs and sessions, quiet, wild or all alike: no command fails on any."""

from __future__ import annotations

import math
import random
from pathlib import Path

import pytest

from tests.answers.stored import cell_id, put
from tests.cli.conftest import hwq
from tests.conftest import slow

COMMANDS = (
    "baseline show a", f"baseline show a {cell_id('c0')}", "baseline history a", "baseline list",
    "baseline calibrate a b", "compare a b", f"compare a b --sentinel {cell_id('c0')}",
    "compare a b --fail-on p99,throughput --tau 2%",
)  # fmt: skip


def stored(draw: random.Random, baseline: str, cell: str) -> None:
    """Store a cell: some runs of some sessions, with noise of some kind."""
    runs, kind = draw.choice([1, 2, 3, 4, 5, 8, 10, 20]), draw.choice(["plain", "wild", "drift"])
    sessions, sd = draw.randint(1, runs), draw.choice([0.0, 1e-6, 0.005, 0.02, 0.1, 1.0])
    factors = [math.exp(draw.gauss(0, sd)) for _ in range(runs)]
    if kind == "wild":
        factors = [each * draw.choice([1, 1, 1, 1, 50]) for each in factors]
    elif kind == "drift":
        factors = [each * 1.05**number for number, each in enumerate(factors)]
    of_runs = [f"{baseline}{number * sessions // runs}" for number in range(runs)]
    put(baseline, cell, factors, sessions=of_runs, n=draw.choice([40, 400, 1000]))


@pytest.mark.parametrize("seed", [1, 2, 36, *(slow(seed) for seed in range(1000, 1060))])
def test_whatever_is_stored_no_command_ends_in_a_traceback(
    no_settings: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    monkeypatch.chdir(tmp_path)
    draw = random.Random(seed)
    for baseline in ("a", "b"):
        for number in range(draw.randint(1, 4)):
            stored(draw, baseline, f"c{number}")
    for command in COMMANDS:
        done = hwq(*command.split())
        assert isinstance(done.exception, SystemExit | None), (command, done.exception)
        assert "Traceback" not in done.output, (command, done.output)
