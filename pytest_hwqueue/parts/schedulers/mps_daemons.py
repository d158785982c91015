"""MPS daemons that already run on this machine, and whether they block ours.

A process becomes a client of the daemon whose pipe directory it has. A GPU that one daemon's
server uses can have no second server.
"""

from __future__ import annotations

import os
from collections.abc import Mapping

from pytest_hwqueue.parts.processes.process_table import Programs, RunningProgram

CONTROL = "nvidia-cuda-mps-control"
PIPES = "CUDA_MPS_PIPE_DIRECTORY"
VISIBLE = "CUDA_VISIBLE_DEVICES"

_SERVER = "nvidia-cuda-mps-server"
# NVIDIA's MPS documentation, section "Environment variables".
_DEFAULT_PIPES = "/tmp/nvidia-mps"


def serves_us(programs: Programs) -> str | None:
    """Return the daemon that would take processes we start as its clients, or None."""
    ours = _pipes(os.environ)
    for daemon in running(programs):
        if daemon.environment is None or _pipes(daemon.environment) == ours:
            return _refusal(daemon, "native processes would become its clients")
    return None


def serves_our_devices(programs: Programs) -> str | None:
    """Return the daemon that has a device that ours would serve, or None."""
    ours = devices_by_uuid(os.environ)
    for daemon in running(programs):
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


def running(programs: Programs) -> list[RunningProgram]:
    """Return the control daemons and servers among the programs that run."""
    # Without arguments the control program only passes a question on.
    return [each for each in programs((_SERVER, CONTROL)) if each.name == _SERVER or each.arguments]


def _pipes(environment: Mapping[str, str]) -> str:
    return os.path.realpath(environment.get(PIPES, _DEFAULT_PIPES))


def _refusal(daemon: RunningProgram, consequence: str) -> str:
    return (
        f"another MPS daemon runs here ({daemon}), and {consequence}; if it is yours, stop it "
        f"with: echo quit | {CONTROL}"
    )
