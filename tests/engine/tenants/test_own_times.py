"""Tenants that are there for a part of the window: their figures are of that part."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pytest_hwqueue.data.errors import BadInput, RecordError
from pytest_hwqueue.data.figures.of_requests import throughput
from pytest_hwqueue.data.figures.served import served
from pytest_hwqueue.data.metrics.latency import CONFIDENCE
from pytest_hwqueue.data.records.placement import TenantPlacement
from pytest_hwqueue.data.records.plan import Colocation, Server, Tenant
from pytest_hwqueue.data.records.tenants import ColocationRecord, TenantResult, require_own_figures
from pytest_hwqueue.engine.tenants import simulated_tenants as simulated
from pytest_hwqueue.engine.tenants.colocation import TenantSet
from pytest_hwqueue.engine.tenants.looks import Look, Looks
from pytest_hwqueue.engine.tenants.tenant_cells import tenant_records
from pytest_hwqueue.engine.tenants.tenant_processes import Limits
from pytest_hwqueue.parts.schedulers.syntax import SchedulerPaths, open_scheduler
from tests.conftest import slow
from tests.engine.tenants.conftest import server_of_tests

S = 1_000_000_000
HIGH = Tenant("high", workload="tiny_kernel_stress", parameters={"rounds": 2},
                  arrival="constant: 50/s", priority=1)  # fmt: skip
HIGH2 = Tenant("steady", workload="tiny_kernel_stress", parameters={"rounds": 2},
                   arrival="constant: 50/s")  # fmt: skip
LOW0 = Tenant("low", workload="large_gemm_only", parameters={"mm_dim": 64},
              arrival="closed: delay=20ms")  # fmt: skip
LOW = replace(LOW0, start_s=0.5)

pytestmark = pytest.mark.usefixtures("own_leases", "no_process_is_left")


def run(
    folder: Path, *tenants: Tenant, looks: Looks | None = None, **changed: Any
) -> ColocationRecord:
    settings: dict[str, Any] = {"duration_s": 1.0, "warmup_s": 0.1, **changed}
    plan = Colocation("apart", tenants, **settings)
    record = TenantSet(
        open_scheduler("native", SchedulerPaths()),
        lambda *_: None,
        folder,
        limits=Limits(120, 60),
        server=server_of_tests(),
    ).once(plan, looks=looks)
    # A machine that is busy with other tests may make the generator late.
    assert record.status == "ok" or "generator was late" in record.reason, record.reason
    require_own_figures(record)
    return record


def started_ns(tenant: TenantResult) -> list[int]:
    assert tenant.requests is not None
    return tenant.requests.started_ns


def rates(tenant: TenantResult) -> tuple[float, float | None]:
    """A tenant's throughput as its record has it, and as tables do."""
    assert tenant.throughput is not None
    window = served(tenant, S)
    return tenant.throughput.requests_per_s, throughput([window], CONFIDENCE).value


# --- start -----------------------------------------------------------------------------------


def test_a_simulated_tenant_that_starts_later_has_the_rate_of_its_own_time(tmp_path: Path) -> None:
    where: dict[str, Any] = {"device": "sim:h200"}
    alone = run(tmp_path / "alone", HIGH, **where)
    # Of a tenant that nobody disturbs it is the same, whenever it starts.
    low = run(tmp_path / "low", replace(LOW, start_s=0.0), **where).tenant("low")
    late = run(tmp_path / "late", replace(HIGH, arrival="constant: 1/s"), LOW, **where)
    assert rates(late.tenant("low"))[0] == pytest.approx(rates(low)[0], rel=0.02)
    both = run(tmp_path / "both", HIGH, LOW, **where)
    own = both.tenant("low")
    assert (own.from_ns, both.tenant("high").from_ns) == (S // 2, 0)
    assert started_ns(own)[0] == S // 2
    assert rates(own)[1] == pytest.approx(rates(own)[0])
    assert own.requests is not None
    inside = sum(end <= S for end in own.requests.finished_ns)
    assert rates(own)[0] == pytest.approx(inside / 0.5)
    # Until it starts, the other is alone.
    assert both.tenant("high").latency_ns[:25] == alone.tenant("high").latency_ns[:25]
    assert both.tenant("high").latency_ns[25:] != alone.tenant("high").latency_ns[25:]


@pytest.mark.parametrize("placement", ["processes", slow("threads")])
@pytest.mark.parametrize("arrival", ["closed", "constant: 40/s"])
def test_a_tenant_that_starts_later_serves_from_then_on(
    tmp_path: Path, placement: str, arrival: str
) -> None:
    low = replace(LOW, arrival=arrival)
    record = run(tmp_path, HIGH, low, placement=TenantPlacement(placement))
    own = record.tenant("low")
    assert own.from_ns == S // 2
    assert started_ns(own)[0] >= S // 2
    assert started_ns(record.tenant("high"))[0] < S // 2
    assert own.requests is not None
    if arrival != "closed":
        assert own.issued == 20
        assert own.requests.scheduled_ns[:2] == [S // 2, S // 2 + S // 40]
    inside = sum(end <= S for end in own.requests.finished_ns)
    assert [*rates(own)] == pytest.approx([inside / 0.5, inside / 0.5])


def test_tenants_that_live_on_start_later_in_each_window(tmp_path: Path) -> None:
    plan = Colocation("apart", (HIGH, LOW), duration_s=0.8, warmup_s=0.1)
    living = TenantSet(
        open_scheduler("native", SchedulerPaths()), lambda *_: None, tmp_path, Limits(120, 60),
        server=server_of_tests(),
    )  # fmt: skip
    with living as tenants:
        for number in (1, 2):
            own = tenants.window(plan, run=number, last=number == 2).tenant("low")
            assert (own.from_ns, started_ns(own)[0] >= S // 2) == (S // 2, True)
        # Who starts at another time is another tenant.
        assert not plan.same_tenants(replace(plan, tenants=(HIGH, replace(LOW, start_s=0.2))))


@pytest.mark.parametrize("device", ["sim:h200", "cpu"])
def test_no_look_is_taken_before_all_are_there(tmp_path: Path, device: str) -> None:
    seen: list[float] = []

    def decided(record: ColocationRecord) -> bool:
        seen.append(record.duration_s)
        assert record.tenant("low").from_ns == S // 2
        assert rates(record.tenant("low"))[0] > 0
        return True

    planned = [Look(S * tenths // 10, 0.01) for tenths in (4, 5, 6, 24)]
    record = run(
        tmp_path, HIGH, LOW, device=device, duration_s=2.4, looks=Looks(planned, decided)
    )  # fmt: skip
    assert seen == [0.6]
    assert record.duration_s == 0.6
    own = record.tenant("low")
    assert own.requests is not None
    inside = sum(end <= 6 * S // 10 for end in own.requests.finished_ns)
    assert rates(own)[0] == pytest.approx(inside / 0.1)


def test_a_traced_window_that_ends_before_a_tenant_starts_is_skipped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = Colocation("apart", (HIGH, LOW), duration_s=1.0, device="sim:h200")
    native = open_scheduler("native", SchedulerPaths())
    whole = TenantSet(native, lambda *_: None, tmp_path / "whole", traced=True).once(plan)
    assert whole.status == "ok"
    monkeypatch.setattr(simulated, "_MOST_KERNELS", 100)
    cut = TenantSet(native, lambda *_: None, tmp_path / "cut", traced=True).once(plan)
    assert cut.status == "skipped"
    assert "a trace holds no more: tenant low starts 0.5 s after the window begins" in cut.reason
    assert cut.reason.endswith(": give work of fewer kernels, or an earlier start")


def test_a_tenant_for_which_the_window_is_too_short_is_refused() -> None:
    with pytest.raises(BadInput, match=r"tenant low starts 0\.5 s after .* 0\.5 s long: give a"):
        Colocation("apart", (HIGH, LOW), duration_s=0.5)
    for start_s in (-1.0, float("inf"), float("nan")):
        with pytest.raises(BadInput, match="tenant low: start_s is"):
            replace(LOW, start_s=start_s)


def test_a_record_of_requests_before_their_tenant_started_is_refused(tmp_path: Path) -> None:
    record = run(tmp_path, HIGH, LOW, device="sim:h200")
    high = record.tenant("high").model_copy(update={"from_ns": 1})
    with pytest.raises(RecordError, match="from_ns is 1, which is after its first request"):
        require_own_figures(record.model_copy(update={"tenants": [high]}))


# --- requests --------------------------------------------------------------------------------

TASK = Tenant(
    "one", workload="tiny_kernel_stress", parameters={"rounds": 2}, arrival="closed: delay=10ms",
    requests=20,
)  # fmt: skip
THREE = tuple(replace(TASK, name=name) for name in ("one", "two", "three"))


def assert_counted(record: ColocationRecord, counts: Mapping[str, int]) -> None:
    """Check that a window ended when the last of these requests was done, and all figures."""
    window_ns = round(record.duration_s * S)
    ends = []
    for tenant in record.tenants:
        requests = tenant.requests
        assert requests is not None
        assert tenant.throughput is not None
        if tenant.name in counts:
            assert (tenant.issued, tenant.unserved) == (counts[tenant.name], 0)
            assert tenant.until_ns == max(requests.finished_ns)
            ends.append(tenant.until_ns)
        else:
            assert tenant.until_ns is None
            # Closed or not, nobody's requests begin when the window is over.
            assert max(requests.scheduled_ns) < window_ns
        until_ns = tenant.from_ns + tenant.own_ns(window_ns)
        begins_ns, ends_ns = tenant.from_ns, sorted(requests.finished_ns)
        if tenant.name in counts:
            # Of several at once, all that began before one was done are the first.
            begins_ns = ends_ns[sum(at < ends_ns[0] for at in requests.started_ns) - 1]
        inside = sum(begins_ns < end <= window_ns for end in ends_ns)
        per_s = inside / (until_ns - begins_ns) * S
        assert tenant.throughput.requests_per_s == pytest.approx(per_s)
        estimate = throughput([served(tenant, window_ns)], CONFIDENCE)
        assert estimate.value == pytest.approx(per_s)
    assert max(ends) == window_ns


def test_simulated_tenants_end_their_window_with_their_last_request(tmp_path: Path) -> None:
    where: dict[str, Any] = {"device": "sim:h200", "duration_s": 60.0}
    alone = run(tmp_path / "alone", TASK, **where)
    assert_counted(alone, {"one": 20})
    times = alone.tenant("one").requests
    assert times is not None
    gaps = [b - a for a, b in zip(times.finished_ns, times.started_ns[1:], strict=False)]
    assert gaps == [10_000_000] * 19
    three = run(tmp_path / "three", *THREE, **where)
    assert_counted(three, {"one": 20, "two": 20, "three": 20})
    assert three.duration_s < 1
    assert three.notes == alone.notes
    # The others are measured for as long as that, as they would be in a window of its length.
    greedy = replace(LOW, start_s=0.01)
    both = run(tmp_path / "both", TASK, greedy, **where)
    assert_counted(both, {"one": 20})
    free = replace(TASK, requests=None)
    cut = run(tmp_path / "cut", free, greedy, **where | {"duration_s": both.duration_s})
    assert both.tenant("low") == cut.tenant("low")
    assert both.tenant("one").latency_ns == cut.tenant("one").latency_ns


@pytest.mark.parametrize(
    ("task", "known_per_s"),
    [
        # 20 requests span 19 gaps, whatever makes these.
        (replace(TASK, arrival="constant: 50/s"), 50.0),
        (replace(TASK, arrival="constant: 50/s", requests=2), 50.0),
        (replace(TASK, arrival="constant: 50/s", start_s=0.5), 50.0),
        (replace(TASK, arrival="closed: delay=10ms"), None),
        (replace(TASK, arrival="closed"), None),
        (replace(TASK, arrival="closed: delay=10ms", concurrency=2, requests=40), None),
    ],
)
def test_the_rate_of_counted_requests_is_that_of_a_long_window(
    tmp_path: Path, task: Tenant, known_per_s: float | None
) -> None:
    # Of a tenant that starts later another is there before.
    others = (HIGH2,) if task.start_s else ()
    where: dict[str, Any] = {"device": "sim:h200", "duration_s": 20.0}
    counted = run(tmp_path / "counted", task, *others, **where)
    assert counted.duration_s < 2
    if known_per_s is None:
        where |= {"duration_s": 4.0}
        long = run(tmp_path / "long", replace(task, requests=None), *others, **where)
        known_per_s = rates(long.tenant("one"))[0]
    own = counted.tenant("one")
    estimate = throughput([served(own, round(counted.duration_s * S))], CONFIDENCE)
    assert rates(own)[0] == pytest.approx(known_per_s, rel=0.03)
    assert estimate.value == pytest.approx(rates(own)[0])
    assert estimate.low <= known_per_s <= estimate.high


def test_one_request_alone_has_the_rate_of_its_own_time(tmp_path: Path) -> None:
    own = run(tmp_path, replace(TASK, requests=1), device="sim:h200").tenant("one")
    assert own.requests is not None
    assert rates(own)[0] == pytest.approx(S / own.requests.finished_ns[0])


@pytest.mark.parametrize("placement", ["processes", slow("threads")])
def test_counted_requests_end_the_window_of_all(tmp_path: Path, placement: str) -> None:
    due = replace(HIGH, requests=10)
    record = run(
        tmp_path,
        due,
        TASK,
        replace(LOW, start_s=0.1),
        HIGH2,
        duration_s=30.0,
        placement=TenantPlacement(placement),
    )
    assert_counted(record, {"high": 10, "one": 20})
    assert 0.18 < record.duration_s < 20
    other = record.tenant("steady")
    assert other.issued == -(-round(record.duration_s * S) // 20_000_000)
    times = record.tenant("one").requests
    assert times is not None
    gaps = [b - a for a, b in zip(times.finished_ns, times.started_ns[1:], strict=False)]
    assert min(gaps) >= 10_000_000


def test_where_all_count_the_window_ends_at_once(tmp_path: Path) -> None:
    record = run(tmp_path, *THREE, duration_s=60.0)
    assert_counted(record, {"one": 20, "two": 20, "three": 20})
    # And not after its grace, or the duration.
    assert record.elapsed_s < 55


def test_several_at_once_share_the_count(tmp_path: Path) -> None:
    for device in ("sim:h200", "cpu"):
        task = replace(TASK, concurrency=3)
        record = run(tmp_path / device.partition(":")[0], task, device=device, duration_s=30.0)
        assert_counted(record, {"one": 20})


@pytest.mark.parametrize("device", ["sim:h200", "cpu"])
def test_the_duration_is_the_cap(tmp_path: Path, device: str) -> None:
    record = run(tmp_path, replace(TASK, requests=100_000), device=device, duration_s=0.5)
    own = record.tenant("one")
    assert (record.duration_s, own.until_ns) == (0.5, None)
    said = f"tenant one: {own.issued} of 100000 requests until the window ended after 0.5 s"
    (note,) = [note for note in record.notes if note.startswith(said)]
    assert note.endswith(": give a longer duration")


def test_where_a_trace_holds_no_more_than_a_part_of_the_count_no_duration_helps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(simulated, "_MOST_KERNELS", 100)
    plan = Colocation("apart", (replace(TASK, requests=900),), duration_s=30.0, device="sim:h200")
    native = open_scheduler("native", SchedulerPaths())
    record = TenantSet(native, lambda *_: None, tmp_path, traced=True).once(plan)
    (note,) = [note for note in record.notes if "of 900 requests" in note]
    assert note.endswith(": give work of fewer kernels")


@pytest.mark.parametrize("device", ["sim:h200", "cpu"])
def test_who_comes_after_the_last_counted_request_makes_it_invalid(
    tmp_path: Path, device: str
) -> None:
    plan = Colocation(
        "apart", (replace(TASK, requests=3), replace(LOW, start_s=5.0)), device=device,
        duration_s=6.0, warmup_s=0.1,
    )  # fmt: skip
    record = TenantSet(
        open_scheduler("native", SchedulerPaths()),
        lambda *_: None,
        tmp_path,
        limits=Limits(120, 60),
        server=server_of_tests(),
    ).once(plan)
    assert record.status == "invalid"
    assert record.reason.startswith("all requests were served too soon: tenant low starts 5 s")
    assert record.reason.endswith(": give more requests, or an earlier start")


def test_each_window_of_living_tenants_counts_anew(tmp_path: Path) -> None:
    plan = Colocation("apart", (replace(TASK, requests=5), LOW0), duration_s=30.0, warmup_s=0.1)
    living = TenantSet(
        open_scheduler("native", SchedulerPaths()), lambda *_: None, tmp_path, Limits(120, 60),
        server=server_of_tests(),
    )  # fmt: skip
    with living as tenants:
        for number in (1, 2):
            assert_counted(tenants.window(plan, run=number, last=number == 2), {"one": 5})


def test_what_counted_requests_take_is_no_identity_of_their_cell(tmp_path: Path) -> None:
    slower = replace(TASK, arrival="closed: delay=20ms")
    records = [
        run(tmp_path / str(n), task, device="sim:h200") for n, task in enumerate((TASK, slower))
    ]
    assert records[0].duration_s < records[1].duration_s
    cells = [tenant_records(record, "", {})[0].cell for record in records]
    assert [cell.parameters["duration_s"] for cell in cells] == [1.0, 1.0]


def test_a_server_does_not_count() -> None:
    server = Tenant("own", server=Server(url="http://127.0.0.1:1/"))
    with pytest.raises(BadInput, match="a window with a server ends by time alone"):
        Colocation("apart", (TASK, server))
    with pytest.raises(BadInput, match="tenant one: requests is 0; give at least 1"):
        replace(TASK, requests=0)
