"""Runs one service, and stops it in its own way on request, or when its parent dies.

This is a separate program with the order as its argument: ``-I -S`` and the standard library only,
so that it starts in some 20 ms. Its stdin is a pipe that its parent holds open; that pipe ends with
the parent however the parent dies, and its stdout ends with itself. It has its own session, or its
own process group in its parent's session, so the terminal's Ctrl-C reaches the service only through
the parent.

It is two processes, so that the service's own processes end also if one of them is killed.
"""

from __future__ import annotations

import json
import os
import select
import shutil
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress
from typing import NamedTuple

from pytest_hwqueue.processes.reaper import become_subreaper, children, keep, set_death_signal

# How long a service's own processes may take to go once it has: a daemon's, to close the device.
_LEAVING_S = 1.0
_POLL_S = 0.01


class Order(NamedTuple):
    """What to run and how to stop it, as the parent's `Stop` and `Contending` have it.

    Attributes:
        command: program and arguments.
        added: variables for the service alone.
        within: folder in which it runs; None for this process's.
        stop_signal: asks it to end.
        stop_command: asks it instead, if given.
        stop_input: the line of text for that command.
        patience_s: after which it is killed.
        contending: whether it stays in the parent's session.
        limit_s: ends it after this many seconds in any case; None for no limit.
        folder: created before it starts, and removed once all has ended; None for none.

    """

    command: list[str]
    added: dict[str, str]
    within: str | None
    stop_signal: int
    stop_command: list[str]
    stop_input: str
    patience_s: float
    contending: bool
    limit_s: float | None
    folder: str | None


def main() -> None:
    """Serve one order; exit with the service's status, or 128 plus the signal that ended it."""
    order = Order(*json.loads(sys.argv[-1]))
    # Who ends all processes at once (a service manager, a container) must not keep it from
    # clearing away. Handlers, unlike signals that are ignored, are not passed on to the service.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda number, frame: None)
    if order.contending:
        # In the parent's session, in a separate group. Here and not by the parent: Popen's
        # process_group came with Python 3.11, and what runs between fork and exec of a process
        # with threads (preexec_fn) may hang. A Ctrl-C before ends a guardian that has started
        # nothing yet.
        os.setpgid(0, 0)
    try:
        # Before there are two processes: neither removes a folder that was there.
        if order.folder is not None:
            os.mkdir(order.folder)
    except OSError as error:
        print(f"cannot start: {error}", flush=True)
        sys.exit(127)

    def end_without_guardian() -> None:
        # The kernel has told the service to stop.
        _end_what_is_left(order.patience_s)
        _remove_folder(order)

    above, held = os.pipe()
    keep(end_without_guardian, held)
    os.close(held)
    # Whatever the service leaves behind becomes a child of this process, in any group or session.
    become_subreaper()
    try:
        service = _start(order)
    except OSError as error:
        print(f"cannot start: {error}", flush=True)
        _remove_folder(order)
        sys.exit(127)
    print(os.getpid(), service.pid, flush=True)
    leaving = threading.Thread(target=_leave_with, args=(service, order), daemon=True)
    leaving.start()
    # Nobody writes: there is something to read once the pipe, or the process above, has ended.
    if not select.select([sys.stdin, above], [], [], order.limit_s)[0]:
        print(f"[its time of {order.limit_s} s is over]", file=sys.stderr, flush=True)
    _tell_to_stop(service, order)
    # The other thread leaves with the service.
    time.sleep(order.patience_s)
    # It may have ended, and only what it left not yet.
    with suppress(ProcessLookupError):
        os.killpg(service.pid, signal.SIGKILL)
        print(f"[did not end within {order.patience_s} s: killed]", file=sys.stderr, flush=True)
    # The other thread gives what the service has left its time, and then kills that.
    leaving.join(order.patience_s + _LEAVING_S)
    _remove_folder(order)


def _start(order: Order) -> subprocess.Popen[bytes]:
    def as_its_child() -> None:
        set_death_signal(order.stop_signal)
        if order.contending:
            os.setpgid(0, 0)

    # Safe between fork and exec: this process has one thread and holds no locks.
    return subprocess.Popen(
        order.command,
        cwd=order.within,
        env={**os.environ, **order.added},
        stdin=subprocess.DEVNULL,
        stdout=sys.stderr,
        start_new_session=not order.contending,
        preexec_fn=as_its_child,  # noqa: PLW1509
    )


def _tell_to_stop(service: subprocess.Popen[bytes], order: Order) -> None:
    if order.stop_command:
        by = f"[stopping by {order.stop_input!r} to {order.stop_command[0]}]"
        print(by, file=sys.stderr, flush=True)
        try:
            subprocess.run(
                order.stop_command,
                input=order.stop_input.encode(),
                stdout=sys.stderr,
                timeout=order.patience_s,
                check=False,
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            print(f"[it could not be told to stop: {error}]", file=sys.stderr, flush=True)
            service.send_signal(order.stop_signal)
        return
    name = signal.Signals(order.stop_signal).name
    print(f"[stopping by {name}]", file=sys.stderr, flush=True)
    if not order.contending:
        service.send_signal(order.stop_signal)
        return
    with suppress(ProcessLookupError):
        os.killpg(service.pid, order.stop_signal)


def _leave_with(service: subprocess.Popen[bytes], order: Order) -> None:
    if order.contending:
        # Not reaped yet, the service keeps its process group's number from being used again.
        os.waitid(os.P_PID, service.pid, os.WEXITED | os.WNOWAIT)
        os.killpg(service.pid, signal.SIGKILL)
    status = service.wait()
    _end_what_is_left(0 if order.contending else min(_LEAVING_S, order.patience_s))
    _remove_folder(order)
    os._exit(status if status >= 0 else 128 - status)


def _end_what_is_left(leaving_s: float) -> None:
    """Kill and reap all descendants that do not end by themselves within seconds.

    Orphans become children of this process.
    """
    until = time.monotonic() + leaving_s
    with suppress(ChildProcessError):
        while time.monotonic() < until:
            if os.waitpid(-1, os.WNOHANG) == (0, 0):
                time.sleep(_POLL_S)
    while True:
        for pid in children():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        try:
            os.waitpid(-1, 0)
        except ChildProcessError:
            return


def _remove_folder(order: Order) -> None:
    if order.folder is not None:
        shutil.rmtree(order.folder, ignore_errors=True)
