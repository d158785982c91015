"""Runs background load while a worker measures."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path, PurePath
from tempfile import mkdtemp

import pytest

from pytest_hwqueue.errors import NotProven
from pytest_hwqueue.noise.opening import NoisePlaces, open_noise
from pytest_hwqueue.noise.running import RunningNoise, running
from pytest_hwqueue.plugin.state import SETTINGS


def noise_places(config: pytest.Config) -> NoisePlaces:
    """Return the folders and sizes noises need; paths are relative to pytest's invocation."""
    settings = config.stash[SETTINGS]
    folder = config.invocation_params.dir
    place = folder / (settings.noise_dir or settings.dir)
    if settings.noise_dir is None:
        # That of the records is made when the first is written.
        place = next(each for each in (place, *place.parents) if each.is_dir())
    return NoisePlaces(place, settings.noise_size)


class ItemNoise:
    """The background noise of one test; `close` ends whatever still runs."""

    def __init__(self, config: pytest.Config, records: Path) -> None:
        """Take the folders and sizes that noises need, and the folder for their logs."""
        self._places = noise_places(config)
        self._records = records
        self._stack = ExitStack()
        self._running: RunningNoise | None = None
        self._round: RunningNoise | None = None
        # Other processes of the session would be disturbed as well, and measure.
        self._shared = hasattr(config, "workerinput")

    def begin(self, name: str, pid: int, seconds: int) -> str:
        """Start a noise for a process; return why it could not start, or an empty string."""
        if self._shared:
            return f"noise {name} runs with one worker process only: leave out xdist's -n"
        logs = Path(mkdtemp(prefix=f"noise-{PurePath(name).stem}-", dir=self._records))
        try:
            noise = open_noise(name, self._places)
            self._running = self._stack.enter_context(running(noise, pid, logs, seconds))
        except NotProven as error:
            return " ".join(str(error).split())
        return ""

    def end(self) -> dict[str, object]:
        """End it; return what it did, as JSON."""
        assert self._running is not None
        found = self._running.end_round().model_dump(mode="json")
        self.close()
        return found

    def begin_round(self) -> None:
        """Begin another round with the same load, separate from the one that `end` reports."""
        assert self._running is not None
        self._round = self._running.another_round()

    def end_round(self) -> dict[str, object]:
        """End that round and return what happened in it, as JSON."""
        assert self._round is not None
        found, self._round = self._round.end_round().model_dump(mode="json"), None
        return found

    def close(self) -> None:
        """End whatever still runs."""
        self._running = self._round = None
        self._stack.close()
