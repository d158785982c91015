"""What a scheduler mode declares: enough to check and simulate it without loading it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from types import MappingProxyType
from typing import Literal, NamedTuple

from pytest_hwqueue.devices.kinds import Capabilities, capabilities_of
from pytest_hwqueue.errors import BadScheduler

# Reads the text of one parameter into its one form, or raises BadScheduler with what is valid.
Reader = Callable[[str], str]


class Tunable(NamedTuple):
    """The values of a parameter that ``hwq tune`` searches: integers from ``least`` to ``most``.

    Attributes:
        least: the first value.
        most: the last.
        step: between neighbours; 1 if ``log``.
        log: whether ratios matter, not differences.
        unit: behind the number, such as ``%``.
        of: for a parameter named after a tenant: the most urgent tenants, or the others.

    """

    least: int
    most: int
    step: int = 1
    log: bool = False
    unit: str = ""
    of: Literal["urgent", "others"] = "others"


class SchedulerParameter(NamedTuple):
    """A parameter of a scheduler mode, written ``NAME=VALUE`` after the mode's colon.

    Create one with `whole`, `choice` or `share`, or give `read` for other values.

    Attributes:
        name: as users write it.
        read: returns a value's canonical text; raises BadScheduler with what is valid.
        default: the value if none is given.
        tunable: the values to search for the best one; None if that makes no sense.

    """

    name: str
    read: Reader
    default: str
    tunable: Tunable | None = None

    @classmethod
    def whole(
        cls, name: str, least: int, most: int, *, default: int, tunable: Tunable | None = None
    ) -> SchedulerParameter:
        """Create a parameter that takes integers from ``least`` to ``most``."""

        def read(text: str) -> str:
            # The length first: Python refuses to read thousands of digits.
            if not text.isdecimal() or len(text) > 9 or not least <= int(text) <= most:
                raise BadScheduler(f"give a whole number from {least} to {most}")
            return str(int(text))

        return cls(name, read, str(default), tunable)

    @classmethod
    def choice(cls, name: str, choices: Collection[str], *, default: str) -> SchedulerParameter:
        """Create a parameter that takes one of ``choices``, in any case."""

        def read(text: str) -> str:
            for each in choices:
                if text.lower() == each.lower():
                    return each
            raise BadScheduler(f"choose from {', '.join(choices)}")

        return cls(name, read, default)

    @classmethod
    def share(
        cls, name: str, *, default: str, tunable: Tunable | None = None
    ) -> SchedulerParameter:
        """Create a parameter that takes a share of the device, such as ``80%`` or ``0.8``."""

        def read(text: str) -> str:
            try:
                percent = float(text[:-1]) if text.endswith("%") else 100 * float(text)
            except ValueError:
                percent = -1.0
            if not 0 < percent <= 100:
                raise BadScheduler("give a share above 0 and up to 100%, such as 80% or 0.8")
            return f"{percent:g}%"

        return cls(name, read, default, tunable)


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


class SchedulerDeclaration(NamedTuple):
    """What a session must know about a scheduler mode before it loads the implementation.

    Every session that requests the mode imports the declaration's module: import torch, numpy and
    pydantic only in the functions that need them.

    Attributes:
        name: of the mode on the command line, in scenario files and in ids.
        help: what it does, in a few words.
        implementation: its `Scheduler` class, as ``module:Class``; loaded when the mode is opened.
        parameters: what it takes after its colon, in the order of its ids.
        per_tenant: a parameter named after a tenant.
        argument: for modes that take one text instead of parameters: its placeholder, and what it
            is, such as ``("NAME", "the name of a description")``.
        check: raises BadScheduler for parameters that exclude each other.
        needs_environment: whether it works only in processes started for it, with its services and
            environment.
        devices: the kinds of devices it supports, such as ``cuda``; empty for all.
        requires: whether a device has what the mode needs; None for all.
        elsewhere: the reason given on other devices; may contain ``{mode}`` and ``{device}``.
        simulated: how tenants share a simulated device, or a function of the given parameters; None
            if the simulator has no model of the mode.
        by_priority: whether it serves urgent tenants first as the device's own feature, which
            nothing shows from outside: a probe before the window then proves its effect.

    """

    name: str
    help: str
    implementation: str
    parameters: tuple[SchedulerParameter, ...] = ()
    per_tenant: SchedulerParameter | None = None
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

    @property
    def usage(self) -> str:
        """The mode with its parameters for help texts, such as ``xsched[:level=1,...]``."""
        if self.argument is not None:
            return f"{self.name}:{self.argument[0]}"
        parts = [f"{each.name}={each.default}" for each in self.parameters]
        if self.per_tenant is not None:
            parts.append(f"{self.per_tenant.name}={self.per_tenant.default},...")
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
    def simulated(self) -> SimulatedSharing | None:
        """How tenants share a simulated device; None if the simulator has no model."""
        found = self.declaration.simulated
        return found(self.parameters) if callable(found) else found
