"""Ctrl-C ends the command in one line, wherever it is."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.conftest import hwq

# Ctrl-C in the middle of the command's imports, and while the interpreter ends.
PROGRAM = """
import atexit, os, signal, sys
from pytest_hwqueue.cli import run

class Importing:
    def find_spec(self, name, path=None, target=None):
        if name == interrupted:
            # As the code that `dataclass` makes; Python then notes that nobody handles it.
            exec("signal.raise_signal(signal.SIGINT)")

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


@pytest.mark.parametrize(("given", "status", "output", "errors"), [
    (["importing", "click"], 2, "", "hwq: interrupted\n"),
    (["importing", "pytest_hwqueue.options.suite", "run", "moe"], 2, "", "hwq: interrupted\n"),
    (["leaving"], -2, "hwq, version ", ""),
])  # fmt: skip
def test_ctrl_c_ends_it_in_one_line(
    tmp_path: Path, given: list[str], status: int, output: str, errors: str
) -> None:
    (tmp_path / "hwq_once.py").write_text(PROGRAM, encoding="utf-8")
    command = [sys.executable, "-m", "hwq_once", *given]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (status, errors)
    assert done.stdout.startswith(output)


@pytest.mark.parametrize(("command", "module", "name", "error", "said"), [
    ("check", "check", "check_devices", KeyboardInterrupt(15), "interrupted: what was measured"),
    ("run", "cluster", "Cluster", KeyboardInterrupt(2), "interrupted: go on with hwq fleet run"),
    ("run", "cluster", "Cluster", ConnectionError("it is gone"), "it is gone: go on with hwq"),
])  # fmt: skip
def test_an_interrupted_fleet_says_what_can_be_done_and_no_signals_number(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str, module: str, name: str,
    error: BaseException, said: str,
) -> None:  # fmt: skip
    def interrupted(*_: object) -> None:
        raise error

    monkeypatch.setattr(f"pytest_hwqueue.answers.fleet.{module}.{name}", interrupted)
    done = hwq("fleet", command, "--out", tmp_path / "out", "--device", "sim:h200")
    assert done.exit_code == 2
    assert done.stderr.startswith(said)
