"""Verdicts on fleets: what is named, and what healthy variation is not."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_hwqueue.answers.fleet.outliers import compare, distances, scores, spreads, unsteady
from pytest_hwqueue.answers.fleet.report import (
    drain_commands,
    fleet_document,
    fleet_json,
    prometheus_text,
)
from pytest_hwqueue.answers.fleet.verdicts import Gpu, confirmed, judge_fleet, to_measure_again
from pytest_hwqueue.data.document.document import markdown
from tools.fleet_rates import RUNS, SPEEDS
from tools.fleet_rates import fleet as varying

FIGURES = ("launch", "matrix")
NODES = [at // 4 for at in range(16)]


def fleet(size: int = 16, seed: int = 1, repeats: int = 6) -> list[Gpu]:
    random = np.random.default_rng(seed)
    times = random.normal(0, 0.003, (size, len(FIGURES), 1))
    times = times + random.normal(0, 0.002, (size, len(FIGURES), repeats))
    return [
        Gpu(
            f"node{at // 4}", f"cuda:{at % 4}", "H200",
            conditions={"driver_version": "570"},
            log_times=dict(zip(FIGURES, map(tuple, times[at].tolist()), strict=True)),
        )
        for at in range(size)
    ]  # fmt: skip


def changed(gpu: Gpu, *by: float) -> Gpu:
    times = {
        name: tuple(t + by[at % len(by)] for at, t in enumerate(row))
        for name, row in gpu.log_times.items()
    }
    return replace(gpu, log_times=times)


def test_healthy() -> None:
    found = judge_fleet(fleet())
    assert not found.named
    assert {gpu.verdict for gpu in found.gpus} == {"ok"}


def test_each_verdict_is_given_to_whom_it_is_due_and_to_no_other() -> None:
    gpus = fleet()
    gpus[2] = replace(changed(gpus[2], 0.08), faults=("2 uncorrected ECC errors",))
    gpus[3] = changed(gpus[3], 0.08)
    gpus[5] = changed(gpus[5], 0.2, 0.2, -0.2, -0.2, 0.0, 0.0)
    gpus[7] = replace(gpus[7], conditions={"driver_version": "550"})
    gpus.append(Gpu("node9", "cuda:0", unreachable="no answer"))
    found = judge_fleet(gpus)
    assert {(gpu.node, gpu.device): gpu.verdict for gpu in found.named} == {
        ("node0", "cuda:2"): "faulty", ("node0", "cuda:3"): "slow",
        ("node1", "cuda:1"): "unstable", ("node1", "cuda:3"): "different",
        ("node9", "cuda:0"): "unreachable",
    }  # fmt: skip
    # Two GPUs are too few to be compared; what the driver says holds of one.
    assert [gpu.verdict for gpu in judge_fleet(gpus[1:3]).gpus] == ["faulty", "not judged"]


def test_two_gpus_are_judged_with_a_reference_of_the_same_conditions() -> None:
    known, few = fleet(), fleet(seed=3)[:2]
    few[1] = changed(few[1], 0.08)
    assert {gpu.verdict for gpu in judge_fleet(few).gpus} == {"not judged"}
    known[4] = replace(known[4], conditions={"driver_version": "550"})
    known[5] = replace(known[5], model="H100")
    found = judge_fleet(few, known)
    assert found.reference == 14
    assert [(gpu.node, gpu.device, gpu.verdict) for gpu in found.gpus] == [
        ("node0", "cuda:1", "slow"), ("node0", "cuda:0", "ok"),
    ]  # fmt: skip
    assert "compared with 14 GPUs measured before, too" in markdown(fleet_document(found))


def test_a_reference_says_what_a_slow_gpu_was_before() -> None:
    known = [replace(gpu, day="2026-11-01") for gpu in fleet()]
    now = fleet(seed=3)
    now[3] = changed(now[3], 0.08)
    (named,) = judge_fleet(now, known).named
    told = re.fullmatch(r"2026-11-01, beside the median GPU: (.*)", named.reasons[-1])
    assert told
    assert {each.rsplit(" ", 2)[0] for each in told[1].split(", ")} == set(named.slow)
    assert all(abs(float(each.split()[-2])) < 2 for each in told[1].split(", "))
    # One that is new has no before.
    assert "median GPU" not in judge_fleet(now, known[4:]).named[0].reasons[-1]


def test_one_slow_half_is_not_confirmed() -> None:
    gpus = fleet()
    gpus[3] = changed(gpus[3], 0.08, 0.0)
    assert "slow" not in {gpu.verdict for gpu in judge_fleet(gpus).gpus}


def test_what_is_suspicious_is_named_if_it_is_likewise_when_measured_again() -> None:
    gpus, again = fleet(64), fleet(64, seed=2)
    for at in (3, 5):
        gpus[at] = changed(gpus[at], 0.08)
    for at in (7, 9):
        gpus[at] = changed(gpus[at], 0.2, 0.2, -0.2, -0.2, 0.0, 0.0)
    again[3], again[7] = changed(again[3], 0.05), changed(again[7], 0.2, -0.2)
    found = judge_fleet(gpus)
    wanted = to_measure_again(found)
    suspicious = {(gpus[at].node, gpus[at].device) for at in (3, 5, 7, 9)}
    assert suspicious < wanted
    # The others of their nodes, and eight elsewhere.
    assert len(wanted) == 12 + 8
    measured = [gpu for gpu in again if (gpu.node, gpu.device) in wanted]
    named = {(gpu.node, gpu.device, gpu.verdict) for gpu in confirmed(found, measured).named}
    assert named == {("node0", "cuda:3", "slow"), ("node1", "cuda:3", "unstable")}
    taken_back = [gpu.reasons[0] for gpu in confirmed(found, measured).gpus if gpu.reasons]
    assert sum("not when measured again" in reason for reason in taken_back) == 2
    # Without a second measurement, the first one counts.
    assert confirmed(found, []) == found
    assert to_measure_again(judge_fleet(fleet(64))) == set()


def nodes_differ(nodes: int, gpus: int, seed: int) -> list[Gpu]:
    """Return a fleet whose nodes differ by 5 %, and their GPUs by 0.3 %."""
    by = np.random.default_rng(seed).normal(0, 0.05, nodes)
    return [
        replace(changed(gpu, by[at // gpus]), node=f"node{at // gpus}", device=f"cuda:{at % gpus}")
        for at, gpu in enumerate(fleet(nodes * gpus, seed=seed))
    ]


@pytest.mark.parametrize("gpus", [2, 8])
def test_what_a_node_has_in_common_hides_no_gpu_and_names_none(gpus: int) -> None:
    for seed in range(5):
        healthy = nodes_differ(8, gpus, seed)
        assert not judge_fleet(healthy).named
        bad = [changed(healthy[0], 0.1), *healthy[1:]]
        (named,) = judge_fleet(bad).named
        assert (named.node, named.device, named.verdict) == ("node0", "cuda:0", "slow")
        assert set(named.slow) == {*FIGURES, "all figures"}
        assert named.slow["launch"] == pytest.approx(0.105, abs=0.03)
        assert "% time beside the others of its node" in named.reasons[0]


def test_a_slow_node_is_named_with_all_its_gpus() -> None:
    gpus = [changed(gpu, 0.1 * (gpu.node == "node3")) for gpu in fleet(32)]
    found = judge_fleet(gpus)
    assert [(gpu.node, gpu.verdict) for gpu in found.named] == [("node3", "slow")] * 4
    assert all(not gpu.slow and set(gpu.slow_node) >= {*FIGURES} for gpu in found.named)
    assert "of its node beside other nodes" in found.named[0].reasons[0]
    wanted = to_measure_again(found)
    assert sum(node == "node3" for node, _ in wanted) == 4
    again = {stands: [changed(gpu, stands * (gpu.node == "node3")) for gpu in fleet(32, seed=2)]
             for stands in (0.0, 0.07)}  # fmt: skip
    assert not confirmed(found, again[0.0]).named
    assert len(confirmed(found, again[0.07]).named) == 4
    # Four nodes are too few to tell.
    assert not judge_fleet(gpus[:16]).named


def test_a_gpu_alone_among_few_nodes_is_not_judged() -> None:
    gpus = [replace(gpu, node=f"own{at}") if at > 13 else gpu for at, gpu in enumerate(fleet())]
    verdicts = {gpu.node: gpu.verdict for gpu in judge_fleet(gpus).gpus}
    assert set(verdicts.values()) == {"ok"}
    verdicts = {gpu.node: gpu.verdict for gpu in judge_fleet([*gpus[:8], gpus[15]]).gpus}
    assert verdicts == {"node0": "ok", "node1": "ok", "own15": "not judged"}


def test_a_faster_gpu_is_not_named() -> None:
    gpus = fleet()
    gpus[3] = changed(gpus[3], -0.2)
    assert not judge_fleet(gpus).named


def test_too_few_gpus_or_repeats_are_not_judged() -> None:
    assert {gpu.verdict for gpu in judge_fleet(fleet(4)).gpus} == {"not judged"}
    assert {gpu.verdict for gpu in judge_fleet(fleet(8, repeats=3)).gpus} == {"not judged"}


def test_one_gpu_with_more_repeats_or_another_figure_keeps_no_other_from_being_judged() -> None:
    gpus = fleet()
    gpus[0] = replace(gpus[0], log_times={n: each * 2 for n, each in gpus[0].log_times.items()})
    gpus[1] = replace(gpus[1], log_times={**gpus[1].log_times, "copies": (0.0,) * 6})
    gpus[2] = changed(gpus[2], 0.08)
    gpus[3] = replace(gpus[3], log_times={"launch": gpus[3].log_times["launch"]})
    verdicts = {gpu.device: gpu.verdict for gpu in judge_fleet(gpus).gpus if gpu.node == "node0"}
    assert verdicts == {"cuda:0": "ok", "cuda:1": "ok", "cuda:2": "slow", "cuda:3": "not judged"}


def test_models_are_compared_among_themselves() -> None:
    others = [replace(changed(gpu, 1.0), model="A100", node="other") for gpu in fleet(seed=2)]
    assert not judge_fleet([*fleet(), *others]).named


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 10**6), st.floats(-30, 30), st.permutations(range(16)))
def test_neither_units_nor_the_order_of_gpus_matter(
    seed: int, shift: float, order: list[int]
) -> None:
    times = np.array([gpu.log_times["launch"] for gpu in fleet(seed=seed)])
    times[0] += 0.1
    one = compare(times, NODES, 0.003)
    other = compare(times[order] + shift, [NODES[at] for at in order], 0.003)
    assert one is not None
    assert other is not None
    assert one.slow[0]
    assert (one.slow[order] == other.slow).all()
    assert other.smallest == pytest.approx(one.smallest)


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 10**6), st.floats(1.3, 3.0))
def test_a_deviation_beyond_the_smallest_is_named(seed: int, times_smallest: float) -> None:
    times = np.array([gpu.log_times["launch"] for gpu in fleet(64, seed=seed)])
    nodes = [at // 4 for at in range(64)]
    found = compare(times, nodes, 0.003)
    assert found is not None
    slowest = max(0.0, *times[1:4].ravel()) - min(0.0, times[0].min())
    times[0] += times_smallest * found.smallest + slowest
    named = compare(times, nodes, 0.003)
    assert named is not None
    assert named.slow[0]


@settings(max_examples=50, deadline=None)
@given(st.lists(st.floats(-1, 1), min_size=5, max_size=9))
def test_each_is_compared_with_the_median_of_its_others(log_times: list[float]) -> None:
    times = np.tile(np.array(log_times)[:, None], (1, 4))
    found = compare(times, [0] * len(times), 0.003)
    assert found is not None
    for at, value in enumerate(log_times):
        others = np.median([*log_times[:at], *log_times[at + 1 :]])
        assert found.deviation[at] == pytest.approx(np.expm1(value - others), abs=1e-12)


def test_not_finite_times_are_refused() -> None:
    with pytest.raises(ValueError, match="finite"):
        compare(np.full((8, 6), np.nan), [0] * 8, 0.003)


def test_outputs_name_the_gpu_and_quote() -> None:
    gpus = fleet()
    gpus[3] = replace(changed(gpus[3], 0.08), node='a"; rm -rf | b')
    found = judge_fleet(gpus)
    assert drain_commands(found, "kubernetes") == ["kubectl cordon -- 'a\"; rm -rf | b'"]
    assert drain_commands(found, "slurm")[0].startswith(
        "scontrol update 'nodename=a\"; rm -rf | b' state=drain reason="
    )
    assert (
        'hwq_fleet_named{node="a\\"; rm -rf | b",device="cuda:3",uuid="",pci="",verdict="slow"} 1'
        in (prometheus_text(found))
    )
    assert "slow" in markdown(fleet_document(found))
    assert '"named": 1' in fleet_json(found)


@pytest.mark.parametrize("runs", list(RUNS))
def test_however_runs_vary_no_healthy_gpu_is_named_and_an_unsteady_one_is(runs: str) -> None:
    generator = np.random.default_rng(7)
    healthy = [
        judge_fleet(varying(generator, 32, RUNS[runs], SPEEDS[1], bad=False)).named
        for _ in range(25)
    ]
    # By the spread of three runs, 25 of 25 had one named where one run of 20 stalls.
    assert sum(map(bool, healthy)) <= 2
    found = [judge_fleet(varying(generator, 32, RUNS[runs], SPEEDS[1], bad=True)) for _ in range(5)]
    unsteady = [{gpu.device for gpu in each.named if gpu.verdict == "unstable"} for each in found]
    assert unsteady.count({"gpu7"}) >= 4


def test_runs_that_stall_in_most_of_both_halves_are_no_slow_gpu() -> None:
    gpus = fleet()
    gpus[3] = changed(gpus[3], 0.08, 0.08, 0.12, 0.12, 0.0, 0.0)
    assert not any(gpu.slow for gpu in judge_fleet(gpus).gpus)


@given(st.integers(0, 10**6), st.integers(4, 9), st.floats(0.1, 100), st.floats(-5, 5))
def test_ranks_alone_tell_how_far_repeats_are(
    seed: int, repeats: int, unit: float, offset: float
) -> None:
    times = np.random.default_rng(seed).standard_t(2, (6, repeats))
    far = distances(times)
    assert distances(unit * times + offset) == pytest.approx(unit * far, abs=1e-9)
    assert scores(far).mean() == pytest.approx(1)
    assert np.array_equal(scores(far), scores(far**3))
    assert np.array_equal(scores(far).argsort(axis=None), far.argsort(axis=None))


def test_repeats_that_are_as_far_name_nobody() -> None:
    """A coarse clock gives many the same: which of them comes first says nothing."""
    assert not unsteady(np.zeros((8, 6)), 0.01).any()
    assert scores(np.array([[0.0, 1.0], [1.0, 1.0]])) == pytest.approx(
        np.array([[0.25, 1.25], [1.25, 1.25]])
    )


def test_a_gpus_usual_time_is_not_moved_by_as_many_stalls() -> None:
    far = distances(np.array([[0.0, 0.3, 0.01, 0.2, 0.02, 0.1]]))
    assert far[0].tolist() == pytest.approx([0.01, 0.29, 0.0, 0.19, 0.01, 0.09])
    assert spreads(np.array([[-1.0, 0.0, 1.0, 0.0]]))[0] == pytest.approx(0.5 / 0.6745)
