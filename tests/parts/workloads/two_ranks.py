"""Real ranks for tests: processes that meet through a file, or a group of this process alone."""

from __future__ import annotations

import contextlib
import importlib
import io
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch.distributed as dist
from filelock import FileLock
from torch._C._distributed_c10d import FileStore, HashStore
from torch.multiprocessing.spawn import start_processes

_ROOT = Path(__file__).parents[3]
_CALL = "import sys; from tests.parts.workloads.two_ranks import call; call(*sys.argv[1:])"
# All that tests have two ranks do: one pair of processes does it, as starting takes longest.
_OF_TWO = ("collectives", "comms_compute_overlap", "fsdp_tp", "moe")


def call(names: str, size: str, folder: str) -> None:
    """Run ``of_ranks`` of the tests of each name in forks of this process, one per rank."""
    modules = {
        name: importlib.import_module(f"tests.parts.workloads.test_{name}")
        for name in names.split(",")
    }
    start_processes(_rank, (modules, int(size), Path(folder)), int(size), start_method="fork")


def _rank(rank: int, modules: dict[str, Any], size: int, folder: Path) -> None:
    """Write what each printed as a JSON object."""
    os.environ["RANK"] = str(rank)
    printed = {}
    for name, module in modules.items():
        with contextlib.redirect_stdout(io.StringIO()) as out:
            module.of_ranks(rank, size, str(folder / name))
        printed[name] = out.getvalue()
    (folder / f"{rank}.json").write_text(json.dumps(printed))


Printed = Callable[..., list[str]]


def _of_two_ranks(shared: Path) -> list[dict[str, str]]:
    file = shared / "two_ranks.json"
    with FileLock(file.with_suffix(".lock")):
        if not file.exists():
            file.write_text(json.dumps(run_ranks(_OF_TWO, 2)))
        found: list[dict[str, str]] = json.loads(file.read_text())
    return found


def printed_of(name: str, size: int, shared: Path) -> list[str]:
    """Return what ``of_ranks(rank, size, store_path)`` of the tests of a name prints by rank.

    Args:
        name: of ``test_NAME.py``.
        size: how many ranks.
        shared: folder of this run of tests, the same for all workers of xdist.

    """
    found = _of_two_ranks(shared) if size == 2 else run_ranks([name], size)
    return [printed[name] for printed in found]


def run_ranks(names: Sequence[str], size: int) -> list[dict[str, str]]:
    """Run ``of_ranks`` of some tests in one process per rank; return what each has printed."""
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run(
            [sys.executable, "-W", "error", "-c", _CALL, ",".join(names), str(size), folder],
            cwd=_ROOT, env={**os.environ, "WORLD_SIZE": str(size), "OMP_NUM_THREADS": "1"},
            stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=120, check=False,
        )  # fmt: skip
        # A rank that has failed ends the others, and its traceback is shown.
        assert done.returncode == 0, done.stderr
        return [json.loads(Path(folder, f"{rank}.json").read_text()) for rank in range(size)]


@contextlib.contextmanager
def gloo_group(rank: int = 0, size: int = 1, store_path: str | None = None) -> Iterator[None]:
    """Make torch.distributed's default group over gloo; of this process alone unless told."""
    store = HashStore() if store_path is None else FileStore(store_path, size)
    dist.init_process_group(
        "gloo", store=store, rank=rank, world_size=size, timeout=timedelta(seconds=60)
    )
    try:
        yield
    finally:
        dist.destroy_process_group()
