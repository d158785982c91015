"""The lease, held and awaited by real processes."""

from __future__ import annotations

import json
import os
import signal
import stat
import subprocess
import sys
import tempfile
import textwrap
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from pytest_hwqueue.devices.lease import LeaseTimeout, keep, lease, lock_path, session_leases
from pytest_hwqueue.errors import LeaseError

KEY = "GPU-00000000-1111-2222-3333-444444444444"
NOBODY = 65534
ROOT = Path(__file__).parents[2]

# Takes the lease (as another user, if given), says so, and holds it until its standard input ends.
HOLDER = textwrap.dedent(
    """
    import os, pwd, sys
    os.umask(0o077)
    from pytest_hwqueue.devices.lease import lease
    if sys.argv[2:]:  # after the imports, which that user may not be allowed to read
        os.setgroups([])
        os.setgid(int(sys.argv[2]))
        os.setuid(int(sys.argv[2]))
    with lease(sys.argv[1], on_wait=lambda text: print("waits", text, flush=True)):
        print("held", flush=True)
        sys.stdin.read()
    print("released", flush=True)
    """
)


class Session(NamedTuple):
    """A process that wants the lease; it gives it back when told to."""

    process: subprocess.Popen[str]

    def says(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def give_back(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()


@pytest.fixture
def directory(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A temporary directory as /tmp is: everybody's, and sticky. tmp_path is its owner's alone."""
    with tempfile.TemporaryDirectory() as name:
        shared = Path(name)
        shared.chmod(0o1777)
        monkeypatch.setattr("tempfile.tempdir", name)
        yield shared


@pytest.fixture
def start(directory: Path) -> Iterator[Callable[..., Session]]:
    sessions: list[Session] = []

    def start_session(key: str = KEY, user: int | None = None) -> Session:
        process = subprocess.Popen(
            [sys.executable, "-c", HOLDER, key, *([] if user is None else [str(user)])],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "TMPDIR": str(directory), "PYTHONPATH": str(ROOT)},
        )
        sessions.append(Session(process))
        return sessions[-1]

    yield start_session
    for session in sessions:
        with session.process:  # closes the pipes and waits
            session.process.kill()


def test_second_process_waits_until_the_first_gives_back(start: Callable[..., Session]) -> None:
    first = start()
    assert first.says() == "held"
    second = start()
    waits = second.says()
    assert waits.startswith(f"waits waiting for {KEY}: process {first.process.pid} of user ")
    first.give_back()
    assert first.says() == "released"
    assert second.says() == "held"


def test_killed_holder_frees_the_device(start: Callable[..., Session]) -> None:
    holder = start()
    assert holder.says() == "held"
    waiting = start()
    assert waiting.says().startswith("waits")
    holder.process.send_signal(signal.SIGKILL)
    assert waiting.says() == "held"


def test_stale_note_of_a_dead_process_is_not_believed(start: Callable[..., Session]) -> None:
    dead = start()
    assert dead.says() == "held"
    dead.process.kill()
    dead.process.wait()
    living = start()
    assert living.says() == "held"
    note = lock_path(KEY).with_suffix(".holder")
    note.write_text(json.dumps({"pid": dead.process.pid, "user": "x", "since_unix_s": 0}))
    with pytest.raises(LeaseTimeout, match="not among the processes here"), lease(KEY, timeout_s=0):
        pytest.fail("held twice")


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[1, 2]",
        "{",
        '{"pid": 1e999}',
        '{"pid": 1, "since_unix_s": 1e300, "user": ""}',
        "\0\xff",
    ],
)
def test_unreadable_note_still_names_what_is_known(
    start: Callable[..., Session], text: str
) -> None:
    holder = start()
    assert holder.says() == "held"
    lock_path(KEY).with_suffix(".holder").write_text(text, encoding="latin-1")
    said: list[str] = []
    with (
        pytest.raises(LeaseTimeout, match="left no readable note"),
        lease(KEY, on_wait=said.append, timeout_s=0),
    ):
        pytest.fail("held twice")
    assert len(said) == 1


def test_text_of_a_note_cannot_reach_the_terminal(start: Callable[..., Session]) -> None:
    holder = start()
    assert holder.says() == "held"
    note = {"pid": holder.process.pid, "user": "\x1b[31mroot\n", "since_unix_s": 0}
    lock_path(KEY).with_suffix(".holder").write_text(json.dumps(note))
    with pytest.raises(LeaseTimeout) as caught, lease(KEY, timeout_s=0):
        pytest.fail("held twice")
    assert str(caught.value).isprintable()


def test_timeout_names_the_holder_and_what_to_do(start: Callable[..., Session]) -> None:
    holder = start()
    assert holder.says() == "held"
    began = time.monotonic()
    with pytest.raises(LeaseTimeout) as caught, lease(KEY, timeout_s=1.5):
        pytest.fail("held twice")
    assert time.monotonic() - began >= 1.5
    assert isinstance(caught.value, TimeoutError)
    assert f"process {holder.process.pid} of user " in str(caught.value)
    assert "another device" in str(caught.value)


def test_a_session_keeps_its_device_between_measurements(start: Callable[..., Session]) -> None:
    with session_leases("mine", pytest.fail, 5):
        with lease(KEY):
            pass
        other = start_elsewhere(start)
        assert other.says().startswith(f"waits waiting for {KEY}: process {os.getpid()} of user ")
        # What this session starts passes.
        own = start()
        assert own.says() == "held"
        own.give_back()
    assert other.says() == "held"


def test_what_a_session_starts_measures_in_turn(start: Callable[..., Session]) -> None:
    with session_leases("mine", pytest.fail, 5):
        keep(KEY)
        first = start()
        assert first.says() == "held"
        second = start()
        assert second.says().startswith("waits")
        first.give_back()
        assert second.says() == "held"


def test_a_session_on_another_device_has_freed_the_first(start: Callable[..., Session]) -> None:
    with session_leases("mine", pytest.fail, 5):
        keep(KEY)
        keep("cpu")
        assert start_elsewhere(start).says() == "held"


def test_a_session_waits_for_a_device_once(start: Callable[..., Session]) -> None:
    assert start().says() == "held"
    said: list[str] = []
    with session_leases("mine", said.append, 0.5):
        with pytest.raises(LeaseTimeout, match=r"not free within 0.5 s") as first:
            keep(KEY)
        with pytest.raises(LeaseTimeout) as second:
            keep(KEY)
    assert second.value is first.value
    assert len(said) == 1


def test_who_waits_long_is_told_again(
    start: Callable[..., Session], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("pytest_hwqueue.devices.lease._SAY_AGAIN_S", 0.3)
    assert start().says() == "held"
    said: list[str] = []
    with pytest.raises(LeaseTimeout), lease(KEY, on_wait=said.append, timeout_s=1.5):
        pytest.fail("held twice")
    assert len(said) >= 2
    assert "is measuring on it (waiting for 0 min)" in said[1]
    assert [record.getMessage() for record in caplog.records] == said


def start_elsewhere(start: Callable[..., Session]) -> Session:
    """Start a process that no session of this one's started."""
    with pytest.MonkeyPatch.context() as patched:
        patched.delenv("PYTEST_HWQUEUE_SESSION")
        return start()


def test_devices_do_not_wait_for_each_other(start: Callable[..., Session]) -> None:
    assert start().says() == "held"
    assert start("cpu").says() == "held"


@pytest.mark.usefixtures("directory")
def test_free_device_is_held_without_a_word_and_again_inside() -> None:
    said: list[str] = []
    with lease(KEY, on_wait=said.append), lease(KEY, on_wait=said.append, timeout_s=0):
        assert "pid" in lock_path(KEY).with_suffix(".holder").read_text()
    with lease(KEY, on_wait=said.append, timeout_s=0):
        pass
    assert said == []
    assert lock_path(KEY).with_suffix(".holder").read_text() == ""


def test_inner_block_does_not_free_the_device(start: Callable[..., Session]) -> None:
    with lease(KEY):
        with lease(KEY):
            pass
        other = start()
        assert other.says().startswith(f"waits waiting for {KEY}: process {os.getpid()} of user ")
    assert other.says() == "held"


def test_error_in_the_block_frees_the_device(start: Callable[..., Session]) -> None:
    with pytest.raises(KeyError), lease(KEY):
        raise KeyError
    assert start().says() == "held"


def test_files_are_for_everybody_whatever_the_umask(
    start: Callable[..., Session], directory: Path
) -> None:
    assert start().says() == "held"
    made = [*directory.iterdir(), *lock_path(KEY).parent.iterdir()]
    modes = {path.suffix: stat.S_IMODE(path.stat().st_mode) for path in made}
    assert modes == {"": 0o777, ".lock": 0o666, ".holder": 0o666}


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can act as two users")
def test_users_share_the_files_of_each_other(start: Callable[..., Session]) -> None:
    with lease(KEY):
        theirs = start(user=NOBODY)
        waits = theirs.says()
        assert waits.startswith(f"waits waiting for {KEY}: process {os.getpid()} of user ")
    assert theirs.says() == "held"
    assert json.loads(lock_path(KEY).with_suffix(".holder").read_text())["pid"] == (
        theirs.process.pid
    )
    theirs.give_back()
    assert theirs.says() == "released"


def test_file_made_by_another_user_serves(directory: Path) -> None:
    path = lock_path(KEY)
    path.parent.mkdir()
    path.parent.chmod(0o777)
    for file in (path, path.with_suffix(".holder")):
        file.touch()
        file.chmod(0o666)
        if os.geteuid() == 0:
            os.chown(file, NOBODY, -1)
    with lease(KEY, timeout_s=0):
        assert "pid" in path.with_suffix(".holder").read_text()


def test_unusable_lock_file_is_explained(directory: Path) -> None:
    lock_path(KEY).mkdir(parents=True)
    with pytest.raises(LeaseError, match="cannot be used"), lease(KEY, timeout_s=0):
        pytest.fail("held a directory")


def test_link_in_place_of_the_folder_is_not_followed(directory: Path) -> None:
    (directory / "elsewhere").mkdir()
    lock_path(KEY).parent.symlink_to(directory / "elsewhere")
    with pytest.raises(LeaseError, match="is not a folder"), lease(KEY, timeout_s=0):
        pytest.fail("held a lock elsewhere")
    assert not list((directory / "elsewhere").iterdir())


def test_temporary_directory_that_is_gone_is_explained(directory: Path) -> None:
    directory.rmdir()
    try:
        with pytest.raises(LeaseError, match="cannot be made"), lease(KEY, timeout_s=0):
            pytest.fail("held a lock nowhere")
    finally:
        directory.mkdir()


def test_link_at_the_note_is_not_followed(directory: Path) -> None:
    precious = directory / "precious"
    precious.write_text("precious")
    lock_path(KEY).parent.mkdir()
    lock_path(KEY).with_suffix(".holder").symlink_to(precious)
    with lease(KEY, timeout_s=0):
        pass
    assert precious.read_text() == "precious"


@pytest.mark.usefixtures("directory")
def test_one_device_has_one_file_and_two_devices_have_two() -> None:
    assert lock_path(KEY.removeprefix("GPU-")) == lock_path(KEY)
    assert lock_path("MIG-GPU-1/2/3") != lock_path("MIG-GPU-1/2_3")
    assert lock_path("MIG-GPU-1/2/3").parent == lock_path(KEY).parent
    assert lock_path("../../etc/passwd").parent == lock_path(KEY).parent
    assert len(lock_path("x" * 1000).name) < 200
    assert lock_path("cpu").name == "cpu.lock"


@pytest.mark.usefixtures("directory")
@pytest.mark.parametrize(
    ("key", "timeout_s"), [("", None), ("  ", 1.0), (KEY, -1.0), (KEY, float("nan"))]
)
def test_wrong_arguments_are_refused(key: str, timeout_s: float | None) -> None:
    with pytest.raises(ValueError, match=r"must be 0 or more|needs a key"):
        lease(key, timeout_s=timeout_s).__enter__()
