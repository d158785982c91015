"""continuous_batch: a plan that serves everyone, and tokens equal to decoding alone."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from pytest_hwqueue.workloads.inference.continuous_batch import ContinuousBatch
from pytest_hwqueue.workloads.inference.serving_plan import (
    Join,
    Prefill,
    Request,
    Step,
    draw_requests,
    plan,
)
from pytest_hwqueue.workloads.protocol import CheckFailed

from .cells import Counts, Run, make
from .test_llm_decode import generated

pytest.importorskip("transformers")

BUSY = {"layers": 2, "requests": 5, "output": 5, "slots": 2, "arrivals": 2.0}


@pytest.mark.parametrize("streams", [3, 6])
def test_each_request_gets_the_tokens_of_decoding_it_alone(streams: int) -> None:
    with Run(make(ContinuousBatch, BUSY), streams) as run:
        run.workload.check(run.once)
        workload: Any = run.workload
        outputs = workload._outputs()
        for request, prompt, output in zip(
            workload._requests, workload._prompts, outputs, strict=True
        ):
            assert prompt.shape == (1, request.prompt_tokens)
            alone = generated(workload._decoder.model, prompt[0].clone(), request.output_tokens)
            assert torch.equal(output, alone)
        lengths = {len(output) for output in outputs}
        assert len(lengths) > 1, "requests differ"
        assert workload.work_per_iteration() == {"tokens": float(sum(map(len, outputs)))}


def test_slots_are_used_again_and_batches_are_shared() -> None:
    with Run(make(ContinuousBatch, BUSY), 3) as run:
        workload: Any = run.workload
        joins = [each for each in workload._plan if isinstance(each, Join)]
        steps = [each for each in workload._plan if isinstance(each, Step)]
    assert len(joins) == 5 > len({join.slot for join in joins}) == 2
    assert any(None not in step.running for step in steps)


def test_streams_are_shared_out() -> None:
    counts = Counts()
    with Run(make(ContinuousBatch, BUSY), 8, counts.around) as run:
        run.once()
    roles = {
        tag: {stream for stream, found in counts.launches if found == tag}
        for tag in ("decode", "prefill", None)
    }
    assert roles == {"decode": {0, 1, 2, 3}, "prefill": {4, 5}, None: {6, 7}}
    assert counts.of_tag("prefill") == counts.of_tag(None) == 20
    assert ContinuousBatch.urgency(8) == [1] * 4 + [0] * 4


@pytest.mark.parametrize("wrong", ["keys and values", "token", "slot", "staging"])
def test_wrong_move_is_noticed(monkeypatch: pytest.MonkeyPatch, wrong: str) -> None:
    def move(self: Any, staged: Any, slot: Any, first: Any, current: Any) -> None:
        if wrong == "staging":
            staged = staged.flip(-1)
        if wrong != "keys and values":
            slot.copy_(staged if wrong != "slot" else staged.roll(1, 0))
        if wrong != "token":
            current.copy_(first)

    with Run(make(ContinuousBatch, BUSY), 3) as run:
        run.workload.check(run.once)
        monkeypatch.setattr(ContinuousBatch, "_move", move)
        with pytest.raises(CheckFailed, match="request"):
            run.workload.check(run.once)


requests = st.lists(
    st.builds(
        Request,
        arrival=st.integers(0, 20),
        prompt_tokens=st.integers(1, 8),
        output_tokens=st.integers(2, 6),
    ),
    min_size=1,
    max_size=12,
).map(lambda found: sorted(found, key=lambda request: request.arrival))


@given(requests, st.integers(1, 3), st.integers(1, 3), st.integers(1, 3))
def test_plan_serves_each_request_in_order_and_within_its_places(
    queue: list[Request], prefills: int, groups: int, slots: int
) -> None:
    commands = plan(queue, prefills, groups, slots)
    prefilled: dict[int, int] = {}
    running: list[dict[int, int]] = [{} for _ in range(groups)]
    tokens = [0] * len(queue)
    for command in commands:
        if isinstance(command, Prefill):
            place = command.request % prefills
            assert place not in prefilled, "a place holds one request"
            prefilled[place] = command.request
            tokens[command.request] += 1
        elif isinstance(command, Join):
            assert prefilled.pop(command.request % prefills) == command.request
            batch = running[command.request % groups]
            assert command.slot < slots
            assert command.slot not in batch
            batch[command.slot] = command.request
        else:
            batch = running[command.group]
            assert len(command.running) == slots
            assert any(each is not None for each in command.running)
            for slot, each in enumerate(command.running):
                if each is None:
                    assert slot not in batch
                    continue
                request, token = each
                assert batch[slot] == request
                assert token == tokens[request] - 1, "the step is given the last token decoded"
                tokens[request] += 1
                if tokens[request] == queue[request].output_tokens:
                    del batch[slot]
    assert tokens == [request.output_tokens for request in queue]
    assert not prefilled
    assert not any(running)


def test_plan_waits_for_arrivals_and_overlaps_a_prefill_with_a_step() -> None:
    first, second, third = Request(0, 4, 5), Request(1, 4, 2), Request(1, 4, 2)
    commands = plan([first, second, third], 1, 1, 2)
    assert commands == [
        Prefill(0),
        Join(0, 0),
        Prefill(1),
        Step(0, ((0, 0), None)),
        Join(1, 1),
        Prefill(2),
        Step(0, ((0, 1), (1, 0))),
        Join(2, 1),
        Step(0, ((0, 2), (2, 0))),
        Step(0, ((0, 3), None)),
    ]


def test_queue_is_drawn_from_the_seed_with_poisson_arrivals() -> None:
    queue = draw_requests(4000, 0.5, 512, 16, 1)
    assert queue == draw_requests(4000, 0.5, 512, 16, 1)
    assert queue != draw_requests(4000, 0.5, 512, 16, 2)
    assert {request.prompt_tokens for request in queue} == {128, 256, 384, 512}
    assert {request.output_tokens for request in queue} == set(range(2, 17))
    # 8000 steps expected, with a standard deviation of 2·√4000 ≈ 126.
    assert abs(queue[-1].arrival - 8000) < 5 * 126
    arrivals = [request.arrival for request in queue]
    assert arrivals == sorted(arrivals)
    # Of Poisson counts in windows of 8 steps, mean and variance are both 4.
    counts = torch.bincount(torch.tensor(arrivals) // 8).double()[:900]
    assert abs(float(counts.var() / counts.mean()) - 1) < 0.25
