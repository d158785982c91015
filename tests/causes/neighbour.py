"""A process that now and then keeps one core busy, and prints when: NEIGHBOUR.py CPU SECONDS."""

from __future__ import annotations

import json
import os
import random
import sys
import time

BURST_S = 0.012


def main() -> None:
    os.sched_setaffinity(0, {int(sys.argv[1])})
    end = time.monotonic() + float(sys.argv[2])
    draw = random.Random(3)
    bursts = []
    while time.monotonic() < end:
        time.sleep(draw.uniform(0.06, 0.12))
        begin_ns = time.monotonic_ns()
        # Of its own time, so that it takes as much from whoever shares the core.
        stop = time.thread_time() + BURST_S
        while time.thread_time() < stop:
            pass
        bursts.append((begin_ns, time.monotonic_ns()))
    print(json.dumps(bursts))


if __name__ == "__main__":
    main()
