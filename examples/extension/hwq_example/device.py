"""The device `onecore`: this machine's CPU with one core, on which all streams take turns.

hwq run relay --device onecore --streams 2,4
"""

from __future__ import annotations

import os
from typing import Any

from pytest_hwqueue import Capabilities, Fingerprint, open_device


class OneCore:
    """The CPU's device for a process that may use one core; all else is handed on to it.

    A device for other hardware implements `Device` itself.
    """

    kind = "onecore"
    # Read before anything is opened.
    capabilities = Capabilities(
        host=True, graphs=False, stream_priorities=False, several_ranks=False, collectives="gloo"
    )

    def __init__(self, label: str) -> None:
        self.label = label
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
        self._cpu = open_device("cpu")
        self.name = f"one core of {self._cpu.name}"

    def fingerprint(self) -> Fingerprint:
        """The CPU's, and that it is another device: their runs are never compared."""
        found = self._cpu.fingerprint()
        hard = {**found.hard, "device_kind": self.kind, "device_name": self.name}
        return Fingerprint(hard, found.soft, found.missing)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._cpu, name)
