"""A short cut for an idle device, which a host slower than the device meets at every launch.

A kernel that nothing else can affect needs no calendar: its start and its end follow from its
launch. The times are those that the calendar would give, at a fraction of the cost, and such
kernels are most of what a suite launches.
"""

from __future__ import annotations

from collections.abc import Callable

from pytest_hwqueue.devices.simulated.commands import Command, HardwareQueue
from pytest_hwqueue.devices.simulated.front_end import FrontEnd
from pytest_hwqueue.devices.simulated.work import KernelWork

# Command, name, start and end of a kernel.
Observe = Callable[[Command, str, int, int], None]


def run_alone(
    now_ns: int, before_ns: int, queue: HardwareQueue, front_end: FrontEnd, observe: Observe
) -> int:
    """Run the kernels at a queue's head one by one, as long as they end early enough.

    Args:
        now_ns: the time; nothing is on the device or on its way to it.
        before_ns: time until which nothing else happens.
        queue: the hardware queue.
        front_end: starts kernels of streams.
        observe: receives each kernel.

    Returns:
        The end of the last kernel that was run; ``now_ns`` if none was.

    """
    commands = queue.commands
    while commands:
        command = commands[0]
        if not isinstance(command, Command) or command.done is not None:
            break
        work, stream = command.work, command.stream
        if not isinstance(work, KernelWork) or stream.busy:
            break
        ready_ns = max(now_ns, command.at_ns)
        if front_end.free_ns > ready_ns or not stream.multiprocessors.hold(work):
            break
        start_ns = front_end.start_ns(ready_ns, queue.index)
        end_ns = start_ns + max(1, work.duration_ns)
        if end_ns >= before_ns or queue.second_overtakes(end_ns):
            break
        front_end.served(ready_ns, queue.index)
        commands.popleft()
        stream.outstanding -= 1
        observe(command, work.name, start_ns, end_ns)
        now_ns = end_ns
    return now_ns
