"""Lets a noise run beside a worker, from where the worker asks for it to where it has measured."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path, PurePath
from tempfile import mkdtemp

import pytest

from pytest_hwqueue.noise.registry import NoisePlaces, open_noise
from pytest_hwqueue.noise.running import RunningNoise, running
from pytest_hwqueue.schedulers.protocol import NotProven
from pytest_hwqueue.state import SETTINGS


def noise_places(config: pytest.Config) -> NoisePlaces:
    """Where noises find what they need; paths go from pytest's own folder."""
    settings = config.stash[SETTINGS]
    folder = config.invocation_params.dir
    return NoisePlaces(folder / (settings.noise_dir or settings.dir), settings.noise_size)


class Beside:
    """The noise beside one test; whatever runs ends with `close`."""

    def __init__(self, config: pytest.Config, records: Path) -> None:
        """Take where noises find what they need, and the folder for their logs."""
        self._places = noise_places(config)
        self._records = records
        self._stack = ExitStack()
        self._running: RunningNoise | None = None

    def begin(self, name: str, pid: int, seconds: int) -> str:
        """Start a noise beside a process; return why it could not be, or nothing."""
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

    def close(self) -> None:
        """End what runs; nothing if nothing does."""
        self._running = None
        self._stack.close()
