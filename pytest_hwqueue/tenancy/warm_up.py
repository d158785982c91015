"""A tenant's warm-up: requests until the device and the process are as in the window."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

from pytest_hwqueue.devices.protocol import Device
from pytest_hwqueue.errors import InvalidMeasurement
from pytest_hwqueue.harness.open_loop import Window
from pytest_hwqueue.tenancy.spec import Colocation

# Fewer say nothing about how long a request takes.
_LEAST_REQUESTS = 3


def warm_up(
    plan: Colocation,
    device: Device,
    requests: Sequence[Callable[[], None]],
    begin_thread: Callable[[], object],
) -> list[int]:
    """Serve requests in a closed loop, as many at once as in the window; return their times in ns.

    Args:
        plan: says for how long.
        device: whose clock is used.
        requests: as `open_loop.serve` takes them.
        begin_thread: likewise.

    Raises:
        InvalidMeasurement: if a request outlasts the window and its grace.

    """
    began_ns = device.clock_ns()

    def loop(request: Callable[[], None]) -> list[int]:
        times_ns: list[int] = []
        while device.clock_ns() - began_ns < plan.warmup_s * 1e9 or len(times_ns) < _LEAST_REQUESTS:
            before_ns = device.clock_ns()
            request()
            times_ns.append(device.clock_ns() - before_ns)
            refuse_endless(plan, times_ns)
        return times_ns

    if len(requests) == 1:
        return loop(requests[0])
    with ThreadPoolExecutor(len(requests), "hwq-warm-up", begin_thread) as threads:
        return [each for times_ns in threads.map(loop, requests) for each in times_ns]


def refuse_endless(plan: Colocation, times_ns: list[int]) -> None:
    """Raise if requests outlast the window and its grace, before a long, useless warm-up.

    The first request does not count: it may compile and allocate.
    """
    window = Window(0, plan.duration_ns)
    if len(times_ns) > 1 and times_ns[-1] > window.duration_ns + window.grace_ns:
        raise InvalidMeasurement(
            f"a request took {times_ns[-1] / 1e9:.3g} s in warm-up, and the window is "
            f"{window.duration_ns / 1e9:.3g} s long: give a longer duration, or a smaller size"
        )
