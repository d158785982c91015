"""One measuring session per GPU at a time: a lease by GPU, also under pytest-xdist.

Each device has two locks. A session takes the first when it first measures on the device, and keeps
it until it ends or measures on another device, so what it starts between two cells disturbs nobody.
Processes of one session (workers of pytest-xdist, sides of a comparison) know each other by an
environment variable, and pass. The second lock is held for one measurement, so they take turns.

The locks are the operating system's (flock on files in a folder of the temporary directory), so
they end with their process, however that dies. A note next to each file says who holds it; it may
be stale, the lock never is. Sessions with different temporary directories (TMPDIR) do not see each
other; containers on one GPU have to share that folder.
"""

from __future__ import annotations

import contextlib
import getpass
import hashlib
import json
import logging
import math
import os
import re
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from filelock import FileLock, SoftFileLock, Timeout

from pytest_hwqueue.data.errors import LeaseError

_LOGGER = logging.getLogger(__name__)

_POLL_INTERVAL_S = 0.2
_SAY_AGAIN_S = 60.0
# In which processes find the session that started them.
_IDENTITY = "PYTEST_HWQUEUE_SESSION"
_EVERYBODY = 0o666
_LONGEST_NOTE_BYTES = 4096
# Everybody's as /tmp is, but not sticky: there, filelock refuses files that another user made.
_FOLDER = "pytest-hwqueue-leases"
_FOLDER_MODE = 0o777
_BARE_UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", re.IGNORECASE)

# Leases that this process holds, by process, thread and lock file, with their depth. A process
# that was forked while its parent held a lease holds none itself, hence the process id.
_held: dict[tuple[int, int, Path], int] = {}


def lock_path(key: str) -> Path:
    """Return the lock file of a device.

    Args:
        key: the GPU's UUID, or ``cpu``. A bare UUID, as torch prints it, and the same UUID with
            NVML's ``GPU-`` before it are one device and give one file.

    Raises:
        ValueError: if the key is empty.

    """
    name = key.strip()
    if not name:
        raise ValueError("a lease needs a key: the GPU's UUID, or 'cpu'")
    if _BARE_UUID.fullmatch(name):
        name = f"GPU-{name.lower()}"
    safe = re.sub(r"[^A-Za-z0-9._-]", "_", name)[:100]
    if safe != name:
        # Two keys must never share a file because the signs that tell them apart were replaced.
        safe = f"{safe}-{hashlib.sha256(name.encode()).hexdigest()[:12]}"
    return Path(tempfile.gettempdir()) / _FOLDER / f"{safe}.lock"


class _SessionLeases:
    """What a session's process keeps."""

    def __init__(self, on_wait: Callable[[str], None], timeout_s: float) -> None:
        self.on_wait = on_wait
        self.timeout_s = timeout_s
        self.kept: tuple[Path, FileLock] | None = None
        # Devices that were not free in time: nobody waits for them once more.
        self.refused: dict[Path, LeaseError] = {}

    def give_back(self) -> None:
        """Free the device that is kept."""
        if self.kept is not None:
            path, lock = self.kept
            self.kept = None
            _release(path, lock)


# The innermost counts.
_sessions: list[_SessionLeases] = []


@contextlib.contextmanager
def session_leases(
    on_wait: Callable[[str], None], timeout_s: float, *, identity: str = ""
) -> Iterator[None]:
    """Have this process keep each device it measures on until another one, or the block's end.

    Args:
        on_wait: called as by `lease`, when another session holds a device.
        timeout_s: how long to wait for a device, in seconds.
        identity: of a session whose processes did not start each other; no other may have it.
            Left out, it is random. Processes started in the block inherit it, and so does this one
            if a session started it.

    """
    inherited = os.environ.get(_IDENTITY)
    session = _SessionLeases(on_wait, timeout_s)
    _sessions.append(session)
    # Of a time, a process id or a folder's name other sessions can have the same: in containers.
    os.environ[_IDENTITY] = inherited or identity or os.urandom(16).hex()
    try:
        yield
    finally:
        session.give_back()
        _sessions.remove(session)
        if inherited is None:
            del os.environ[_IDENTITY]


def keep(key: str) -> None:
    """Take a device for this process's session, which keeps it; see `session_leases`.

    Raises:
        LeaseError: as `lease` does; again at once for a device that was refused before.

    """
    session, path = _sessions[-1], lock_path(key)
    if session.kept is not None and session.kept[0] == path:
        return
    if path in session.refused:
        raise session.refused[path]
    # Before it waits: two sessions that measure on several devices cannot wait for each other.
    session.give_back()
    try:
        lock = _acquire(key, path, session.on_wait, session.timeout_s, os.environ[_IDENTITY])
    except LeaseError as error:
        session.refused[path] = error
        raise
    if lock is not None:
        session.kept = path, lock


@contextlib.contextmanager
def lease(
    key: str,
    *,
    on_wait: Callable[[str], None] | None = None,
    timeout_s: float | None = None,
    say_again_s: float = _SAY_AGAIN_S,
) -> Iterator[None]:
    """Hold a device during the ``with`` block; no two processes hold it at once.

    A thread that holds the lease may take it again (a session run inside a session); the device is
    free once the outermost block ends, or the session if the process is one's (`session_leases`).

    Args:
        key: the GPU's UUID, or ``cpu``.
        on_wait: called with a sentence that names the holder, if the device is not free at once,
            and again every ``say_again_s`` seconds.
        timeout_s: how long to wait, in seconds; None waits without a limit, 0 does not wait.

    Raises:
        LeaseError: if the device is still held after ``timeout_s``, the lock file cannot be
            opened, or its file system has no locks.
        ValueError: if the key is empty, or the timeout negative or not a number.

    """
    if timeout_s is not None and (math.isnan(timeout_s) or timeout_s < 0):
        raise ValueError(f"timeout_s must be 0 or more seconds, or None, not {timeout_s}")
    path = lock_path(key)
    owner = (os.getpid(), threading.get_ident(), path)
    depth = _held.get(owner, 0)
    with contextlib.ExitStack() as held:
        if depth == 0:
            if _sessions:
                keep(key)
            else:
                identity = os.environ.get(_IDENTITY)
                of_session = _acquire(key, path, on_wait, timeout_s, identity, say_again_s)
                if of_session is not None:
                    held.callback(_release, path, of_session)
            turn = path.with_suffix(".turn.lock")
            lock = _acquire(key, turn, on_wait, timeout_s, None, say_again_s)
            assert lock is not None
            held.callback(_release, turn, lock)
        _held[owner] = depth + 1
        try:
            yield
        finally:
            if depth:
                _held[owner] = depth
            else:
                del _held[owner]


def _acquire(
    key: str,
    path: Path,
    on_wait: Callable[[str], None] | None,
    timeout_s: float | None,
    identity: str | None,
    say_again_s: float = _SAY_AGAIN_S,
) -> FileLock | None:
    """Take a lock; None if a process of the same session holds it, which then is enough."""
    _make_folder(path.parent)
    # Not per thread: the block may be left by another thread than the one that entered it.
    lock = FileLock(path, mode=_EVERYBODY, thread_local=False)
    note = _note_path(path)
    began = time.monotonic()
    say_at = began
    while not _try_lock(lock, key, path):
        if identity is not None and _read_note(note).get("session") == identity:
            return None
        now = time.monotonic()
        if now >= say_at:
            text = f"waiting for {key}: {_holder(note)} is measuring on it"
            if now > began + say_again_s / 2:
                text += f" (waiting for {(now - began) / 60:.0f} min)"
            _LOGGER.warning("%s", text)
            if on_wait is not None:
                on_wait(text)
            say_at = now + say_again_s
        if timeout_s is not None and now - began >= timeout_s:
            raise LeaseError(
                f"{key} was not free within {timeout_s:g} s: {_holder(note)} is measuring on it. "
                "Wait for it to end, stop it, or measure on another device."
            )
        time.sleep(_POLL_INTERVAL_S)
    if isinstance(lock, SoftFileLock):
        # filelock falls back to a marker file there, which outlives a killed process.
        lock.release()
        raise LeaseError(
            f"the file system of {path.parent} has no flock, so a lease there would outlive a "
            "killed session; set TMPDIR to a local directory."
        )
    _write_note(note, _own_note(identity))
    return lock


def _make_folder(folder: Path) -> None:
    try:
        folder.mkdir(mode=_FOLDER_MODE)
        folder.chmod(_FOLDER_MODE)  # against the umask
    except FileExistsError:
        # Whoever made the temporary directory's entry may have made it a link to somewhere else.
        if folder.is_symlink() or not folder.is_dir():
            raise LeaseError(
                f"{folder}, where sessions on this machine find each other, is not a folder. "
                "Remove it, or set TMPDIR alike for all sessions."
            ) from None
    except OSError as error:
        raise LeaseError(
            f"{folder}, where sessions on this machine find each other, cannot be made: {error}. "
            "Set TMPDIR to a directory that you may write to, alike for all sessions."
        ) from error


def _release(path: Path, lock: FileLock) -> None:
    # Before the release: afterwards the note may be the next holder's.
    _write_note(_note_path(path), "")
    lock.release()


def _try_lock(lock: FileLock, key: str, path: Path) -> bool:
    try:
        lock.acquire(timeout=0)
    except Timeout:
        return False
    except (OSError, NotImplementedError) as error:
        raise LeaseError(
            f"the lock file {path} of {key} cannot be used: {error}. It must be readable and "
            "writable for every user who measures (mode 0666), on a file system with flock; "
            "repair or remove it, or set TMPDIR alike for all sessions on this machine."
        ) from error
    return True


def _note_path(path: Path) -> Path:
    # Next to the lock file, not inside: some releases of filelock truncate the file on each attempt
    # to lock it, and would wipe the holder's name when the next in line looks.
    return path.with_suffix(".holder")


def _own_note(identity: str | None) -> str:
    try:
        user = getpass.getuser()
    except (KeyError, OSError, ImportError):  # a user id without an entry in the user database
        user = f"number {os.getuid()}"
    about = {"pid": os.getpid(), "user": user, "since_unix_s": time.time(), "session": identity}
    about["pid_namespace"] = _pid_namespace()
    return json.dumps(about)


def _pid_namespace() -> str | None:
    """Return what tells apart containers, in which process ids repeat; None where there is none."""
    try:
        return os.readlink("/proc/self/ns/pid")
    except OSError as error:
        _LOGGER.debug("this system names no process id namespace: %r", error)
        return None


def _write_note(note: Path, text: str) -> None:
    """Write the note in place, for whoever may write to it but not to its folder."""
    # O_NOFOLLOW and O_NONBLOCK: the directory is everybody's, so the name may be a link or a pipe.
    flags = os.O_WRONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    try:
        try:
            descriptor = os.open(note, flags | os.O_CREAT | os.O_EXCL, _EVERYBODY)
            os.fchmod(descriptor, _EVERYBODY)  # against the umask
        except FileExistsError:
            descriptor = os.open(note, flags)
        with os.fdopen(descriptor, "wb") as stream:
            stream.truncate()
            stream.write(text.encode())
    except OSError as error:
        # Only the next in line's message suffers; the lease itself stands.
        _LOGGER.info("the holder's note %s could not be written: %s", note, error)


def _read_note(note: Path) -> dict[str, object]:
    """Return what a note says; empty if nothing readable."""
    try:
        descriptor = os.open(note, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        with os.fdopen(descriptor, "rb") as stream:
            content = json.loads(stream.read(_LONGEST_NOTE_BYTES))
    except (OSError, ValueError, RecursionError) as error:
        _LOGGER.debug("the holder's note %s says nothing: %r", note, error)
        return {}
    return content if isinstance(content, dict) else {}


def _holder(note: Path) -> str:
    """Return who holds the lease according to the note; never raises, whatever the note says."""
    content: dict[str, Any] = _read_note(note)
    try:
        process, since = int(content["pid"]), float(content["since_unix_s"])
        started = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(since))
        user = re.sub(r"[^\w.@-]", "?", str(content["user"])[:64])
    except (OSError, ValueError, TypeError, KeyError, OverflowError) as error:
        _LOGGER.debug("the holder's note %s does not say who: %r", note, error)
        return "another session (which left no readable note)"
    name = f"process {process} of user {user}, since {started},"
    if content.get("pid_namespace") != _pid_namespace():
        # Its number means another process here, or none.
        return f"{name} in another container"
    if not Path("/proc/self").exists() or Path(f"/proc/{process}").exists():
        return name
    # It died and somebody newer holds the lock.
    return f"another session (the note names {name} which is not among the processes here)"
