"""Tokens reach the experts that the gate prefers, on all streams and ranks, and come back."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
import torch

from pytest_hwqueue.data.errors import CheckFailed
from pytest_hwqueue.parts.devices.host import HostDevice
from pytest_hwqueue.parts.devices.simulated.device import SimulatedDevice
from pytest_hwqueue.parts.workloads.distributed import moe
from pytest_hwqueue.parts.workloads.distributed.moe import MixtureOfExperts, Router
from pytest_hwqueue.parts.workloads.workload import Ranks, Setup

from .cells import Counts, LeftOut, Run, measured
from .everyone import small
from .two_ranks import Printed, gloo_group

NAME = "moe"


@pytest.mark.parametrize(("streams", "of_each"), [(4, [3, 3, 2]), (9, [1] * 8)])
def test_experts_take_turns_on_all_streams_but_the_first(streams: int, of_each: list[int]) -> None:
    counts = Counts()
    with Run(small(NAME), streams, counts.around) as run:
        run.once()
    assert [counts.launches[index, "expert"] for index in range(1, streams)] == of_each
    assert {tag for index, tag in counts.launches if index == 0} == {"gate", "combine", None}
    assert {tag for index, tag in counts.launches if index > 0} == {"expert"}


@pytest.mark.parametrize(("top_k", "factor"), [(1, 1.25), (2, 1e-9), (2, 1.0), (2, 4.0), (8, 1.0)])
def test_what_finds_no_room_is_dropped_and_counted(top_k: int, factor: float) -> None:
    with Run(small(NAME, top_k=top_k, capacity_factor=factor), 4) as run:
        workload: Any = run.workload
        workload.check(run.once)
        chosen = Counter(workload.router.chosen.flatten().tolist())
        # At least one slot, however small the factor.
        capacity = max(1, min(32, int(factor * 32 * top_k / 8)))
        dropped = sum(max(0, asked - capacity) for asked in chosen.values())
        percent = 100 * dropped / (32 * top_k)
        assert workload.measured_apart() == {"dropped_choices_percent": percent}
        assert (dropped == 0) == (factor * top_k >= 8)


def test_first_choices_find_room_before_second_ones_and_early_tokens_before_late_ones() -> None:
    # One expert per feature: a token's values are its logits.
    tokens = torch.tensor([[5.0, 4, 0], [4, 5, 0], [5, 0, 4], [0, 4, 5]])
    router = Router(tokens, torch.eye(3), top_k=2, capacity=1)
    router.run()
    assert router.chosen.tolist() == [[0, 1, 0, 2], [1, 0, 2, 1]]
    nowhere = 3
    # The last expert is the third token's second choice, and the fourth token's first.
    assert router.slots.tolist() == [0, 1, nowhere, 2, *[nowhere] * 4]
    assert router.sources.tolist() == [0, 1, 3]
    assert int(router.dropped) == 5
    # Of logits 5 and 4; dropping one does not make the other larger.
    share = 1 / (1 + torch.e**-1)
    torch.testing.assert_close(router.weights, torch.tensor([[share] * 4, [1 - share] * 4]))
    roomy = Router(tokens[:2], torch.eye(3), top_k=2, capacity=2)
    roomy.run()
    assert roomy.slots.tolist() == [0, 2, 3, 1]
    assert roomy.sources.tolist() == [0, 1, 1, 0, 2, 2], "two slots of an expert nobody chose"
    assert roomy.rows[2].tolist() == [0, 0, 0]
    assert int(roomy.dropped) == 0
    weights, wrong = roomy.plain(1e-6)
    assert wrong == ""
    assert weights[:, 2].tolist() == [0, 0]


def test_drops_are_told_apart_and_without_values_nothing_is_drawn_or_counted() -> None:
    # Of all experts some get more than 1.25 times the mean of 8 tokens.
    host = measured(MixtureOfExperts, 4)
    assert 0 < host.metrics.apart["dropped_choices_percent"] < 50
    record = measured(MixtureOfExperts, 33, SimulatedDevice("h200"))
    assert (record.status, record.reason) == ("ok", "")
    assert record.metrics.apart == {}
    assert not any("drawn from the seed" in note for note in record.notes)


def test_ranks_share_the_model_and_have_tokens_of_their_own() -> None:
    routers, numbers = [], []
    for rank in range(2):
        workload: Any = small(NAME)
        with gloo_group():
            workload.setup(Setup(HostDevice(), 4, 3, Ranks(rank, 2)))
        routers.append(workload.router)
        numbers += [expert.number for expert in workload._experts]
    assert numbers == list(range(8))
    assert torch.equal(routers[0]._gate, routers[1]._gate)
    assert not torch.equal(routers[0].tokens, routers[1].tokens)


def of_ranks(rank: int, size: int, store_path: str) -> None:
    """Check, then spoil the exchanges and check again; print the results. Run in every rank."""
    device = HostDevice()
    with gloo_group(rank, size, store_path), device.open_streams(4) as pool:
        workload: Any = small(NAME)
        workload.setup(Setup(device, 4, 3, Ranks(rank, size)))
        around = LeftOut(-1).around

        def run_once() -> None:
            workload.iterate([around(stream) for stream in pool.streams])
            pool.synchronize()

        workload.check(run_once)
        assert workload.work_per_iteration() == {"tokens": 64.0}
        print(json.dumps(workload.output.tolist()))
        # Gate, dispatch, four experts, return, combine.
        for left_out in range(8):
            around = LeftOut(left_out).around
            with pytest.raises(CheckFailed):
                workload.check(run_once)
        around = LeftOut(-1).around
        for exchange in ("_dispatch", "_return"):
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(workload, exchange, _alone(getattr(workload, exchange)))
                with pytest.raises(CheckFailed, match="result of token"):
                    workload.check(run_once)
        workload.check(run_once)


def _alone(function: Callable[[], None]) -> Callable[[], None]:
    """Let a function's exchange give each rank its own."""

    def keep(output: torch.Tensor, own: torch.Tensor, *, group: object) -> None:
        output.copy_(own)

    def run() -> None:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(moe, "all_to_all", keep)
            function()

    return run


def test_two_ranks_send_tokens_to_each_others_experts(printed_by_ranks: Printed) -> None:
    first, second = map(json.loads, printed_by_ranks(NAME))
    with Run(small(NAME), 4) as run:
        run.once()
        alone: Any = run.workload
        # The model and the first rank's tokens are the same, wherever the experts are.
        torch.testing.assert_close(torch.tensor(first), alone.output)
    assert first != second
