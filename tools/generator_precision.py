"""How late the open loop starts its requests, and whether its latencies are right.

    taskset -c 3 python tools/generator_precision.py [--rate 1000] [--seconds 10]

Requests of no work and of about 200 µs on the host device, at a constant rate. Each request reads
the clock for itself; lateness and latency are computed from those readings and the rate alone, and
compared with what the loop reports. Needs a core that nothing else uses: what others took of it is
printed. Exits with 1 if P99 of lateness is above 100 µs or the two latencies disagree.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Callable

import numpy as np
import psutil

from pytest_hwqueue.devices.host import HostDevice
from pytest_hwqueue.harness.open_loop import Window, lateness, serve
from pytest_hwqueue.tenancy.arrivals import Arrival, schedule

LIMIT_US = 100.0
# Between the loop's reading of the clock and the request's own lie two calls in Python.
AGREE_US = 5.0
WORK_NS = 200_000
READY_NS = 500_000_000

HEADER = (
    f"{'work':>8} {'requests':>8}  {'lateness P50':>12} {'P99':>9} {'max':>10}  "
    f"{'from raw: P99':>13} {'max':>10}  {'latency differs P50':>19} {'P99':>8} {'max':>9}  "
    f"{'others':>6}"
)


def measure(
    device: HostDevice, name: str, work: Callable[[], None], rate: float, seconds: float
) -> bool:
    """Serve for so long, print a row, and return whether it is as it should be."""
    duration_ns = round(seconds * 1e9)
    times = schedule(Arrival("constant", rate), 0, duration_ns)
    assert times is not None
    raw_began_ns: list[int] = []
    raw_ended_ns: list[int] = []

    def request() -> None:
        raw_began_ns.append(time.perf_counter_ns())
        work()
        raw_ended_ns.append(time.perf_counter_ns())

    begin_ns = device.clock_ns() + READY_NS
    busy_s, own_s = cores_busy_s(), time.process_time()
    log = serve(device, [request], times, Window(begin_ns, begin_ns + duration_ns))
    others_s = cores_busy_s() - busy_s - (time.process_time() - own_s)
    late = lateness(log)
    assert late is not None

    began, ended = np.array(raw_began_ns), np.array(raw_ended_ns)
    due = begin_ns + np.arange(len(began)) * (1e9 / rate)
    free = np.concatenate([[begin_ns], ended[:-1]])
    raw_late_us = (began - np.maximum(due, free)) / 1e3
    raw_p99_us = float(np.quantile(raw_late_us, 0.99, method="inverted_cdf"))
    differs_us = (np.array(log.latencies_ns()) - (ended - due)) / 1e3
    p50_us, p99_us = np.quantile(differs_us, [0.5, 0.99])
    cores = len(os.sched_getaffinity(0))
    print(
        f"{name:>8} {late.n:8}  {late.p50_us:9.1f} µs {late.p99_us:6.1f} µs {late.max_us:7.1f} µs  "
        f"{raw_p99_us:10.1f} µs {raw_late_us.max():7.1f} µs  "
        f"{p50_us:16.2f} µs {p99_us:5.2f} µs {differs_us.max():6.1f} µs  "
        f"{max(0.0, others_s) / (seconds * cores):6.1%}",
        flush=True,
    )
    # The rate's own rounding is below a nanosecond; the loop's interval contains the request's.
    agrees = bool(differs_us.min() >= -0.001) and bool(p50_us <= AGREE_US)
    return late.p99_us <= LIMIT_US and agrees and log.unserved == 0


def cores_busy_s() -> float:
    """Time that the cores this process may use have spent on anything."""
    every = psutil.cpu_times(percpu=True)
    mine = (every[core] for core in os.sched_getaffinity(0))
    return sum(sum(core) - core.idle - core.iowait - core.guest - core.guest_nice for core in mine)


def main() -> int:
    """Measure both kinds of request."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rate", type=float, default=1000, help="requests per second")
    parser.add_argument("--seconds", type=float, default=10, help="length of each measurement")
    options = parser.parse_args()
    device = HostDevice()
    load = ", ".join(f"{value:.2f}" for value in os.getloadavg())
    cores = ", ".join(map(str, sorted(os.sched_getaffinity(0))))
    print(
        f"{options.rate:g} requests/s for {options.seconds:g} s on cores {cores} of "
        f"{os.cpu_count()}; load average {load}"
    )
    print(HEADER)
    with device.open_streams(1) as pool:
        kernel, stream = device.kernel_of(WORK_NS), pool.streams[0]

        def busy() -> None:
            stream.launch(kernel)
            stream.synchronize()

        for _ in range(100):
            busy()
        cases: list[tuple[str, Callable[[], None]]] = [("none", lambda: None), ("200 µs", busy)]
        good = [measure(device, name, work, options.rate, options.seconds) for name, work in cases]
    answer = "yes" if all(good) else "NO"
    print(f"P99 of lateness up to {LIMIT_US:g} µs, and latencies agree: {answer}")
    return 0 if all(good) else 1


if __name__ == "__main__":
    sys.exit(main())
