"""Opens scheduler modes from their text, the built-in ones and those of other packages."""

from __future__ import annotations

from collections.abc import Callable
from importlib.metadata import entry_points

from pytest_hwqueue.schedulers.mode import Places, SchedulerMode
from pytest_hwqueue.schedulers.native import Native, NativeTenants
from pytest_hwqueue.schedulers.one_cell import OneCell
from pytest_hwqueue.schedulers.protocol import Scheduler
from pytest_hwqueue.schedulers.specification import ENTRY_POINTS, SchedulerText, parse_scheduler
from pytest_hwqueue.schedulers.stream_priority import StreamPriority, StreamPriorityTenants

# What an entry point of the group ``pytest_hwqueue.schedulers`` names; its name is the mode's.
ModeFactory = Callable[[SchedulerText, Places], SchedulerMode]

# Modes that a cell can have in any process, by the priorities of its streams.
SCHEDULERS: dict[str, type[Scheduler]] = {
    Native.mode: Native,
    StreamPriority.mode: StreamPriority,
}


def open_mode(text: str, places: Places | None = None) -> SchedulerMode:
    """Open a mode for tenants.

    Raises:
        BadScheduler: if there is no such mode, a parameter is wrong, or a description is.

    """
    places = places or Places()
    wanted = parse_scheduler(text)
    if wanted.mode == "native":
        return NativeTenants()
    if wanted.mode == "stream-priority":
        return StreamPriorityTenants()
    if wanted.mode.startswith("mps"):
        from pytest_hwqueue.schedulers.mps import Mps

        return Mps(wanted)
    if wanted.mode == "xsched":
        from pytest_hwqueue.schedulers.xsched import XSched

        return XSched(wanted, places)
    if wanted.mode == "preload":
        from pytest_hwqueue.schedulers.preload import Preload

        return Preload(wanted, places)
    (added,) = entry_points(group=ENTRY_POINTS, name=wanted.mode)
    factory: ModeFactory = added.load()
    return factory(wanted, places)


def open_scheduler(mode: str, places: Places | None = None) -> Scheduler:
    """Open a mode for the streams of one cell; BadScheduler as `open_mode` says."""
    of_streams = SCHEDULERS.get(mode)
    return OneCell(open_mode(mode, places)) if of_streams is None else of_streams()
