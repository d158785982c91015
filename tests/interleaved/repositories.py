"""Repositories of git, and a product in them that a test measures."""

from __future__ import annotations

import subprocess
from pathlib import Path

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
