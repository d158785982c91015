"""Sessions on a full disk, without /proc, on one core…: finished, or refused with the reason.

Each condition is made for one session, in a mount namespace of its own where it needs mounts.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from pytest_hwqueue.data.records.cell import read_record
from pytest_hwqueue.judge.baselines.store import Store

ROOT = Path(__file__).parents[2]
TESTS = """
from pathlib import Path
import pytest, shutil

@pytest.mark.parametrize("number", range(2))
def test_it(hwq, number):
    hwq.measure(lambda: sum(range(1000)))
    {more}
"""
OPTIONS = ("-p", "no:cacheprovider", "-p", "no:hypothesispytest", "-q", "-rN", "test_users.py",
           "--hwq-device=sim:h200", "--hwq-streams=1", "--hwq-iterations=20", "--hwq-warmup=2",
           "--hwq-baselines=baselines", "--hwq-runs=1", "--hwq-json=session.json")  # fmt: skip
SAVE = "--hwq-save=norm"
MOUNTS = pytest.mark.skipif(
    shutil.which("unshare") is None
    or subprocess.run(["unshare", "-m", "true"], capture_output=True, check=False).returncode != 0,
    reason="mounts need `unshare -m`, which is not allowed here",
)
GROUPS = Path("/sys/fs/cgroup/memory")


class Place:
    """A user's folder in which sessions run under a condition."""

    def __init__(self, folder: Path, more: str = "") -> None:
        self.folder = folder
        for name in (".hwqueue", "baselines", "tmp"):
            (folder / name).mkdir(exist_ok=True)
        (folder / "test_users.py").write_text(TESTS.format(more=more), encoding="utf-8")

    def run(
        self, condition: str = "true", *more: str, wrapped: tuple[str, ...] = (), **variables: str
    ) -> subprocess.CompletedProcess[str]:
        """Run a session after a shell command, whose limits and mounts end with it."""
        kept = {name: value for name, value in os.environ.items()
                if not name.startswith(("HWQ_", "PYTEST_", "GITHUB_"))}  # fmt: skip
        kept |= {"PYTHONPATH": str(ROOT), "TMPDIR": str(self.folder / "tmp"), **variables}
        namespace = ["unshare", "-m"] if "mount " in condition else []
        done = subprocess.run(
            [*namespace, "sh", "-c", f'{condition} && exec "$0" "$@"', *wrapped,
             sys.executable, "-m", "pytest", *OPTIONS, *(more or (SAVE,))],
            cwd=self.folder, env=kept, capture_output=True, text=True, check=False,
        )  # fmt: skip
        print(condition, done.returncode, done.stdout, done.stderr)  # shown if a test fails
        assert "INTERNALERROR" not in done.stdout
        self.check()
        return done

    def check(self) -> None:
        """Nothing is torn, nothing temporary is left."""
        for file in (self.folder / ".hwqueue").glob("*/test_*.json"):
            read_record(file)
        assert not list(self.folder.rglob("*.tmp"))

    def stored(self) -> int:
        """How many cells the baseline has."""
        return len(Store(self.folder / "baselines").read("norm", "sim-h200"))


@pytest.fixture
def place(tmp_path: Path) -> Place:
    """A user's folder."""
    return Place(tmp_path)


pytestmark = pytest.mark.slow


@MOUNTS
def test_records_on_a_full_disk(place: Place) -> None:
    done = place.run("mount -t tmpfs -o size=12k full .hwqueue")
    assert done.returncode == 1
    assert "record was not written: cannot write" in done.stdout
    assert "No space left on device" in done.stdout
    # A test that failed is in no baseline; what it measured is in the file that fits elsewhere.
    assert done.stdout.count("failed after it had measured:") == 2
    assert not list((place.folder / "baselines").rglob("*.jsonl"))
    assert len(json.loads((place.folder / "session.json").read_text())["records"]) == 2


@MOUNTS
def test_baselines_on_a_full_disk(place: Place) -> None:
    done = place.run("mount -t tmpfs -o size=4k full baselines")
    assert done.returncode == 1
    assert "No space left on device" in done.stdout


@MOUNTS
def test_read_only_folder_of_records(place: Place) -> None:
    done = place.run("mount -t tmpfs -o ro readonly .hwqueue")
    assert done.returncode == 4
    assert "--hwq-dir: cannot write records: [Errno 30] Read-only file system" in done.stderr


def test_quota_of_files(place: Place) -> None:
    done = place.run("ulimit -f 4")
    assert done.returncode == 1
    assert "File too large" in done.stdout


def test_few_descriptors(place: Place) -> None:
    assert place.run("ulimit -n 40").returncode == 0
    assert place.stored() == 2


def test_too_few_descriptors(place: Place) -> None:
    done = place.run("ulimit -n 12")
    assert done.returncode != 0
    assert "Too many open files" in done.stdout + done.stderr


@MOUNTS
def test_without_proc_no_mode_is_proven(place: Place) -> None:
    done = place.run("mount -t tmpfs none /proc")
    assert done.returncode == 1
    assert "without it no mode is proven: mount /proc here" in " ".join(done.stdout.split())


@MOUNTS
def test_without_shared_memory(place: Place) -> None:
    assert place.run("mount -t tmpfs -o ro none /dev/shm").returncode == 0
    assert place.stored() == 2


@pytest.mark.skipif(shutil.which("taskset") is None, reason="needs taskset")
def test_one_core(place: Place) -> None:
    core = min(os.sched_getaffinity(0))
    assert place.run(wrapped=("taskset", "-c", str(core))).returncode == 0


@contextlib.contextmanager
def memory_group(limit_bytes: int) -> Iterator[Path]:
    """A control group of its own with so much memory."""
    group = GROUPS / f"torture-{uuid.uuid4().hex[:8]}"
    try:
        group.mkdir()
        (group / "memory.limit_in_bytes").write_text(str(limit_bytes))
    except OSError as error:
        pytest.skip(f"no control group of memory can be made here: {error}")
    try:
        yield group
    finally:
        group.rmdir()


@pytest.mark.skipif(shutil.which("taskset") is None, reason="needs taskset")
def test_one_core_and_512_mb(place: Place) -> None:
    core = min(os.sched_getaffinity(0))
    with memory_group(512 * 2**20) as group:
        wrapped = ("taskset", "-c", str(core))
        done = place.run(f"echo $$ > {group}/cgroup.procs", wrapped=wrapped)
    assert done.returncode == 0
    assert place.stored() == 2


def test_time_zones_do_not_change_the_order_of_runs(place: Place) -> None:
    # Its local time is ahead of the second's by 21 hours or more.
    assert place.run(TZ="Pacific/Kiritimati").returncode == 0
    assert place.run(TZ="America/Los_Angeles").returncode == 0
    for cell in Store(place.folder / "baselines").read("norm", "sim-h200").values():
        first, second = cell.runs
        assert first.when < second.when


@pytest.mark.skipif(shutil.which("faketime") is None, reason="needs faketime (libfaketime)")
def test_clock_set_back_between_sessions(place: Place) -> None:
    assert place.run(wrapped=("faketime", "-f", "+2d")).returncode == 0
    assert place.run().returncode == 0
    cells = Store(place.folder / "baselines").read("norm", "sim-h200")
    assert [len(cell.runs) for cell in cells.values()] == [2, 2]


def test_folders_deleted_while_running(tmp_path: Path) -> None:
    place = Place(tmp_path, "shutil.rmtree(Path('.hwqueue')); shutil.rmtree(Path('baselines'))")
    assert place.run().returncode in (0, 1)
    # The next session is none the worse.
    assert Place(tmp_path).run().returncode == 0
    assert place.stored() == 2
