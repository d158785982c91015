"""The scheduler modes: the built-in ones and those that other packages add."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pytest_hwqueue.errors import BadExtension, BadScheduler
from pytest_hwqueue.extensions import Registry, origin
from pytest_hwqueue.schedulers.declaration import (
    SchedulerDeclaration,
    SchedulerParameter,
    SimulatedSharing,
    Tunable,
)
from pytest_hwqueue.schedulers.xsched_settings import (
    BATCH,
    POLICIES,
    THRESHOLD,
    check_in_flight,
    simulated,
)

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

_PACKAGE = "pytest_hwqueue.schedulers"
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
        per_tenant=SchedulerParameter.share(
            "TENANT", default="80%", tunable=Tunable(10, 100, step=5, unit="%")
        ),
        simulated=None,
    ),
    SchedulerDeclaration(
        "green-context",
        "each named tenant has multiprocessors of its own; the others share what is left",
        f"{_PACKAGE}.green_context:GreenContext",
        per_tenant=SchedulerParameter.whole(
            "TENANT",
            1,
            _MOST_MULTIPROCESSORS,
            default=32,
            tunable=Tunable(8, 128, step=8, of="urgent"),
        ),
        needs_environment=False,
        requires=lambda can: can.partitions,
        elsewhere="{mode} needs a GPU of NVIDIA or AMD; {device} cannot be split",
        simulated=lambda given: SimulatedSharing(groups={n: int(c) for n, c in given.items()}),
    ),
    SchedulerDeclaration(
        "xsched",
        "XSched's global scheduler; batch defaults to half of a given threshold",
        f"{_PACKAGE}.xsched:XSched",
        parameters=(
            SchedulerParameter.whole("level", 1, 3, default=1),
            SchedulerParameter.whole(
                "threshold", 1, _MOST_COMMANDS, default=THRESHOLD, tunable=Tunable(1, 64, log=True)
            ),
            SchedulerParameter.whole(
                "batch", 1, _MOST_COMMANDS, default=BATCH, tunable=Tunable(1, 32, log=True)
            ),
            SchedulerParameter.choice("policy", POLICIES, default="HPF"),
            SchedulerParameter.choice("auto", ("on", "off"), default="on"),
        ),
        check=check_in_flight,
        requires=lambda can: not can.host,
        elsewhere="{mode} needs an accelerator: XSched schedules CUDA or HIP streams",
        simulated=simulated,
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
        raise BadExtension(f"{origin(point)} names {found!r}, which is no SchedulerDeclaration")
    if found.name != point.name:
        raise BadExtension(f"{origin(point)} names the declaration of a mode {found.name!r}")
    return found


# A package adds one by the entry point ``NAME = "module:DECLARATION"``.
SCHEDULERS = Registry("pytest_hwqueue.schedulers", {each.name: each for each in BUILT_IN}, _adopt)


def declaration(name: str) -> SchedulerDeclaration:
    """Return a mode's declaration.

    Raises:
        BadScheduler: if there is no such mode, or another package adds it and it cannot be used.

    """
    try:
        if name in SCHEDULERS:
            return SCHEDULERS[name]
        names = ", ".join(SCHEDULERS)
    except BadExtension as error:
        raise BadScheduler(str(error)) from error
    raise BadScheduler(f"there is no scheduler mode {name!r}; there are {names}")


def describe_modes() -> dict[str, str]:
    """Return what every built-in mode is, by how it is written."""
    return {each.usage: each.help for each in BUILT_IN}
