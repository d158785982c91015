"""A server that goes wrong in a way of choice: ``python misbehaving.py PLACE MODE [SECONDS]``.

The place is a port, or the path of a unix socket; one that is there already is removed. Seconds
count from its first request; one that stalls does so each time that so many have passed.
"""

from __future__ import annotations

import os
import signal
import socket
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from socketserver import ThreadingUnixStreamServer

PLACE, MODE = sys.argv[1:3]
SECONDS = float(sys.argv[3]) if len(sys.argv) > 3 else 0.0
TURN = threading.Lock()
first_s: list[float] = []
told_to_stall: list[int] = []
stalls_s = [time.monotonic()]


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = PLACE.isdecimal()

    def do_GET(self) -> None:
        received_ns = time.monotonic_ns()
        first_s.append(time.monotonic())
        after = time.monotonic() - first_s[0] >= SECONDS
        if MODE == "dies" and after:
            print("the disk is full", flush=True)
            os._exit(3)
        if (MODE == "hangs" and after) or (MODE == "hangs-each-third" and len(first_s) % 3 == 0):
            time.sleep(600)
        with TURN:
            if SECONDS and MODE == "stalls" and time.monotonic() - stalls_s[-1] > SECONDS:
                stalls_s.append(time.monotonic())
                told_to_stall.append(0)
            if told_to_stall:
                told_to_stall.clear()
                time.sleep(0.5)
        status = 500 if MODE == "fails" and after else 200
        text = b"no such model" if status == 500 else b"ok"
        if MODE == "streams":
            text = b'data: {"choices": [{"text": "a"}]}\n\n'
            # More than is read of one event.
            text += b"data: " + 17 * 2**20 * b"x" if after else b"data: [DONE]\n\n"
        self.send_response(status)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        if MODE == "stalls":
            sys.stdout.write(f"served {received_ns} {time.monotonic_ns()}\n")
            sys.stdout.flush()
        self.wfile.write(text)

    def log_message(self, format: str, *args: object) -> None:
        pass


def main() -> None:
    print("begins", os.getpid(), "given", PLACE, flush=True)
    if MODE == "refuses":
        sys.exit("the model is missing")
    if MODE == "silent":
        time.sleep(600)
    if MODE == "stalls":
        signal.signal(signal.SIGUSR1, lambda number, frame: told_to_stall.append(number))
    if MODE == "stubborn":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if MODE == "leaves-children":
        child = os.fork()
        if child == 0:
            # Out of the group and the session, and deaf.
            os.setsid()
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            print("child", os.getpid(), flush=True)
            time.sleep(600)
    if MODE == "goes-into-background" and os.fork():
        os._exit(0)
    # The process that was started only watches; another one works.
    if MODE in ("forks", "forks-bare"):
        worker = os.fork()
        if worker == 0 and MODE == "forks-bare":
            bare = {name: text for name, text in os.environ.items() if name != "LD_PRELOAD"}
            os.execve(sys.executable, [sys.executable, "-S", __file__, PLACE, "well"], bare)
        if worker:
            print("worker", worker, flush=True)
            os.waitpid(worker, 0)
            return
    if not PLACE.isdecimal():
        Path(PLACE).unlink(missing_ok=True)
        ThreadingUnixStreamServer(PLACE, Handler).serve_forever()
    server = ThreadingHTTPServer(("127.0.0.1", int(PLACE)), Handler, bind_and_activate=False)
    if MODE == "shares":
        server.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    server.server_bind()
    server.server_activate()
    server.serve_forever()


if __name__ == "__main__":
    main()
