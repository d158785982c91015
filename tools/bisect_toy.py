"""Runs `hwq bisect` for real on a toy repository of 64 commits with a planted slowdown.

    python tools/bisect_toy.py 1 20 64 --pairs 6

The toy's test launches 20 products per iteration on the simulated H200, and 22 from the planted
commit on: 10 % more. Runs differ by simulated noise with a standard deviation of 2 %. Everything
else is real: repository, worktrees, processes, judging. Prints a Markdown table.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
COMMITS = 64
TEST = """\
import torch
import product


def test_product(hwq, hwq_device):
    a = torch.ones(2048, 2048, device=hwq_device.torch_device)

    def iterate():
        for _ in range(product.PRODUCTS):
            a @ a

    hwq.measure(iterate, streams=1)
"""


def make_repository(folder: Path, planted: int, broken: frozenset[int] = frozenset()) -> None:
    """Make a repository whose commits 1 to 64 follow a first one; ``planted`` is the slow one.

    Args:
        folder: to be made.
        planted: number of the first slow commit.
        broken: numbers of commits whose test file does not compile.

    """
    parts = ["feature done\n"]
    for number in range(COMMITS + 1):
        files = {
            "product.py": f"PRODUCTS = {22 if number >= planted else 20}\nNUMBER = {number}\n",
            "test_product.py": "def broken(:\n" if number in broken else TEST,
            ".gitignore": ".hwqueue\n__pycache__\n",
        }
        message = f"commit {number}"
        parts.append(
            f"commit refs/heads/main\ncommitter n <e@example.org> {1700000000 + number} +0000\n"
            f"data {len(message)}\n{message}\n"
        )
        for name, text in files.items():
            parts.append(f"M 644 inline {name}\ndata {len(text.encode())}\n{text}\n")
    subprocess.run(["git", "init", "-q", "-b", "main", folder], check=True)
    subprocess.run(
        ["git", "fast-import", "--quiet"], cwd=folder, input="".join([*parts, "done\n"]),
        text=True, check=True,
    )  # fmt: skip
    subprocess.run(["git", "reset", "-q", "--hard"], cwd=folder, check=True)


def command(*arguments: str) -> list[str]:
    """Return the command that bisects the toy."""
    return [
        sys.executable, "-m", "pytest_hwqueue", "bisect", "test_product.py",
        f"main~{COMMITS}", "main", "--device", "sim:h200", "--sim-noise", "run=0.02",
        "--isolation", "none", "--iterations", "320", *arguments, "--", "-p", "no:cacheprovider",
    ]  # fmt: skip


def environment() -> dict[str, str]:
    """Return the environment of the command: without options, and with this plugin."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("HWQ_")}
    return {**kept, "PYTHONPATH": str(ROOT), "PYTHONSAFEPATH": "1"}


def main() -> None:
    """Bisect each planted place and print what was named."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("places", type=int, nargs="+", help=f"planted commits, 1 to {COMMITS}")
    parser.add_argument("--pairs", default="6")
    options = parser.parse_args()
    print("| planted | named | comparisons | process runs | minutes |\n|---|---|---|---|---|")
    right = 0
    for place in options.places:
        with tempfile.TemporaryDirectory() as scratch:
            folder = Path(scratch) / "toy"
            make_repository(folder, place)
            began = time.monotonic()
            done = subprocess.run(
                command("--pairs", options.pairs), cwd=folder, env=environment(),
                capture_output=True, text=True, check=False,
            )  # fmt: skip
            minutes = (time.monotonic() - began) / 60
            states = list(folder.glob(".hwqueue/bisect-*/bisect.json"))
            if not states:
                sys.exit(done.stdout + done.stderr)
            made = json.loads(states[0].read_text(encoding="utf-8"))["comparisons"]
            runs = len(list(states[0].parent.glob("*/*-[ab].log")))
        named = done.stdout.partition("(")[2].partition(")")[0] if done.returncode == 0 else "none"
        right += named == f"commit {place}"
        print(
            f"| commit {place} | {named} | {len(made)} | {runs} | {minutes:.1f} |", flush=True
        )  # fmt: skip
        if named != f"commit {place}":
            print(done.stdout + done.stderr, file=sys.stderr)
    print(f"\n{right} of {len(options.places)} right")


if __name__ == "__main__":
    main()
