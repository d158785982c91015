"""MPS daemons that already run on this machine, and whether they block ours.

A process becomes a client of the daemon whose pipe directory it has. A GPU that one daemon's
server uses can have no second server.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from pytest_hwqueue.parts.devices.conditions import started_with

CONTROL = "nvidia-cuda-mps-control"
PIPES = "CUDA_MPS_PIPE_DIRECTORY"
VISIBLE = "CUDA_VISIBLE_DEVICES"

_SERVER = "nvidia-cuda-mps-server"
# NVIDIA's MPS documentation, section "Environment variables".
_DEFAULT_PIPES = "/tmp/nvidia-mps"


@dataclass(frozen=True)
class Daemon:
    """A control daemon or server; ``environment`` is None if we may not read it."""

    name: str
    pid: int
    environment: Mapping[str, str] | None

    def __str__(self) -> str:
        """Return its name and process id."""
        return f"{self.name}, process {self.pid}"


def serves_us() -> str | None:
    """Return the daemon that would take processes we start as its clients, or None."""
    ours = _pipes(os.environ)
    for daemon in running():
        if daemon.environment is None or _pipes(daemon.environment) == ours:
            return _refusal(daemon, "native processes would become its clients")
    return None


def serves_our_devices() -> str | None:
    """Return the daemon that has a device that ours would serve, or None."""
    ours = devices_by_uuid(os.environ)
    for daemon in running():
        theirs = None if daemon.environment is None else devices_by_uuid(daemon.environment)
        if ours is None or theirs is None or ours & theirs:
            return _refusal(
                daemon,
                "two daemons on one GPU exclude each other (on different GPUs of one machine, "
                f"give both their own by UUID in {VISIBLE})",
            )
    return None


def devices_by_uuid(environment: Mapping[str, str]) -> frozenset[str] | None:
    """Return the devices that an environment makes visible; None unless named by UUID."""
    parts = [part.strip() for part in environment.get(VISIBLE, "").split(",")]
    return frozenset(parts) if all(part.startswith(("GPU-", "MIG-")) for part in parts) else None


def running(proc: Path = Path("/proc")) -> list[Daemon]:
    """Return the daemons and servers that the kernel shows in its folder of processes."""
    found = []
    for process in proc.glob("[0-9]*"):
        with suppress(FileNotFoundError, ProcessLookupError):
            text = (process / "cmdline").read_text(encoding="utf-8", errors="surrogateescape")
            command = text.rstrip("\0").split("\0")
            name = Path(command[0]).name
            # Without arguments the control program only passes a question on.
            if name == _SERVER or (name == CONTROL and command[1:]):
                found.append(Daemon(name, int(process.name), _environment(process)))
    return found


def _environment(process: Path) -> dict[str, str] | None:
    """Return a process's variables; None if they are another user's to see."""
    try:
        return started_with(process) or None
    except (PermissionError, FileNotFoundError):
        return None


def _pipes(environment: Mapping[str, str]) -> str:
    return os.path.realpath(environment.get(PIPES, _DEFAULT_PIPES))


def _refusal(daemon: Daemon, consequence: str) -> str:
    return (
        f"another MPS daemon runs here ({daemon}), and {consequence}; if it is yours, stop it "
        f"with: echo quit | {CONTROL}"
    )
