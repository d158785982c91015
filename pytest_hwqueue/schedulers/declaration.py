"""What a scheduler mode declares: enough to read, refuse and model it before it is loaded."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from types import MappingProxyType
from typing import Literal, NamedTuple

from pytest_hwqueue.errors import BadScheduler

# Reads the text of one parameter into its one form, or raises BadScheduler with what is valid.
Reader = Callable[[str], str]


class SchedulerParameter(NamedTuple):
    """A parameter of a scheduler mode, written ``NAME=VALUE`` behind the mode's colon.

    `whole`, `choice` and `share` make those of the usual types.

    Attributes:
        name: as users write it.
        read: takes a value's text.
        default: what counts where it is not given.

    """

    name: str
    read: Reader
    default: str

    @classmethod
    def whole(cls, name: str, least: int, most: int, *, default: int) -> SchedulerParameter:
        """A whole number from ``least`` to ``most``."""

        def read(text: str) -> str:
            # The length first: Python refuses to read thousands of digits.
            if not text.isdecimal() or len(text) > 9 or not least <= int(text) <= most:
                raise BadScheduler(f"give a whole number from {least} to {most}")
            return str(int(text))

        return cls(name, read, str(default))

    @classmethod
    def choice(cls, name: str, choices: Collection[str], *, default: str) -> SchedulerParameter:
        """One of ``choices``, in capitals or not."""

        def read(text: str) -> str:
            for each in choices:
                if text.lower() == each.lower():
                    return each
            raise BadScheduler(f"choose from {', '.join(choices)}")

        return cls(name, read, default)

    @classmethod
    def share(cls, name: str, *, default: str) -> SchedulerParameter:
        """A share of the device, such as ``80%`` or ``0.8``; its one form is in percent."""

        def read(text: str) -> str:
            try:
                percent = float(text[:-1]) if text.endswith("%") else 100 * float(text)
            except ValueError:
                percent = -1.0
            if not 0 < percent <= 100:
                raise BadScheduler("give a share above 0 and up to 100%, such as 80% or 0.8")
            return f"{percent:g}%"

        return cls(name, read, default)


class Preemption(NamedTuple):
    """A scheduler in front of a simulated device: it hands commands on while none is more urgent.

    Attributes:
        in_flight: commands of a tenant that may be on the device at once.
        most_urgent_in_flight: the same of the tenant that never gives way.

    """

    in_flight: int
    most_urgent_in_flight: int


class SimulatedSharing(NamedTuple):
    """How tenants share a simulated device under a mode.

    Attributes:
        together: kernels of all processes are on the device at once, as under MPS; otherwise
            processes take turns. Threads of one process are together anyway.
        priorities: what the tenants' priorities do. ``ignored``: nothing; ``streams``: they are
            their streams', cut to the device's range; ``two-levels``: those above 0 come first;
            ``all``: every priority is a level of its own.
        preemption: the scheduler in front of the device, if there is one.

    """

    together: bool = False
    priorities: Literal["ignored", "streams", "two-levels", "all"] = "ignored"
    preemption: Preemption | None = None


class SchedulerDeclaration(NamedTuple):
    """A scheduler mode, as far as a session must know it before it loads its implementation.

    It is read in every session that asks for the mode: keep what is heavy (torch, numpy, pydantic)
    out of its module, or in the functions that need it.

    Attributes:
        name: of the mode on the command line, in scenario files and in ids.
        help: what it does, in a few words.
        implementation: its `Scheduler`, as ``module:Class``; loaded when the mode is opened.
        parameters: what may stand behind its colon; texts have them in this order.
        per_tenant: a parameter for each tenant, whose name is the parameter's.
        argument: how one text behind the colon is called, and what it is, for modes that need just
            that: ``("NAME", "the name of a description")``.
        check: raises BadScheduler for values that do not go together.
        needs_environment: whether it works only in processes that were started for it: with its
            services, and its environment.
        devices: kinds of devices that it can serve, such as ``cpu``, ``cuda``, ``hip``, ``sim``;
            None for all, those of other packages too.
        elsewhere: why it cannot serve others; ``{mode}`` and ``{device}`` may stand in it.
        simulated: how tenants share a simulated device under it; a function of the parameters given
            where it depends on them. None: the model knows nothing like it.

    """

    name: str
    help: str
    implementation: str
    parameters: tuple[SchedulerParameter, ...] = ()
    per_tenant: SchedulerParameter | None = None
    argument: tuple[str, str] | None = None
    check: Callable[[Mapping[str, str]], None] | None = None
    needs_environment: bool = True
    devices: tuple[str, ...] | None = None
    elsewhere: str = "{mode} cannot serve the device {device}"
    simulated: SimulatedSharing | Callable[[Mapping[str, str]], SimulatedSharing | None] | None = (
        None
    )

    @property
    def usage(self) -> str:
        """How the mode is written, such as ``xsched[:level=1,...]``."""
        if self.argument is not None:
            return f"{self.name}:{self.argument[0]}"
        parts = [f"{each.name}={each.default}" for each in self.parameters]
        if self.per_tenant is not None:
            parts.append(f"{self.per_tenant.name}={self.per_tenant.default},...")
        return f"{self.name}[:{','.join(parts)}]" if parts else self.name


class SchedulerSpec(NamedTuple):
    """A mode and its parameters, as they were asked for; ``str`` gives the text again.

    Attributes:
        declaration: the mode's.
        parameters: those that were given, in the declaration's order, each in its one form.
        argument: the text behind the colon of modes that need one.

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
        """Return a parameter's value, as given or by default."""
        if name in self.parameters:
            return self.parameters[name]
        return next(each.default for each in self.declaration.parameters if each.name == name)

    @property
    def simulated(self) -> SimulatedSharing | None:
        """How tenants share a simulated device under the mode with these parameters."""
        found = self.declaration.simulated
        return found(self.parameters) if callable(found) else found
