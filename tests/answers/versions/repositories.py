"""Repositories of git, a product in them that a test measures, and sides of a comparison."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import numpy as np

from pytest_hwqueue.answers.versions.sides import Side
from pytest_hwqueue.answers.versions.variants import SideVariant
from pytest_hwqueue.data.records.cell import RunRecord
from tests.conftest import make_record

# Measures `product.DELAY_S`.
TEST = """
import time
import product

def test_product(hwq):
    hwq.measure(lambda: time.sleep(product.DELAY_S), streams=1)
"""


def git(folder: Path, *arguments: str) -> str:
    """Run git as some author; return what it printed."""
    done = subprocess.run(
        ["git", "-c", "user.name=n", "-c", "user.email=e@example.org", *arguments],
        cwd=folder, capture_output=True, text=True, check=True,
    )  # fmt: skip
    return done.stdout.strip()


def make_side(name: str = "A", **changed: Any) -> Side:
    """A side of no command in the current folder."""
    plain: dict[str, Any] = {
        "label": f"label {name}", "folder": Path(), "commit": None, "changed": False,
        "variant": SideVariant(), "environment": {}, "command": (), "root": Path(), "tests": (),
    }  # fmt: skip
    return Side(name=name, **{**plain, **changed})


def quick_record(cell: str, seed: int, *, scale: float = 1.0, **changed: Any) -> RunRecord:
    """`make_record` of 400 requests without metrics, which cost the most and no judge reads."""
    record = make_record(cell, seed, n=0, nodeid=f"file.py::test_{cell}", **changed)
    if record.samples is None:
        return record
    draw = scale * np.random.default_rng(seed).lognormal(15, 0.03, 400)
    samples = record.samples.model_copy(update={"host_ns": np.rint(draw).astype(int).tolist()})
    return record.model_copy(update={"samples": samples, "iterations": 400})
