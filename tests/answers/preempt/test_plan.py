"""What is measured, as a scenario; and what of a command's options is refused."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from pytest_hwqueue.answers.preempt import plan as planned
from pytest_hwqueue.answers.preempt.plan import URGENT, VICTIM, PreemptPlan
from pytest_hwqueue.data.errors import BadInput, BadOption, HwqError
from pytest_hwqueue.data.records.placement import TenantPlacement
from pytest_hwqueue.engine.scenarios.file import read_scenario
from pytest_hwqueue.engine.scenarios.planned_runs import cases, own_run
from pytest_hwqueue.engine.tenants.arrivals import parse_arrival

PROCESSES, THREADS = TenantPlacement.PROCESSES, TenantPlacement.THREADS


def plan(**changed: object) -> PreemptPlan:
    given = {
        "schedulers": {PROCESSES: ["native", "xsched:level=1,threshold=1"], THREADS: ["native"]},
        "lengths_us": [50, 1000, 4000], "waves": [4, 0], "depths": [1, 8],
        "requests": 500, "rounds": 5,
    }  # fmt: skip
    return PreemptPlan(**{**given, **changed})  # type: ignore[arg-type]


def test_each_victim_meets_the_urgent_tenant_under_each_mode(tmp_path: Path) -> None:
    scenario, text = plan().scenario(tmp_path)
    runs = [own_run(each) for each in cases(scenario)]
    beside = [run for run in runs if len(run.tenants) == 2]
    assert len(beside) == 3 * 3 * 2 * 2
    assert all([each.name for each in run.tenants] == [VICTIM, URGENT] for run in beside)
    lengths = [run for run in runs if planned.finds_length(run)]
    # Of few kernels and of many, under native.
    assert len(lengths) == 3 * 2 * 2
    assert {run.scheduler for run in lengths} == {"native"}
    alone = {run.key for run in runs if [each.name for each in run.tenants] == [URGENT]}
    # One process in either placement, at the rate of each depth.
    assert len(alone) == 2 * 2
    assert "xsched:level=1,threshold=1" in text
    assert VICTIM in text


@pytest.mark.parametrize(
    ("mode", "alone"),
    [
        ("green-context:victim=64,urgent=32", "green-context:urgent=32"),
        ("green-context:queues=apart,victim=64,urgent=32", "green-context:queues=apart,urgent=32"),
        # What is left is of no group: without a victim it is all there is.
        ("mps-partition:victim=70%", "native"),
        ("xsched:level=1,threshold=1", "xsched:level=1,threshold=1"),
    ],
)
def test_what_is_the_victim_s_is_not_given_to_the_urgent_tenant_alone(
    mode: str, alone: str, tmp_path: Path
) -> None:
    assert planned.mode_alone(mode) == alone
    scenario, _ = plan(schedulers={THREADS: [mode]}, depths=[1]).scenario(tmp_path)
    runs = [own_run(each) for each in cases(scenario)]
    found = {run.scheduler for run in runs if [each.name for each in run.tenants] == [URGENT]}
    assert found == {alone}


def test_requests_are_rare_beside_what_is_in_flight_and_alike_alone(tmp_path: Path) -> None:
    scenario, _ = plan().scenario(tmp_path)
    for run in (own_run(each) for each in cases(scenario)):
        tenants = {each.name: each for each in run.tenants}
        if VICTIM not in tenants or URGENT not in tenants:
            continue
        rate = parse_arrival(tenants[URGENT].arrival, tmp_path).rate_per_s
        depth = tenants[VICTIM].parameters["depth"]
        assert rate == pytest.approx(1 / (4 * depth * 4e-3))
    # Beside short kernels the host rests between requests.
    assert plan(lengths_us=[50, 100, 200]).gap_s(1) == pytest.approx(0.01)


def test_the_example_has_the_same_victim(tmp_path: Path) -> None:
    example = Path(__file__).parents[3] / "examples" / "behind_kernels.hwq.yaml"
    low = read_scenario(example).tenants_of(None)[1]
    scenario, _ = plan().scenario(tmp_path)
    (victim, _) = scenario.tenants_of(scenario.variants[-1])
    assert low.workload == victim.workload == planned.WORKLOAD
    assert low.parameters.keys() == victim.parameters.keys()


def test_a_window_has_room_for_its_requests_and_the_time_is_of_all() -> None:
    few = plan(depths=[1], waves=[4])
    assert few.window_s == pytest.approx(1.25 * 500 * 0.016)
    # The urgent tenant alone, and beside three victims, under three modes, five times.
    assert few.urgent_s == pytest.approx(5 * 3 * 4 * 500 * 0.016)


@pytest.mark.parametrize(
    ("read", "text", "found"),
    [
        (planned.read_lengths, "1ms, 50us,200 µs,1000us", [50, 200, 1000]),
        (partial(planned.read_numbers, "--depths", least=1, most=9), "8, 1,8", [1, 8]),
        (
            planned.read_schedulers, "native,threads-native,xsched:threshold=1|2",
            {PROCESSES: ["native", "xsched:threshold=1", "xsched:threshold=2"],
             THREADS: ["native"]},
        ),
        (
            planned.read_schedulers, "threads-green-context:victim=100,urgent=32",
            {THREADS: ["green-context:victim=100,urgent=32"]},
        ),
    ],
)  # fmt: skip
def test_options_are_read(read: Callable[[str], object], text: str, found: object) -> None:
    assert read(text) == found


@pytest.mark.parametrize(
    ("read", "text", "says"),
    [
        (planned.read_lengths, "50us,1ms", "at least 3 lengths"),
        (planned.read_lengths, "50us,1ms,1.5ms", "whole number of us or ms"),
        (planned.read_lengths, "1us,1ms,2ms", "from 10us"),
        (planned.read_lengths, "1ms,2ms,2000ms", "to 1000ms"),
        (planned.read_lengths, "", "at least 3 lengths"),
        *[
            (partial(planned.read_numbers, "--depths", least=1, most=9), text, "from 1 to 9")
            for text in ("0", "10", "1,x", "")
        ],
        (planned.read_schedulers, "nativ", "native"),
        (planned.read_schedulers, "", "give one or more"),
    ],
)
def test_what_makes_no_sense_is_refused(
    read: Callable[[str], object], text: str, says: str
) -> None:
    with pytest.raises((BadOption, BadInput, HwqError)) as refused:
        read(text)
    assert says in str(refused.value)
