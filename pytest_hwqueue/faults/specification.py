"""The faults that --hwq-fault can plant, and their arguments, in one table; nothing heavy."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, NamedTuple

from pytest_hwqueue.devices.kinds import KINDS, Capabilities, capabilities_of
from pytest_hwqueue.errors import BadFault, shortened


class Argument(NamedTuple):
    """A number after a fault's name; required if it has no default."""

    name: str
    least: float
    most: float
    default: float | None = None
    whole: bool = False


FaultTarget = Literal["cells", "tenants"]


class FaultKind(NamedTuple):
    """One kind of fault.

    Attributes:
        help: what it does, for help texts.
        arguments: after the name, separated by colons.
        needs: whether a device is capable of it.
        targets: where it can be planted: cells of workloads, tenants of scenarios, or both.

    """

    help: str
    arguments: tuple[Argument, ...] = ()
    needs: Callable[[Capabilities], bool] = lambda _: True
    targets: tuple[FaultTarget, ...] = ("cells",)

    def possible(self, device: Capabilities, target: FaultTarget) -> bool:
        """Whether the fault can be planted in such a target on such a device."""
        # Where tenants are no processes they have no loops, in which faults are planted.
        return self.needs(device) and (target == "cells" or device.tenant_processes)


@dataclass(frozen=True)
class Fault:
    """A requested fault."""

    name: str
    values: tuple[float, ...] = ()

    def __str__(self) -> str:
        """As on the command line."""
        return ":".join([self.name, *(f"{value:g}" for value in self.values)])


def _has_priorities(device: Capabilities) -> bool:
    return device.stream_priorities


_PERCENT = Argument("PERCENT", 0.1, 100_000)
_ITERATION = Argument("ITERATION", 1, 1_000_000_000, whole=True)
_BOTH: tuple[FaultTarget, ...] = ("cells", "tenants")

FAULTS: dict[str, FaultKind] = {
    "slower": FaultKind(
        "makes everything slower: each kernel on a simulated device, elsewhere each launch, by "
        "a kernel that spins for PERCENT of its time; a tenant's requests as a whole",
        (_PERCENT,), targets=_BOTH,
    ),
    "slower-tail": FaultKind(
        "makes SHARE percent of the measured iterations, chosen by the seed, slower, by a kernel "
        "that spins after them", (_PERCENT, Argument("SHARE", 0.01, 100, default=2)), targets=_BOTH,
    ),
    "clock-dip": FaultKind(
        "makes kernels slower by PERCENT from START to END percent of the measurement, by a lower "
        "clock that telemetry sees; no real clock is touched",
        (_PERCENT, Argument("START", 0, 100, default=40), Argument("END", 0, 100, default=60)),
        needs=lambda device: device.virtual_time,
    ),
    "aliased-streams": FaultKind("sends all work to the first stream, whatever is requested"),
    "inverted-priority": FaultKind(
        "gives urgent streams the low priority", needs=_has_priorities
    ),
    "hidden-inverted-priority": FaultKind(
        "sends urgent work to a low-priority stream while streams report the right priorities",
        needs=_has_priorities,
    ),
    "inactive-scheduler": FaultKind(
        "makes the requested scheduler mode do nothing", needs=_has_priorities
    ),
    "crash": FaultKind(
        "kills the process with a signal at an iteration", (_ITERATION,), targets=_BOTH
    ),
    "hang": FaultKind("makes the host hang in an iteration", (_ITERATION,), targets=_BOTH),
    "out-of-memory": FaultKind(
        "asks for more memory than there is", (_ITERATION,), targets=_BOTH
    ),
    "device-error": FaultKind("makes work on the first stream fail", (_ITERATION,), targets=_BOTH),
    "late-generator": FaultKind(
        "in scenarios, starts scheduled requests MS milliseconds late",
        (Argument("MS", 0.01, 60_000),), targets=("tenants",),
    ),
    "stalled-tenant": FaultKind(
        "in scenarios, stalls one request of the first tenant for SECONDS, half-way through",
        (Argument("SECONDS", 0.001, 3600),), targets=("tenants",),
    ),
}  # fmt: skip


def describe_faults() -> dict[str, str]:
    """Return what every fault does, by how it is written with its arguments."""
    return {_usage(name): kind.help for name, kind in FAULTS.items()}


def parse_fault(text: str) -> Fault:
    """Read a fault such as ``slower:10``.

    Raises:
        BadFault: naming the wrong part and what is valid.

    """
    name, *given = text.split(":")
    if name not in FAULTS:
        raise BadFault(f"there is no fault {shortened(name)!r}; there are {', '.join(FAULTS)}")
    arguments = FAULTS[name].arguments
    if len(given) > len(arguments):
        raise BadFault(f"{name} takes {_usage(name)}")
    values = []
    for index, argument in enumerate(arguments):
        if index < len(given):
            values.append(_number(argument, given[index]))
        elif argument.default is not None:
            values.append(argument.default)
        else:
            raise BadFault(f"{argument.name} is missing; {name} takes {_usage(name)}")
    fault = Fault(name, tuple(values))
    if name == "clock-dip" and values[1] >= values[2]:
        raise BadFault(f"START {values[1]:g} is not before END {values[2]:g}")
    return fault


def impossible(
    faults: tuple[Fault, ...], device_kind: str, target: FaultTarget = "cells"
) -> str | None:
    """Return why faults cannot be planted there on a kind of device, or None."""
    for fault in faults:
        kind = FAULTS[fault.name]
        if target not in kind.targets:
            where = "tenants of scenarios" if target == "cells" else "cells of workloads"
            return f"--hwq-fault={fault} is for {where}"
        if not kind.possible(capabilities_of(device_kind), target):
            there = [
                name for name, device in KINDS.built_in.items() if kind.possible(device, target)
            ]
            return f"--hwq-fault={fault} needs a device of kind {', '.join(there)}"
    return None


def _number(argument: Argument, text: str) -> float:
    try:
        # Python takes 1_0 for 10; nobody writes it for a number here.
        value = float("nan" if "_" in text else text)
    except ValueError:
        value = float("nan")
    if not argument.least <= value <= argument.most or (argument.whole and value % 1):
        number = "a whole number" if argument.whole else "a number"
        raise BadFault(
            f"{argument.name} is {shortened(text)!r}; give {number} from {argument.least:g} to "
            f"{argument.most:g}"
        )
    return value


def _usage(name: str) -> str:
    parts = [
        argument.name if argument.default is None else f"[{argument.name}]"
        for argument in FAULTS[name].arguments
    ]
    return ":".join([name, *parts])
