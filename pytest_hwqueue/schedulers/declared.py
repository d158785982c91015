"""The scheduler modes there are: built-in ones, and those of other packages."""

from __future__ import annotations

from functools import cache
from importlib.metadata import EntryPoint, entry_points

from pytest_hwqueue.errors import BadScheduler
from pytest_hwqueue.schedulers.declaration import (
    Parameter,
    SchedulerDeclaration,
    SimulatedSharing,
    choice,
    share,
    whole,
)
from pytest_hwqueue.schedulers.xsched_settings import (
    BATCH,
    POLICIES,
    THRESHOLD,
    check_in_flight,
    simulated,
)

_PACKAGE = "pytest_hwqueue.schedulers"
_COMMANDS = whole(1, 100_000)

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
        devices=("cuda", "hip", "sim"),
        elsewhere="{mode} needs an accelerator: the CPU's streams have no priorities",
        simulated=SimulatedSharing(priorities="streams"),
    ),
    _MPS,
    _MPS._replace(
        name="mps-priority",
        help="MPS, tenants of priority 0 and below as clients below normal",
        simulated=SimulatedSharing(together=True, priorities="two-levels"),
    ),
    _MPS._replace(
        name="mps-partition",
        help="MPS, a tenant limited to its share of the multiprocessors",
        per_tenant=Parameter("TENANT", share, "80%"),
        simulated=None,
    ),
    SchedulerDeclaration(
        "xsched",
        "XSched's global scheduler; a threshold alone gives a batch of half of it",
        f"{_PACKAGE}.xsched:XSched",
        parameters=(
            Parameter("level", whole(1, 3), "1"),
            Parameter("threshold", _COMMANDS, str(THRESHOLD)),
            Parameter("batch", _COMMANDS, str(BATCH)),
            Parameter("policy", choice(*POLICIES), "HPF"),
            Parameter("auto", choice("on", "off"), "on"),
        ),
        check=check_in_flight,
        devices=("cuda", "hip", "sim"),
        elsewhere="{mode} needs an accelerator: XSched schedules CUDA or HIP streams",
        simulated=simulated,
    ),
    SchedulerDeclaration(
        "preload",
        "any other library, described in NAME.yaml (--hwq-preloads) or in a file",
        f"{_PACKAGE}.preload:Preload",
        argument=("NAME", "the name of a description"),
        devices=("cpu", "cuda", "hip"),
        elsewhere="{mode}: a simulated device runs no process that could load a library",
    ),
)

# An entry point of this group gives a `SchedulerDeclaration`; its name is the mode's.
ENTRY_POINTS = "pytest_hwqueue.schedulers"

_BY_NAME = {each.name: each for each in BUILT_IN}


def declaration(name: str) -> SchedulerDeclaration:
    """Return what a mode declares.

    Raises:
        BadScheduler: if there is no such mode, or its package does not declare it as it should.

    """
    found = _BY_NAME.get(name)
    return found if found is not None else _of_package(name)


def describe_modes() -> str:
    """Every built-in mode with what it does, for help texts."""
    return "; ".join(f"{each.usage} ({each.help})" for each in BUILT_IN)


@cache
def _of_package(name: str) -> SchedulerDeclaration:
    added = {point.name: point for point in entry_points(group=ENTRY_POINTS)}
    if name not in added:
        names = ", ".join([*_BY_NAME, *sorted(added)])
        raise BadScheduler(f"there is no scheduler mode {name!r}; there are {names}")
    point: EntryPoint = added[name]
    try:
        found = point.load()
    except Exception as error:  # another package's code
        raise BadScheduler(f"{name}: {point.value} cannot be loaded: {error!r}") from error
    if not isinstance(found, SchedulerDeclaration) or found.name != name:
        raise BadScheduler(
            f"{name}: {point.value} is {found!r}, and must be the SchedulerDeclaration of that name"
        )
    return found
