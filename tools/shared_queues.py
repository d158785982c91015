"""When does a stream wait for others that share its hardware queue? A table, as Markdown.

    python -m tools.shared_queues [DEVICE]

So many streams, as none has work, get a load that begins with a kernel of 2 ms, each in turn; then
a kernel of 20 µs is launched on another stream, and timed until the host has seen its end. Where it
takes 2 ms, that stream had to wait for one of the others, whose work its own does not depend on.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from statistics import median

from pytest_hwqueue.data.document.document import markdown_table
from pytest_hwqueue.parts.devices.kinds import open_device
from pytest_hwqueue.parts.devices.protocol import Device, Stream

_LONG_NS, _SHORT_NS = 2_000_000, 20_000
_COUNTS = (1, 7, 8, 9, 15, 16, 24, 32)
_REPEATS = 7


def main() -> None:
    """Measure, and print the median of each load and number of streams in µs."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("device", nargs="?", default="cuda")
    found = waits_us(open_device(parser.parse_args().device))
    head = ["the others have", *(f"{count} others" for count in _COUNTS)]
    print(
        markdown_table(head, [[load, *(f"{us:.0f}" for us in row)] for load, row in found.items()])
    )


def waits_us(device: Device) -> dict[str, list[float]]:
    """Return by load how long a short kernel takes beside so many streams that have it."""
    with device.open_streams(max(_COUNTS) + 2) as pool:
        *streams, gate = pool.streams
        long, short = device.kernel_of(_LONG_NS), device.kernel_of(_SHORT_NS)
        events = [device.new_event() for _ in pool.streams]
        for stream in pool.streams:
            stream.launch(long)
            stream.launch(short)
        pool.synchronize()
        graphs = [
            pool.capture(each.index, lambda each=each: each.launch(short))  # type: ignore[misc]
            for each in streams
        ]
        for stream, graph in zip(streams, graphs, strict=True):
            stream.launch(graph)

        def another(stream: Stream) -> None:
            stream.launch(long)
            stream.launch(short)

        def event(stream: Stream) -> None:
            stream.launch(long)
            stream.record(events[stream.index])

        def replay(stream: Stream) -> None:
            stream.launch(long)
            stream.launch(graphs[stream.index])

        def gated(stream: Stream) -> None:
            stream.wait(events[gate.index])
            stream.launch(short)

        loads: dict[str, Callable[[Stream], None]] = {
            "a kernel": lambda stream: stream.launch(long),
            "a kernel, and one behind it": another,
            "a kernel, and a timing event": event,
            "a kernel, and a graph": replay,
            "a kernel that waits for another stream's": gated,
        }

        def once(load: Callable[[Stream], None], count: int) -> float:
            pool.synchronize()
            if load is gated:
                gate.launch(long)
                gate.record(events[gate.index])
            for stream in streams[:count]:
                load(stream)
            began_ns = device.clock_ns()
            streams[count].launch(short)
            streams[count].synchronize()
            return (device.clock_ns() - began_ns) / 1e3

        return {
            name: [median(once(load, count) for _ in range(_REPEATS)) for count in _COUNTS]
            for name, load in loads.items()
        }


if __name__ == "__main__":
    main()
