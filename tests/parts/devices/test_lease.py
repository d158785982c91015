"""The lease, held and awaited by real processes."""

from __future__ import annotations

import json
import os
import shutil
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

from pytest_hwqueue.data.errors import LeaseError
from pytest_hwqueue.parts.devices.lease import keep, lease, lock_path, session_leases

KEY = "GPU-00000000-1111-2222-3333-444444444444"
NOBODY = 65534
ROOT = Path(__file__).parents[3]

# Takes the lease (as another user, if given), says so, and holds it until its standard input ends.
HOLDER = textwrap.dedent(
    """
    import os, pwd, sys
    os.umask(0o077)
    from pytest_hwqueue.parts.devices.lease import lease
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


def note() -> Path:
    """Where the holder of the device is noted."""
    return lock_path(KEY).with_suffix(".holder")


class Session(NamedTuple):
    """A process that wants the lease; it gives it back when told to."""

    process: subprocess.Popen[str]

    def says(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def holds(self) -> Session:
        assert self.says() == "held"
        return self

    def waits(self, pid: int, key: str = KEY) -> Session:
        assert self.says().startswith(f"waits waiting for {key}: process {pid} of user ")
        return self

    def give_back(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        assert self.says() == "released"


def refusal(
    timeout_s: float = 0, on_wait: Callable[[str], None] | None = None, **given: float
) -> str:
    """What is said where the lease is not given."""
    with (
        pytest.raises(LeaseError) as caught,
        lease(KEY, on_wait=on_wait, timeout_s=timeout_s, **given),
    ):
        pytest.fail("held twice, or nowhere")
    assert str(caught.value).isprintable()
    return str(caught.value)


@pytest.fixture
def directory(temporary_files_in: Callable[[Path], None]) -> Iterator[Path]:
    """A temporary directory as /tmp is: everybody's, and sticky. tmp_path is its owner's alone."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as name:
        shared = Path(name)
        shared.chmod(0o1777)
        temporary_files_in(shared)
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


def start_elsewhere(start: Callable[..., Session], key: str = KEY) -> Session:
    """Start a process that no session of this one's started."""
    with pytest.MonkeyPatch.context() as patched:
        patched.delenv("PYTEST_HWQUEUE_SESSION")
        return start(key)


def test_the_second_waits_for_the_first(start: Callable[..., Session]) -> None:
    first = start().holds()
    second = start().waits(first.process.pid)
    first.give_back()
    second.holds()
    stale = note().read_text()
    third = start().waits(second.process.pid)
    second.process.send_signal(signal.SIGKILL)
    third.holds()
    # The note of a dead process is not believed.
    second.process.wait()
    note().write_text(stale)
    assert "not among the processes here" in refusal()


def test_a_note_that_says_nothing_readable_reaches_nobody(start: Callable[..., Session]) -> None:
    holder = start().holds()
    terminal = {"pid": holder.process.pid, "user": "\x1b[31mroot\n", "since_unix_s": 0}
    for text, shown in [
        ("", "left no readable note"),
        ("[1, 2]", "left no readable note"),
        ("{", "left no readable note"),
        ('{"pid": 1e999}', "left no readable note"),
        ('{"pid": 1, "since_unix_s": 1e300, "user": ""}', "left no readable note"),
        ("\0\xff", "left no readable note"),
        (json.dumps(terminal), "user ??31mroot?, since"),
    ]:
        note().write_text(text, encoding="latin-1")
        said: list[str] = []
        assert shown in refusal(on_wait=said.append)
        assert len(said) == 1


def test_who_waits_long_is_told_again_and_in_the_end_what_to_do(
    start: Callable[..., Session], caplog: pytest.LogCaptureFixture
) -> None:
    holder = start().holds()
    said: list[str] = []
    began = time.monotonic()
    refused = refusal(0.75, said.append, say_again_s=0.15)
    assert time.monotonic() - began >= 0.75
    assert f"process {holder.process.pid} of user " in refused
    assert "another device" in refused
    assert 2 <= len(said) <= 6
    assert "(waiting for" not in said[0]
    assert "is measuring on it (waiting for 0 min)" in said[1]
    assert [record.getMessage() for record in caplog.records] == said


def test_a_session_keeps_its_device_between_measurements(start: Callable[..., Session]) -> None:
    with session_leases(pytest.fail, 5):
        with lease(KEY):
            pass
        other = start_elsewhere(start).waits(os.getpid())
        # What this session starts passes, one after the other.
        first = start().holds()
        second = start().waits(first.process.pid)
        first.give_back()
        second.holds().give_back()
        # On another device it has freed the first.
        keep("cpu")
        other.holds()
        other = start_elsewhere(start, "cpu").waits(os.getpid(), "cpu")
    other.holds()


def test_a_session_waits_for_a_device_once(start: Callable[..., Session]) -> None:
    start().holds()
    said: list[str] = []
    with session_leases(said.append, 0.5):
        with pytest.raises(LeaseError, match=r"not free within 0.5 s") as first:
            keep(KEY)
        with pytest.raises(LeaseError) as second:
            keep(KEY)
    assert second.value is first.value
    assert len(said) == 1


def test_the_outermost_block_holds_its_device(start: Callable[..., Session]) -> None:
    with lease(KEY, on_wait=pytest.fail):
        with pytest.raises(KeyError), lease(KEY, on_wait=pytest.fail, timeout_s=0):
            raise KeyError
        assert "pid" in note().read_text()
        other = start().waits(os.getpid())
        start("cpu").holds()
    other.holds().give_back()
    with pytest.raises(KeyError), lease(KEY, on_wait=pytest.fail, timeout_s=0):
        raise KeyError
    assert note().read_text() == ""
    start().holds()


def test_files_are_for_everybody(start: Callable[..., Session], directory: Path) -> None:
    start().holds()
    made = [*directory.iterdir(), *lock_path(KEY).parent.iterdir()]
    modes = {path.suffix: stat.S_IMODE(path.stat().st_mode) for path in made}
    assert modes == {"": 0o777, ".lock": 0o666, ".holder": 0o666}


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can act as two users")
def test_users_share_the_files_of_each_other(start: Callable[..., Session]) -> None:
    with lease(KEY):
        theirs = start(user=NOBODY).waits(os.getpid())
    theirs.holds()
    assert json.loads(note().read_text())["pid"] == theirs.process.pid
    theirs.give_back()


def test_anothers_file_serves_and_no_link_is_followed(directory: Path) -> None:
    path, precious = lock_path(KEY), directory / "precious"
    path.parent.mkdir()
    path.parent.chmod(0o777)
    for file in (path, note()):
        file.touch()
        file.chmod(0o666)
        if os.geteuid() == 0:
            os.chown(file, NOBODY, -1)
    with lease(KEY, timeout_s=0):
        assert "pid" in note().read_text()
    precious.write_text("precious")
    note().unlink()
    note().symlink_to(precious)
    with lease(KEY, timeout_s=0):
        pass
    assert precious.read_text() == "precious"


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (lambda path: path.mkdir(parents=True), "cannot be used"),
        (lambda path: path.parent.symlink_to(path.parents[1] / "elsewhere"), "is not a folder"),
        (lambda path: shutil.rmtree(path.parents[1]), "cannot be made"),
    ],
)
def test_what_is_unusable_is_said(
    directory: Path, spoil: Callable[[Path], None], said: str
) -> None:
    (directory / "elsewhere").mkdir()
    spoil(lock_path(KEY))
    assert said in refusal()
    assert not list(directory.glob("elsewhere/*"))


@pytest.mark.usefixtures("directory")
def test_one_device_has_one_file_and_two_devices_have_two() -> None:
    assert lock_path(KEY.removeprefix("GPU-")) == lock_path(KEY)
    assert lock_path("MIG-GPU-1/2/3") != lock_path("MIG-GPU-1/2_3")
    assert lock_path("MIG-GPU-1/2/3").parent == lock_path(KEY).parent
    assert lock_path("../../etc/passwd").parent == lock_path(KEY).parent
    assert len(lock_path("x" * 1000).name) < 200
    assert lock_path("cpu").name == "cpu.lock"
    for key, timeout_s in [("", None), ("  ", 1.0), (KEY, -1.0), (KEY, float("nan"))]:
        with pytest.raises(ValueError, match=r"must be 0 or more|needs a key"):
            lease(key, timeout_s=timeout_s).__enter__()


# In a process id namespace of its own, as a container is: its id there is that of the other's.
CONTAINED = textwrap.dedent(
    """
    import os, sys
    from pytest_hwqueue.parts.devices.lease import keep, session_leases
    with session_leases(lambda text: print("waits", text, flush=True), 20):
        keep(sys.argv[1])
        print("held by process", os.getpid(), flush=True)
        sys.stdin.readline()
    """
)


def test_containers_that_share_a_folder_hold_a_device_one_after_the_other() -> None:
    contained = ["unshare", "--user", "--map-root-user", "--pid", "--fork", "--mount-proc"]
    if (
        shutil.which("unshare") is None
        or subprocess.run([*contained, "true"], check=False).returncode
    ):
        pytest.skip("this machine lets nobody make process id namespaces")

    def start() -> subprocess.Popen[str]:
        return subprocess.Popen(
            [*contained, sys.executable, "-c", CONTAINED, KEY], cwd=ROOT, text=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        )  # fmt: skip

    first = start()
    assert first.stdout is not None
    assert first.stdout.readline() == "held by process 1\n"
    second = start()
    assert second.stdout is not None
    waits = second.stdout.readline()
    assert waits.startswith(f"waits waiting for {KEY}: process 1 of user ")
    assert "in another container is measuring on it" in waits
    first.communicate("\n", timeout=30)
    assert second.stdout.readline() == "held by process 1\n"
    second.communicate("\n", timeout=30)


def test_no_two_sessions_have_one_identity() -> None:
    identities = set()
    for _ in range(3):
        with session_leases(pytest.fail, 1):
            identities.add(os.environ["PYTEST_HWQUEUE_SESSION"])
    assert len(identities) == 3
