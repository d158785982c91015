"""Background noise in a pytest session: turns of it, and the fixture."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING

import pytest

from pytest_hwqueue.data.noise_names import NONE, seconds_of_a_cell
from pytest_hwqueue.data.records.kinds import capabilities_of
from pytest_hwqueue.engine.noise.neighbours import NoisePlaces, open_noise
from pytest_hwqueue.parts.processes.launched import launched_rank
from pytest_hwqueue.plugin.keys import SETTINGS, SINK, is_worker, parameters_of

if TYPE_CHECKING:
    from pytest_hwqueue.data.records.noise import NoiseRound
    from pytest_hwqueue.options.options import Settings
    from pytest_hwqueue.plugin.worker.calls import SessionCalls


def noise_places(config: pytest.Config) -> NoisePlaces:
    """Return the folders that noises need; paths are relative to pytest's invocation."""
    settings = config.stash[SETTINGS]
    folder = config.invocation_params.dir
    place = folder / (settings.noise_dir or settings.dir)
    if settings.noise_dir is None:
        # That of the records is made when the first is written.
        place = next(each for each in (place, *place.parents) if each.is_dir())
    return NoisePlaces(place)


@contextmanager
def under_noise(session: SessionCalls, noise: str, seconds: int) -> Iterator[list[NoiseRound]]:
    """Run a noise during the ``with`` block, or another round of the one that runs already.

    The list then holds what it did.

    Raises:
        NotProven: if it cannot be started.

    """
    session.begin_noise(noise, seconds)
    rounds: list[NoiseRound] = []
    try:
        yield rounds
    finally:
        round_ = session.end_noise()
        rounds += [] if round_ is None else [round_]


class NoiseBlock:
    """A ``with`` block during which a noise runs.

    Attributes:
        noise: its name.
        round: what it did, and whether it was felt; None until the block has ended.

    """

    def __init__(self, noise: str) -> None:
        self.noise = noise
        self.round: NoiseRound | None = None


class HwqNoise:
    """Runs background load next to this test's process during a ``with`` block.

    What `hwq` measures inside the block is a cell under noise, with the evidence of its own
    measured pass; what it measures outside is the quiet turn to compare with.

    Attributes:
        running: the name of the noise that runs now; ``none`` if none does.

    """

    def __init__(self, request: pytest.FixtureRequest, settings: Settings) -> None:
        self.running = NONE
        self._request = request
        self._settings = settings

    @contextmanager
    def __call__(self, name: str, *, seconds: int | None = None) -> Iterator[NoiseBlock]:
        """Run a noise next to this process; skip the test if that is impossible here.

        Args:
            name: of ``--hwq-noise``, or the path of a description (your own command).
            seconds: after which the neighbours end by themselves; must exceed the block's time. By
                default as for one cell: 60 plus three times ``--hwq-max-time``.

        Yields:
            a block whose ``round`` has the evidence once it has ended.

        Raises:
            BadInput: if there is no such noise.
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
        session = self._request.config.stash[SINK].session
        block = NoiseBlock(name)
        limit_s = seconds_of_a_cell(self._settings.max_time) if seconds is None else seconds
        rounds: list[NoiseRound] = []
        try:
            with under_noise(session, name, limit_s) as rounds:
                self.running = name
                yield block
        finally:
            self.running = NONE
            block.round = rounds[0] if rounds else None

    def possible(self) -> bool:
        """Whether this test can have background noise."""
        return self._impossible(NONE) is None

    def around_cell(self, seconds: int) -> AbstractContextManager[list[NoiseRound]]:
        """Give a cell its own round under the current noise, or in the quiet."""
        return under_noise(self._request.config.stash[SINK].session, self.running, seconds)

    def _refusal(self, name: str) -> str | None:
        """Return why a noise cannot run here, or None."""
        # First of all: a wrong name is no reason to skip.
        noise = open_noise(name, noise_places(self._request.config))
        return self._impossible(name) or noise.unavailable()

    def _impossible(self, name: str) -> str | None:
        """Return why this test cannot have background noise on any machine, or None."""
        device = str(parameters_of(self._request.node).get("hwq_device", self._settings.device))
        if reason := why_noise_is_impossible(name, device, launched_rank(os.environ) is not None):
            return reason
        if is_worker(self._request.config):
            return None
        return (
            f"noise {name} needs a separate worker process: leave out --hwq-isolation=none, --pdb, "
            "--trace"
        )


def why_noise_is_impossible(name: str, device: str, launched: bool) -> str | None:
    """Return why a test cannot have background noise on any machine, or None.

    Args:
        name: of the noise.
        device: label or kind of the measured device.
        launched: whether a launcher has started several ranks, each with a session of its own.

    """
    if capabilities_of(device).virtual_time:
        return f"noise {name} disturbs this machine, which a simulated device does not use"
    if launched:
        return (
            f"noise {name} of a test's block, or of tenants, runs beside the processes of one "
            "session, and a launcher's ranks have one each: leave torchrun out"
        )
    return None
