"""How tenants used the device in a traced window: truths by hand, of a model, and of an H200."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from pytest_hwqueue.data.figures import of_requests as figures
from pytest_hwqueue.data.metrics.attribution import DeviceWork
from pytest_hwqueue.data.records.placement import TenantPlacement
from pytest_hwqueue.data.records.plan import Colocation, Tenant
from pytest_hwqueue.data.records.tenants import (
    ColocationRecord,
    RequestFailure,
    RequestLog,
    TenantResult,
    TenantUse,
    read_colocation,
)
from pytest_hwqueue.data.records.timelines import read_kept
from pytest_hwqueue.engine.causes.explain import Trace, rows_of
from pytest_hwqueue.engine.tenants import DEVICE
from pytest_hwqueue.engine.tenants.colocation import TenantSet
from pytest_hwqueue.engine.tenants.device_use import TIME_SLICES, device_use, in_time_slices, used
from pytest_hwqueue.engine.tenants.tenant_processes import Limits
from pytest_hwqueue.parts.devices.simulated.profile import load_profile
from pytest_hwqueue.parts.schedulers.syntax import open_scheduler

BASELINES = Path(__file__).parents[3] / "baselines/nvidia-h200/co-location"
HIGH = Tenant(
    "high", workload="tiny_kernel_stress", parameters={"rounds": 2}, arrival="constant: 500/s",
    priority=1,
)  # fmt: skip
LOW = Tenant("low", workload="large_gemm_only", parameters={"mm_dim": 4096})


def kernel(
    owner: str, start: int, end: int, request: int | None = None, enqueued: int | None = None,
    ready: int | None = None,
) -> DeviceWork:  # fmt: skip
    return DeviceWork(
        owner, 0, "k", start if ready is None else ready, start, end, request, enqueued
    )


def traced(owner: str, *work: DeviceWork, unseen: str = "") -> Trace:
    return Trace(
        owner=owner, device_kind="cuda", threads=[], stream_threads={}, work=rows_of(work),
        work_unseen=unseen, calls=[], level="none", refused=[],
    )  # fmt: skip


def served(name: str, count: int, *failed: int) -> TenantResult:
    times = list(range(count))
    return TenantResult(
        name=name, issued=count, completed=count - len(failed), failed=len(failed), unserved=0,
        latency_ns=[1] * (count - len(failed)), failures=[
            RequestFailure(index=index, reason="planted") for index in failed
        ],
        requests=RequestLog(scheduled_ns=times, started_ns=times, finished_ns=times),
    )  # fmt: skip


# The window is from 1000 to 2000 ns, so that a block is 10 ns.
A = [
    kernel("a", 990, 1005, None),  # before the window begins, and into it
    kernel("a", 1010, 1030, 0, enqueued=1004),
    kernel("a", 1035, 1040, 0, enqueued=1006),  # of the same request
    kernel("a", 1105, 1112, 1, enqueued=1101),  # of a request that failed
    kernel("a", 1995, 2010, 2, ready=1993),  # beyond the window's end; nobody saw it enqueued
]
B = [kernel("b", 1015, 1037, 0, enqueued=1015), kernel("b", 1500, 1510, 1, enqueued=1490)]


def test_busy_time_switches_and_waits_of_known_kernels() -> None:
    results = [served("a", 4, 1), served("b", 2)]
    use = device_use(results, {"a": traced("a", *A), "b": traced("b", *B)}, 1000, 1000, False)
    assert use.reason == ""
    busy = dict(enumerate(use.busy_ns))
    assert {at: ns for at, ns in busy.items() if ns} == {
        0: 5, 1: 10, 2: 10, 3: 10, 10: 5, 11: 2, 50: 10, 99: 5,
    }  # fmt: skip
    # a, a, b at 1015, a at 1035, a, b at 1500, a at 1995.
    assert {at: count for at, count in enumerate(use.switches) if count} == {
        1: 1, 3: 1, 50: 1, 99: 1,
    }  # fmt: skip
    a, b = use.tenants["a"], use.tenants["b"]
    assert (sum(a.busy_ns), sum(b.busy_ns)) == (5 + 20 + 5 + 7 + 5, 22 + 10)
    # The first request's second kernel is no wait, a failed one is none, and the last ran nothing.
    assert (a.waits_ns, b.waits_ns) == ([6, 2], [0, 10])
    assert len(use.busy_ns) == len(a.busy_ns) == len(use.switches) == 100


spans = st.lists(st.tuples(st.integers(0, 1200), st.integers(1, 300), st.sampled_from("ab")))


@given(spans)
def test_shares_and_switches_are_those_of_a_plain_count(kernels: Sequence[tuple]) -> None:  # type: ignore[type-arg]
    work = [kernel(owner, at, at + took) for at, took, owner in kernels]
    traces = {name: traced(name, *(one for one in work if one.owner == name)) for name in "ab"}
    use = device_use([served("a", 0), served("b", 0)], traces, 100, 1000, False)
    busy = {
        name: sum(
            any(one.start_ns <= at < one.end_ns and one.owner in name for one in work)
            for at in range(100, 1100)
        )
        for name in ("a", "b", "ab")
    }
    assert [sum(use.tenants[name].busy_ns) for name in "ab"] == [busy["a"], busy["b"]]
    assert sum(use.busy_ns) == busy["ab"]
    # Of kernels that start at once, none is the first.
    starts = [one.start_ns for one in work]
    if len(set(starts)) == len(starts):
        order = sorted(work, key=lambda one: one.start_ns)
        assert sum(use.switches) == sum(
            before.owner != one.owner and 100 <= one.start_ns < 1100
            for before, one in pairwise(order)
        )


def test_in_time_slices_nothing_is_observed_and_alone_nobody_takes_turns() -> None:
    for placement, scheduler, device, tenants, expected in (
        ("processes", "native", "cuda", 2, True), ("processes", "native", "cuda", 1, False),
        ("processes", "native", "cpu", 2, False), ("threads", "native", "cuda", 2, False),
        ("processes", "mps", "cuda", 2, False), ("processes", "mps-priority", "cuda:1", 2, False),
        ("processes", "xsched:level=1,threshold=1", "cuda", 2, True),
        ("processes", "no-such-mode", "cuda", 2, None),
    ):  # fmt: skip
        found = in_time_slices(TenantPlacement(placement), scheduler, device, tenants)
        assert found is expected, (placement, scheduler, device, tenants)
    results = [served("a", 4, 1), served("b", 2)]
    traces = {"a": traced("a", *A), "b": traced("b", *B)}
    sliced = device_use(results, traces, 1000, 1000, True)
    assert (sliced.reason, sliced.busy_ns, sliced.switches, sliced.tenants) == (
        TIME_SLICES, [], [], {},
    )  # fmt: skip
    # Where the mode does not say, the kernels do: they ran at once, or never.
    for start, reason in ((1050, ""), (1100, TIME_SLICES)):
        both = {
            "a": traced("a", kernel("a", 1000, 1100)),
            "b": traced("b", kernel("b", start, start + 100)),
        }
        assert device_use(results, both, 1000, 1000, None).reason == reason
    alone = device_use([served("b", 2)], {"b": traced("b", *B)}, 1000, 1000, True)
    assert (alone.reason, sum(alone.switches)) == ("", 0)
    unseen = device_use(results, traces | {"b": traced("b", unseen="no right")}, 1000, 1000, False)
    assert unseen.reason == "not observable: tenant b's kernels were not seen: no right"


def colocated(
    folder: Path, *tenants: Tenant, scheduler: str = "mps", device: str = "sim:h200"
) -> ColocationRecord:
    plan = Colocation(
        "mine", tenants, duration_s=2.0, warmup_s=0.0, device=device, scheduler=scheduler
    )
    record = TenantSet(
        open_scheduler(scheduler), lambda *_: None, folder, limits=Limits(120, 60), traced=True
    ).once(plan)
    assert record.status == "ok", record.reason
    assert read_colocation(next(folder.glob("*.json"))) == record
    return record


def test_of_a_model_the_figures_are_those_of_its_kernels(tmp_path: Path) -> None:
    record = colocated(tmp_path, HIGH, LOW)
    use = record.device_use
    assert use is not None
    assert record.timelines is not None
    kept = read_kept(tmp_path, record.timelines)
    for name, tenant in use.tenants.items():
        work = kept.work(f"tenant {name}", name)
        # On one stream kernels follow each other; what runs beyond the end is cut.
        ran_ns = sum(min(2 * 10**9, one.end_ns) - min(2 * 10**9, one.start_ns) for one in work)
        assert sum(tenant.busy_ns) == ran_ns
        first = {one.request: one for one in reversed(work)}
        waits = [one.start_ns - (one.enqueued_ns or 0) for _, one in sorted(first.items())]
        assert tenant.waits_ns == waits
    assert max(sum(each.busy_ns) for each in use.tenants.values()) <= sum(use.busy_ns)
    # Two for each of the large kernels in whose time a small one came.
    large = kept.work("tenant low", "low")
    starts = [one.start_ns for one in kept.work("tenant high", "high")]
    between = [
        bisect_left(starts, after.start_ns) - bisect_left(starts, before.start_ns)
        for before, after in pairwise(large)
    ]
    assert abs(sum(use.switches) - 2 * sum(map(bool, between))) <= 2
    low = figures.busy([used(record, "low")], 0.95)
    assert low.value == pytest.approx(sum(use.tenants["low"].busy_ns) / 2e9)
    assert used(record, DEVICE).switches == use.switches


def test_of_requests_that_are_all_alike_busy_time_and_wait_are_known_exactly(
    tmp_path: Path,
) -> None:
    values = load_profile("h200").model_dump(mode="json")
    values["host"]["request_spread"]["value"] = 0.0
    profile = tmp_path / "alike.yaml"
    profile.write_text(yaml.safe_dump(values))
    record = colocated(tmp_path, HIGH, device=f"sim:{profile}")
    use = record.device_use
    assert use is not None
    assert record.timelines is not None
    request = [
        one
        for one in read_kept(tmp_path, record.timelines).work("tenant high", "high")
        if one.request == 0
    ]
    took_ns = sum(one.end_ns - one.start_ns for one in request)
    # 1,000 requests in 2 s.
    assert sum(use.busy_ns) == 1000 * took_ns
    assert use.tenants["high"] == TenantUse(
        busy_ns=use.busy_ns, waits_ns=[request[0].start_ns - request[0].ready_ns] * 1000
    )
    assert sum(use.switches) == 0


def test_of_processes_in_time_slices_a_model_observes_nothing_either(tmp_path: Path) -> None:
    use = colocated(tmp_path, HIGH, LOW, scheduler="native").device_use
    assert use is not None
    assert (use.reason, use.tenants) == (TIME_SLICES, {})


@pytest.mark.skipif(not BASELINES.exists(), reason="a source distribution has no co-locations")
@pytest.mark.parametrize("mode", ["mps", "native"])
def test_of_an_h200s_stored_trace(mode: str) -> None:
    (path,) = (BASELINES / "high_load-causes" / "traced").glob(f"*-{mode}-*.json")
    record = read_colocation(path)
    assert record.timelines is not None
    kept = read_kept(path.parent, record.timelines)
    about = kept.about["causes of tenants"]
    traces = {
        name: Trace.model_validate(each).model_copy(
            update={"work": rows_of(kept.work(f"tenant {name}", name))}
        )
        for name, each in about["traces"].items()
    }
    turns = in_time_slices(record.placement, record.scheduler, record.device, 2)
    begin_ns = about["arguments"]["begin_ns"]
    use = device_use(record.tenants, traces, begin_ns, round(record.duration_s * 1e9), turns)
    if mode == "native":
        assert use.reason == TIME_SLICES
        return
    seen = record.model_copy(update={"device_use": use})
    device = used(seen, DEVICE)
    assert figures.busy([device], 0.95).value == pytest.approx(0.9943611278)
    assert figures.switches([device], 0.95).value == 1492
    # A batch of 1024 fills the device, and small kernels wait behind its large ones.
    shares = [figures.busy([used(seen, name)], 0.95).value for name in ("low", "high")]
    assert shares == pytest.approx([0.9926779603, 0.0395781832])
    waits = figures.percentile(0.99, "wait_ns")([used(seen, "high")], 0.95)
    assert waits.value == pytest.approx(5.226e6, rel=1e-3)
