"""Attribution of tails: planted causes are found, a clean run has none, chance explains nothing."""

from __future__ import annotations

import random
from collections.abc import Mapping

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_hwqueue.data.metrics.attribution import (
    CAUSES,
    EARLIER_REQUESTS,
    UNEXPLAINED,
    Cause,
    DeviceWork,
    Evidence,
    Request,
    attribute,
    own_work_evidence,
    queued_evidence,
)
from pytest_hwqueue.data.metrics.critical_path import critical_paths, in_words
from pytest_hwqueue.data.metrics.latency import share_of
from pytest_hwqueue.data.metrics.timeline import Span

US, MS = 1_000, 1_000_000
# Seen as evidence: its cause, in how many parts, and what share of the delay each lasts.
HELD_UP: Mapping[str, tuple[Cause, int, float]] = {
    "preempted": ("descheduled", 3, 0.3),  # as a scheduler does it: in slices
    "stopped": ("descheduled", 1, 1.0),
    "interrupted": ("interrupted", 10, 0.08),
    "compiled": ("compilation", 1, 1.0),
}
TRUTH: Mapping[str, Cause | None] = {
    **{plant: cause for plant, (cause, _, _) in HELD_UP.items()},
    "behind another": "queued",
    "slowed by another": "queued",
    "behind own stream": "queued",
    "late generator": "generator late",
    "longer work": "own work",
    "slow launching": None,
    "slow kernel": None,
}
PLANTS = tuple(TRUTH)
BEHIND = {
    "behind another": "low's conv2d on stream 7", "behind own stream": "its own conv2d on stream 2",
}  # fmt: skip
PLACES = {"slow launching": "host", "slow kernel": "device"}


class Run:
    """A made-up run of one tenant on an accelerator, a request after the other."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.now = 10**15
        self.requests: list[Request] = []
        self.seen: list[Evidence] = []
        self.work: list[DeviceWork] = []
        self.planted: dict[int, str] = {}

    def serve(self, plant: str | None) -> None:
        """One request of about 1 ms, or longer by what is planted into it."""
        draw = self.random
        number = len(self.requests)
        size = draw.choice((2, 4, 8, 16))
        delay = round(draw.uniform(0.5, size) * MS) if plant else 0
        arrival = self.now + round(draw.uniform(0, 500) * US)
        started = arrival + round(abs(draw.gauss(4 * US, US)))
        started += delay if plant == "late generator" else 0
        # The launch: interrupted now and then, and preempted for a moment in some requests.
        ready = started + round(draw.gauss(30 * US, US))
        for often, cause in ((0.3, "interrupted"), (0.05, "descheduled")):
            if draw.random() < often:
                ready = self._show(cause, ready, 5 * US)
        cause, parts, share = HELD_UP.get(plant or "", ("", 0, 0.0))
        for part in range(parts):
            self._show(cause, ready + part * delay // parts, round(share * delay))
        ready += 5 * US + (delay if parts or plant == "slow launching" else 0)
        start = ready + 2 * US
        length, name = round(draw.gauss(900 * US, 9 * US)), "gemm"
        if plant == "behind another":
            start = self._neighbour("low", 7, arrival, ready + delay)
        elif plant == "behind own stream":
            start = self._neighbour("high", 2, ready - US, ready + delay)
        elif plant == "slowed by another":
            length = self._neighbour("low", 7, arrival, start + length + delay) - start
        elif plant == "slow kernel":
            length += delay
        elif plant == "longer work":
            name, length = f"gemm of {size}", length * size
        elif draw.random() < 0.2:
            # Beside the request, and of no harm to it: the device has room.
            self._neighbour("low", 7, start + US, start + 300 * US)
        self.work.append(DeviceWork("high", 0, name, ready, start, start + length, number))
        self.now = start + length + round(draw.gauss(15 * US, US))
        if plant:
            self.planted[number] = plant
        self.requests.append(Request(number, arrival, arrival, started, self.now))

    def evidence(self) -> list[Evidence]:
        device = *own_work_evidence(self.work, "high"), *queued_evidence(self.work, "high")
        return [*self.seen, *device]

    def _show(self, cause: str, at: int, lasts: int) -> int:
        self.seen.append(Evidence(cause, at, at + lasts, "x"))  # type: ignore[arg-type]
        return at + lasts

    def _neighbour(self, owner: str, stream: int, start: int, end: int) -> int:
        self.work.append(DeviceWork(owner, stream, "conv2d", start, start, end, None))
        return end


def made_run(seed: int, share: float) -> Run:
    run = Run(seed)
    for _ in range(800):
        draw = run.random.random()
        run.serve(run.random.choice(PLANTS) if draw < share else None)
    return run


@settings(max_examples=10)
@given(st.integers(0, 10**6))
def test_planted_causes_are_found_and_where_the_unexplained_lost_their_time(seed: int) -> None:
    run = made_run(seed, 0.04)
    evidence = run.evidence()
    host = critical_paths(run.requests, run.work).waited_for[None]
    tail = attribute(run.requests, evidence, {}, host).tails["p95"]
    slow = [(one, run.planted.get(one.request, "")) for one in tail.requests]
    planted = [(one, plant) for one, plant in slow if plant]
    assert len(planted) >= 15
    assert sum(one.cause == TRUTH[plant] for one, plant in planted) >= 0.95 * len(planted)
    # Requests without a plant are in the tail by chance.
    assert sum(bool(one.cause and not plant) for one, plant in slow) <= 0.1 * len(slow)
    for one, plant in planted:
        assert one.cause != "queued" or one.what == BEHIND.get(plant, one.what)
    lost = [one.place != PLACES.get(plant, one.place) for one, plant in planted if not one.cause]
    assert sum(lost) <= 0.05 * len(slow)
    assert tail.unexplained_in is not None
    assert sum(map(float, tail.unexplained_in.values())) <= tail.shares[UNEXPLAINED] + 1e-9
    assert all(one.place is None for one in tail.requests if one.cause is not None)
    # In whatever order it is read.
    run.random.shuffle(evidence)
    run.random.shuffle(run.requests)
    assert attribute(run.requests, evidence, {}, host).tails["p95"].shares == tail.shares


@settings(max_examples=20)
@given(st.integers(0, 10**6))
def test_a_clean_run_has_no_cause(seed: int) -> None:
    run = made_run(seed, 0.0)
    for tail in attribute(run.requests, run.evidence(), {}).tails.values():
        assert tail.shares[UNEXPLAINED] >= 0.9


def closed(number: int, start: int, length: int) -> Request:
    return Request(number, start, start, start, start + length)


def steady(slow: Mapping[int, int]) -> list[Request]:
    """100 requests, 10 ms apart, of 1 ms and 0.. µs more, or of what is given."""
    return [closed(each, each * 10 * MS, slow.get(each, MS + each)) for each in range(100)]


def causes_of(requests: list[Request], evidence: list[Evidence]) -> dict[int, Cause | None]:
    tail = attribute(requests, evidence, {}).tails["p95"]
    return {one.request: one.cause for one in tail.requests}


OF_ALL = [(each * 10 * MS, each) for each in range(100)]


@pytest.mark.parametrize(
    ("evidence", "cause"),
    [
        ([Evidence("descheduled", 500 * MS, 502 * MS, "half")], "descheduled"),
        ([Evidence("descheduled", 500 * MS, 501 * MS + 900 * US, "less")], None),
        ([Evidence("descheduled", 505 * MS, 510 * MS, "after the request")], None),
        ([Evidence("own work", 0, 10**10, "another request's", 51)], None),
        ([Evidence("queued", at, at + 900 * US, "as any") for at, _ in OF_ALL], None),
        # The kernel of a host thread took longer because its thread was preempted.
        ([*(Evidence("own work", at, at + 5 * MS, "gemm", each) for at, each in OF_ALL),
          Evidence("descheduled", 501 * MS, 505 * MS, "first")], "descheduled"),
    ],
    ids=lambda value: value[-1].what if isinstance(value, list) else "",
)  # fmt: skip
def test_half_of_the_excess_explains_a_request(
    evidence: list[Evidence], cause: Cause | None
) -> None:
    assert causes_of(steady({50: 5 * MS}), evidence)[50] == cause


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
            ready = max(begin + kernel * (slow_us if slow else 50) * US, end)
            start = ready + ((slice_ms if slow else 2) * MS if kernel == 5 else 0)
            end = start + 10 * US
            work.append(DeviceWork("high", 0, "gemm", ready, start, end, number))
        requests.append(closed(number, begin, end + US - begin))
        now = end + MS
    host = critical_paths(requests, work).waited_for[None]
    tail = attribute(requests, [], {}, host).tails["p95"]
    assert {one.place for one in tail.requests if one.request % 25 == 0} == {place}


def test_waiting_for_the_last_request_is_queueing_unless_something_held_that_up() -> None:
    requests = steady({})
    for number in (50, 60):
        at = number * 10 * MS
        requests[number] = Request(number, at - 10 * MS, at, at, at + MS)
    held_up = Evidence("descheduled", 591 * MS, 599 * MS, "gave way to stress-ng")
    tail = attribute(requests, [held_up], {}).tails["p95"]
    causes = {one.request: (one.cause, one.what) for one in tail.requests}
    known = {50: ("queued", EARLIER_REQUESTS), 60: ("descheduled", "gave way to stress-ng")}
    assert causes == causes | known


def test_throttling_explains_what_it_costs_a_typical_request() -> None:
    requests = steady({number: 3 * MS + number for number in range(40, 50)} | {45: 30 * MS})
    causes = causes_of(requests, [Evidence("throttled", 395 * MS, 499 * MS, "sw_power_cap")])
    # The clock fell by two thirds for all ten; what made one of them ten times slower is not known.
    assert causes.pop(45) is None
    assert set(causes.values()) == {"throttled"}
    always = Evidence("throttled", 0, 10**10, "sw_power_cap")
    assert set(causes_of(requests, [always]).values()) == {None}


def test_a_cause_that_could_not_be_seen_has_no_share() -> None:
    why = {CAUSES[0]: "level rusage sees no switches"}
    tail = attribute(steady({50: 5 * MS}), [], why).tails["p95"]
    assert set(tail.shares) == {*CAUSES[1:], UNEXPLAINED}
    assert tail.shares[UNEXPLAINED] == share_of(len(tail.requests), len(tail.requests))
    assert tail.not_seen == why


SLOW = (10, 20, 30, 40)
LONG = f"sm80_xmma_fprop_implicit_gemm_{'x' * 100}_execute_kernel 100352x2x1"
SHORTENED = "sm80_xmma_fprop_implicit_gemm_xx…x_execute_kernel 100352x2x1"


@pytest.mark.parametrize(
    ("behind", "kernel", "preempted", "host", "words"),
    [
        (SLOW[:2], "conv2d", SLOW[2:3], [], "40 % queued behind low's conv2d on stream 7; "
         "20 % descheduled: gave way to fio; 40 % unexplained"),
        *[(SLOW, whole, (), [], f"80 % queued behind low's {shown} on stream 7; 20 % unexplained")
          for whole, shown in (("k" * 48, "k" * 48), ("k" * 49, f"{'k' * 32}…{'k' * 16}"))],
        (SLOW, LONG, (), [], f"80 % queued behind low's {SHORTENED} on stream 7; 20 % unexplained"),
        ((), "", (), SLOW[:3], "100 % unexplained (60 % on the host, 40 % on the device)"),
    ],
)  # fmt: skip
def test_in_words(
    behind: list[int], kernel: str, preempted: list[int], host: list[int], words: str
) -> None:
    what = f"low's {kernel} on stream 7"
    evidence = [Evidence("queued", at * 10 * MS, (at * 10 + 4) * MS, what) for at in behind]
    evidence += [Evidence("descheduled", at * 10 * MS, (at * 10 + 4) * MS, "gave way to fio")
                 for at in preempted]  # fmt: skip
    on_host: list[Span] = [(at * 10 * MS, (at * 10 + 5) * MS) for at in host]
    found = attribute(steady(dict.fromkeys(SLOW, 5 * MS)), evidence, {}, on_host or None)
    tail = found.tails["p95"]
    assert in_words(tail) == words
    if behind:
        assert tail.whats["queued"] == ((what, len(behind)),)


def test_requests_without_a_tail_and_impossible_ones_are_refused() -> None:
    few = attribute(steady({})[:50], [], {})
    missing = "has 50 requests; 350 independent ones suffice"
    assert (few.tails, few.refused["p95"]) == ({}, missing)
    equal = attribute([closed(number, number * MS, US) for number in range(400)], [], {})
    assert equal.refused["p99"].startswith("all slowest requests took the same time")
    assert attribute([], [], {}).tails == {}
    for times in ((10, 5, 20, 30), (5, 20, 10, 30), (5, 10, 30, 20)):
        with pytest.raises(ValueError, match="request 3: arrival"):
            Request(3, *times)
    assert Request(3, 5, 5, 5, 5).finished_ns == 5
    with pytest.raises(ValueError, match="same number"):
        attribute([closed(1, 0, 1), closed(1, 5, 1)], [], {})
