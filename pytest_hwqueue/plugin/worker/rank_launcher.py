"""Starts a host's ranks through torch's elastic launcher, in a separate process.

The launcher passes each rank its place in environment variables, hosts the store through which they
meet, and ends all of them when one has failed. Its process is started by `local_ranks.LocalRanks`.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
import uuid
from pathlib import Path

from torch.distributed import PrefixStore, TCPStore  # type: ignore[attr-defined]
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
from torch.distributed.elastic.rendezvous import (
    RendezvousHandler,
    RendezvousInfo,
    RendezvousParameters,
    RendezvousStoreInfo,
    rendezvous_handler_registry,
)
from torch.distributed.launcher.api import LaunchConfig, elastic_launch

from pytest_hwqueue.processes.channel import ending

_HOST = "127.0.0.1"
# How long ranks that are asked to end may take before they are killed, in seconds.
_ENDING_S = 5
_BACKEND = "hwq-loopback"


class _OneHost(RendezvousHandler):
    """Where the ranks of one host meet: a store that only this machine can reach.

    Torch's own rendezvous makes stores that listen on every interface, whatever address it is
    given; and a store has no password.
    """

    def __init__(self, run_id: str) -> None:
        self._run_id = run_id
        self._closed = False
        listener = socket.create_server((_HOST, 0))
        self._port = listener.getsockname()[1]
        self._store = TCPStore(
            _HOST,
            self._port,
            is_master=True,
            wait_for_workers=False,
            multi_tenant=True,
            master_listen_fd=listener.detach(),
        )

    def get_backend(self) -> str:
        """Return the name under which torch knows it."""
        return _BACKEND

    @property
    def use_agent_store(self) -> bool:
        """Whether ranks use the launcher's store: yes, there is no other."""
        return True

    def next_rendezvous(self) -> RendezvousInfo:
        """Return the store, to this host alone."""
        store = PrefixStore(self._run_id, self._store)
        return RendezvousInfo(store, 0, 1, RendezvousStoreInfo(_HOST, self._port))

    def is_closed(self) -> bool:
        """Whether `set_closed` was called."""
        return self._closed

    def set_closed(self) -> None:
        """Note that there will be no further rendezvous."""
        self._closed = True

    def num_nodes_waiting(self) -> int:
        """Return how many hosts wait to join: none."""
        return 0

    def get_run_id(self) -> str:
        """Return the launch's id."""
        return self._run_id

    def shutdown(self) -> bool:
        """Do nothing: the store ends with this process."""
        return True


def _one_host(parameters: RendezvousParameters) -> RendezvousHandler:
    return _OneHost(parameters.run_id)


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
    rendezvous_handler_registry.register(_BACKEND, _one_host)
    config = LaunchConfig(
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=int(count),
        run_id=uuid.uuid4().hex,
        rdzv_backend=_BACKEND,
        rdzv_endpoint=_HOST,
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
