"""Attribution of tails: planted causes are found, a clean run has none, chance explains nothing."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_hwqueue.metrics.attribution import (
    CAUSES,
    EARLIER_REQUESTS,
    UNEXPLAINED,
    Cause,
    DeviceWork,
    Evidence,
    Request,
    attribute,
    device_busy,
    device_evidence,
    interrupt_evidence,
    off_cpu_evidence,
)
from pytest_hwqueue.metrics.cpu_events import Interrupt, InterruptKind, OffCpu
from pytest_hwqueue.metrics.critical_path import critical_paths, in_words
from pytest_hwqueue.metrics.timeline import difference

US, MS = 1_000, 1_000_000
PLANTS = (
    "preempted", "stopped", "late to run", "interrupted", "behind another", "slowed by another",
    "behind own stream", "compiled", "late generator", "longer work", "slow launching",
    "slow kernel",
)  # fmt: skip
TRUTH: Mapping[str, Cause | None] = {
    "preempted": "descheduled",
    "stopped": "descheduled",
    "late to run": "descheduled",
    "interrupted": "interrupted",
    "behind another": "queued",
    "slowed by another": "queued",
    "behind own stream": "queued",
    "compiled": "compilation",
    "late generator": "generator late",
    "longer work": "own work",
    "slow launching": None,
    "slow kernel": None,
}


@dataclass
class Run:
    """A made-up run of one tenant on an accelerator, a request after the other."""

    seed: int
    requests: list[Request] = field(default_factory=list)
    off_cpu: list[OffCpu] = field(default_factory=list)
    interrupts: list[Interrupt] = field(default_factory=list)
    work: list[DeviceWork] = field(default_factory=list)
    others: list[Evidence] = field(default_factory=list)
    planted: dict[int, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.random = random.Random(self.seed)
        self.now = 10**15

    def serve(self, plant: str | None) -> None:
        """One request of about 1 ms, or longer by what is planted into it."""
        draw = self.random
        number = len(self.requests)
        size = draw.choice((2, 4, 8, 16))
        delay = round(draw.uniform(0.5, size) * MS) if plant else 0
        arrival = self.now + round(draw.uniform(0, 500) * US)
        started = arrival + round(abs(draw.gauss(4 * US, US)))
        if plant == "late generator":
            started += delay
        # The launch: interrupted now and then, and preempted for a moment in some requests.
        begin = started + round(draw.gauss(30 * US, US))
        if draw.random() < 0.3:
            self._interrupt(begin, 4 * US, "vector", "local_timer")
            begin += 4 * US
        if draw.random() < 0.05:
            self.off_cpu.append(OffCpu(1, 0, 0, begin, begin + 6 * US, "preempted", begin))
            begin += 6 * US
        ready = begin + 5 * US
        if plant in ("preempted", "stopped", "late to run", "interrupted", "compiled"):
            self._hold_up(plant, begin, delay)
            ready += delay
        elif plant == "slow launching":
            ready += delay
        start = ready + 2 * US
        length = round(draw.gauss(900 * US, 9 * US))
        name = "gemm"
        if plant == "behind another":
            start = self._neighbour("low", 7, ready - 5 * MS, ready + delay)
        elif plant == "behind own stream":
            start = self._neighbour("high", 2, ready - US, ready + delay)
        elif plant == "slowed by another":
            self._neighbour("low", 7, start - MS, start + length + delay)
            length += delay
        elif plant == "slow kernel":
            length += delay
        elif plant == "longer work":
            name, length = f"gemm of {size}", length * size
        elif draw.random() < 0.2:
            # Beside the request, and of no harm to it: the device has room.
            self._neighbour("low", 7, start + US, start + 300 * US)
        self.work.append(DeviceWork("high", 0, name, ready, start, start + length, number))
        finished = start + length + round(draw.gauss(15 * US, US))
        self.off_cpu.append(OffCpu(1, 0, 0, ready, start + length, "waited", start + length - US))
        if plant:
            self.planted[number] = plant
        self.requests.append(Request(number, arrival, arrival, started, finished))
        self.now = finished

    def evidence(self) -> list[Evidence]:
        return [
            *self._off_cpu(),
            *interrupt_evidence(self.interrupts),
            *device_evidence(self.work, "high"),
            *self.others,
        ]

    def _off_cpu(self) -> list[Evidence]:
        """Absences that delayed something: the device had no work of the tenant meanwhile."""
        busy = device_busy(self.work, "high")
        return [
            replace(one, start_ns=start, end_ns=end)
            for one in off_cpu_evidence(self.off_cpu)
            for start, end in difference([(one.start_ns, one.end_ns)], busy)
        ]

    def _hold_up(self, plant: str, begin: int, delay: int) -> None:
        end = begin + delay
        if plant == "preempted":
            # As a scheduler does it: in slices.
            for part in range(3):
                at = begin + part * delay // 3
                self.off_cpu.append(OffCpu(1, 0, 0, at, at + delay // 3 - US, "preempted", at))
        elif plant == "stopped":
            self.off_cpu.append(OffCpu(1, 0, 0, begin, end, "stopped"))
        elif plant == "late to run":
            self.off_cpu.append(OffCpu(1, 0, 0, begin - US, end, "waited", begin))
        elif plant == "interrupted":
            for part in range(10):
                self._interrupt(begin + part * delay // 10, delay // 12, "softirq", "NET_RX")
        else:
            what = "torch.compile of step"
            self.others.append(Evidence("compilation", begin, end, what))

    def _interrupt(self, at: int, length: int, kind: InterruptKind, name: str) -> None:
        self.interrupts.append(Interrupt(1, 0, at, at + length, kind, 1, name))

    def _neighbour(self, owner: str, stream: int, start: int, end: int) -> int:
        self.work.append(DeviceWork(owner, stream, "conv2d", start, start, end, None))
        return end


def made_run(seed: int, plants: tuple[str, ...], share: float, requests: int = 800) -> Run:
    run = Run(seed)
    for _ in range(requests):
        draw = run.random.random()
        run.serve(run.random.choice(plants) if draw < share else None)
    return run


@settings(max_examples=20)
@given(st.integers(0, 10**6))
def test_planted_causes_are_found(seed: int) -> None:
    run = made_run(seed, PLANTS, 0.04)
    found = attribute(run.requests, run.evidence(), {})
    tail = found.tails["p95"]
    right = [one.cause == TRUTH[run.planted[one.request]]
             for one in tail.requests if one.request in run.planted]  # fmt: skip
    assert len(right) >= 15
    assert sum(right) >= 0.95 * len(right)
    # Requests without a plant are in the tail by chance.
    clean = [one.cause for one in tail.requests if one.request not in run.planted]
    assert sum(cause is not None for cause in clean) <= 0.1 * len(tail.requests)
    for one in tail.requests:
        if one.cause == "queued" and run.planted.get(one.request) == "behind another":
            assert one.what == "low's conv2d on stream 7"
        if one.cause == "queued" and run.planted.get(one.request) == "behind own stream":
            assert one.what == "its own conv2d on stream 2"


@pytest.mark.parametrize("plant", PLANTS)
def test_each_planted_cause(plant: str) -> None:
    run = made_run(7, (plant,), 0.04)
    tail = attribute(run.requests, run.evidence(), {}).tails["p99"]
    assert {run.planted.get(one.request) for one in tail.requests} == {plant}
    assert {one.cause for one in tail.requests} == {TRUTH[plant]}
    truth = TRUTH[plant] or UNEXPLAINED
    assert tail.shares[truth].share == 1.0
    assert tail.shares[truth].interval[1] == 1.0
    assert tail.shares[truth].interval[0] < 1.0


@settings(max_examples=20)
@given(st.integers(0, 10**6))
def test_a_clean_run_has_no_cause(seed: int) -> None:
    run = made_run(seed, ("none",), 0.0)
    for tail in attribute(run.requests, run.evidence(), {}).tails.values():
        assert tail.shares[UNEXPLAINED].share >= 0.9


@settings(max_examples=20)
@given(st.integers(0, 10**6))
def test_a_late_reader_of_an_equal_run_sees_the_same(seed: int) -> None:
    run = made_run(seed, PLANTS, 0.04, requests=400)
    evidence = run.evidence()
    first = attribute(run.requests, evidence, {})
    run.random.shuffle(evidence)
    run.random.shuffle(run.requests)
    second = attribute(run.requests, evidence, {})
    assert first.tails["p95"].shares == second.tails["p95"].shares


def closed(number: int, start: int, length: int) -> Request:
    return Request(number, start, start, start, start + length)


def steady(slow: dict[int, int]) -> list[Request]:
    """100 requests, 10 ms apart, of 1 ms and 0.. µs more, or of what is given."""
    return [
        closed(number, number * 10 * MS, slow.get(number, MS + number)) for number in range(100)
    ]


def causes_of(requests: list[Request], evidence: list[Evidence]) -> dict[int, Cause | None]:
    tail = attribute(requests, evidence, {}).tails["p95"]
    return {one.request: one.cause for one in tail.requests}


def test_half_of_the_excess_is_enough_and_less_is_not() -> None:
    requests = steady({50: 5 * MS, 60: 5 * MS})
    enough = Evidence("descheduled", 500 * MS, 502 * MS, "x")
    too_little = Evidence("descheduled", 600 * MS, 601 * MS + 900 * US, "x")
    causes = causes_of(requests, [enough, too_little])
    assert (causes[50], causes[60]) == ("descheduled", None)


@settings(max_examples=20)
@given(st.integers(0, 10**6))
def test_where_the_unexplained_lost_their_time_is_told(seed: int) -> None:
    run = made_run(seed, PLANTS, 0.04)
    host = critical_paths(run.requests, run.work).waited_for()[None]
    found = attribute(run.requests, run.evidence(), {}, host)
    tail = found.tails["p95"]
    wrong = [
        one
        for one in tail.requests
        if one.cause is None
        and one.place != {"slow launching": "host", "slow kernel": "device"}.get(
            run.planted.get(one.request, ""), one.place
        )
    ]  # fmt: skip
    assert len(wrong) <= 0.05 * len(tail.requests)
    assert tail.unexplained_in is not None
    both = sum(share.number for share in tail.unexplained_in.values())
    assert both <= tail.shares[UNEXPLAINED].number
    assert all(one.place is None for one in tail.requests if one.cause is not None)


@pytest.mark.parametrize(("slow_us", "slice_ms", "place"), [(90, 2, "host"), (50, 4, "device")])
def test_work_that_waits_on_the_device_hides_no_slow_launching(
    slow_us: int, slice_ms: int, place: str
) -> None:
    """Every request waits for a slice of time and catches up: what ends it is its last launch.

    Unless the slice lasts longer than launching does.
    """
    requests, work, now = [], [], 0
    for number in range(200):
        slow = number % 25 == 0
        begin = end = now
        for kernel in range(60):
            launched = begin + kernel * (slow_us if slow else 50) * US
            ready = max(launched, end)
            wait = (slice_ms if slow else 2) * MS if kernel == 5 else 0
            end = ready + wait + 10 * US
            work.append(DeviceWork("high", 0, "gemm", ready, ready + wait, end, number))
        requests.append(closed(number, begin, end + US - begin))
        now = end + MS
    host = critical_paths(requests, work).waited_for()[None]
    tail = attribute(requests, [], {}, host).tails["p95"]
    assert {one.place for one in tail.requests if one.request % 25 == 0} == {place}


def test_what_lies_outside_the_request_explains_nothing() -> None:
    requests = steady({50: 5 * MS})
    assert causes_of(requests, [Evidence("descheduled", 505 * MS, 510 * MS, "x")])[50] is None


def test_what_every_request_bears_explains_no_tail() -> None:
    requests = steady({50: 5 * MS})
    usual = [Evidence("queued", one.arrival_ns, one.arrival_ns + 900 * US, "x") for one in requests]
    assert causes_of(requests, usual)[50] is None


def test_a_moment_is_charged_to_the_first_cause_only() -> None:
    requests = steady({50: 5 * MS})
    # The kernel of a host thread took longer because its thread was preempted.
    evidence = [
        Evidence("own work", one.arrival_ns, one.finished_ns, "gemm", one.number)
        for one in requests
    ]
    evidence.append(Evidence("descheduled", 501 * MS, 505 * MS, "x"))
    assert causes_of(requests, evidence)[50] == "descheduled"


def test_evidence_of_another_request_does_not_count() -> None:
    requests = steady({50: 5 * MS})
    assert causes_of(requests, [Evidence("own work", 0, 10**10, "gemm", 51)])[50] is None


def test_waiting_for_the_last_request_is_queueing_unless_something_held_that_up() -> None:
    requests = steady({})
    requests[50] = Request(50, 490 * MS, 500 * MS, 500 * MS, 501 * MS)
    requests[60] = Request(60, 590 * MS, 600 * MS, 600 * MS, 601 * MS)
    held_up = Evidence("descheduled", 591 * MS, 599 * MS, "gave way to stress-ng")
    tail = attribute(requests, [held_up], {}).tails["p95"]
    causes = {one.request: (one.cause, one.what) for one in tail.requests}
    assert causes[50] == ("queued", EARLIER_REQUESTS)
    assert causes[60] == ("descheduled", "gave way to stress-ng")


def test_throttling_explains_what_it_costs_a_typical_request() -> None:
    requests = steady({number: 3 * MS + number for number in range(40, 50)} | {45: 30 * MS})
    span = Evidence("throttled", 395 * MS, 499 * MS, "sw_power_cap")
    tail = attribute(requests, [span], {}).tails["p95"]
    causes = {one.request: one.cause for one in tail.requests}
    # The clock fell by two thirds for all ten; what made one of them ten times slower is not known.
    assert causes.pop(45) is None
    assert set(causes.values()) == {"throttled"}
    always = Evidence("throttled", 0, 10**10, "sw_power_cap")
    assert set(causes_of(requests, [always]).values()) == {None}


def test_a_cause_that_could_not_be_seen_has_no_share() -> None:
    why = {CAUSES[0]: "level rusage sees no switches"}
    tail = attribute(steady({50: 5 * MS}), [], why).tails["p95"]
    assert "descheduled" not in tail.shares
    assert set(tail.shares) == {*CAUSES[1:], UNEXPLAINED}
    assert tail.not_seen == why


def test_in_words() -> None:
    requests = steady(dict.fromkeys((10, 20, 30, 40), 5 * MS))
    behind = [Evidence("queued", at * MS, (at + 4) * MS, "low's conv2d on stream 7")
              for at in (100, 200)]  # fmt: skip
    evidence = [*behind, Evidence("descheduled", 300 * MS, 304 * MS, "gave way to fio")]
    words = in_words(attribute(requests, evidence, {}).tails["p95"])
    assert words == (
        "40 % queued behind low's conv2d on stream 7; 20 % descheduled: gave way to fio; "
        "40 % unexplained"
    )


def test_in_words_where_the_unexplained_lost_their_time() -> None:
    requests = steady(dict.fromkeys((10, 20, 30, 40), 5 * MS))
    on_host = [(10 * each * MS, (10 * each + 5) * MS) for each in (10, 20, 30)]
    tail = attribute(requests, [], {}, on_host).tails["p95"]
    assert in_words(tail) == "100 % unexplained (60 % on the host, 40 % on the device)"


def test_a_long_name_is_shortened_in_words_only() -> None:
    requests = steady(dict.fromkeys((10, 20, 30, 40), 5 * MS))
    name = f"sm80_xmma_fprop_implicit_gemm_{'x' * 100}_execute_kernel 100352x2x1"
    behind = [Evidence("queued", at * MS, (at + 4) * MS, f"low's {name} on stream 0")
              for at in (100, 200, 300, 400)]  # fmt: skip
    tail = attribute(requests, behind, {}).tails["p95"]
    assert tail.whats["queued"] == ((f"low's {name} on stream 0", 4),)
    assert in_words(tail) == (
        "80 % queued behind low's sm80_xmma_fprop_implicit_gemm_xx…x_execute_kernel 100352x2x1 "
        "on stream 0; 20 % unexplained"
    )


def test_too_few_and_equal_requests_have_no_tail() -> None:
    few = attribute(steady({})[:50], [], {})
    assert few.tails == {}
    assert few.refused["p95"] == "needs at least 72 requests, has 50 (22 missing)"
    equal = attribute([closed(number, number * MS, US) for number in range(400)], [], {})
    assert equal.refused["p99"] == "no request is longer than it: the slowest are equal"
    assert attribute([], [], {}).tails == {}


def test_impossible_requests_are_refused() -> None:
    with pytest.raises(ValueError, match="request 3: arrival"):
        Request(3, 10, 5, 20, 30)
    with pytest.raises(ValueError, match="same number"):
        attribute([closed(1, 0, 1), closed(1, 5, 1)], [], {})
