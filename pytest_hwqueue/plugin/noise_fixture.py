"""What a test sees as the ``hwq_noise`` fixture: neighbours on the CPU around code of its own."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING

import pytest

from pytest_hwqueue.noise.names import NONE, seconds_of_a_cell
from pytest_hwqueue.plugin.state import SINK, WORKER_KEY
from pytest_hwqueue.ranks.place import place_of

if TYPE_CHECKING:
    from pytest_hwqueue.plugin.measurement import Sink
    from pytest_hwqueue.records.noise import NoiseRound
    from pytest_hwqueue.settings.options import Settings


class BesideBlock:
    """A ``with`` block that a noise runs beside.

    Attributes:
        noise: its name.
        round: what it did, and whether it was felt; None until the block has ended.

    """

    def __init__(self, noise: str) -> None:
        self.noise = noise
        self.round: NoiseRound | None = None


class HwqNoise:
    """Runs neighbours beside this test's process for the length of a ``with`` block.

    What `hwq` measures inside the block is a cell beside the noise, with the evidence of its own
    measured pass; what it measures outside is the quiet turn to compare with.

    Attributes:
        running: the name of the noise that runs now; ``none`` if none does.

    """

    def __init__(self, request: pytest.FixtureRequest, settings: Settings) -> None:
        self.running = NONE
        self._request = request
        self._settings = settings

    @contextmanager
    def __call__(self, name: str, *, seconds: int | None = None) -> Iterator[BesideBlock]:
        """Run a noise beside this process; skip the test if it cannot be made here.

        Args:
            name: of ``--hwq-noise``, or the path of a description (your own command).
            seconds: after which the neighbours end by themselves: more than the block takes. By
                default as for one cell, 60 and three times ``--hwq-max-time``.

        Yields:
            a block, whose ``round`` has the evidence as soon as it has ended.

        Raises:
            BadNoise: if there is no such noise.
            NotProven: if a neighbour cannot be started.
            RuntimeError: if a noise runs already.

        """
        if self.running != NONE:
            raise RuntimeError(
                f"noise {self.running} runs already: put {name} behind its block, or take heavy, "
                "or a description of your own that starts all"
            )
        if reason := self._refusal(name):
            pytest.skip(reason)
        sink: Sink = self._request.config.stash[SINK]
        block = BesideBlock(name)
        limit_s = seconds_of_a_cell(self._settings.max_time) if seconds is None else seconds
        rounds: list[NoiseRound] = []
        try:
            with sink.beside(name, limit_s) as rounds:
                self.running = name
                yield block
        finally:
            self.running = NONE
            block.round = rounds[0] if rounds else None

    def possible(self) -> bool:
        """Whether there can be any noise beside this test."""
        return self._impossible(NONE) is None

    def beside_cell(self, seconds: int) -> AbstractContextManager[list[NoiseRound]]:
        """Have a round of its own for a cell, beside what runs now or in the quiet."""
        sink: Sink = self._request.config.stash[SINK]
        return sink.beside(NONE, seconds) if self.running == NONE else sink.another_round()

    def _refusal(self, name: str) -> str | None:
        """Why a noise cannot be made here; None if it can."""
        from pytest_hwqueue.noise.opening import open_noise
        from pytest_hwqueue.plugin.background_noise import noise_places

        # First of all: a wrong name is no reason to skip.
        noise = open_noise(name, noise_places(self._request.config))
        return self._impossible(name) or noise.unavailable()

    def _impossible(self, name: str) -> str | None:
        """Why there can be no noise beside this test, whatever the machine has."""
        callspec = getattr(self._request.node, "callspec", None)
        parameters = {} if callspec is None else callspec.params
        device = str(parameters.get("hwq_device", self._settings.device))
        simulated = device.startswith("sim:")
        if reason := impossible_beside(name, simulated, place_of(os.environ) is not None):
            return reason
        if WORKER_KEY in getattr(self._request.config, "workerinput", {}):
            return None
        return (
            f"noise {name} runs beside a worker process: leave out --hwq-isolation=none, --pdb, "
            "--trace"
        )


def impossible_beside(name: str, simulated: bool, ranked: bool) -> str | None:
    """Why there can be no noise beside what a test measures, whatever the machine has; or None."""
    if simulated:
        return f"noise {name} disturbs this machine, which a simulated device does not use"
    if ranked:
        return f"noise {name} runs beside a process alone: give --hwq-ranks=1, and no torchrun"
    return None
