"""Baselines on disk whose noise is known, for the commands that compare and keep them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from pytest_hwqueue.data.records.cell import RunRecord, SessionInfo, session_text
from pytest_hwqueue.data.records.files import cell_file_name
from pytest_hwqueue.judge.baselines.cell_file import write_cell
from pytest_hwqueue.judge.baselines.runs import CellBaseline, cell_of_record
from tests.conftest import make_record
from tests.judge.baselines.run_with import with_p99

DEVICE = "nvidia-h200"


def put(
    baseline: str, cell: str, factors: Sequence[float], *, sessions: Sequence[str] = (),
    commits: Sequence[str] = ("0" * 40,), n: int = 1000, **differs: Any,
) -> None:  # fmt: skip
    """Store a cell: its runs' P99 are ``factors`` times 10 ms, each from a session of its own."""
    plain = cell_of_record(make_record(cell, 1, n=n, **differs), "s")
    runs = tuple(
        replace(
            with_p99(plain.runs[0], round(1e7 * factor)),
            session=sessions[number] if sessions else f"{baseline}-{number}",
            when=f"2026-{2 + number // 28:02}-{number % 28 + 1:02}T08:00:00.000+00:00",
            commit=commits[min(number, len(commits) - 1)],
        )
        for number, factor in enumerate(factors)
    )
    path = Path("baselines") / plain.device / baseline / cell_file_name(plain.header.cell.id)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_cell(path, CellBaseline(plain.header, runs))


def noisy(runs: int, seed: int, times: float = 1.0, sd: float = 0.01) -> list[float]:
    return [times * float(x) for x in np.exp(np.random.default_rng(seed).normal(0, sd, runs))]


def cell_id(name: str) -> str:
    return f"{name}[cuda-s8-native-eager]"


def session_file(*records: RunRecord) -> str:
    """Write a session's file; return its name."""
    info = SessionInfo(id="s", started="2026-01-01", command="", version="0", settings={})
    Path("all.json").write_text(session_text(info, list(records), []))
    return "all.json"
