"""What loads the machine: each neighbour's commands, and the least that proves that they ran.

A noise is one or more neighbours, and what is done to the measured process. `NOISES` declares them
by name; one that is not there is described in a file.
"""

from __future__ import annotations

import importlib
import os
import shutil
import signal
import subprocess
import uuid
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import lru_cache, partial
from pathlib import Path
from typing import Literal

import psutil
from pydantic import Field

from pytest_hwqueue.data.noise_names import NOISES
from pytest_hwqueue.data.records.noise import Done, Machine
from pytest_hwqueue.engine.noise import pinning
from pytest_hwqueue.parts.processes.guardian import Contending, Order, Stop
from pytest_hwqueue.parts.processes.process_table import TcpPort
from pytest_hwqueue.parts.processes.services import (
    Service,
    ServiceFailed,
    free_port,
    run_service,
    service_environment,
)
from pytest_hwqueue.parts.schedulers.preload import (
    ServiceDescription,
    filled,
    read_described,
    wait_until_ready,
)

# Programs end by their own limit; beyond it and this they are ended.
_GRACE_S = 10
_VERSION_WITHIN_S = 10

_ADDRESS = "127.0.0.1"
_TRIES, _TAKEN = 3, "Address already in use"

DISK_BYTES = 1 << 30
"""Total size of fio's files. Direct writes pass by the page cache, however small they are."""
_JOBS = 4
_IN_MEMORY = ("tmpfs", "ramfs")


@dataclass(frozen=True)
class NoisePlaces:
    """Folders that noises need.

    Attributes:
        folder: for fio's files; its file system decides which disk is loaded.
        descriptions: folders to search for described commands.

    """

    folder: Path
    descriptions: tuple[Path, ...] = ()


@dataclass(frozen=True)
class NeighbourOrder:
    """Instructions for a neighbour.

    Attributes:
        logs: folder for its programs' output in this round.
        seconds: after which its programs end by themselves; longer than the round.
        cores: the cores that its programs may use.

    """

    logs: Path
    seconds: int
    cores: tuple[int, ...]


@dataclass(frozen=True)
class NeighbourProgram:
    """A program to start; it ends with this process, however that dies.

    Attributes:
        name: of its log file, and in messages.
        command: program and arguments.
        folder: created before it starts, removed after it ends.
        environment: variables to add to this process's.
        stop: signal that ends it, sent to its process group.
        ready: expression that its output matches once it is ready; None: at once.
        port: of loopback, on which it listens once it is ready; None if it does not.

    """

    name: str
    command: Sequence[str]
    folder: Path | None = None
    environment: Mapping[str, str] = field(default_factory=dict)
    stop: signal.Signals = signal.SIGTERM
    ready: str | None = None
    port: int | None = None


@dataclass(frozen=True)
class NeighbourRound:
    """What a neighbour did in a round, for judging it.

    Attributes:
        duration_s: of the round.
        cores: how many it was allowed.
        done: what its processes did.
        machine: the load caused by all processes together.

    """

    duration_s: float
    cores: int
    done: Done
    machine: Machine

    @property
    def busy_cores(self) -> float | None:
        """How many of its threads ran or were ready to run on average; None if unreadable."""
        on_cpu_s = self.done.on_cpu_s
        return None if on_cpu_s is None else self.per_s(on_cpu_s + (self.done.waiting_s or 0.0))

    def per_s(self, amount: float | None, unit: float = 1) -> float | None:
        """Return an amount in units per second of the round; None for None."""
        return None if amount is None else amount / unit / self.duration_s


@dataclass(frozen=True)
class LoadEvidence:
    """One thing that shows whether a neighbour produced its load.

    Attributes:
        found: how much of it was seen in a round; None if it cannot be read.
        least: below which it did not.
        short: what is said then; ``{}`` holds what was found.

    """

    found: Callable[[NeighbourRound], float | None]
    least: float
    short: str


@dataclass(frozen=True)
class Neighbour:
    """One or more programs that load the machine in one way.

    Attributes:
        name: in records and messages.
        program: that must be found, on PATH or by its path.
        programs: what to start, in this order.
        evidence: all of which must be there.
        install: how to get the program, for where it is missing.
        tells_version: whether ``PROGRAM --version`` may be asked.
        lacks: why it cannot run here although its program is there, and what to do; or None.
        notes: facts about its settings that readers of the record should know.

    """

    name: str
    program: str
    programs: Callable[[NeighbourOrder], Sequence[NeighbourProgram]]
    evidence: Sequence[LoadEvidence]
    install: str = ""
    tells_version: bool = True
    lacks: Callable[[], str | None] = lambda: None
    notes: Sequence[str] = ()

    def unavailable(self) -> str | None:
        """Return why it cannot run here and what to do, or None."""
        if shutil.which(self.program) is not None:
            return self.lacks()
        lacks = "is no program that can be run" if "/" in self.program else "is not on PATH"
        return f"{self.program} {lacks}{f'; {self.install}' if self.install else ''}"

    def version(self) -> str | None:
        """Return the first line of its program's version, or None if it does not tell one."""
        return _version(self.program) if self.tells_version else None

    def shortfall(self, round_: NeighbourRound) -> str | None:
        """Return why it did not produce its load, or None if it did."""
        for each in self.evidence:
            found = each.found(round_)
            if found is None:
                return f"what {Path(self.program).name}'s processes did cannot be read from /proc"
            if found < each.least:
                return each.short.format(found)
        return None


@dataclass(frozen=True)
class Noise:
    """What loads the machine during one round.

    Attributes:
        name: as requested.
        neighbours: started in this order; none for the quiet one.
        remedy: ``pinned`` pins and raises the measured process; ``isolated`` also keeps neighbours
            off its cores.

    """

    name: str
    neighbours: Sequence[Neighbour]
    remedy: Literal["pinned", "isolated"] | None = None

    def unavailable(self) -> str | None:
        """Return every reason why it cannot run here, with what to do, or None."""
        reasons = [reason for each in self.neighbours if (reason := each.unavailable())]
        isolated = self.remedy == "isolated"
        if self.remedy and (reason := pinning.unavailable(isolated=isolated)):
            reasons.append(reason)
        return f"noise {self.name}: {'; '.join(reasons)}" if reasons else None


def open_noise(name: str, places: NoisePlaces) -> Noise:
    """Open a noise: built-in, from another package, or described in a file.

    Raises:
        BadInput: if it is neither declared nor described, its description is wrong, or the size
            of fio's files is too small.

    """
    if name not in NOISES:
        return Noise(name, (described(name, places.descriptions),))
    declared = NOISES[name]
    if declared.factory:
        module, _, function = declared.factory.partition(":")
        noise: Noise = getattr(importlib.import_module(module), function)(places)
        return noise
    return Noise(name, [_NEIGHBOURS[part](places) for part in declared.parts], declared.remedy)


@contextmanager
def started(
    neighbour: Neighbour, order: NeighbourOrder
) -> Iterator[list[tuple[Service, NeighbourProgram]]]:
    """Run a neighbour for the length of the ``with`` block, within its order's time and cores.

    Its processes and files are removed afterwards, and also if this process dies, however it dies.

    Raises:
        ServiceFailed: if it cannot be started.
        NotProven: if another program listens on its port.

    """
    for tries_left in reversed(range(_TRIES)):
        with ExitStack() as stack:
            try:
                running = [(_start(each, order, stack), each) for each in neighbour.programs(order)]
            except ServiceFailed as failed:
                # Somebody took the port between the look at it and the program's own.
                if tries_left and _TAKEN in str(failed):
                    continue
                raise
            yield running
            return


def _start(program: NeighbourProgram, order: NeighbourOrder, stack: ExitStack) -> Service:
    what = Order(
        program.command,
        service_environment(program.environment),
        Stop(program.stop),
        Contending(order.seconds + _GRACE_S),
        folder=program.folder,
    )
    running = run_service(program.name, order.logs / f"{program.name}.log", what)
    with _starting_on(order.cores):
        service = stack.enter_context(running)
    wait_until_ready(service, program.ready)
    if program.port is not None:
        service.require_listening(TcpPort(_ADDRESS, program.port))
    return service


@contextmanager
def _starting_on(cores: Collection[int]) -> Iterator[None]:
    """Give processes started in the ``with`` block these cores."""
    before = os.sched_getaffinity(0)
    if before == set(cores):
        yield
        return
    os.sched_setaffinity(0, cores)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


@lru_cache(maxsize=8)
def _version(program: str) -> str | None:
    try:
        said = subprocess.run(
            [program, "--version"], capture_output=True, text=True, timeout=_VERSION_WITHIN_S,
            stdin=subprocess.DEVNULL, env=service_environment({}), check=False,
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired):
        return None
    return next(iter(said.stdout.splitlines()), None)


def _packaged(program: str) -> str:
    return (
        f"install it: apt-get install {program} (Debian, Ubuntu) or dnf install {program} "
        "(Fedora, RHEL)"
    )


def _cpu(places: NoisePlaces) -> Neighbour:
    def programs(order: NeighbourOrder) -> Sequence[NeighbourProgram]:
        # Not 0, its word for all: it counts the machine's cores, not those of an affinity mask
        # or cpuset, and would crowd the few that are left.
        workers = str(len(order.cores))
        command = ["stress-ng", "--cpu", workers, "--cpu-method", "fft", "-t", str(order.seconds)]
        return [NeighbourProgram("stress-ng", command)]

    # Each worker is on a core or waits for one all the time, whatever else runs: 1 per core is
    # what it comes to. The machine's pressure would not show it: if the measured process mostly
    # sleeps, nobody waits although every core is busy (1.6 % against 1.7 % without a neighbour,
    # on two cores).
    ran = LoadEvidence(
        lambda round_: None if round_.busy_cores is None else round_.busy_cores / round_.cores,
        0.5,
        "stress-ng ran or was ready to run {:.2f} of the time per core, below 0.5; is it held back "
        "by a limit of its cgroup?",
    )
    return Neighbour("cpu", "stress-ng", programs, [ran], _packaged("stress-ng"))


def _network(places: NoisePlaces) -> Neighbour:
    def programs(order: NeighbourOrder) -> Sequence[NeighbourProgram]:
        port = free_port()
        at = ["-p", str(port)]
        server = ["iperf3", "-s", "-1", "-B", _ADDRESS, *at, "--forceflush"]
        client = ["iperf3", "-c", _ADDRESS, *at, "-P", "10", "-t", str(order.seconds)]
        return [
            # Not by connecting: that would be the one client it serves.
            NeighbourProgram("iperf3-server", server, ready="Server listening", port=port),
            NeighbourProgram("iperf3-client", client),
        ]

    def softirqs_per_s(round_: NeighbourRound) -> float | None:
        unseen = "softirqs" in round_.machine.missing
        return float("inf") if unseen else round_.per_s(round_.machine.softirqs.get("NET_RX", 0))

    # Between what a quiet machine shows and what ten streams do: on two cores 0 and 400 to 2,500
    # MB/s, 0 to 5 and 7,000 to 56,000 softirqs a second, the lesser ones with cpu and disk too.
    sent = LoadEvidence(
        lambda round_: round_.per_s(round_.done.handed_over_bytes, 1e6),
        10, "iperf3 sent {:.1f} MB/s, below 10 MB/s",
    )  # fmt: skip
    received = LoadEvidence(
        softirqs_per_s,
        1000,
        "{:.0f} NET_RX softirqs a second, below 1000: what iperf3 sent did not pass through this "
        "machine's network",
    )
    return Neighbour("network", "iperf3", programs, [sent, received], _packaged("iperf3"))


def _disk(places: NoisePlaces) -> Neighbour:
    folder = places.folder.resolve()

    def programs(order: NeighbourOrder) -> Sequence[NeighbourProgram]:
        own = folder / f"hwq-noise-{uuid.uuid4().hex}"
        command = [
            "fio", "--name=hwq", f"--directory={own}", "--rw=randwrite", "--bs=4k",
            # With fio's own choice of an engine the depth would be 1, as it says itself.
            "--ioengine=libaio", "--iodepth=32", f"--numjobs={_JOBS}",
            # As processes, the jobs would each make a session: out of the process group, and
            # scheduled apart from what is measured.
            "--thread",
            "--direct=1", f"--size={DISK_BYTES // _JOBS}", "--time_based",
            f"--runtime={order.seconds}", "--unlink=1",
        ]  # fmt: skip
        return [NeighbourProgram("fio", command, own)]

    # 25 blocks a second: a single rotating disk does about a hundred, the flash below the machine
    # this was written on 110,000 to 180,000. The machine's pressure would not show it: the kernel
    # does not count waiting for completions as waiting for a disk (PSI io was 0 to 3 % at 250 to
    # 520 MB/s).
    wrote = LoadEvidence(
        lambda round_: round_.per_s(round_.done.disk_written_bytes, 1e6),
        0.1, "fio wrote {:.3f} MB/s to the disk, below 0.1",
    )  # fmt: skip
    return Neighbour(
        "disk", "fio", programs, [wrote], _packaged("fio"),
        lacks=partial(_no_disk, folder),
        notes=[f"{DISK_BYTES} bytes on {_file_system(folder)}"],
    )  # fmt: skip


_NEIGHBOURS: Mapping[str, Callable[[NoisePlaces], Neighbour]] = {
    "cpu": _cpu, "network": _network, "disk": _disk,
}  # fmt: skip


def _no_disk(folder: Path) -> str | None:
    """Return why fio cannot write to a disk in a folder, or None."""
    if not folder.is_dir() or not os.access(folder, os.W_OK | os.X_OK):
        return f"{folder} is no folder that can be written to; give fio another one"
    kind = _file_system(folder)
    if kind in _IN_MEMORY:
        return f"{folder} is in memory ({kind}), not on a disk; give fio another folder"
    free = shutil.disk_usage(folder).free
    if free < DISK_BYTES:
        return (
            f"{folder} has {free} bytes free, fio's files would have {DISK_BYTES}; make room, or "
            "give another folder"
        )
    return None


def _file_system(folder: Path) -> str:
    """Return the type of a folder's file system, such as ext4."""
    mounts = {each.mountpoint: each.fstype for each in psutil.disk_partitions(all=True)}
    # Of several mounts at one point the last one, which is the one that is seen.
    return next(
        (mounts[str(above)] for above in (folder, *folder.parents) if str(above) in mounts),
        "an unknown file system",
    )


class NoiseDescription(ServiceDescription):
    """A command that loads the machine.

    ``command`` and the values of ``environment`` may contain ``{seconds}`` (after which it must end
    by itself), ``{cores}`` (how many it may use), ``{scratch}`` (its own folder, next to its log,
    removed afterwards) and ``{folder}`` (the folder of the description).
    """

    install: str = Field("", description="how to install the program")


def described(name: str, folders: Sequence[Path]) -> Neighbour:
    """Find a description by name in ``folders`` or by path, and read it.

    Raises:
        BadInput: if there is none, or if it is wrong, naming the file and the field.

    """
    missing = f"there is no noise {name!r}"
    file, read = read_described(name, folders, NoiseDescription, missing, NOISES)
    folder = file.parent.resolve()
    program, *arguments = read.command_from(folder)

    def programs(order: NeighbourOrder) -> Sequence[NeighbourProgram]:
        scratch = order.logs.resolve() / f"scratch-{uuid.uuid4().hex}"
        values = {
            "seconds": str(order.seconds), "cores": str(len(order.cores)),
            "scratch": str(scratch), "folder": str(folder),
        }  # fmt: skip
        return [
            NeighbourProgram(
                Path(program).name,
                [program, *(filled(each, values) for each in arguments)],
                scratch,
                {name: filled(text, values) for name, text in read.environment.items()},
                read.stopped_by,
                read.ready,
            )
        ]

    # What it loads is unknown; less than this is what a sleeping program uses.
    ran = LoadEvidence(
        lambda round_: round_.busy_cores,
        0.01, "its processes used {:.2%} of a core, as if they slept",
    )  # fmt: skip
    # Not every program reports a version.
    return Neighbour(name, program, programs, [ran], read.install, tells_version=False)
