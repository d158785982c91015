"""Real ranks for tests: processes that meet through a file, or a group of this process alone."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path

import torch.distributed as dist
from torch._C._distributed_c10d import FileStore, HashStore

_ROOT = Path(__file__).parents[2]
_CALL = (
    "import importlib, sys; module, _, name = sys.argv[1].partition(':'); "
    "rank, size = int(sys.argv[2]), int(sys.argv[3]); "
    "getattr(importlib.import_module(module), name)(rank, size, *sys.argv[4:])"
)


def run_ranks(
    script_function: str, size: int = 2, arguments: Sequence[str] = (), *, timeout_s: float = 120
) -> list[str]:
    """Run a function in one process per rank; return what each has printed.

    Args:
        script_function: such as ``tests.workloads.test_moe:two_ranks``; called as
            ``function(rank, size, store_path, *arguments)``. `gloo_group` makes the group.
        size: number of ranks.
        arguments: further ones, as text.
        timeout_s: within which all must have ended.

    """
    with tempfile.TemporaryDirectory() as folder:
        outputs = [Path(folder) / f"{rank}.out" for rank in range(size)]
        errors = [Path(folder) / f"{rank}.err" for rank in range(size)]
        processes = [
            _start([script_function, str(rank), str(size), f"{folder}/store", *arguments],
                   outputs[rank], errors[rank])
            for rank in range(size)
        ]  # fmt: skip
        try:
            deadline = time.monotonic() + timeout_s
            # A rank that has failed leaves the others waiting for it.
            while any(process.poll() is None for process in processes) and not any(
                process.poll() for process in processes
            ):
                assert time.monotonic() < deadline, _last_words(errors)
                time.sleep(0.02)
            assert not any(process.poll() for process in processes), _last_words(errors)
            return [path.read_text() for path in outputs]
        finally:
            for process in processes:
                process.kill()
                process.wait()


def _start(arguments: Sequence[str], output: Path, errors: Path) -> subprocess.Popen[bytes]:
    rank, size = arguments[1:3]
    with output.open("wb") as out, errors.open("wb") as err:
        return subprocess.Popen(
            [sys.executable, "-W", "error", "-c", _CALL, *arguments],
            cwd=_ROOT,
            env={**os.environ, "RANK": rank, "WORLD_SIZE": size, "OMP_NUM_THREADS": "1"},
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=err,
        )


def _last_words(errors: Sequence[Path]) -> str:
    return "\n".join(f"rank {rank}: {path.read_text()}" for rank, path in enumerate(errors))


@contextmanager
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
