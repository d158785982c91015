"""From planted stops of a real process to the causes of its slow requests."""

from __future__ import annotations

import random
import signal
import time

from pytest_hwqueue.metrics.attribution import Request, attribute
from pytest_hwqueue.metrics.delay_evidence import interrupt_evidence, off_cpu_evidence

from .victims import need, victim

_STOPS = 12
_STOP_S = 0.06


def test_requests_that_a_stop_hit_are_descheduled() -> None:
    need("perf-system")
    draw = random.Random(5)
    stops = []
    with victim("serve", "perf-system", 2.0) as running:
        for _ in range(_STOPS):
            time.sleep(draw.uniform(0.02, 0.07))
            running.process.send_signal(signal.SIGSTOP)
            time.sleep(_STOP_S)
            stops.append(time.monotonic_ns())
            running.process.send_signal(signal.SIGCONT)
        found = running.report()
    requests = [
        Request(number, begin_ns, begin_ns, begin_ns, end_ns)
        for number, (begin_ns, end_ns) in enumerate(found["requests"])
    ]
    evidence = off_cpu_evidence(found["off_cpu"]) + interrupt_evidence(found["interrupts"])
    tail = attribute(requests, evidence, {}).tails["p95"]
    causes = {one.request: (one.cause, one.what) for one in tail.requests}
    # Whoever was being served at the moment before it went on.
    hit = [one.number for one in requests
           if any(one.arrival_ns < stop < one.finished_ns for stop in stops)]  # fmt: skip
    assert len(hit) >= _STOPS - 2
    right = [causes.get(number) == ("descheduled", "stopped by a signal") for number in hit]
    assert sum(right) >= 0.95 * len(hit)
