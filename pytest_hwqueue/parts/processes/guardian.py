"""Runs one program, and stops it in its own way on request, or when whoever asked for it dies.

This is a separate program: ``-I -S`` and the standard library only, so that it starts in some 20
ms. Its stdin is a pipe that its owner holds open, with the order in its first line; that pipe ends
with the owner however the owner dies. Its stdout is a pipe as `Reaper.follow` describes it. It has
its own session, or its own process group in its owner's session, so the terminal's Ctrl-C reaches
the program only through the owner.

It is two processes, so that the program's own processes end also if one of them is killed.
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
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from pytest_hwqueue.parts.processes.reaper import (
    become_subreaper,
    end_children,
    keep,
    set_death_signal,
    tell,
)

# How long a service's own processes may take to go once it has: a daemon's, to close the device.
_LEAVING_S = 1.0


class Stop(NamedTuple):
    """How a service is stopped: by a signal, or by a line of text to another command.

    It also gets the signal if the process that watches it is killed.

    Attributes:
        signal: asks it to end.
        command: asks it instead, if given.
        text: the line of text for the command.
        patience_s: after which it is killed.

    """

    signal: int
    command: Sequence[str] = ()
    text: str = ""
    patience_s: float = 10


class Contending(NamedTuple):
    """How to run a service that must contend with this process for the machine.

    It gets its own process group but not its own session, since the kernel's autogroups would then
    schedule it separately. Once it has ended, its remaining processes are killed.

    Attributes:
        limit_s: ends it after this many seconds in any case; None for no limit.

    """

    limit_s: float | None = None


class Order(NamedTuple):
    """What to run and how to stop it.

    Attributes:
        command: program and arguments.
        environment: its whole environment.
        stop: how.
        contending: None for a program that stays out of its owner's way.
        within: folder in which it runs; None for this process's.
        descriptors: stay open in it.
        folder: made for this user alone before it starts, and removed with its contents once all
            has ended, also if its owner is killed.

    """

    command: Sequence[str]
    environment: Mapping[str, str]
    stop: Stop
    contending: Contending | None = Contending()
    within: Path | None = None
    descriptors: Sequence[int] = ()
    folder: Path | None = None


def main() -> None:
    """Serve one order; write the program's exit status once all that it has started has ended."""
    read = Order(*json.loads(sys.stdin.readline()))
    contending = None if read.contending is None else Contending(*read.contending)
    order = read._replace(stop=Stop(*read.stop), contending=contending)
    # Who ends all processes at once (a service manager, a container) must not keep it from
    # clearing away. Handlers, unlike signals that are ignored, are not passed on to the program.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda number, frame: None)
    limit_s = None if contending is None else contending.limit_s
    if contending is not None:
        # In the owner's session, in a separate group. Here and not by the owner: Popen's
        # process_group came with Python 3.11, and what runs between fork and exec of a process
        # with threads (preexec_fn) may hang. A Ctrl-C before ends a guardian that has started
        # nothing yet.
        os.setpgid(0, 0)
    try:
        # Before there are two processes: neither removes a folder that was there.
        if order.folder is not None:
            os.mkdir(order.folder, 0o700)
    except OSError as error:
        sys.exit(f"cannot start: {error}")

    def clear_away(leaving_s: float = order.stop.patience_s) -> None:
        end_children(leaving_s=leaving_s)
        if order.folder is not None:
            shutil.rmtree(order.folder, ignore_errors=True)

    above, held = os.pipe()
    # Without a guardian, the kernel has told the program to stop.
    keep(clear_away, held)
    os.close(held)
    # Whatever the program leaves behind becomes a child of this process, in any group or session.
    become_subreaper()
    try:
        program = _start(order)
    except OSError as error:
        clear_away()
        sys.exit(f"cannot start: {error}")
    for descriptor in order.descriptors:
        os.close(descriptor)
    tell(sys.stdout.fileno(), os.getpid(), program.pid)

    def leave_with_it() -> None:
        status = program.wait()
        clear_away(0 if contending is not None else min(_LEAVING_S, order.stop.patience_s))
        tell(sys.stdout.fileno(), status)
        os._exit(0)

    leaving = threading.Thread(target=leave_with_it, daemon=True)
    leaving.start()
    # Nobody writes: there is something to read once the pipe, or the process above, has ended.
    if not select.select([sys.stdin, above], [], [], limit_s)[0]:
        print(f"[its time of {limit_s} s is over]", file=sys.stderr, flush=True)
    _tell_to_stop(program, order)
    # The other thread leaves with the program.
    time.sleep(order.stop.patience_s)
    # It may have ended, and only what it left not yet.
    with suppress(ProcessLookupError):
        os.killpg(program.pid, signal.SIGKILL)
        told = f"[did not end within {order.stop.patience_s} s: killed]"
        print(told, file=sys.stderr, flush=True)
    # The other thread gives what the program has left its time, and then kills that.
    leaving.join(order.stop.patience_s + _LEAVING_S)


def _start(order: Order) -> subprocess.Popen[bytes]:
    def as_its_child() -> None:
        set_death_signal(order.stop.signal)
        if order.contending is not None:
            os.setpgid(0, 0)

    # Safe between fork and exec: this process has one thread and holds no locks.
    return subprocess.Popen(
        order.command,
        cwd=order.within,
        env=dict(order.environment),
        stdin=subprocess.DEVNULL,
        stdout=sys.stderr,
        start_new_session=order.contending is None,
        pass_fds=order.descriptors,
        preexec_fn=as_its_child,  # noqa: PLW1509
    )


def _tell_to_stop(program: subprocess.Popen[bytes], order: Order) -> None:
    stop = order.stop
    if stop.command:
        print(f"[stopping by {stop.text!r} to {stop.command[0]}]", file=sys.stderr, flush=True)
        try:
            subprocess.run(
                stop.command,
                input=stop.text.encode(),
                stdout=sys.stderr,
                timeout=stop.patience_s,
                check=False,
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            print(f"[it could not be told to stop: {error}]", file=sys.stderr, flush=True)
            program.send_signal(stop.signal)
        return
    name = signal.Signals(stop.signal).name
    print(f"[stopping by {name}]", file=sys.stderr, flush=True)
    if order.contending is None:
        program.send_signal(stop.signal)
        return
    with suppress(ProcessLookupError):
        os.killpg(program.pid, stop.signal)
