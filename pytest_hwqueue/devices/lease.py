"""One measuring session per GPU at a time: a lease by GPU, also under pytest-xdist.

The lock is the operating system's (flock on a file in the temporary directory), so it ends with
its process, however that dies. A note next to the lock file says who holds it; the note is only
informative and may be stale, the lock never is. Sessions with different temporary directories
(TMPDIR) do not see each other.
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

from filelock import FileLock, SoftFileLock, Timeout

from pytest_hwqueue.errors import LeaseError

_LOGGER = logging.getLogger(__name__)

_POLL_INTERVAL_S = 0.2
_EVERYBODY = 0o666
_LONGEST_NOTE_BYTES = 4096
_BARE_UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", re.IGNORECASE)

# Leases that this process holds, by process, thread and lock file, with their depth. A process
# that was forked while its parent held a lease holds none itself, hence the process id.
_held: dict[tuple[int, int, Path], int] = {}


class LeaseTimeout(LeaseError, TimeoutError):
    """Another session held the lease for longer than the caller's time limit."""


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
    return Path(tempfile.gettempdir()) / f"pytest-hwqueue-{safe}.lock"


@contextlib.contextmanager
def lease(
    key: str,
    *,
    on_wait: Callable[[str], None] | None = None,
    timeout_s: float | None = None,
) -> Iterator[None]:
    """Hold a device during the ``with`` block; no two processes hold it at once.

    A thread that holds the lease may take it again (a session run inside a session); the device is
    free once the outermost block ends.

    Args:
        key: the GPU's UUID, or ``cpu``.
        on_wait: called once, with a sentence that names the holder, if the device is not free at
            once.
        timeout_s: how long to wait, in seconds; None waits without a limit, 0 does not wait.

    Raises:
        LeaseTimeout: if the device is still held after ``timeout_s``.
        LeaseError: if the lock file cannot be opened or its file system has no locks.
        ValueError: if the key is empty, or the timeout negative or not a number.

    """
    if timeout_s is not None and (math.isnan(timeout_s) or timeout_s < 0):
        raise ValueError(f"timeout_s must be 0 or more seconds, or None, not {timeout_s}")
    path = lock_path(key)
    owner = (os.getpid(), threading.get_ident(), path)
    depth = _held.get(owner, 0)
    lock = _acquire(key, path, on_wait, timeout_s) if depth == 0 else None
    _held[owner] = depth + 1
    try:
        yield
    finally:
        if lock is None:
            _held[owner] = depth
        else:
            del _held[owner]
            # Before the release: afterwards the note may be the next holder's.
            _write_note(_note_path(path), "")
            lock.release()


def _acquire(
    key: str, path: Path, on_wait: Callable[[str], None] | None, timeout_s: float | None
) -> FileLock:
    # Not per thread: the block may be left by another thread than the one that entered it.
    lock = FileLock(path, mode=_EVERYBODY, thread_local=False)
    note = _note_path(path)
    if not _try_lock(lock, key, path, wait_s=0):
        if on_wait is not None:
            on_wait(f"waiting for {key}: {_holder(note)} is measuring on it")
        wait_s = -1 if timeout_s is None or math.isinf(timeout_s) else timeout_s
        if not _try_lock(lock, key, path, wait_s):
            raise LeaseTimeout(
                f"{key} was not free within {timeout_s:g} s: {_holder(note)} is measuring on it. "
                "Wait for it to end, stop it, or measure on another device."
            )
    if isinstance(lock, SoftFileLock):
        # filelock falls back to a marker file there, which outlives a killed process.
        lock.release()
        raise LeaseError(
            f"the file system of {path.parent} has no flock, so a lease there would outlive a "
            "killed session; set TMPDIR to a local directory."
        )
    _write_note(note, _own_note())
    return lock


def _try_lock(lock: FileLock, key: str, path: Path, wait_s: float) -> bool:
    try:
        lock.acquire(timeout=wait_s, poll_interval=_POLL_INTERVAL_S)
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


def _own_note() -> str:
    try:
        user = getpass.getuser()
    except (KeyError, OSError, ImportError):  # a user id without an entry in the user database
        user = f"number {os.getuid()}"
    return json.dumps({"pid": os.getpid(), "user": user, "since_unix_s": time.time()})


def _write_note(note: Path, text: str) -> None:
    """Write the note in place: in a sticky directory another user's file cannot be replaced."""
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


def _holder(note: Path) -> str:
    """Return who holds the lease according to the note; never raises, whatever the note says."""
    try:
        descriptor = os.open(note, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        with os.fdopen(descriptor, "rb") as stream:
            content = json.loads(stream.read(_LONGEST_NOTE_BYTES))
        process, since = int(content["pid"]), float(content["since_unix_s"])
        started = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(since))
        user = re.sub(r"[^\w.@-]", "?", str(content["user"])[:64])
    except (OSError, ValueError, TypeError, KeyError, OverflowError) as error:
        _LOGGER.debug("the holder's note %s says nothing: %r", note, error)
        return "another session (which left no readable note)"
    name = f"process {process} of user {user}, since {started},"
    if not Path("/proc/self").exists() or Path(f"/proc/{process}").exists():
        return name
    # It died and somebody newer holds the lock, or it lives in another process id namespace.
    return f"another session (the note names {name} which is not among the processes here)"
