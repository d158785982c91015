"""Tokens reach the experts that the gate prefers, on all streams and ranks, and come back."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.testing._internal.distributed.fake_pg import FakeStore

from pytest_hwqueue.devices.host import HostDevice
from pytest_hwqueue.devices.simulated.device import SimulatedDevice
from pytest_hwqueue.errors import BadParameter, CheckFailed, NotApplicable
from pytest_hwqueue.harness.program import graph
from pytest_hwqueue.workloads.distributed import moe
from pytest_hwqueue.workloads.distributed.moe import MixtureOfExperts, Router
from pytest_hwqueue.workloads.workload import Ranks, Setup, Workload, parameters_for

from .cells import Counts, LeftOut, Run, Waits, make, measured
from .orders import unordered
from .perturbed import HeedlessStream, check_perturbed
from .two_ranks import gloo_group, run_ranks

SMALL = {"experts": 8, "hidden": 8, "inner": 16, "tokens": 32}


@pytest.fixture
def one_rank() -> Iterator[None]:
    with gloo_group():
        yield


@pytest.fixture
def one_simulated_rank() -> Iterator[None]:
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.mark.usefixtures("one_rank")
@pytest.mark.parametrize("streams", [4, 16, 33])
def test_cell_is_measured_and_its_results_are_right(streams: int) -> None:
    record = measured(MixtureOfExperts, streams)
    assert (record.status, record.reason) == ("ok", "")
    assert record.work_per_iteration == {"tokens": 128.0}
    assert record.samples is not None
    launches = {tag: len(times) for tag, times in record.samples.tags_ns.items()}
    each = record.iterations
    assert launches == {"gate": each, "expert": 32 * each, "combine": each}
    assert record.metrics.timeline is not None
    assert record.metrics.timeline.streams_used == streams
    # Of all experts some get more than 1.25 times the mean of 8 tokens.
    assert 0 < record.metrics.apart["dropped_choices_percent"] < 50


@pytest.mark.usefixtures("one_rank")
@pytest.mark.parametrize(("streams", "of_each"), [(4, [3, 3, 2]), (9, [1] * 8)])
def test_experts_take_turns_on_all_streams_but_the_first(streams: int, of_each: list[int]) -> None:
    counts = Counts()
    with Run(make(MixtureOfExperts, SMALL), streams, counts.around) as run:
        run.once()
    assert [counts.launches[index, "expert"] for index in range(1, streams)] == of_each
    assert {tag for index, tag in counts.launches if index == 0} == {"gate", "combine", None}
    assert {tag for index, tag in counts.launches if index > 0} == {"expert"}


@pytest.mark.usefixtures("one_rank")
@pytest.mark.parametrize(("top_k", "factor"), [(1, 1.25), (2, 1e-9), (2, 1.0), (2, 4.0), (8, 1.0)])
def test_what_finds_no_room_is_dropped_and_counted(top_k: int, factor: float) -> None:
    given = {**SMALL, "top_k": top_k, "capacity_factor": factor}
    with Run(make(MixtureOfExperts, given), 4) as run:
        workload: Any = run.workload
        workload.check(run.once)
        chosen = Counter(workload._router.chosen.flatten().tolist())
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
    plain = roomy.plain()
    plain.require_right(1e-6)
    assert plain.weights[:, 2].tolist() == [0, 0]


@pytest.mark.usefixtures("one_rank")
@pytest.mark.parametrize("left_out", range(12))
def test_launch_left_out_is_noticed(left_out: int) -> None:
    # Gate, dispatch, eight experts, return, combine.
    with Run(make(MixtureOfExperts, SMALL), 4, LeftOut(12 + left_out).around) as run:
        run.once()
        with pytest.raises(CheckFailed):
            run.workload.check(run.once)
        run.workload.check(run.once)


@pytest.mark.usefixtures("one_rank")
def test_one_wrong_token_is_noticed() -> None:
    with Run(make(MixtureOfExperts, {"dtype": "bf16"}), 4) as run:
        workload: Any = run.workload

        def spoiled() -> None:
            run.once()
            workload._output[5, 3] += 0.5

        with pytest.raises(CheckFailed, match="result of token 5: relative error 0"):
            workload.check(spoiled)


@pytest.mark.usefixtures("one_rank")
def test_wrong_decisions_are_noticed() -> None:
    with Run(make(MixtureOfExperts, SMALL), 4) as run:
        workload: Any = run.workload
        router = workload._router

        def second_before_first() -> None:
            run.once()
            router.chosen[:, 7] = router.chosen[:, 7].flip(0)

        def counted_twice() -> None:
            run.once()
            router.dropped.mul_(2)

        with pytest.raises(CheckFailed, match="gate: an expert was chosen whose logit is off by"):
            workload.check(second_before_first)
        with pytest.raises(CheckFailed, match=r"\d+ choices find no room, \d+ were counted"):
            workload.check(counted_twice)


@pytest.mark.usefixtures("one_rank")
@pytest.mark.parametrize("streams", [4, 6])
def test_every_event_is_needed(streams: int) -> None:
    counted = Waits()
    assert unordered(make(MixtureOfExperts, SMALL), streams, around=counted.around) == []
    period = counted.count // 2
    assert period == 2 * (streams - 1)
    for left_out in range(period):
        waits = Waits(left_out, period)
        races = unordered(make(MixtureOfExperts, SMALL), streams, around=waits.around)
        assert races, f"wait {left_out}"


@pytest.mark.usefixtures("one_rank")
def test_results_stay_right_when_streams_are_slowed_down_and_do_not_without_events() -> None:
    def check(seed: int, **around: Any) -> None:
        check_perturbed(HostDevice(), make(MixtureOfExperts, SMALL), 5, seed, **around)

    for seed in (1, 2, 3):
        check(seed)
        with pytest.raises(CheckFailed):
            check(seed, around=HeedlessStream)


@pytest.mark.usefixtures("one_rank")
def test_results_do_not_depend_on_the_streams_but_on_the_seed() -> None:
    results = []
    for streams, seed in ((4, 5), (9, 5), (4, 6)):
        state = torch.get_rng_state()
        with Run(make(MixtureOfExperts, SMALL), streams, seed=seed) as run:
            run.once()
            run.once()
            results.append(run.workload._output.clone())  # type: ignore[attr-defined]
        assert torch.equal(torch.get_rng_state(), state)
    assert torch.equal(results[0], results[1])
    assert not torch.equal(results[0], results[2])


@pytest.mark.usefixtures("one_rank")
@pytest.mark.parametrize("dtype", ["fp32", "tf32", "bf16", "fp16"])
def test_results_are_right_in_every_numeric_format(dtype: str) -> None:
    before = torch.get_float32_matmul_precision()
    try:
        with Run(make(MixtureOfExperts, {"dtype": dtype}), 4) as run:
            run.workload.check(run.once)
    finally:
        torch.set_float32_matmul_precision(before)


@pytest.mark.usefixtures("one_simulated_rank")
@pytest.mark.parametrize("streams", [4, 16, 33])
def test_without_values_nothing_is_drawn_and_nothing_counted(streams: int) -> None:
    record = measured(MixtureOfExperts, streams, SimulatedDevice("h200"))
    assert (record.status, record.reason) == ("ok", "")
    assert record.metrics.apart == {}
    assert not any("drawn from the seed" in note for note in record.notes)
    assert record.metrics.timeline is not None
    assert record.metrics.timeline.streams_used == streams


@pytest.mark.usefixtures("one_simulated_rank")
def test_iteration_is_captured_as_one_graph() -> None:
    device, workload = SimulatedDevice("h200"), make(MixtureOfExperts)
    with device.open_streams(4) as pool:
        workload.setup(Setup(device, 4, 3))
        program = graph(device, pool, workload.iterate, tagged=False)
        assert program.whole
        eager = pool.held_timeline(lambda: workload.iterate(pool.streams))
        replayed = pool.held_timeline(lambda: program.enqueue(pool.streams))
    names = (Counter(kernel.name for kernel in found.kernels) for found in (eager, replayed))
    assert next(names) == next(names)


@pytest.mark.usefixtures("one_rank")
def test_ranks_share_the_model_and_have_tokens_of_their_own() -> None:
    routers, numbers = [], []
    for rank in range(2):
        workload: Any = make(MixtureOfExperts, SMALL)
        workload.setup(Setup(HostDevice(), 4, 3, Ranks(rank, 2)))
        routers.append(workload._router)
        numbers += [expert.number for expert in workload._experts]
    assert numbers == list(range(8))
    assert torch.equal(routers[0]._gate, routers[1]._gate)
    assert not torch.equal(routers[0].tokens, routers[1].tokens)


def two_ranks(rank: int, size: int, store_path: str) -> None:
    """Check, then spoil the exchanges and check again; print the results. Run in every rank."""
    device = HostDevice()
    with gloo_group(rank, size, store_path), device.open_streams(4) as pool:
        workload: Any = make(MixtureOfExperts, SMALL)
        workload.setup(Setup(device, 4, 3, Ranks(rank, size)))
        around = LeftOut(-1).around

        def run_once() -> None:
            workload.iterate([around(stream) for stream in pool.streams])
            pool.synchronize()

        workload.check(run_once)
        assert workload.work_per_iteration() == {"tokens": 64.0}
        print(json.dumps(workload._output.tolist()))
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

    def keep(output: torch.Tensor, own: torch.Tensor, _: object) -> None:
        output.copy_(own)

    def run() -> None:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(moe, "all_to_all", keep)
            function()

    return run


@pytest.mark.usefixtures("one_rank")
def test_two_ranks_send_tokens_to_each_others_experts() -> None:
    first, second = map(json.loads, run_ranks("tests.workloads.test_moe:two_ranks"))
    with Run(make(MixtureOfExperts, SMALL), 4) as run:
        run.once()
        alone: Any = run.workload
        # The model and the first rank's tokens are the same, wherever the experts are.
        torch.testing.assert_close(torch.tensor(first), alone._output)
    assert first != second


@pytest.mark.parametrize(
    ("parameter", "value"),
    [("experts", 7), ("top_k", 0), ("top_k", 33), ("capacity_factor", 0), ("dtype", "int8")],
)
def test_bad_value_is_refused_by_name(parameter: str, value: object) -> None:
    with pytest.raises(BadParameter, match=rf"moe\.{parameter}={value!r}"):
        parameters_for(MixtureOfExperts, "tiny", {parameter: value})


@pytest.mark.parametrize(
    ("experts", "streams", "ranks", "text"),
    [
        (8, 10, 1, r"moe\.experts=8 leaves 8 to each of 1 ranks, .* experts=9 .* most 9 streams"),
        (32, 16, 4, r"moe\.experts=32 leaves 8 to each .* set experts=60 .* most 9 streams"),
        (32, 4, 3, r"moe\.experts=32 cannot be spread evenly over 3 ranks.* multiple of 3"),
    ],
)
def test_too_few_experts_for_the_streams_are_refused(
    experts: int, streams: int, ranks: int, text: str
) -> None:
    workload: Workload = make(MixtureOfExperts, {"experts": experts})
    with pytest.raises(NotApplicable, match=text):
        workload.setup(Setup(HostDevice(), streams, 3, Ranks(0, ranks)))
