"""Opens noises by name: built-in, from other packages, or described in files."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from pytest_hwqueue.noise import command, pinning
from pytest_hwqueue.noise.names import NOISES
from pytest_hwqueue.noise.neighbour import Neighbour

DEFAULT_SIZE_BYTES = 1 << 30


@dataclass(frozen=True)
class NoisePlaces:
    """Folders and sizes that noises need.

    Attributes:
        folder: for fio's files; its file system decides which disk is loaded.
        size_bytes: total size of fio's files.
        descriptions: folders to search for described commands.

    """

    folder: Path
    size_bytes: int = DEFAULT_SIZE_BYTES
    descriptions: tuple[Path, ...] = ()


@dataclass(frozen=True)
class Noise:
    """What loads the machine during one round.

    Attributes:
        name: as requested.
        neighbours: started in this order; none for the quiet one.
        remedy: ``pinned`` pins and raises the measured process; ``isolated`` also keeps neighbours
            off its cores.

    """

    name: str
    neighbours: Sequence[Neighbour]
    remedy: Literal["pinned", "isolated"] | None = None

    def unavailable(self) -> str | None:
        """Return every reason why it cannot run here, with what to do, or None."""
        reasons = [reason for each in self.neighbours if (reason := each.unavailable())]
        isolated = self.remedy == "isolated"
        if self.remedy and (reason := pinning.unavailable(isolated=isolated)):
            reasons.append(reason)
        return f"noise {self.name}: {'; '.join(reasons)}" if reasons else None


def open_noise(name: str, places: NoisePlaces) -> Noise:
    """Open a noise.

    Raises:
        BadNoise: if it is neither declared nor described, or its description is wrong.
        ValueError: if the size of fio's files is too small.

    """
    if name not in NOISES:
        return Noise(name, (command.load(name, places.descriptions),))
    module, _, function = NOISES[name].factory.partition(":")
    noise: Noise = getattr(importlib.import_module(module), function)(places)
    return noise
