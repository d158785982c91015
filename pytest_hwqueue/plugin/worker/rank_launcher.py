"""Starts a host's ranks through torch's elastic launcher, in a separate process.

The launcher passes each rank its place in environment variables, hosts the store through which they
meet, and ends all of them when one has failed. Its process is started by `local_ranks.LocalRanks`.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import uuid
from pathlib import Path

from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
from torch.distributed.launcher.api import LaunchConfig, elastic_launch

from pytest_hwqueue.processes.post_mortem import ending

_HOST = "127.0.0.1"
# How long ranks that are asked to end may take before they are killed, in seconds.
_ENDING_S = 5


def main() -> None:
    """Launch the ranks and wait for them to end.

    The last arguments are the number of ranks, the file that lists failed ranks, and each rank's
    command (one word that Python runs, and its arguments) as a list in JSON.
    """
    # A group of its own: the terminal's Ctrl-C goes to pytest, which ends the ranks itself.
    os.setpgrp()
    count, endings, command = sys.argv[-3:]
    os.environ.setdefault("TORCH_ELASTIC_SHUTDOWN_TIMEOUT", str(_ENDING_S))
    # All of it stays on this machine.
    for name in ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"):
        os.environ.setdefault(name, "lo")
    config = LaunchConfig(
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=int(count),
        run_id=uuid.uuid4().hex,
        rdzv_backend="c10d",
        rdzv_endpoint=f"{_HOST}:0",
        local_addr=_HOST,
        max_restarts=0,
    )
    # Newer ones bind each rank to its GPU's node by default: pinning is the user's choice.
    if hasattr(config, "numa_options"):
        config.numa_options = None
    try:
        elastic_launch(config, sys.executable)(*json.loads(command))
    except ChildFailedError as error:
        ended = {rank: each.exitcode for rank, each in sorted(error.failures.items())}
        # The launcher itself ends the others with SIGTERM.
        first = {rank: code for rank, code in ended.items() if code != -signal.SIGTERM} or ended
        lines = [f"rank {rank} {ending(code)}" for rank, code in first.items()]
        Path(endings).write_text("; ".join(lines))
        sys.exit(1)
