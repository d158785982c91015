"""Opens noises by name: built-in ones and described commands."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from pytest_hwqueue.noise import command, pinning
from pytest_hwqueue.noise.cpu import Cpu
from pytest_hwqueue.noise.disk import DEFAULT_SIZE_BYTES, Disk
from pytest_hwqueue.noise.names import NONE
from pytest_hwqueue.noise.neighbour import Neighbour
from pytest_hwqueue.noise.network import Network


@dataclass(frozen=True)
class NoisePlaces:
    """Folders and sizes that noises need.

    Attributes:
        folder: in which fio makes its files; its file system decides which disk is loaded.
        size_bytes: of fio's files together.
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
        remedy: what is measured is pinned and raised; ``isolated`` keeps neighbours off its cores.

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
        BadNoise: if it is neither built in nor described, or its description is wrong.
        ValueError: if the size of fio's files is too small.

    """
    if name == NONE:
        return Noise(name, ())
    if name == "cpu":
        return Noise(name, (Cpu(),))
    if name == "network":
        return Noise(name, (Network(),))
    if name == "disk":
        return Noise(name, (Disk(places.folder, places.size_bytes),))
    if name == "heavy":
        return Noise(name, (Cpu(), Network(), Disk(places.folder, places.size_bytes)))
    if name == "optimised":
        return Noise(name, (Cpu(),), "pinned")
    if name == "isolated":
        return Noise(name, (Cpu(),), "isolated")
    return Noise(name, (command.load(name, places.descriptions),))
