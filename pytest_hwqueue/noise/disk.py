"""A neighbour that writes to a disk: fio, random 4 KiB blocks, bypassing the page cache."""

from __future__ import annotations

import os
import shutil
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import psutil

from pytest_hwqueue.noise.neighbour import NeighbourOrder, NeighbourProgram, NeighbourRound
from pytest_hwqueue.noise.programs import missing, run_program, version

_PROGRAM = "fio"
_JOBS = 4
_IN_MEMORY = ("tmpfs", "ramfs")

LEAST_SIZE_BYTES = 1 << 20

# 25 blocks a second: a single rotating disk does about a hundred, the flash below the machine this
# was written on 110,000 to 180,000.
_LEAST_BYTES_PER_S = 100_000


class Disk:
    """Four fio jobs in a temporary folder.

    Args:
        folder: its parent folder, which decides which disk is written to.
        size_bytes: total size of its files.

    """

    name = "disk"

    def __init__(self, folder: Path, size_bytes: int) -> None:
        if size_bytes < LEAST_SIZE_BYTES:
            raise ValueError(
                f"the size of fio's files must be {LEAST_SIZE_BYTES} bytes or more, is {size_bytes}"
            )
        self._folder = folder.resolve()
        self._size_bytes = size_bytes

    @property
    def notes(self) -> Sequence[str]:
        """Return where fio writes."""
        return [f"{self._size_bytes} bytes on {_file_system(self._folder)}"]

    def unavailable(self) -> str | None:
        """Return that fio is missing, or why it cannot write to a disk in its folder, or None."""
        if (reason := missing(_PROGRAM)) is not None:
            return reason
        if not self._folder.is_dir() or not os.access(self._folder, os.W_OK | os.X_OK):
            return f"{self._folder} is no folder that can be written to; give fio another one"
        kind = _file_system(self._folder)
        if kind in _IN_MEMORY:
            return f"{self._folder} is in memory ({kind}), not on a disk; give fio another folder"
        free = shutil.disk_usage(self._folder).free
        if free < self._size_bytes:
            return (
                f"{self._folder} has {free} bytes free, fio's files would have "
                f"{self._size_bytes}; make room, or give another folder or a smaller size"
            )
        return None

    def version(self) -> str | None:
        """Return fio's version."""
        return version(_PROGRAM)

    @contextmanager
    def running(self, order: NeighbourOrder) -> Iterator[Sequence[NeighbourProgram]]:
        """Run fio."""
        folder = self._folder / f"hwq-noise-{uuid.uuid4().hex}"
        command = [
            _PROGRAM, "--name=hwq", f"--directory={folder}", "--rw=randwrite", "--bs=4k",
            # With fio's own choice of an engine the depth would be 1, as it says itself.
            "--ioengine=libaio", "--iodepth=32", f"--numjobs={_JOBS}",
            # As processes, the jobs would each make a session: out of the process group, and
            # scheduled apart from what is measured.
            "--thread",
            "--direct=1", f"--size={self._size_bytes // _JOBS}", "--time_based",
            f"--runtime={order.seconds}", "--unlink=1",
        ]  # fmt: skip
        with run_program(_PROGRAM, command, order, folder=folder) as started:
            yield [started]

    def shortfall(self, round_: NeighbourRound) -> str | None:
        """Judge by what fio wrote.

        The machine's pressure would not show it: the kernel does not count waiting for completions
        as waiting for a disk (PSI io was 0 to 3 % at 250 to 520 MB/s).
        """
        written = round_.done.disk_written_bytes
        if written is None:
            return "what fio's processes did cannot be read from /proc"
        rate = written / round_.duration_s
        if rate < _LEAST_BYTES_PER_S:
            return f"fio wrote {rate / 1e6:.3f} MB/s to the disk, below {_LEAST_BYTES_PER_S / 1e6}"
        return None


def _file_system(folder: Path) -> str:
    """Return the type of a folder's file system, such as ext4."""
    mounts = {each.mountpoint: each.fstype for each in psutil.disk_partitions(all=True)}
    # Of several mounts at one point the last one, which is the one that is seen.
    return next(
        (mounts[str(above)] for above in (folder, *folder.parents) if str(above) in mounts),
        "an unknown file system",
    )
