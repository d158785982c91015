"""Scheduler modes: their interface, and how one is written, opened, and proven for a cell.

A tenant is a process or thread that shares a device with others. A cell is a single tenant whose
streams may differ in urgency.
"""

from __future__ import annotations

import importlib
import itertools
import math
import os
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, cast

from pytest_hwqueue.data.errors import BadInput, DeviceError, NotProven, refused_as, within
from pytest_hwqueue.data.records.kinds import capabilities_of
from pytest_hwqueue.data.records.placement import TenantPlacement
from pytest_hwqueue.parts.processes.process_table import Programs, running_programs
from pytest_hwqueue.parts.schedulers.declaration import (
    BUILT_IN,
    SchedulerDeclaration,
    SchedulerSpec,
    declaration,
)
from pytest_hwqueue.parts.schedulers.inside_evidence import InsideEvidence, gather, with_groups

if TYPE_CHECKING:
    from pytest_hwqueue.data.metrics.launching import LaunchedBy
    from pytest_hwqueue.data.records.plan import Tenant
    from pytest_hwqueue.data.records.proof import Proof
    from pytest_hwqueue.parts.devices.compute_units import Partition
    from pytest_hwqueue.parts.devices.protocol import Device, StreamPool
    from pytest_hwqueue.parts.devices.simulated.device import SimulatedDevice


@dataclass(frozen=True)
class TenantRequest:
    """A tenant's request to the scheduler.

    Attributes:
        name: unique among the tenants.
        priority: 0 is normal, larger is more urgent.
        share: of the device's multiprocessors, above 0 and up to 1; None for all.
        most_urgent: whether no other tenant is more urgent, and some are less urgent.
        urgency: of each stream's work (0 normal), for a cell in any process; otherwise empty, and
            all streams have the tenant's priority.

    """

    name: str
    priority: int = 0
    share: float | None = None
    most_urgent: bool = False
    urgency: tuple[int, ...] = ()


def tenant_requests(tenants: Sequence[Tenant]) -> list[TenantRequest]:
    """Return what tenants that run together ask of the scheduler."""
    priorities = [each.priority for each in tenants]
    least, most = min(priorities), max(priorities)
    return [
        TenantRequest(each.name, each.priority, each.share, least < each.priority == most)
        for each in tenants
    ]


@dataclass(frozen=True)
class SchedulerPaths:
    """Where the user installed or described what modes need, and where they look for others' work.

    Attributes:
        xsched_root: XSched's installation (--hwq-xsched-root); if None, XSCHED_ROOT.
        preloads: folders of the descriptions of ``preload:NAME`` (--hwq-preloads).
        queues: where the kernel shows the machine's System V message queues.
        programs: finds those that already run on the machine, such as another daemon.

    """

    xsched_root: Path | None = None
    preloads: tuple[Path, ...] = ()
    queues: Path = Path("/proc/sysvipc/msg")
    programs: Programs = running_programs


class Scheduler(ABC):
    """Base class of scheduler modes. A mode that cannot prove that it is active fails the run.

    By default a mode is always available, starts and sets nothing, and gives all streams normal
    priority; override what differs. Only `proof` has no default.

    For a single test, a mode with an environment is opened twice: in the session, which runs its
    services, and in the worker, which asks for the proof. Anything the worker must know goes
    through `environment`.

    Attributes:
        spec: the mode's declaration, and the parameters that the user gave.
        mode: its text, such as ``xsched:level=1``.
        paths: where the user installed or described what modes need.

    """

    def __init__(self, spec: SchedulerSpec, paths: SchedulerPaths) -> None:
        """Open the mode without starting anything or checking whether it is available.

        Raises:
            BadInput: if a file that the user named, such as a description, is wrong.

        """
        self.spec = spec
        self.mode = str(spec)
        self.paths = paths

    @property
    def placements(self) -> frozenset[str]:
        """Possible placements of tenants: ``processes``, ``threads`` (of one process), or both."""
        return frozenset({TenantPlacement.PROCESSES})

    def unavailable(self, device_kind: str, tenants: Sequence[TenantRequest]) -> str | None:
        """Return why the mode cannot be used and what to do about it, or None.

        Asks the declaration, `pointless` and `missing`: override those.
        """
        declaration = self.spec.declaration
        if not declaration.serves(device_kind):
            return declaration.elsewhere.format(mode=self.mode, device=device_kind)
        reason = self.pointless(tenants)
        if reason is not None or not capabilities_of(device_kind).tenant_processes:
            return reason
        return self.missing(device_kind, tenants)

    def pointless(self, tenants: Sequence[TenantRequest]) -> str | None:
        """Return why the mode has no effect on these tenants, or cannot serve them; or None."""
        return None

    def equal_priorities(self, tenants: Sequence[TenantRequest]) -> str | None:
        """Return why ordering by priority has no effect, or None; for use in `pointless`.

        A single tenant is fine: measuring it shows the mode's overhead.
        """
        if len(tenants) > 1 and len({tenant.priority for tenant in tenants}) == 1:
            return (
                f"{self.mode} would change nothing: all tenants have priority "
                f"{tenants[0].priority}; give the urgent one a higher priority"
            )
        return None

    def unknown(self, names: Sequence[str]) -> str | None:
        """Return which parameters are no tenant's name, or None; for use in `pointless`."""
        settings = {each.name for each in self.spec.declaration.parameters}
        unknown = [name for name in self.spec.parameters if name not in {*settings, *names}]
        if not unknown:
            return None
        return (
            f"{self.mode}: no tenant is called {', '.join(unknown)}; there are {', '.join(names)}"
        )

    def missing(self, device_kind: str, tenants: Sequence[TenantRequest]) -> str | None:
        """Return what this machine lacks or what blocks the mode, or None.

        Not called for simulated devices.
        """
        return None

    def services(self, folder: Path) -> AbstractContextManager[None]:
        """Start the mode's services and stop them again, logging into ``folder``.

        Use `run_service`: it also stops the service if this process is killed.

        Raises:
            ServiceFailed: if a service could not be started, or is blocked by another.

        """
        return nullcontext()

    def environment(self, tenant: TenantRequest) -> dict[str, str]:
        """Return variables to add to a tenant's environment before its process starts.

        Called inside `services`. Tenants in threads share the first tenant's.
        """
        return {}

    def priorities(self, urgency: Sequence[int]) -> list[int]:
        """Return each stream's priority (0 is normal, larger is more urgent) from its urgency.

        In a scenario, a stream's urgency is its tenant's priority.
        """
        return [0] * len(urgency)

    def partition(self, tenant: TenantRequest, urgency: int) -> Partition | None:
        """Return on which multiprocessors a tenant's streams run; None for all, with all others.

        A mode that returns a partition does so for every tenant, and needs a device that has
        `Capabilities.partitions`.

        Args:
            tenant: whose streams.
            urgency: of the stream's work, where a single test's streams differ.

        """
        return None

    def seen_priorities(self, inside: Mapping[str, InsideEvidence]) -> tuple[int, ...]:
        """Return the priorities of all tenants' streams, for a `Proof`."""
        return tuple(number for each in inside.values() for number in each.stream_priorities)

    def check(self) -> None:  # noqa: B027 - a mode without services has nothing to check
        """Check that the mode's services are alive; called from the tenants' start to their end.

        Also within the window, 50 times a second: look at processes, and ask nobody.

        Raises:
            ServiceFailed: if one has ended.

        """

    def begin_window(self) -> None:  # noqa: B027 - a mode need not observe
        """Forget what was observed: tenants that live on warm up for another window."""

    def observe(self, pids: Mapping[str, int]) -> None:  # noqa: B027 - nor to see from outside
        """Sample the scheduler while tenants (name to process id) warm up, all at once.

        Never called within a window: asking takes time from tenants, and other modes ask nothing.

        Raises:
            NotProven: if the scheduler does not answer.

        """

    @abstractmethod
    def proof(self, pids: Mapping[str, int], inside: Mapping[str, InsideEvidence]) -> Proof:
        """Prove that the mode is active in all tenants, while they are alive.

        Args:
            pids: process id of each tenant, by name.
            inside: what each observed inside its own process, after its first work.

        Raises:
            NotProven: naming the tenant, what was expected and what was found.

        """


# A product grows fast: ten tenants with ten shares each would fill the memory.
_MOST_ALTERNATIVES = 256


def parse_scheduler(text: str) -> SchedulerSpec:
    """Parse one mode with its parameters.

    Raises:
        BadInput: naming the wrong part and what is valid.

    """
    text = text.strip()
    name, colon, rest = (part.strip() for part in text.partition(":"))
    found = declaration(name)
    if found.argument is not None:
        if not rest:
            raise BadInput(f"{name} needs {found.argument[1]}: {found.usage}")
        return SchedulerSpec(found, argument=rest)
    if colon and not rest:
        raise BadInput(f"{text!r} ends after the colon; it is written {found.usage}")
    parameters = _checked(found, _pairs(text, rest))
    if found.check is not None:
        found.check(parameters)
    return SchedulerSpec(found, parameters)


def parse_entry(text: str) -> tuple[SchedulerSpec, ...]:
    """Parse an entry of a list: one mode, or alternatives such as ``xsched:threshold=1|2|4``.

    Of several parameters with alternatives all combinations are meant.

    Raises:
        BadInput: naming the entry, the wrong part and what is valid.

    """
    name, _, rest = (part.strip() for part in text.partition(":"))
    if "|" not in text or declaration(name).argument is not None:
        return (parse_scheduler(text),)
    pairs = [part.partition("=") for part in rest.split(",")]
    values = [[each.strip() for each in value.split("|")] for *_, value in pairs]
    if any("" in alternatives for alternatives in values if len(alternatives) > 1):
        raise BadInput(f"{text!r} has an empty alternative")
    if math.prod(map(len, values)) > _MOST_ALTERNATIVES:
        raise BadInput(f"{text!r} stands for more than {_MOST_ALTERNATIVES} modes; split it")
    read: dict[str, SchedulerSpec] = {}
    for chosen in itertools.product(*values):
        parts = zip(pairs, chosen, strict=True)
        written = ",".join(f"{key}{equals}{value}" for (key, equals, _), value in parts)
        with within(repr(text)):
            mode = parse_scheduler(f"{name}:{written}")
        if str(mode) in read:
            raise BadInput(f"{text!r} stands for {mode} twice")
        read[str(mode)] = mode
    return tuple(read.values())


def parse_schedulers(text: str) -> tuple[SchedulerSpec, ...]:
    """Parse entries separated by commas, such as ``native,xsched:level=1,threshold=1|2,mps``.

    Raises:
        BadInput: naming the wrong part and what is valid.

    """
    read = {str(mode): mode for entry in split_entries(text) for mode in parse_entry(entry)}
    return tuple(read.values())


def split_entries(text: str) -> list[str]:
    """Return the entries of a list with commas, each with its parameters.

    A comma also separates a mode's parameters: a part with ``=`` and without a colon belongs to
    the mode before it.

    Raises:
        BadInput: naming the wrong part and what is valid.

    """
    modes: list[str] = []
    for part in (part.strip() for part in text.split(",")):
        if not part:
            continue
        if "=" in part and ":" not in part:
            if not modes or ":" not in modes[-1]:
                raise BadInput(
                    f"{part!r} is a parameter without its mode; write it behind a colon, such as "
                    f"{modes[-1] if modes else 'xsched'}:{part}"
                )
            modes[-1] += f",{part}"
        else:
            modes.append(part)
    if not modes:
        raise BadInput(f"give one or more of {', '.join(each.name for each in BUILT_IN)}")
    return modes


def needs_environment(text: str) -> bool:
    """Whether a mode works only in processes started for it."""
    try:
        return parse_scheduler(text).declaration.needs_environment
    except BadInput:
        # A test's own parameter, not parsed before; opening the mode says what is wrong with it.
        return True


def open_scheduler(text: str, paths: SchedulerPaths | None = None) -> Scheduler:
    """Open a mode for the tenants of a scenario, or for a cell.

    Raises:
        BadInput: if there is no such mode, a parameter is wrong, or a description is.

    """
    spec = parse_scheduler(text)
    module, _, name = spec.declaration.implementation.partition(":")
    opened: Scheduler = getattr(importlib.import_module(module), name)(
        spec, paths or SchedulerPaths()
    )
    return opened


def _pairs(text: str, rest: str) -> dict[str, str]:
    pairs: dict[str, str] = {}
    for part in rest.split(",") if rest else ():
        name, equals, value = (each.strip() for each in part.partition("="))
        if not equals or not name or not value:
            raise BadInput(f"{text!r}: {part.strip()!r} is not NAME=VALUE")
        if name in pairs:
            raise BadInput(f"{text!r}: {name} is given twice")
        pairs[name] = value
    return pairs


def _checked(mode: SchedulerDeclaration, given: Mapping[str, str]) -> dict[str, str]:
    known = {each.name: each for each in mode.parameters}
    read = {}
    names = [name for name in known if name in given]
    others = [name for name in given if name not in known]
    # One mode has one text.
    names += sorted(others) if mode.any_order else others
    for name in names:
        parameter = known.get(name, mode.named)
        if parameter is None:
            valid = ", ".join(known) or "none"
            raise BadInput(f"{mode.name} has no parameter {name!r}; it has {valid}")
        with refused_as(f"{mode.name}: {name}", given[name]):
            read[name] = parameter.read(given[name])
    return read


def opened_or_not(text: str, paths: SchedulerPaths) -> Scheduler | BadInput:
    """Open a mode, or return why it cannot be opened."""
    try:
        return open_scheduler(text, paths)
    except BadInput as error:
        return error


def unopened(modes: Iterable[str], paths: SchedulerPaths) -> dict[str, str]:
    """Return the modes that cannot be opened, and why."""
    opened = {text: opened_or_not(text, paths) for text in modes}
    return {text: str(mode) for text, mode in opened.items() if isinstance(mode, BadInput)}


# Whoever starts the process of cells gives it ``environment(CELL)`` inside ``services``.
CELL = TenantRequest("cell")


def shared_by_mps(mode: str, inside: Mapping[str, InsideEvidence]) -> str:
    """Return the end of a proof's evidence: that a cell's process is a client of the user's MPS.

    A cell is measured wherever the user started pytest; MPS is then one of its conditions
    (``mps_client`` in the fingerprint). Tenants would share the device in another way than the mode
    says.

    Raises:
        NotProven: if a tenant's process is such a client.

    """
    clients = [name for name, each in inside.items() if each.mps_client]
    if not clients:
        return ""
    if clients != [CELL.name]:
        raise NotProven(
            f"{mode}: an MPS daemon that was not started here has {', '.join(clients)} among its "
            "clients, which therefore share the device as under mps; stop it with: echo quit | "
            "nvidia-cuda-mps-control, or set CUDA_MPS_PIPE_DIRECTORY to an empty folder"
        )
    return f"; {MPS_CLIENT}"


MPS_CLIENT = "the process is a client of an MPS daemon that was not started here"


def unavailable_for_process(scheduler: Scheduler, device_kind: str) -> str | None:
    """Return why no process for cells can be started under a mode, or None."""
    if not capabilities_of(device_kind).tenant_processes:
        if scheduler.spec.simulated is None:
            return f"the simulator does not model {scheduler.mode}; use a real device"
        return (
            f"{scheduler.mode}: a simulated device knows it between tenants, in scenario files, "
            "and not for single tests"
        )
    return scheduler.unavailable(device_kind, [CELL])


def unavailable_for_cell(
    scheduler: Scheduler, device_kind: str, urgency: Sequence[int]
) -> str | None:
    """Return why this process cannot measure a cell with these streams under a mode, or None."""
    if scheduler.spec.declaration.needs_environment:
        # `unavailable_for_process` was asked before this process was started.
        return None
    return scheduler.unavailable(device_kind, [replace(CELL, urgency=tuple(urgency))])


def unavailable_for_launchers(scheduler: Scheduler, launched_by: LaunchedBy) -> str | None:
    """Return why a cell's launchers cannot be what they are asked to be under a mode, or None."""
    if launched_by == "threads" or TenantPlacement.PROCESSES in scheduler.placements:
        return None
    return (
        f"{scheduler.mode} is of one process's streams, and here each stream is a process's that "
        "launches on it; have threads launch (--launchers threads)"
    )


def impossible_split(scheduler: Scheduler, device: Device, urgency: Sequence[int]) -> str | None:
    """Return why a simulated device cannot be split as a cell asks, as tenants are told; or None.

    Of real devices `unavailable_for_cell` says so.
    """
    partitions = cell_partitions(scheduler, urgency)
    if partitions is None or not device.capabilities.simulated:
        return None
    if scheduler.spec.simulated is None:
        return f"the simulator does not model {scheduler.mode}; use a real device"
    device = cast("SimulatedDevice", device)
    split = partitions[0].split
    others = any(partition.group == len(split) for partition in partitions)
    try:
        device.profile.refuse_split(split, others=others)
    except DeviceError as error:
        return f"{scheduler.mode}: {error}"
    return None


def cell_partitions(scheduler: Scheduler, urgency: Sequence[int]) -> list[Partition] | None:
    """Return where each of a cell's streams runs; None if the mode lets all run anywhere."""
    cell = replace(CELL, urgency=tuple(urgency))
    found = [scheduler.partition(cell, each) for each in urgency]
    partitions = [partition for partition in found if partition is not None]
    return partitions or None


def prove_cell(
    scheduler: Scheduler, pool: StreamPool, urgency: Sequence[int], *, replayed: bool = False
) -> Proof:
    """Prove, in the process that measures a cell, that the mode is active on its streams.

    Args:
        scheduler: the opened mode.
        pool: the cell's streams.
        urgency: of each stream's work.
        replayed: whether the cell's work is launched by replayed graphs.

    Raises:
        NotProven: if it is not, saying what was expected and what was seen.

    """
    # What was asked for, not what the streams were opened with: a planted fault must show.
    inside = replace(gather(pool), asked_priorities=scheduler.priorities(urgency))
    partitions = cell_partitions(scheduler, urgency)
    if partitions is not None:
        inside = with_groups(inside, pool, partitions, replayed=replayed)
    return scheduler.proof({CELL.name: os.getpid()}, {CELL.name: inside})
