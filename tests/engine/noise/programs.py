"""Stand-ins for stress-ng, iperf3 and fio: they write down their arguments and load likewise."""

from __future__ import annotations

import textwrap
from pathlib import Path

import psutil

from tests.parts.schedulers.processes import program

TOOLS = ("stress-ng", "iperf3", "fio")

_COMMON = """
import os, re, socket, sys, time
if "--version" in sys.argv:
    print(os.path.basename(sys.argv[0]), "stand-in 1")
    sys.exit(0)
with open(sys.argv[0] + ".arguments", "a") as file:
    print(*sys.argv[1:], file=file)
def after(name):
    return sys.argv[sys.argv.index(name) + 1]
"""

# Workers of its own, which compute.
_STRESS_NG = """
end = time.monotonic() + int(after("-t"))
print("dispatching hogs:", after("--cpu"), "cpu", flush=True)
for worker in range(int(after("--cpu")) - 1):
    if os.fork() == 0:
        break
while time.monotonic() < end:
    sum(range(1000))
"""

# One stream: it counts no streams, only what passes.
IPERF3 = """
if "-s" in sys.argv:
    server = socket.create_server((after("-B"), int(after("-p"))))
    print("Server listening on", after("-p"), flush=True)
    connection, _ = server.accept()
    while connection.recv(1 << 20):
        pass
else:
    end = time.monotonic() + int(after("-t"))
    with socket.create_connection((after("-c"), int(after("-p")))) as connection:
        while time.monotonic() < end:
            os.write(connection.fileno(), bytes(1 << 16))
"""

# Past the page cache, from memory that begins at a page.
_FIO = """
import mmap
options = dict(each[2:].partition("=")[::2] for each in sys.argv[1:])
end = time.monotonic() + int(options["runtime"])
block = mmap.mmap(-1, 1 << 16)
files = [os.open(f"{options['directory']}/hwq.{job}.0", os.O_CREAT | os.O_WRONLY | os.O_DIRECT)
         for job in range(int(options["numjobs"]))]
while time.monotonic() < end:
    for file in files:
        os.pwrite(file, block, 0)
"""


def write_stand_ins(folder: Path) -> None:
    """Write the three programs into a folder."""
    for name, body in zip(TOOLS, (_STRESS_NG, IPERF3, _FIO), strict=True):
        write_stand_in(folder / name, body)


def write_stand_in(path: Path, body: str) -> None:
    """Write one program that behaves like a tool where it is asked for its version."""
    program(path, _COMMON + textwrap.dedent(body))


def arguments(folder: Path, tool: str) -> list[str]:
    """Return what a stand-in was started with, one line each time."""
    return (folder / f"{tool}.arguments").read_text().splitlines()


def alive(marker: str) -> list[int]:
    """Return the processes that have a text among their arguments, zombies left out."""
    found = []
    for process in psutil.process_iter(["cmdline", "status"]):
        named = any(marker in part for part in process.info["cmdline"] or ())
        if named and process.info["status"] != psutil.STATUS_ZOMBIE:
            found.append(process.pid)
    return found
