"""Laws of records whose truth is known: every kind, what is left out, and what is refused."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pytest_hwqueue.answers.preempt.file import PreemptFile, PreemptionLaw
from pytest_hwqueue.answers.preempt.laws import preempt_file
from pytest_hwqueue.answers.preempt.plan import (
    DEEP,
    SHALLOW,
    URGENT,
    VICTIM,
    PreemptPlan,
    finds_length,
)
from pytest_hwqueue.answers.preempt.report import (
    laws_headline,
    preempt_document,
    preempt_svg,
    sentence,
)
from pytest_hwqueue.data.document.document import markdown
from pytest_hwqueue.data.metrics.interference import EffectVerdict, PriorityEffect
from pytest_hwqueue.data.metrics.latency import minimum_samples
from pytest_hwqueue.data.metrics.preemption import preemption_verdict
from pytest_hwqueue.data.metrics.straight_line import straight_line
from pytest_hwqueue.data.records.placement import TenantPlacement
from pytest_hwqueue.data.records.proof import Proof
from pytest_hwqueue.data.records.tenants import ColocationRecord, TenantResult
from pytest_hwqueue.engine.scenarios.planned_runs import (
    PlannedRun,
    SessionPlan,
    cases,
    colocation,
    own_run,
)
from pytest_hwqueue.engine.tenants.open_loop import Load
from pytest_hwqueue.engine.tenants.tenant_cells import delivered

LENGTHS_US = [50, 200, 1000, 4000]
# Alone an urgent request takes so long, more or less.
ALONE_US, JITTER_US = 25.0, 2.0
# A host's share of a victim's request.
HOST_US = 14.0
N = 450
# The longest wait behind a victim, by the length of its kernels and its depth, in µs.
Truth = Callable[[float, int], float]


def kernels(length_us: float, depth: int) -> float:
    return length_us


def in_flight(length_us: float, depth: int) -> float:
    return depth * length_us


def preempting(length_us: float, depth: int) -> float:
    return 30.0


def slices(length_us: float, depth: int) -> float:
    return min(length_us, 300.0)


def urgent(run: PlannedRun, longest_us: float, seed: int, gap_us: float = 50_000) -> TenantResult:
    """Requests that wait for a uniform rest, of which one in fifty finds one before it."""
    random = np.random.default_rng(seed)
    due, end, at, previous_us = list[int](), list[int](), 0.0, 0.0
    for number in range(N):
        # Behind one that is under way it waits for that, and for all of a kernel.
        behind = number % 50 == 49
        at = at + previous_us / 2 if behind else at + gap_us
        rest_us = longest_us * (2.0 if behind else random.uniform())
        took_us = ALONE_US + JITTER_US * abs(random.standard_normal()) + rest_us
        due.append(round(at * 1e3))
        end.append(round((at + took_us) * 1e3))
        previous_us = took_us
    load = Load(due, due, end)
    (spec,) = (each for each in run.tenants if each.name == URGENT)
    return delivered(spec, load, round((at + 1e6) * 1e3))


def victim(run: PlannedRun) -> TenantResult:
    """Requests one behind the other, with the host's share of each."""
    (spec,) = (each for each in run.tenants if each.name == VICTIM)
    took_ns = round(1e3 * (HOST_US + spec.parameters["depth"] * spec.parameters["kernel_us"]))
    starts = [number * took_ns for number in range(20)]
    ends = [start + took_ns for start in starts]
    return delivered(spec, Load(starts, starts, ends, closed=True), 20 * took_ns)


def record(run: PlannedRun, number: int, tenants: Sequence[TenantResult], **changed: Any) -> (
    ColocationRecord
):  # fmt: skip
    plan = colocation(run, SessionPlan("cuda", "full", Path(), 1.0), 1000.0, number)
    fields: dict[str, Any] = {
        "id": plan.id, "run": number, "plan": plan, "status": "ok", "device": "cuda",
        "scheduler": run.scheduler, "tenants": [*tenants], "seed": number - 1,
        "placement": run.placement, "duration_s": 100.0, "elapsed_s": 110.0,
        "started": f"2026-01-01T00:0{number}:00.000+00:00", "command": "hwq preempt",
        "simulated": False,
    }  # fmt: skip
    return ColocationRecord(**{**fields, **changed})


def records(
    truth: Truth, depths: Sequence[int] = (1,), waves: Sequence[int] = (4,), rounds: int = 5
) -> list[ColocationRecord]:
    """All that a session has, under native in processes."""
    plan = PreemptPlan(
        {TenantPlacement.PROCESSES: ["native"]}, LENGTHS_US, waves, depths, N, rounds
    )
    scenario, _ = plan.scenario(Path())
    found = []
    for place, run in enumerate(own_run(each) for each in cases(scenario)):
        for number in range(1, 2 if finds_length(run) else rounds + 1):
            named = {each.name: each for each in run.tenants}
            tenants = []
            longest_us = 0.0
            if VICTIM in named:
                tenants.append(victim(run))
                given = named[VICTIM].parameters
                longest_us = truth(given["kernel_us"], given["depth"])
            if URGENT in named:
                tenants.append(urgent(run, longest_us, 100 * place + number))
            found.append(record(run, number, tenants))
    return found


def laws(those: Sequence[ColocationRecord]) -> dict[str, PreemptionLaw]:
    return {law.id: law for law in preempt_file(those, complete=True).laws}


@pytest.mark.parametrize(
    ("truth", "verdict", "said"),
    [
        (kernels, "waits", "× the kernel under way + "),
        (preempting, "bounded", "µs whatever the victim: preempts, or has room beside it."),
        (slices, "no line", "native has no linear law: the P99 of the wait lies up to "),
    ],
)
def test_truth_is_found_and_told(truth: Truth, verdict: str, said: str) -> None:
    law = laws(records(truth))["native"]
    assert law.verdict == verdict
    assert said in sentence(law)
    for wait in law.waits:
        assert wait.kernel_us.value == pytest.approx(wait.asked_us)
        assert wait.p99_us.value == pytest.approx(0.99 * truth(wait.asked_us, 1), rel=0.03, abs=5)
        assert wait.p50_us.value == pytest.approx(0.5 * truth(wait.asked_us, 1), rel=0.1, abs=5)
        assert wait.requests + wait.left_out == 5 * N
        assert wait.left_out == 5 * (N // 50)
    assert law.alone_p50_us.value == pytest.approx(ALONE_US, abs=JITTER_US)


def test_a_long_wait_that_does_not_grow_is_for_something_else() -> None:
    law = laws(records(lambda length_us, depth: 5000.0))["native"]
    assert law.verdict == "bounded"
    assert "not for its kernels, and too long to tell whether it preempts them" in sentence(law)


def test_windows_of_other_sessions_are_left_alone() -> None:
    own = records(kernels)
    other = [
        each.model_copy(update={"plan": replace(each.plan, tenants=tuple(
            replace(tenant, parameters={}) for tenant in each.plan.tenants
        ))})
        for each in own
    ]  # fmt: skip
    assert laws(other) == {}


def test_a_kernel_is_told_from_all_in_flight() -> None:
    found = laws(records(in_flight, depths=(1, 8)))
    assert found["native"].slope.value == pytest.approx(0.99, abs=0.02)
    assert sentence(found["native"]).endswith(": no preemption below kernel level.")
    deep = found["native, depth 8"]
    assert deep.slope.value == pytest.approx(7.92, abs=0.1)
    assert sentence(deep).endswith(": for everything in flight, which are 8 kernels.")
    kernel = laws(records(kernels, depths=(8,)))["native, depth 8"]
    assert " × a kernel + " in sentence(kernel)
    assert sentence(kernel).endswith(": no preemption below kernel level.")
    half = laws(records(lambda x, depth: depth * x / 2, depths=(8,)))["native, depth 8"]
    assert sentence(half).endswith(": for some of the 8 kernels in flight.")


def test_one_block_that_leaves_room_is_no_preemption() -> None:
    law = laws(records(preempting, waves=(0,)))["native, one block"]
    assert sentence(law).endswith("whatever the victim: its one block leaves room.")


def test_what_waits_for_less_than_half_a_kernel_is_preempted_within() -> None:
    law = laws(records(lambda x, depth: 0.4 * x))["native"]
    assert law.verdict == "shorter"
    assert ": preempts within a kernel, later in a long one." in sentence(law)


def test_what_waits_for_a_block_is_preempted_where_blocks_end() -> None:
    law = laws(records(lambda x, depth: x / 4))["native"]
    assert law.verdict == "shorter"
    assert sentence(law).endswith(": preempts where its blocks end, each of which lasts 1/4 of it.")
    single = laws(records(lambda x, depth: x / 4, waves=(1,)))["native, 1 wave"]
    assert sentence(single).endswith(": preempts within a kernel, later in a long one.")


def test_too_few_rounds_to_decide_say_what_would() -> None:
    # Of whose rest the P99 is half a kernel.
    those = records(lambda x, depth: x / 1.98, rounds=2)
    law = laws(those)["native"]
    assert law.verdict == "undecided"
    assert "below 0.1 or above 0.5 would decide; more --rounds" in sentence(law)


def test_windows_that_went_wrong_are_left_out_with_the_reason() -> None:
    those = records(kernels)
    wrong = next(each for each in those if len(each.tenants) == 2 and each.run == 5)
    failed = wrong.model_copy(update={"status": "failed", "reason": "no more", "tenants": []})
    law = laws([failed if each is wrong else each for each in those])["native"]
    assert law.verdict == "waits"
    assert law.reason == "50 µs: failed, no more"
    assert len(law.waits[0].rounds_p99_us) == 4


def test_a_window_with_a_request_that_was_never_served_has_no_percentile() -> None:
    those = records(kernels)
    wrong = next(each for each in those if len(each.tenants) == 2)
    starved = wrong.tenant(URGENT).model_copy(update={"unserved": 3})
    tenants = [wrong.tenant(VICTIM), starved]
    those[those.index(wrong)] = wrong.model_copy(update={"tenants": tenants})
    law = laws(those)["native"]
    assert law.reason == "50 µs: 3 urgent requests failed or were never served"
    assert len(law.waits[0].rounds_p99_us) == 4


def test_too_few_lengths_with_figures_give_no_law() -> None:
    those = [
        each for each in records(kernels)
        if len(each.tenants) < 2 or each.plan.tenant(VICTIM).parameters["kernel_us"] > 200
    ]  # fmt: skip
    found = preempt_file(those, complete=True)
    (law,) = found.laws
    assert law.verdict == "not measured"
    assert law.reason == "2 of at least 3 lengths have figures"
    assert law.slope.value is None
    assert sentence(law) == "native was not measured at enough lengths."


@pytest.mark.parametrize("depth", [SHALLOW, DEEP])
def test_without_a_victim_alone_its_kernels_have_no_length(depth: int) -> None:
    those = [
        each for each in records(kernels)
        if len(each.tenants) == 2 or each.tenants[0].name == URGENT
        or each.plan.tenant(VICTIM).parameters["depth"] != depth
    ]  # fmt: skip
    (law,) = preempt_file(those, complete=True).laws
    kernel = "1 kernel" if depth == 1 else f"{depth} kernels"
    assert law.reason.startswith(f"victim alone completed no request of {kernel}; 0 of")
    assert all(wait.kernel_us.value is None for wait in law.waits)


def test_kernels_that_add_nothing_to_a_request_have_no_length() -> None:
    those = records(kernels)
    shallow = {
        each.plan.tenant(VICTIM).parameters["kernel_us"]: each.tenants
        for each in those
        if len(each.tenants) == 1 and each.tenants[0].name == VICTIM
    }
    those = [
        each.model_copy(
            update={"tenants": shallow[each.plan.tenant(VICTIM).parameters["kernel_us"]]}
        )
        if len(each.tenants) == 1 and each.tenants[0].name == VICTIM
        else each
        for each in those
    ]
    (law,) = preempt_file(those, complete=True).laws
    assert "took no longer than 1" in law.reason


def test_a_percentile_of_too_few_requests_is_refused() -> None:
    those = records(kernels)
    cut = []
    for each in those:
        if len(each.tenants) == 2:
            of = each.tenant(URGENT)
            assert of.requests is not None
            few = Load(*(getattr(of.requests, name)[:200] for name in (
                "scheduled_ns", "started_ns", "finished_ns")))  # fmt: skip
            tenants = [each.tenant(VICTIM), delivered(each.plan.tenant(URGENT), few, 10**11)]
            cut.append(each.model_copy(update={"tenants": tenants}))
        else:
            cut.append(each)
    (law,) = preempt_file(cut, complete=True).laws
    assert f"196 of at least {minimum_samples(0.99)} requests of a round" in law.reason


def test_of_a_repeated_window_the_last_counts_and_other_records_are_left_alone() -> None:
    those = records(kernels)
    first = next(each for each in those if len(each.tenants) == 2)
    invalid = first.model_copy(
        update={"status": "invalid", "reason": "late", "started": "2026-01-01T00:00:00.000+00:00"}
    )
    others = first.plan.tenants[0].__class__("other", "resnet18")
    foreign = first.model_copy(
        update={"id": "x", "plan": colocation(
            PlannedRun("x", (others,), TenantPlacement.PROCESSES, "native"),
            SessionPlan("cuda", "full", Path()), 1.0)}
    )  # fmt: skip
    assert laws([invalid, foreign, *those]) == laws(those)


def test_proofs_are_told_with_what_probes_saw() -> None:
    those = records(kernels)
    beside = [each for each in those if len(each.tenants) == 2]
    for number, each in enumerate(beside):
        seen: EffectVerdict = "not seen" if number == 0 else "proven"
        effect = PriorityEffect(verdict=seen, reason="", urgent=URGENT, other=VICTIM)
        proof = Proof("native", "priorities read back", (), priority=effect)
        those[those.index(each)] = each.model_copy(update={"proof": proof})
    found = preempt_file(those, complete=True)
    assert found.laws[0].priority == {"not seen": 1, "proven": len(beside) - 1}
    text = markdown(preempt_document(found))
    assert "priorities read back; priority not seen in 1 window, proven in 19 windows" in text
    assert laws(records(kernels))["native"].proof == ""


def test_document_page_and_file_have_the_same_laws(tmp_path: Path) -> None:
    found = preempt_file(records(kernels), complete=False)
    text = markdown(preempt_document(found))
    assert "INCOMPLETE" in text
    assert "no preemption below kernel level" in text
    assert "native" in text.partition("alone")[0].rpartition("\n")[2]
    assert laws_headline([found]).sentence == sentence(found.laws[0])
    assert laws_headline([]).level == "warn"
    again = PreemptFile.model_validate_json(found.model_dump_json(by_alias=True))
    assert again == found
    drawn = preempt_svg(found)
    assert drawn is not None
    assert "length of the victim" in drawn
    nothing = preempt_file([], complete=True)
    assert nothing.laws == []
    assert preempt_svg(nothing) is None


@pytest.mark.parametrize("name", ["processes", "threads"])
def test_stored_laws_follow_from_the_rounds(name: str) -> None:
    stored = Path(__file__).parents[3] / "baselines" / "nvidia-h200" / "preempt" / f"{name}.json"
    if not stored.exists():
        pytest.skip("a source distribution has only the reference baselines")
    for law in PreemptFile.model_validate_json(stored.read_bytes()).laws:
        lengths_us = [float(wait.kernel_us) for wait in law.waits]
        line = straight_line(lengths_us, [wait.rounds_p99_us for wait in law.waits], 0.95)
        assert line.slope.ends == pytest.approx(law.slope.ends)
        assert line.intercept.value == pytest.approx(law.intercept_us.value)
        assert law.verdict == preemption_verdict(
            line, lengths_us, [float(wait.p99_us) for wait in law.waits]
        )
