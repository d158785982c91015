"""Ctrl-C ends the command in one line, wherever it is."""

from __future__ import annotations

import subprocess
import sys

import pytest

# Ctrl-C in the middle of the command's imports, and while the interpreter ends.
PROGRAM = """
import atexit, os, signal, sys
from pytest_hwqueue.cli import run

class Importing:
    def find_spec(self, name, path=None, target=None):
        if name == interrupted:
            os.kill(os.getpid(), signal.SIGINT)

def press():
    os.kill(os.getpid(), signal.SIGINT)

if sys.argv[1] == "importing":
    interrupted, sys.argv[1:] = sys.argv[2], sys.argv[3:]
    sys.meta_path.insert(0, Importing())
else:
    atexit.register(press)
    sys.argv[1:] = ["--version"]
run()
"""


@pytest.mark.parametrize("given", [("click",), ("pytest_hwqueue.suite", "run", "moe")])
def test_ctrl_c_during_imports(given: tuple[str, ...]) -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, "importing", *given],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (2, "hwq: interrupted\n")


def test_ctrl_c_at_the_end() -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, "leaving"], capture_output=True, text=True, check=False
    )
    assert done.stdout.startswith("hwq, version ")
    assert done.stderr == ""
