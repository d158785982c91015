"""Declarations of schedulers, and the modes that are declared here."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from pytest_hwqueue.data.errors import BadInput, nearest
from pytest_hwqueue.data.extensions import Registry, origin
from pytest_hwqueue.data.records.kinds import Capabilities, capabilities_of
from pytest_hwqueue.data.redaction import is_called_secret
from pytest_hwqueue.data.resources import Resource

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint


# Reads the text of one parameter into its one form, or raises BadInput with what is valid.
Reader = Callable[[str], str]


class SchedulerParameter(NamedTuple):
    """A parameter of a scheduler mode, written ``NAME=VALUE`` after the mode's colon.

    Create one with `whole`, `choice`, `share` or `text`, or give `read` for other values.

    Attributes:
        name: as users write it.
        read: returns a value's canonical text; raises BadInput with what is valid.
        default: the value if none is given.

    """

    name: str
    read: Reader
    default: str

    @classmethod
    def whole(cls, name: str, least: int, most: int, *, default: int) -> SchedulerParameter:
        """Create a parameter that takes integers from ``least`` to ``most``."""

        def read(text: str) -> str:
            # The length first: Python refuses to read thousands of digits.
            if not text.isdecimal() or len(text) > 9 or not least <= int(text) <= most:
                raise BadInput(f"give a whole number from {least} to {most}")
            return str(int(text))

        return cls(name, read, str(default))

    @classmethod
    def choice(cls, name: str, choices: Collection[str], *, default: str) -> SchedulerParameter:
        """Create a parameter that takes one of ``choices``, in any case."""

        def read(text: str) -> str:
            for each in choices:
                if text.lower() == each.lower():
                    return each
            raise BadInput(f"choose from {', '.join(choices)}")

        return cls(name, read, default)

    @classmethod
    def share(cls, name: str, *, default: str) -> SchedulerParameter:
        """Create a parameter that takes a share of the device, such as ``80%`` or ``0.8``."""

        def read(text: str) -> str:
            try:
                percent = float(text[:-1]) if text.endswith("%") else 100 * float(text)
            except ValueError:
                percent = -1.0
            if not 0 < percent <= 100:
                raise BadInput("give a share above 0 and up to 100%, such as 80% or 0.8")
            return f"{percent:g}%"

        return cls(name, read, default)

    @classmethod
    def text(cls, name: str, *, default: str) -> SchedulerParameter:
        """Create a parameter that takes any text in one line."""

        def read(text: str) -> str:
            if not text.isprintable():
                raise BadInput("give text of one line, without control characters")
            return text

        return cls(name, read, default)


class Preemption(NamedTuple):
    """A preemptive scheduler in front of a simulated device; it holds back less urgent tenants.

    Attributes:
        in_flight: commands that a tenant may have on the device at once.
        batch: commands that a tenant that is told to stop has begun to hand on, and hands on.
        most_urgent_in_flight: the same for the most urgent tenant, which never gives way.

    """

    in_flight: int
    batch: int
    most_urgent_in_flight: int


class SimulatedSharing(NamedTuple):
    """How tenants share a simulated device under a mode.

    Attributes:
        together: processes share the device spatially, as under MPS; otherwise they take turns
            (time slicing). Threads of one process always share it spatially.
        priorities: how tenants' priorities act. ``ignored``: not at all; ``streams``: as stream
            priorities, clipped to the device's range; ``two-levels``: those above 0 come first;
            ``all``: each priority is a separate level.
        preemption: the preemptive scheduler in front of the device, if any.
        groups: multiprocessors that tenants of one process have of their own, by name; the others
            share what is left.

    """

    together: bool = False
    priorities: Literal["ignored", "streams", "two-levels", "all"] = "ignored"
    preemption: Preemption | None = None
    groups: Mapping[str, int] = MappingProxyType({})


class IsolationClaims(NamedTuple):
    """What a mode says that it does for tenants, which `hwq certify` puts to the test.

    Attributes:
        apart: resources of which no tenant takes from another.
        share: which share of the multiprocessors a tenant has at most, above 0 and up to 1, by the
            text of the parameter that has the tenant's name, and the number of multiprocessors of
            the device; None if no parameter says so.

    """

    apart: tuple[Resource, ...] = ()
    share: Callable[[str, int], float] | None = None


class SchedulerDeclaration(NamedTuple):
    """What a session must know about a scheduler mode before it loads the implementation.

    Every session that requests the mode imports the declaration's module: import torch, numpy and
    pydantic only in the functions that need them.

    Attributes:
        name: of the mode on the command line, in scenario files and in ids.
        help: what it does, in a few words.
        implementation: its `Scheduler` class, as ``module:Class``; loaded when the mode is opened.
        parameters: what it takes after its colon, in the order of its ids.
        named: a parameter whose name is the user's: a tenant's, or a variable's.
        any_order: whether these mean the same in any order: then they are sorted by name.
        argument: for modes that take one text instead of parameters: its placeholder, and what it
            is, such as ``("NAME", "the name of a description")``.
        check: raises BadInput for parameters that exclude each other.
        needs_environment: whether it works only in processes started for it, with its services and
            environment.
        devices: the kinds of devices it supports, such as ``cuda``; empty for all.
        requires: whether a device has what the mode needs; None for all.
        elsewhere: the reason given on other devices; may contain ``{mode}`` and ``{device}``.
        simulated: how tenants share a simulated device, or a function of the given parameters; None
            if the simulator has no model of the mode.
        by_priority: whether it serves urgent tenants first as the device's own feature, which
            nothing shows from outside: a probe before the window then proves its effect.
        claims: what it does for tenants by its own account; nothing by default.

    """

    name: str
    help: str
    implementation: str
    parameters: tuple[SchedulerParameter, ...] = ()
    named: SchedulerParameter | None = None
    any_order: bool = False
    argument: tuple[str, str] | None = None
    check: Callable[[Mapping[str, str]], None] | None = None
    needs_environment: bool = True
    devices: tuple[str, ...] = ()
    requires: Callable[[Capabilities], bool] | None = None
    elsewhere: str = "{mode} cannot serve the device {device}"
    simulated: SimulatedSharing | Callable[[Mapping[str, str]], SimulatedSharing | None] | None = (
        None
    )
    by_priority: bool = False
    claims: IsolationClaims = IsolationClaims()

    @property
    def usage(self) -> str:
        """The mode with its parameters for help texts, such as ``xsched[:level=1,...]``."""
        if self.argument is not None:
            return f"{self.name}:{self.argument[0]}"
        parts = [f"{each.name}={each.default}" for each in self.parameters]
        if self.named is not None:
            parts.append(f"{self.named.name}={self.named.default},...")
        return f"{self.name}[:{','.join(parts)}]" if parts else self.name

    def serves(self, device_kind: str) -> bool:
        """Whether the mode supports devices of a kind."""
        if self.devices and device_kind not in self.devices:
            return False
        return self.requires is None or self.requires(capabilities_of(device_kind))


class SchedulerSpec(NamedTuple):
    """A mode and its parameters as the user gave them; ``str`` returns the text.

    Attributes:
        declaration: the mode's.
        parameters: the given ones, canonical and in the declaration's order.
        argument: the text after the colon, for modes that take one.

    """

    declaration: SchedulerDeclaration
    parameters: Mapping[str, str] = MappingProxyType({})
    argument: str = ""

    def __str__(self) -> str:
        """As on the command line."""
        name = self.declaration.name
        given = ",".join(f"{each}={value}" for each, value in self.parameters.items())
        return f"{name}:{self.argument or given}" if self.argument or given else name

    def value(self, name: str) -> str:
        """Return a parameter's value, given or default."""
        if name in self.parameters:
            return self.parameters[name]
        return next(each.default for each in self.declaration.parameters if each.name == name)

    @property
    def tenants(self) -> list[str]:
        """Those that it gives something by name."""
        own = {each.name for each in self.declaration.parameters}
        return [name for name in self.parameters if name not in own]

    def without(self, tenant: str) -> SchedulerSpec:
        """Return the mode of a run that lacks a tenant; native, if it names nobody else."""
        if tenant not in self.tenants:
            return self
        if self.tenants == [tenant]:
            return SchedulerSpec(NATIVE)
        kept = {name: text for name, text in self.parameters.items() if name != tenant}
        return self._replace(parameters=kept)

    @property
    def simulated(self) -> SimulatedSharing | None:
        """How tenants share a simulated device; None if the simulator has no model."""
        found = self.declaration.simulated
        return found(self.parameters) if callable(found) else found


# Of xserver, by name; the server speaks of them by number.
POLICIES = {
    "HPF": 1, "HHPF": 2, "CHPF": 3, "UP": 4, "PUP": 5, "KEDF": 7, "LAX": 8, "AWF": 9, "CFS": 10,
    "MLFQ": 11,
}  # fmt: skip

# What XSched itself uses where nothing is set.
THRESHOLD, BATCH = 16, 8


def in_flight(parameters: Mapping[str, str]) -> tuple[int, int]:
    """Return XSched's threshold and batch size, in commands.

    If only the threshold is given, the batch is half of it, as in XSched's own 16 and 8.
    """
    threshold = int(parameters.get("threshold", THRESHOLD))
    default = max(1, threshold // 2) if "threshold" in parameters else BATCH
    return threshold, int(parameters.get("batch", default))


def check_in_flight(parameters: Mapping[str, str]) -> None:
    """Raise BadInput if the batch exceeds the threshold."""
    threshold, batch = in_flight(parameters)
    if batch > threshold:
        raise BadInput(
            f"xsched: batch={batch} is more than threshold={threshold}, which ends every process "
            "under XSched; give a batch of at most the threshold"
        )


def simulated(parameters: Mapping[str, str]) -> SimulatedSharing | None:
    """Return the simulator's model of XSched, which covers only level 1 by priority, or None."""
    others = {"level": "1", "policy": "HPF", "auto": "on"}
    if any(parameters.get(name, value) != value for name, value in others.items()):
        return None
    # At its threshold XSched waits for a batch to end before it hands on the next.
    preemption = Preemption(*in_flight(parameters), THRESHOLD - BATCH)
    return SimulatedSharing(priorities="all", preemption=preemption)


# CUDA_DEVICE_MAX_CONNECTIONS, NVIDIA's CUDA C++ programming guide.
_MOST_QUEUES = 32


def queues(text: str) -> str:
    """Read whether groups of multiprocessors have hardware queues of their own, and how many."""
    if text.lower() in ("shared", "apart"):
        return text.lower()
    if text.isdecimal() and len(text) <= 2 and 1 <= int(text) <= _MOST_QUEUES:
        return str(int(text))
    raise BadInput(
        "choose from shared, apart (each group has queues of its own, as many as the driver "
        f"says), and the number of streams that need them at once, 1 to {_MOST_QUEUES}"
    )


def simulated_groups(parameters: Mapping[str, str]) -> SimulatedSharing | None:
    """Return the simulator's model of green contexts, whose groups share queues, or None."""
    groups = {name: int(count) for name, count in parameters.items() if name != "queues"}
    shared = parameters.get("queues", "shared") == "shared"
    return SimulatedSharing(groups=groups) if shared else None


# Variables that another option or mode sets, and would set again or miss.
_SET_ELSEWHERE = {
    "LD_PRELOAD": "the mode preload:NAME",
    "LD_AUDIT": "the mode preload:NAME",
    "LD_LIBRARY_PATH": "the mode preload:NAME",
    "CUDA_VISIBLE_DEVICES": "--hwq-device",
    "NVIDIA_VISIBLE_DEVICES": "--hwq-device",
    "HIP_VISIBLE_DEVICES": "--hwq-device",
    "ROCR_VISIBLE_DEVICES": "--hwq-device",
    "GPU_DEVICE_ORDINAL": "--hwq-device",
    "PYTHONHOME": "the Python that runs pytest",
    "PYTHONPATH": "the Python that runs pytest",
}
_FAMILIES_SET_ELSEWHERE = {
    "CUDA_MPS_": "the modes mps, mps-priority, mps-partition and mps-static",
    "XSCHED_": "the mode xsched",
    "HWQ_": "an option",
}


def check_variables(parameters: Mapping[str, str]) -> None:
    """Raise BadInput for no name of a variable, for variables of other modes, and for secrets."""
    for name, value in parameters.items():
        if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name):
            raise BadInput(f"env: {name!r} is no name of an environment variable")
        families = (by for begins, by in _FAMILIES_SET_ELSEWHERE.items() if name.startswith(begins))
        if by := _SET_ELSEWHERE.get(name) or next(families, None):
            raise BadInput(f"env: {name} is set by {by}: use that")
        if is_called_secret(name, value) and not _IS_SETTING.fullmatch(value):
            raise BadInput(
                f"env: {name} may be a secret, and a mode's text stands in every record: set it "
                "where pytest is started"
            )


# A switch or a small number, which no secret is.
_IS_SETTING = re.compile(r"[0-9]{1,2}|true|false|on|off|yes|no|none", re.IGNORECASE)
_PACKAGE = "pytest_hwqueue.parts.schedulers"
_MOST_COMMANDS = 100_000
_MOST_MULTIPROCESSORS = 1024

NATIVE = SchedulerDeclaration(
    "native",
    "one priority for all streams",
    f"{_PACKAGE}.native:Native",
    needs_environment=False,
    simulated=SimulatedSharing(),
)
_MPS = SchedulerDeclaration(
    "mps",
    "NVIDIA's Multi-Process Service, all clients alike",
    f"{_PACKAGE}.mps:Mps",
    devices=("cuda", "sim"),
    elsewhere="{mode} needs an NVIDIA GPU; on {device} there is no MPS",
    simulated=SimulatedSharing(together=True),
)
BUILT_IN = (
    NATIVE,
    SchedulerDeclaration(
        "stream-priority",
        "urgent streams of a process get a higher device priority",
        f"{_PACKAGE}.stream_priority:StreamPriority",
        needs_environment=False,
        requires=lambda can: can.stream_priorities,
        elsewhere="{mode} needs an accelerator: the CPU's streams have no priorities",
        simulated=SimulatedSharing(priorities="streams"),
        by_priority=True,
    ),
    _MPS,
    _MPS._replace(
        name="mps-priority",
        help="MPS; tenants of priority 0 and below are clients below normal",
        simulated=SimulatedSharing(together=True, priorities="two-levels"),
        by_priority=True,
    ),
    _MPS._replace(
        name="mps-partition",
        help="MPS; each tenant is limited to its share of the multiprocessors",
        named=SchedulerParameter.share("TENANT", default="80%"),
        any_order=True,
        simulated=None,
        # NVIDIA's MPS documentation, "Volta MPS Execution Resource Provisioning": a limit on what a
        # client uses, and no reservation of it.
        claims=IsolationClaims(share=lambda text, _: float(text[:-1]) / 100),
    ),
    _MPS._replace(
        name="mps-static",
        help="MPS; each tenant has a static partition of so many chunks of multiprocessors",
        implementation=f"{_PACKAGE}.mps_static:MpsStatic",
        named=SchedulerParameter.whole("TENANT", 1, _MOST_MULTIPROCESSORS, default=4),
        any_order=True,
        # How many multiprocessors a chunk has depends on the GPU's generation, and the simulator
        # gives multiprocessors of their own only to tenants of one process.
        simulated=None,
        claims=IsolationClaims(apart=("multiprocessors",)),
    ),
    SchedulerDeclaration(
        "green-context",
        "each named tenant has multiprocessors of its own; the others share what is left",
        f"{_PACKAGE}.green_context:GreenContext",
        parameters=(SchedulerParameter("queues", queues, "shared"),),
        named=SchedulerParameter.whole("TENANT", 1, _MOST_MULTIPROCESSORS, default=32),
        needs_environment=False,
        requires=lambda can: can.partitions,
        elsewhere="{mode} needs a GPU of NVIDIA or AMD; {device} cannot be split",
        simulated=simulated_groups,
        claims=IsolationClaims(
            apart=("multiprocessors",), share=lambda text, all_: int(text) / all_
        ),
    ),
    SchedulerDeclaration(
        "env",
        "native, in processes that are started with these variables",
        f"{_PACKAGE}.environment:Environment",
        named=SchedulerParameter.text("NAME", default="VALUE"),
        any_order=True,
        check=check_variables,
        requires=lambda can: can.tenant_processes,
        elsewhere="{mode}: a simulated device runs no process that could have variables",
    ),
    SchedulerDeclaration(
        "xsched",
        "XSched's global scheduler; batch defaults to half of a given threshold",
        f"{_PACKAGE}.xsched:XSched",
        parameters=(
            SchedulerParameter.whole("level", 1, 3, default=1),
            SchedulerParameter.whole("threshold", 1, _MOST_COMMANDS, default=THRESHOLD),
            SchedulerParameter.whole("batch", 1, _MOST_COMMANDS, default=BATCH),
            SchedulerParameter.choice("policy", POLICIES, default="HPF"),
            SchedulerParameter.choice("auto", ("on", "off"), default="on"),
        ),
        check=check_in_flight,
        requires=lambda can: not can.host,
        elsewhere="{mode} needs an accelerator: XSched schedules CUDA or HIP streams",
        simulated=simulated,
    ),
    SchedulerDeclaration(
        "xsched-app",
        "XSched's library alone, its app-managed scheduler: nobody schedules",
        f"{_PACKAGE}.xsched:XSchedApp",
        requires=lambda can: not can.host,
        elsewhere="{mode} needs an accelerator: XSched stands before CUDA or HIP",
    ),
    SchedulerDeclaration(
        "preload",
        "any other library, described in NAME.yaml (--hwq-preloads) or in a file",
        f"{_PACKAGE}.preload:Preload",
        argument=("NAME", "the name of a description"),
        requires=lambda can: can.tenant_processes,
        elsewhere="{mode}: a simulated device runs no process that could load a library",
    ),
)


def _adopt(point: EntryPoint, found: Any) -> SchedulerDeclaration:
    if not isinstance(found, SchedulerDeclaration):
        raise BadInput(f"{origin(point)} names {found!r}, which is no SchedulerDeclaration")
    if found.name != point.name:
        raise BadInput(f"{origin(point)} names the declaration of a mode {found.name!r}")
    return found


# A package adds one by the entry point ``NAME = "module:DECLARATION"``.
SCHEDULERS = Registry("pytest_hwqueue.schedulers", {each.name: each for each in BUILT_IN}, _adopt)


def declaration(name: str) -> SchedulerDeclaration:
    """Return a mode's declaration.

    Raises:
        BadInput: if there is no such mode, or another package adds it and it cannot be used.

    """
    if name in SCHEDULERS:
        return SCHEDULERS[name]
    raise BadInput(f"there is no scheduler mode {name!r}; {nearest(name, SCHEDULERS)}")


def describe_modes() -> dict[str, str]:
    """Return what every built-in mode is, by how it is written."""
    return {each.usage: each.help for each in BUILT_IN}
