"""Waiting for processes, and programs written at test time."""

from __future__ import annotations

import shutil
import sys
import textwrap
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from pytest_hwqueue.parts.processes.services import ServiceFailed

needs_compiler = pytest.mark.skipif(
    shutil.which("cc") is None, reason="there is no C compiler (cc) to build the library with"
)


# Tells its process id in a file beside it, and in its log by what it was asked to end.
SERVER = """
import os, pathlib, signal, sys, time
signal.signal(signal.SIGINT, lambda number, frame: sys.exit(print("left by SIGINT", flush=True)))
with open(pathlib.Path(__file__).with_name("pids"), "a") as file:
    file.write(f"{os.getpid()}\\n")
print("ready to serve", *sys.argv[1:], flush=True)
time.sleep(600)
"""


def served_pids(folder: Path) -> list[int]:
    """Process ids of the servers that were started in a folder, in that order."""
    return [int(line) for line in (folder / "pids").read_text().split()]


def program(path: Path, body: str) -> Path:
    """Write a Python program that can be executed by its path."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!{sys.executable} -S\n{textwrap.dedent(body)}", encoding="utf-8")
    path.chmod(0o755)
    return path


def wait_for(condition: Callable[[], object], what: str) -> None:
    """Wait until a condition holds; it fails only where it would never hold."""
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline, f"waited in vain: {what}"
        time.sleep(0.01)


def has_ended(pid: int) -> bool:
    """Whether a process has ended (a zombie has)."""
    try:
        return bool(psutil.Process(pid).status() == psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return True


def fails(call: Callable[[], object]) -> bool:
    """Whether a call raises ServiceFailed now."""
    try:
        call()
    except ServiceFailed:
        return True
    return False
