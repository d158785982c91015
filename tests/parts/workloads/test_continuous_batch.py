"""continuous_batch: a plan that serves everyone, and tokens equal to decoding alone."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from pytest_hwqueue.data.errors import CheckFailed
from pytest_hwqueue.parts.devices.host import HostDevice
from pytest_hwqueue.parts.devices.launches import TagLog
from pytest_hwqueue.parts.workloads.inference.continuous_batch import ContinuousBatch
from pytest_hwqueue.parts.workloads.inference.decoder import (
    Moment,
    PlannedRequest,
    Step,
    draw_requests,
    fewest_steps,
    plan,
)
from pytest_hwqueue.parts.workloads.workload import Setup

from .cells import WAIT, Counts, Run, make
from .test_llm_decode import generated
from .test_specifics import BUSY

pytest.importorskip("transformers")


@pytest.mark.parametrize("streams", [3, 6])
def test_each_request_gets_the_tokens_of_decoding_it_alone(streams: int) -> None:
    with Run(make(ContinuousBatch, BUSY), streams) as run:
        run.workload.check(run.once)
        workload: Any = run.workload
        outputs = workload.outputs()
        for request, prompt, output in zip(
            workload.requests, workload.prompts, outputs, strict=True
        ):
            assert prompt.shape == (1, request.prompt_tokens)
            alone = generated(workload.decoder.model, prompt[0].clone(), request.output_tokens)
            assert torch.equal(output, alone)
        lengths = {len(output) for output in outputs}
        assert len(lengths) > 1, "requests differ"
        assert workload.work_per_iteration() == {"tokens": float(sum(map(len, outputs)))}


def test_requests_go_on_in_the_next_iteration() -> None:
    with Run(make(ContinuousBatch, BUSY), 3) as run:
        run.once()
        workload: Any = run.workload
        early = [each.clone() for each in workload.outputs()]
        run.once()
        whole = [each.clone() for each in workload.outputs()]
        run.once()
        assert all(map(torch.equal, whole, workload.outputs()))
        # Those that began in the iteration before had nothing to go on from in the first.
        assert not all(map(torch.equal, early, whole))
        ends = {step.running for step in workload.plan[-1].steps}
        assert any(each is not None for running in ends for each in running)


def test_untagged_launches_move_requests_and_hand_tokens_on() -> None:
    counts = Counts()
    with Run(make(ContinuousBatch, BUSY), 8, counts.around) as run:
        run.once()
        workload: Any = run.workload
    fed = sum(step.continues for step in workload._steps)
    assert counts.of_tag(None) == 12 + fed


class Moving(ContinuousBatch):
    """Moves something wrong, once it is told what."""

    wrong = ""

    def _move(self, staged: Any, slot: Any, first: Any, given: Any) -> None:
        if not self.wrong:
            super()._move(staged, slot, first, given)
            return
        if self.wrong == "staging":
            staged = staged.flip(-1)
        if self.wrong != "keys and values":
            slot.copy_(staged if self.wrong != "slot" else staged.roll(1, 0))
        if self.wrong != "token":
            given.copy_(first)


@pytest.mark.parametrize("wrong", ["keys and values", "token", "slot", "staging"])
def test_wrong_move_is_noticed(wrong: str) -> None:
    workload: Any = make(Moving, BUSY)
    with Run(workload, 3) as run:
        run.workload.check(run.once)
        workload.wrong = wrong
        with pytest.raises(CheckFailed, match="request"):
            run.workload.check(run.once)


def test_time_between_tokens_includes_the_wait_for_those_who_join() -> None:
    counts = Counts()
    with Run(make(ContinuousBatch, BUSY), 3, counts.around) as run:
        run.once()
        steps = run.workload._steps  # type: ignore[attr-defined]
    decoding = counts.on(0)
    waited = 0
    for number, step in enumerate(steps):
        at = decoding.index(f"decode#0.{number}")
        # What is between the begin of the request and its step is waited for.
        begin = max(place for place in range(at) if decoding[place] != WAIT)
        assert decoding[begin].endswith(f"#0.{number}")
        assert step.continues
        waited += at - begin > 1
    assert waited > 0


def test_a_sample_per_step_that_somebody_waits_for() -> None:
    device = HostDevice()
    with device.open_streams(4) as pool:
        # Some batches run empty, and nobody waits for the first step behind that.
        workload: Any = make(ContinuousBatch, {"requests": 1})
        pool.tags = TagLog(device.new_event, workload.primary.name)
        workload.setup(Setup(device, 4, 3))
        workload.iterate(pool.streams)
        pool.synchronize()
        found: dict[str, list[int]] = {}
        pool.tags.collect(device.elapsed_ns, found)
        pool.tags = None
    continued = sum(step.continues for step in workload._steps)
    assert found.keys() == {"prefill", "decode", "token"}
    assert len(found["token"]) == continued < len(workload._steps) == len(found["decode"])
    assert min(found["token"]) > min(found["decode"])


requests = st.lists(
    st.builds(
        PlannedRequest,
        arrival=st.integers(0, 5),
        prompt_tokens=st.integers(1, 8),
        output_tokens=st.integers(2, 7),
    ),
    min_size=1,
    max_size=12,
).map(lambda found: sorted(found, key=lambda request: request.arrival))


@given(requests, st.integers(2, 3), st.integers(1, 3))
def test_plan_serves_each_request_in_order_and_within_its_places(
    queue: list[PlannedRequest], prefills: int, groups: int
) -> None:
    moments = plan(queue, prefills, groups, 6)
    assert len(moments) == 6
    prefilled: dict[int, int] = {}
    running: list[dict[int, int]] = [{} for _ in range(groups)]
    given_out = [0] * len(queue)
    # The first periods fill the batches; the last two are the steady ones that are looked at.
    for period in range(4):
        tokens = [0] * len(queue)
        for moment in moments:
            for request in moment.joins:
                place = request % prefills
                if period == 0 and place not in prefilled:
                    continue
                assert prefilled.pop(place) == request
                batch, slot = running[request % groups], request // groups
                assert slot not in batch
                batch[slot] = request
                given_out[request] = 1
            for request in moment.prefills:
                assert request % prefills not in prefilled, "a place holds one request"
                prefilled[request % prefills] = request
                tokens[request] += 1
            for step in moment.steps:
                batch = running[step.group]
                assert any(each is not None for each in step.running)
                for slot, each in enumerate(step.running):
                    if each is None:
                        assert slot not in batch
                        continue
                    request, token = each
                    tokens[request] += 1
                    if period == 0 and slot not in batch:
                        continue
                    assert batch[slot] == request
                    assert token == given_out[request] - 1, "given the last token decoded"
                    given_out[request] += 1
                    if given_out[request] == queue[request].output_tokens:
                        del batch[slot]
        assert tokens == [request.output_tokens for request in queue], "each period alike"


def test_plan_waits_for_arrivals_and_overlaps_a_prefill_with_a_step() -> None:
    first, second, third = PlannedRequest(0, 4, 4), PlannedRequest(1, 4, 2), PlannedRequest(1, 4, 3)
    step = Step
    assert plan([first, second, third], 1, 1, 4) == [
        # The third came with the second, and was prefilled behind it.
        Moment((), (0,), (step(0, (None, None, (2, 1))),)),
        Moment((0,), (1,), (step(0, ((0, 0), None, None)),)),
        Moment((1,), (2,), (step(0, ((0, 1), (1, 0), None)),)),
        Moment((2,), (), (step(0, ((0, 2), None, (2, 0))),)),
    ]


def test_a_step_is_waited_for_by_those_who_have_a_token_already() -> None:
    assert not Step(0, ((0, 0), None)).continues
    assert Step(0, ((0, 0), (1, 3))).continues


def test_requests_are_drawn_from_the_seed() -> None:
    queue = draw_requests(4000, 8, 512, 9, 1)
    assert queue == draw_requests(4000, 8, 512, 9, 1)
    assert queue != draw_requests(4000, 8, 512, 9, 2)
    assert {request.prompt_tokens for request in queue} == {128, 256, 384, 512}
    assert {request.output_tokens for request in queue} == {5, 6, 7, 8, 9}
    assert {each.output_tokens for each in draw_requests(50, 8, 512, 4, 1)} == {3, 4}
    assert [fewest_steps(20, 2), fewest_steps(7, 2)] == [10, 4]
    arrivals = [request.arrival for request in queue]
    assert arrivals == sorted(arrivals)
    # 500 of each step expected, with a standard deviation of about 21.
    assert all(abs(arrivals.count(step) - 500) < 5 * 21 for step in range(8))
