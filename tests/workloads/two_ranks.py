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
import time
from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from pathlib import Path

import torch.distributed as dist
from filelock import FileLock
from torch._C._distributed_c10d import FileStore, HashStore

_ROOT = Path(__file__).parents[2]
_CALL = "import sys; from tests.workloads.two_ranks import call; call(*sys.argv[1:])"
# All that tests have two ranks do: one pair of processes does it, as starting takes longest.
_OF_TWO = ("collectives", "comms_compute_overlap", "fsdp_tp", "moe")


def call(names: str, rank: str, size: str, folder: str) -> None:
    """Run ``of_ranks`` of the tests of each name, and print what each printed as a JSON object."""
    printed = {}
    for name in names.split(","):
        module = importlib.import_module(f"tests.workloads.test_{name}")
        with contextlib.redirect_stdout(io.StringIO()) as out:
            module.of_ranks(int(rank), int(size), f"{folder}/{name}")
        printed[name] = out.getvalue()
    print(json.dumps(printed))


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


def run_ranks(names: Sequence[str], size: int, *, timeout_s: float = 120) -> list[dict[str, str]]:
    """Run ``of_ranks`` of some tests in one process per rank; return what each has printed."""
    with tempfile.TemporaryDirectory() as folder:
        outputs = [Path(folder) / f"{rank}.out" for rank in range(size)]
        errors = [Path(folder) / f"{rank}.err" for rank in range(size)]
        processes = [
            _start([",".join(names), str(rank), str(size), folder], outputs[rank], errors[rank])
            for rank in range(size)
        ]
        try:
            deadline = time.monotonic() + timeout_s
            # A rank that has failed leaves the others waiting for it.
            while any(process.poll() is None for process in processes) and not any(
                process.poll() for process in processes
            ):
                assert time.monotonic() < deadline, _last_words(errors)
                time.sleep(0.02)
            assert not any(process.poll() for process in processes), _last_words(errors)
            return [json.loads(path.read_text()) for path in outputs]
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
