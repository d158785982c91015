"""Runs one service and stops it the way it needs when told to, or when whoever started it dies.

A program of its own, started by its path with the order as its argument: ``-I -S`` and the
standard library only, so that it is there in some 20 ms. Its stdin is a pipe that its parent holds
open; that pipe ends with the parent however the parent dies. It lives in a session of its own, so
the terminal's Ctrl-C reaches the service only through the parent.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import subprocess
import sys
import threading
import time

_PR_SET_PDEATHSIG = 1


def main() -> None:
    """Serve one order; exits with the service's status, 128 and its signal added if it died."""
    order = json.loads(sys.argv[1])
    library = ctypes.CDLL(None)

    def die_with_guardian() -> None:
        library.prctl(_PR_SET_PDEATHSIG, order["stop_signal"])

    try:
        # Safe between fork and exec: this process has one thread and holds no locks.
        service = subprocess.Popen(
            order["command"],
            stdin=subprocess.DEVNULL,
            stdout=sys.stderr,
            start_new_session=True,
            preexec_fn=die_with_guardian,  # noqa: PLW1509
        )
    except OSError as error:
        print(f"cannot start: {error}", flush=True)
        sys.exit(127)
    print(service.pid, flush=True)
    threading.Thread(target=_leave_with, args=(service,), daemon=True).start()
    sys.stdin.buffer.read()
    if order["stop_command"]:
        command = order["stop_command"]
        print(f"[stopping by {order['stop_input']!r} to {command[0]}]", file=sys.stderr, flush=True)
        try:
            subprocess.run(
                command,
                input=order["stop_input"].encode(),
                stdout=sys.stderr,
                timeout=order["patience_s"],
                check=False,
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            print(f"[it could not be told to stop: {error}]", file=sys.stderr, flush=True)
            service.send_signal(order["stop_signal"])
    else:
        name = signal.Signals(order["stop_signal"]).name
        print(f"[stopping by {name}]", file=sys.stderr, flush=True)
        service.send_signal(order["stop_signal"])
    # The other thread leaves with the service.
    time.sleep(order["patience_s"])
    print(f"[did not end within {order['patience_s']} s: killed]", file=sys.stderr, flush=True)
    os.killpg(service.pid, signal.SIGKILL)
    time.sleep(order["patience_s"])


def _leave_with(service: subprocess.Popen[bytes]) -> None:
    status = service.wait()
    os._exit(status if status >= 0 else 128 - status)


if __name__ == "__main__":
    main()
