"""Evidence from inside a process that a mode is active."""

from __future__ import annotations

import importlib.util
import os
import re
import stat
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_hwqueue.data.errors import DeviceError, NotProven, translated
from pytest_hwqueue.parts.devices.conditions import loaded_files, module_loading, mps_client
from pytest_hwqueue.parts.processes.services import service_environment

if TYPE_CHECKING:
    from pytest_hwqueue.parts.devices.compute_units import GroupEvidence, Partition
    from pytest_hwqueue.parts.devices.protocol import StreamPool


_OUTPUT_BYTES = 1 << 16
_ELF_MACHINE_OFFSET = 18


@dataclass(frozen=True)
class InsideEvidence:
    """What a tenant observed after its warm-up; converts to JSON by ``dataclasses.asdict``.

    Attributes:
        maps: files mapped into the process, as the kernel names them (links resolved).
        stream_priorities: each stream's, read back from the device in its own numbers; empty for a
            process that was looked at from outside.
        asked_priorities: each stream's requested priority: 0 is normal, larger is more urgent.
        output: the beginning of the process's output to stdout and stderr; None if these are not
            files.
        capability: compute capability of the CUDA device; None on others.
        multiprocessors: how many the process sees on an accelerator; None on others.
        asked_groups: of each stream, the index of the group of multiprocessors requested for it;
            empty if the mode has no groups.
        group_sizes: of each stream, how many multiprocessors the device says that it has.
        ran_on: of each stream, the numbers of those that it ran on.
        group_queues: of each stream, for how many at once its group is given queues of its own.
        mps_client: whether an MPS server shares the process's CUDA contexts; None on other devices,
            and where the driver does not tell.
        module_loading: whether CUDA loads modules ``lazy`` or ``eager``; None likewise.

    """

    maps: list[str]
    stream_priorities: list[int]
    asked_priorities: list[int] = field(default_factory=list)
    output: str | None = None
    capability: list[int] | None = None
    multiprocessors: int | None = None
    asked_groups: list[int] = field(default_factory=list)
    group_sizes: list[int] = field(default_factory=list)
    ran_on: list[list[int]] = field(default_factory=list)
    group_queues: list[int | None] = field(default_factory=list)
    mps_client: bool | None = None
    module_loading: str | None = None

    def mapped(self, stem: str) -> list[str]:
        """Return the mapped files whose name begins with ``stem``."""
        return [path for path in self.maps if path.rpartition("/")[2].startswith(stem)]

    def has_mapped(self, library: Path) -> bool:
        """Whether a library is mapped, under any link; one without a path, by its name."""
        if library.is_absolute():
            return os.path.realpath(library) in self.maps
        return bool(self.mapped(str(library)))


def gather(pool: StreamPool) -> InsideEvidence:
    """Gather this process's evidence; its streams must be open and have run work."""
    capability, multiprocessors = _accelerator()
    said = "which libraries this process has loaded cannot be read from /proc/self/maps"
    remedy = "without it no mode is proven: mount /proc here"
    with translated(NotProven, said, OSError, remedy=remedy):
        maps = loaded_files()
    return InsideEvidence(
        maps=maps,
        stream_priorities=pool.device_priorities(),
        asked_priorities=[stream.priority for stream in pool.streams],
        output=_own_output(),
        capability=capability,
        multiprocessors=multiprocessors,
        mps_client=None if capability is None else _mps_client(),
        module_loading=None if capability is None else _module_loading(),
    )


# Libraries of schedulers that would stand between a process and the driver.
_INTERCEPTORS = ("libshimcuda.so", "libshimhip.so", "libpreempt.so")


def refuse_interceptors(mode: str, inside: Mapping[str, InsideEvidence]) -> None:
    """Raise NotProven if a scheduler that the user switched on would be measured as ``mode``."""
    for name, each in inside.items():
        found = [path for stem in _INTERCEPTORS for path in each.mapped(stem)]
        if found:
            raise NotProven(
                f"{mode}: tenant {name} has {', '.join(found)} mapped, "
                "so XSched stands between it and the driver: take it out of LD_PRELOAD and "
                "LD_LIBRARY_PATH, and to measure it choose the scheduler xsched (--hwq-xsched-root)"
            )


def gather_outside(pid: int, log: Path) -> InsideEvidence | None:
    """Return what can be seen of another process of this user; None if it has ended.

    Args:
        pid: its process id.
        log: the file that it writes its output to.

    """
    try:
        maps = loaded_files(str(pid))
    except (FileNotFoundError, ProcessLookupError):
        return None
    with open(log, "rb") as file:
        output = file.read(_OUTPUT_BYTES).decode(errors="replace")
    # A process that has ended but was not yet waited for has nothing mapped.
    return InsideEvidence(maps=maps, stream_priorities=[], output=output) if maps else None


def with_groups(
    evidence: InsideEvidence, pool: StreamPool, asked: Sequence[Partition], *, replayed: bool
) -> InsideEvidence:
    """Add where the streams' kernels run.

    Args:
        evidence: gathered before.
        pool: its streams were opened in groups, or should have been.
        asked: what was requested for each stream.
        replayed: whether the streams' work is launched by replayed graphs.

    Raises:
        NotProven: if the device does not tell, or the streams are in no groups.

    """
    groups = getattr(pool, "groups", None)
    if groups is None:
        raise NotProven("the device's streams do not tell on which multiprocessors they run")
    with translated(NotProven, "where the streams' kernels run cannot be found out", DeviceError):
        found: list[GroupEvidence] = groups(replayed=replayed)
    return replace(
        evidence,
        asked_groups=[partition.group for partition in asked],
        group_sizes=[each.size for each in found],
        ran_on=[each.numbers for each in found],
        group_queues=[each.queues for each in found],
    )


def why_not_loaded(library: Path) -> str:
    """Return why the loader cannot load a library, as far as the file shows."""
    if not library.is_absolute():
        return "the loader did not find it"
    try:
        with open(library, "rb") as file:
            theirs = file.read(_ELF_MACHINE_OFFSET + 2)
    except OSError as error:
        return f"{library} cannot be read: {error.strerror}"
    with open(sys.executable, "rb") as file:
        ours = file.read(_ELF_MACHINE_OFFSET + 2)
    if theirs[:4] != b"\x7fELF" or len(theirs) < len(ours):
        return f"{library} is no shared library (no ELF file)"
    # Class (32 or 64 bits), byte order, and the machine.
    if (theirs[4:6], theirs[18:20]) != (ours[4:6], ours[18:20]):
        return f"{library} is built for another architecture than this Python"
    return f"the loader left {library} out; the process's stderr says why"


def _own_output() -> str | None:
    """Read the beginning of the files that stdout and stderr go to."""
    texts = {}
    for descriptor in (1, 2):
        status = os.fstat(descriptor)
        if stat.S_ISREG(status.st_mode):
            with open(f"/proc/self/fd/{descriptor}", "rb") as file:
                texts[status.st_dev, status.st_ino] = file.read(_OUTPUT_BYTES)
    return b"\n".join(texts.values()).decode(errors="replace") if texts else None


def _accelerator() -> tuple[list[int] | None, int | None]:
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_initialized():
        return None, None
    properties = torch.cuda.get_device_properties(torch.cuda.current_device())
    # In a ROCm build the numbers are not compute capabilities.
    capability = None if torch.version.hip else [properties.major, properties.minor]
    return capability, properties.multi_processor_count


def _mps_client() -> bool | None:
    import torch

    try:
        return mps_client(torch.cuda.current_device())
    except (DeviceError, AttributeError):
        return None


def _module_loading() -> str | None:
    try:
        return module_loading()
    except (DeviceError, AttributeError):
        return None


_CUDA = "libcuda.so.1"
_HIP = "libamdhip64.so"
_PATIENCE_S = 30

# Outside the loader's own folders: some container hosts put the driver there.
_CONTAINERS = Path("/usr/local/nvidia/lib64")

_LOAD = (
    f"import ctypes; ctypes.CDLL('{_CUDA}'); maps = open('/proc/self/maps').read().splitlines();"
    "print(next(line.split(None, 5)[5] for line in maps if 'libcuda.so' in line))"
)


@cache
def cuda_driver(shims: Path, containers: Path = _CONTAINERS) -> Path | None:
    """Find the driver library that a process without a shim loads, links resolved.

    A helper process loads it and reads its own maps: that is the loader's own answer. If it loads
    none, the loader's cache, the folders of LD_LIBRARY_PATH and NVIDIA's folder for containers are
    tried.

    Args:
        shims: folder of the libraries that only have its name.
        containers: NVIDIA's folder for containers.

    """
    for candidate in _cuda_candidates(shims, containers):
        path = Path(os.path.realpath(candidate))
        if path.is_file() and not path.is_relative_to(shims.resolve()):
            return path
    return None


@cache
def hip_runtime() -> Path | None:
    """Find the HIP runtime that torch loads: the wheel's own, else ROCm's.

    Written against the layout of PyTorch's ROCm wheels; not yet run on AMD hardware. Two runtimes
    in one process fail with "invalid device ordinal".
    """
    torch = importlib.util.find_spec("torch")
    places = [Path(place) / "lib" for place in (torch.submodule_search_locations or [])
              ] if torch is not None else []  # fmt: skip
    places.append(Path(os.environ.get("ROCM_PATH", "/opt/rocm")) / "lib")
    for place in places:
        for found in sorted(place.glob(f"{_HIP}*")):
            return Path(os.path.realpath(found))
    return None


def _cuda_candidates(shims: Path, containers: Path) -> Iterator[str]:
    library_path = os.environ.get("LD_LIBRARY_PATH", "").split(os.pathsep)
    folders = [each for each in library_path if each and Path(each).resolve() != shims.resolve()]
    environment = service_environment({"LD_LIBRARY_PATH": os.pathsep.join(folders)})
    yield from _output([sys.executable, "-I", "-S", "-c", _LOAD], environment)
    for line in _output(["ldconfig", "-p"], environment):
        if match := re.match(rf"{re.escape(_CUDA)} .*=> (/.*)", line):
            yield match[1]
    yield from (f"{folder}/{_CUDA}" for folder in (*folders, containers))


def _output(command: list[str], environment: dict[str, str]) -> list[str]:
    """Return a helper's lines; none if it failed and so found nothing."""
    try:
        ran = subprocess.run(
            command, env=environment, capture_output=True, text=True, timeout=_PATIENCE_S,
            check=False,
        )  # fmt: skip
    except (FileNotFoundError, PermissionError):
        return []
    return [line.strip() for line in ran.stdout.splitlines()] if ran.returncode == 0 else []
