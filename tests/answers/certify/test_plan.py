"""What is measured, as a scenario; and what of a command's arguments is refused."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from pytest_hwqueue.answers.certify import plan as planned
from pytest_hwqueue.answers.certify.plan import STRESSOR, VICTIM, CertifyPlan, read_mode
from pytest_hwqueue.data.errors import BadInput
from pytest_hwqueue.data.metrics.latency import minimum_samples
from pytest_hwqueue.data.records.placement import TenantPlacement
from pytest_hwqueue.data.resources import RESOURCES, Resource
from pytest_hwqueue.engine.scenarios.planned_runs import PlannedRun, cases, once, own_run
from pytest_hwqueue.engine.tenants.arrivals import parse_arrival


def runs(mode: str, claimed: tuple[Resource, ...] = ()) -> list[PlannedRun]:
    plan = CertifyPlan(read_mode(mode), RESOURCES, claimed, window_s=1.0, rounds=5)
    found = once(map(own_run, cases(plan.scenario(Path())[0])))
    # Nothing is planned that a run before it was already.
    assert plan.all_s == 5 * len(found)
    return found


def windows(mode: str, claimed: tuple[Resource, ...] = ()) -> set[tuple[str, int, str, str]]:
    """Resource, number of tenants, scheduler and placement of each run."""
    return {
        (run.tenants[0].parameters["resource"], len(run.tenants), run.scheduler, run.placement)
        for run in runs(mode, claimed)
    }


def test_each_resource_has_a_victim_alone_and_beside_the_stressor_of_the_same() -> None:
    found = runs("mps")
    assert len(found) == 2 * len(RESOURCES)
    for run in found:
        assert {each.workload for each in run.tenants} == {"stress"}
        assert {each.arrival for each in run.tenants} == {"closed"}
        assert len({each.parameters["resource"] for each in run.tenants}) == 1
        assert [each.name for each in run.tenants] == [VICTIM, STRESSOR][: len(run.tenants)]
    assert {run.scheduler for run in found} == {"mps"}
    # A mode by priority has something to order.
    assert {each.priority for run in found for each in run.tenants} == {0, 1}


def test_what_is_claimed_is_measured_without_the_mode_in_the_same_placement() -> None:
    mode = "green-context:victim=64"
    found = windows(f"threads-{mode}", ("multiprocessors", "memory"))
    for resource in RESOURCES:
        expected = {(resource, tenants, mode, "threads") for tenants in (1, 2)}
        if resource in ("multiprocessors", "memory"):
            expected |= {(resource, tenants, "native", "threads") for tenants in (1, 2)}
        assert {each for each in found if each[0] == resource} == expected


def test_a_share_takes_the_victim_alone_under_native() -> None:
    found = windows("mps-partition:stressor=30%,victim=70%")
    of_products = {each[1:] for each in found if each[0] == "multiprocessors"}
    assert of_products == {
        (1, "mps-partition:victim=70%", "processes"),
        (2, "mps-partition:stressor=30%,victim=70%", "processes"),
        (1, "native", "processes"),
    }


def test_native_is_its_own_control() -> None:
    assert windows("native", ("memory",)) == windows("native")


def test_an_urgent_victim_has_requests_enough_for_a_percentile() -> None:
    plan = CertifyPlan(read_mode("mps"), [], (), window_s=5.0, rounds=5, waits_ms=3.0)
    alone, beside = once(map(own_run, cases(plan.scenario(Path())[0])))
    assert alone.tenants == beside.tenants[:1]
    (victim,) = alone.tenants
    rate = parse_arrival(victim.arrival, Path()).rate_per_s
    assert rate is not None
    assert victim.requests is not None
    assert victim.requests >= minimum_samples(0.99)
    assert planned.least_window_s() > victim.requests / rate
    # Whose deadline is what is claimed: so late may its generator be.
    assert victim.deadline_ms == 3.0
    assert beside.tenants[1].parameters == {"resource": "multiprocessors"}


def test_a_mode_is_read_with_its_placement() -> None:
    mode = read_mode("threads-green-context:victim=64,stressor=32")
    assert mode.placement == TenantPlacement.THREADS
    assert str(mode) == "threads-green-context:victim=64,stressor=32"
    assert mode.alone == "green-context:victim=64"
    queues = read_mode("threads-green-context:queues=apart,victim=64,stressor=32")
    assert "queues=apart" in queues.alone
    assert "stressor" not in queues.alone
    assert mode.claims.apart == ("multiprocessors",)
    assert str(read_mode("mps")) == read_mode("mps").alone == "mps"


@pytest.mark.parametrize(
    ("read", "text", "says"),
    [
        (read_mode, "nativ", "native"),
        (read_mode, "", "give one or more of native"),
        (read_mode, "native,mps", "give one mode"),
        (read_mode, "xsched:threshold=1|2", "give one mode"),
        (read_mode, "mps-partition", "write mps-partition:victim=80%"),
        (read_mode, "threads-green-context:high=32", "write threads-green-context:victim=32"),
        (read_mode, "green-context:victim=32,low=8", "the tenants are called victim and stressor"),
        (lambda text: planned.read_resources("--claims", text), "l3", "choose from multi"),
        (lambda text: planned.read_resources("--claims", text), " ,", "choose from multi"),
    ],
)  # fmt: skip
def test_what_makes_no_sense_is_refused(
    read: Callable[[str], object], text: str, says: str
) -> None:
    with pytest.raises(BadInput) as refused:
        read(text)
    assert says in str(refused.value)


def test_resources_are_read_in_their_own_order() -> None:
    assert planned.read_resources("--claims", "memory, l2,memory") == ["l2", "memory"]
