"""Finds the real driver or runtime library, for schedulers that put a shim in front of it."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from pytest_hwqueue.processes.services import service_environment

_CUDA = "libcuda.so.1"
_HIP = "libamdhip64.so"
_PATIENCE_S = 30

# Outside the loader's own folders: some container hosts put the driver there.
_FOLDER = "/usr/local/nvidia/lib64"

_LOAD = (
    f"import ctypes; ctypes.CDLL('{_CUDA}'); maps = open('/proc/self/maps').read().splitlines();"
    "print(next(line.split(None, 5)[5] for line in maps if 'libcuda.so' in line))"
)


@cache
def cuda_driver(shims: Path) -> Path | None:
    """Find the driver library that a process without a shim loads, links resolved.

    A helper process loads it and reads its own maps: that is the loader's own answer. If it loads
    none, the loader's cache, the folders of LD_LIBRARY_PATH and NVIDIA's folder for containers are
    tried.

    Args:
        shims: folder of the libraries that only have its name.

    """
    for candidate in _cuda_candidates(shims):
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


def _cuda_candidates(shims: Path) -> Iterator[str]:
    library_path = os.environ.get("LD_LIBRARY_PATH", "").split(os.pathsep)
    folders = [each for each in library_path if each and Path(each).resolve() != shims.resolve()]
    environment = service_environment({"LD_LIBRARY_PATH": os.pathsep.join(folders)})
    yield from _output([sys.executable, "-I", "-S", "-c", _LOAD], environment)
    for line in _output(["ldconfig", "-p"], environment):
        if match := re.match(rf"{re.escape(_CUDA)} .*=> (/.*)", line):
            yield match[1]
    yield from (f"{folder}/{_CUDA}" for folder in (*folders, _FOLDER))


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
