"""The command in this process and in one of its own, and its starts of pytest, caught."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from pydantic import VERSION

from pytest_hwqueue.cli.main import main
from pytest_hwqueue.options import suite
from pytest_hwqueue.options.options import OPTIONS

ROOT = Path(suite.__file__).parents[2]
# One that needs no import before the command's own.
STARTED = "from pytest_hwqueue.cli.main import main; main(prog_name='hwq')"


def hwq(*arguments: str | Path, answer: str | None = None, columns: int = 200) -> Result:
    """Run the command in this process."""
    env = {"COLUMNS": str(columns)}
    given = list(map(str, arguments))
    return CliRunner().invoke(main, given, prog_name="hwq", env=env, input=answer)


def environment(**more: str) -> dict[str, str]:
    """Return this process's variables, without settings of ours, for a process of a user's."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("HWQ_")}
    return {**kept, "PYTHONPATH": str(ROOT), "PYTHONSAFEPATH": "1", **more}


def real(*arguments: str, script: str = STARTED, **variables: str) -> subprocess.Popen[str]:
    """Start the command, or another script, as a process with pipes."""
    return subprocess.Popen(
        [sys.executable, "-c", script, *arguments], env=environment(**variables), text=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True,
    )  # fmt: skip


def finished(process: subprocess.Popen[str]) -> tuple[int, str, str]:
    """Wait for a process; return its exit status and what it wrote."""
    output, errors = process.communicate(timeout=180)
    return process.returncode, output, errors


def assert_schema_is_the_codes(name: str, schema: dict[str, Any]) -> None:
    """Compare a published schema with that of the code."""
    if tuple(map(int, VERSION.split(".")[:2])) < (2, 14):
        pytest.skip("pydantic before 2.14 writes some fields of a schema another way")
    path = ROOT / "pytest_hwqueue" / "schemas" / name
    if os.environ.get("UPDATE_SNAPSHOTS"):
        text = json.dumps(schema, indent=2, ensure_ascii=False) + "\n"
        path.write_text(text, encoding="utf-8")
    how = f"{name} is not the schema of the code; if that is meant, run with UPDATE_SNAPSHOTS=1"
    assert json.loads(path.read_text(encoding="utf-8")) == schema, how


@pytest.fixture
def no_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let no variable of the tests' own process set an option."""
    for name in (*(option.variable for option in OPTIONS), "RANK"):
        monkeypatch.delenv(name, raising=False)


class Launched:
    """Each command that would have been started, and the status it pretends to end with.

    ``runs`` is called in its place, if given, and returns the status.
    """

    def __init__(self) -> None:
        self.runs: Callable[[list[str], dict[str, str]], int] | None = None
        self.commands: list[list[str]] = []
        self.environment: dict[str, str] = {}
        self.status = 0

    def __call__(self, command: list[str], environment: dict[str, str]) -> int:
        self.commands.append(command)
        self.environment = environment
        return self.status if self.runs is None else self.runs(command, environment)

    @property
    def command(self) -> list[str]:
        return self.commands[-1]

    @property
    def plugin_options(self) -> list[str]:
        return [argument for argument in self.command if argument.startswith("--hwq-")]


@pytest.fixture
def launched(no_settings: None, monkeypatch: pytest.MonkeyPatch) -> Launched:
    """Return what would have been started."""
    found = Launched()
    monkeypatch.setattr(suite, "run_pytest", found)
    return found
