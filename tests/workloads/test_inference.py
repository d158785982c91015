"""What all inference workloads must do: use every stream, race nowhere, notice what is wrong."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from pytest_hwqueue.devices.host import HostDevice
from pytest_hwqueue.devices.simulated.device import SimulatedDevice
from pytest_hwqueue.errors import BadParameter, CheckFailed
from pytest_hwqueue.workloads.inference.continuous_batch import ContinuousBatch
from pytest_hwqueue.workloads.inference.llm_decode import LlmDecode
from pytest_hwqueue.workloads.inference.rag_pipeline import RagPipeline
from pytest_hwqueue.workloads.inference.speculative_decode import SpeculativeDecode
from pytest_hwqueue.workloads.workload import Setup, Workload, parameters_for

from .cells import Counts, LeftOut, Run, Waits, make, measured
from .orders import unordered
from .perturbed import HeedlessStream, StreamBeside, check_perturbed

pytest.importorskip("transformers")

ALL: dict[str, type[Workload]] = {
    each.name: each for each in (LlmDecode, SpeculativeDecode, ContinuousBatch, RagPipeline)
}
# Still the same structure, for many runs and for runs on many streams.
THIN: dict[str, dict[str, Any]] = {
    "llm_decode": {"layers": 1, "tokens": 2},
    "speculative_decode": {"draft_tokens": 1, "rounds": 2},
    "continuous_batch": {"output": 3},
    "rag_pipeline": {"generated": 2},
}
# What an iteration leaves behind: tokens, and numbers of documents.
OUTPUTS: dict[str, Callable[[Any], list[torch.Tensor]]] = {
    "llm_decode": lambda w: [text[0, w.parameters.context :] for text in w._texts],
    "speculative_decode": lambda w: [
        part
        for each in w._sequences
        for part in (each.text[w.parameters.context : int(each.length)], each.drafts[0])
    ],
    "continuous_batch": lambda w: w._outputs(),
    "rag_pipeline": lambda w: [part for each in w._queries for part in (each.found, each.text[0])],
}
FEW = [("llm_decode", 2), ("speculative_decode", 3), ("continuous_batch", 4), ("rag_pipeline", 4)]
CROSSING = FEW[1:]


@pytest.fixture(autouse=True)
def _precision() -> Iterator[None]:
    before = torch.get_float32_matmul_precision()
    yield
    torch.set_float32_matmul_precision(before)


def counts_of_streams() -> list[tuple[str, int, dict[str, Any]]]:
    return [
        (name, streams, THIN[name] if streams == found.stream_range.most else {})
        for name, found in ALL.items()
        for streams in sorted(
            {
                found.stream_range.least,
                found.stream_range.recommended,
                found.stream_range.most,
            }
        )
    ]


@pytest.mark.parametrize(("name", "streams", "given"), counts_of_streams())
def test_cell_is_measured_and_its_results_are_right(
    name: str, streams: int, given: dict[str, Any]
) -> None:
    record = measured(ALL[name], streams, given=given)
    assert (record.status, record.reason) == ("ok", "")
    assert record.metrics.timeline is not None
    assert record.metrics.timeline.streams_used == streams
    assert tuple(record.work_per_iteration) == ALL[name].units
    assert all(amount > 0 for amount in record.work_per_iteration.values())
    assert record.samples is not None
    assert record.samples.tags_ns.keys() - {ALL[name].primary.name} == (
        set(ALL[name].tags) - {ALL[name].primary.name}
    )


class _Idle(StreamBeside):
    """Takes work and does none of it."""

    def launch(
        self, function: Callable[..., object], *arguments: object, tag: str | None = None
    ) -> None:
        pass


def enqueued(workload: Workload, streams: int) -> Counts:
    """What an iteration enqueues, without doing it."""
    counts = Counts()
    with Run(workload, streams, lambda stream: counts.around(_Idle(stream))) as run:
        run.once()
    return counts


@pytest.mark.parametrize("name", ALL)
def test_every_stream_gets_work_whatever_their_number(name: str) -> None:
    found = ALL[name].stream_range
    for streams in range(found.least, found.most + 1):
        counts = enqueued(make(ALL[name], THIN[name]), streams)
        assert counts.streams == set(range(streams))
        assert {tag for _, tag in counts.launches} - {None} == set(ALL[name].tags)
        assert len(ALL[name].urgency(streams)) == streams


@pytest.mark.parametrize(("name", "streams"), FEW)
def test_iterations_enqueue_the_same_and_give_the_same(name: str, streams: int) -> None:
    counts = Counts()
    with Run(make(ALL[name]), streams, counts.around) as run:
        # Requests of continuous_batch go on in the next iteration, and come from the one before.
        run.once()
        counts.launches.clear()
        run.once()
        first, once = [each.clone() for each in OUTPUTS[name](run.workload)], dict(counts.launches)
        run.once()
        assert all(map(torch.equal, first, OUTPUTS[name](run.workload)))
        assert counts.launches == {key: 2 * value for key, value in once.items()}


@pytest.mark.parametrize(("name", "streams"), FEW)
def test_same_seed_gives_the_same_and_another_one_others(name: str, streams: int) -> None:
    found: list[torch.Tensor] = []
    for seed in (5, 5, 6):
        torch.manual_seed(len(found))
        with Run(make(ALL[name]), streams, seed=seed) as run:
            run.once()
            found.append(torch.cat(OUTPUTS[name](run.workload)))
    assert torch.equal(found[0], found[1])
    assert not torch.equal(found[0], found[2])


@pytest.mark.parametrize("seed", [1, 2, 3])
@pytest.mark.parametrize(("name", "streams"), FEW)
def test_results_stay_right_when_streams_are_slowed_down(
    name: str, streams: int, seed: int
) -> None:
    check_perturbed(HostDevice(), make(ALL[name]), streams, seed)


@pytest.mark.parametrize(("name", "streams"), [*FEW, ("continuous_batch", 8), ("rag_pipeline", 7)])
def test_launches_that_share_memory_stand_in_an_order(name: str, streams: int) -> None:
    assert unordered(make(ALL[name], THIN[name]), streams) == []


@pytest.mark.parametrize(("name", "streams"), CROSSING)
def test_each_event_is_needed(name: str, streams: int) -> None:
    counted = Waits()
    assert unordered(make(ALL[name], THIN[name]), streams, around=counted.around) == []
    period = counted.count // 2
    for left_out in range(period):
        waits = Waits(left_out, period)
        assert unordered(make(ALL[name], THIN[name]), streams, around=waits.around)


@pytest.mark.parametrize(("name", "streams"), CROSSING)
def test_check_fails_without_events(name: str, streams: int) -> None:
    # A length that nobody resets runs over its buffers, and torch says so before the check does.
    noticed = (CheckFailed, IndexError, RuntimeError)
    with pytest.raises(noticed):  # noqa: PT012  # under one of a few seeds, at the latest
        for seed in range(10):
            check_perturbed(HostDevice(), make(ALL[name]), streams, seed, around=HeedlessStream)


@pytest.mark.parametrize(("name", "streams"), FEW)
def test_each_launch_left_out_is_noticed(name: str, streams: int) -> None:
    launches = sum(enqueued(make(ALL[name], THIN[name]), streams).launches.values())
    for number in range(launches):
        around = LeftOut(launches + number, launches).around
        with Run(make(ALL[name], THIN[name]), streams, around) as run:
            run.once()
            with pytest.raises(CheckFailed):
                run.workload.check(run.once)


@pytest.mark.parametrize(("name", "streams"), FEW)
def test_one_wrong_token_is_noticed(name: str, streams: int) -> None:
    with Run(make(ALL[name]), streams) as run:
        run.workload.check(run.once)
        outputs = OUTPUTS[name](run.workload)
        if name == "continuous_batch":
            workload: Any = run.workload
            outputs = [workload._first[1], workload._first[-1]]
        for output in outputs:
            for place in (0, -1):

                def spoiled(output: torch.Tensor = output, place: int = place) -> None:
                    run.once()
                    output[place] = (output[place] + 1) % 50

                with pytest.raises(CheckFailed):
                    run.workload.check(spoiled)


@pytest.mark.parametrize("dtype", ["tf32", "bf16", "fp16"])
@pytest.mark.parametrize(("name", "streams"), FEW)
def test_results_are_right_in_every_numeric_format(name: str, streams: int, dtype: str) -> None:
    with Run(make(ALL[name], {"dtype": dtype}), streams) as run:
        run.workload.check(run.once)
        expected = "high" if dtype == "tf32" else "highest"
        assert torch.get_float32_matmul_precision() == expected


@pytest.mark.parametrize(("name", "streams"), FEW)
def test_simulated_device_runs_it(name: str, streams: int) -> None:
    record = measured(ALL[name], streams, SimulatedDevice("h200"), THIN[name])
    assert (record.status, record.reason) == ("ok", "")
    assert all(amount > 0 for amount in record.work_per_iteration.values())


def test_only_acceptance_is_drawn_where_there_are_no_values() -> None:
    for name, streams in FEW:
        for device in (HostDevice(), SimulatedDevice("h200")):
            workload: Any = make(ALL[name], THIN[name])
            with device.open_streams(streams):
                workload.setup(Setup(device, streams, 3))
            drawn = name == "speculative_decode" and not device.capabilities.has_values
            assert workload.decisions_drawn == (("accepted tokens",) if drawn else ())


@pytest.mark.parametrize("name", ALL)
def test_graph_captures_an_iteration(name: str) -> None:
    from pytest_hwqueue.harness.program import graph

    device, streams = SimulatedDevice("h200"), dict(FEW)[name]
    workload = make(ALL[name], THIN[name])
    with device.open_streams(streams) as pool:
        workload.setup(Setup(device, streams, 3))
        workload.iterate(pool.streams)
        program = graph(device, pool, workload.iterate, tagged=False)
        program.enqueue(pool.streams)
        pool.synchronize()
    assert program.whole == (name != "llm_decode")


@pytest.mark.parametrize("name", ALL)
def test_timeline_holds_less_and_uses_every_stream(name: str) -> None:
    streams = ALL[name].stream_range.recommended
    values = parameters_for(ALL[name], "full", {})
    changed = ALL[name](values).timeline_parameters(streams)  # type: ignore[call-arg]
    assert all(getattr(values, key) >= value for key, value in changed.items())
    assert changed["layers"] < values.layers  # type: ignore[attr-defined]
    assert enqueued(make(ALL[name], changed), streams).streams == set(range(streams))


@pytest.mark.parametrize("name", ALL)
def test_sizes_are_valid_and_the_full_one_is_the_default(name: str) -> None:
    found = ALL[name]
    assert found.sizes.keys() == {"tiny", "small", "full"}
    for size in found.sizes:
        values = parameters_for(found, size, {})
        assert values.model_dump().items() >= found.sizes[size].items()
    assert parameters_for(found, "full", {}) == found.parameter_model()


@pytest.mark.parametrize(
    ("name", "parameter", "value", "reason"),
    [
        ("llm_decode", "kv_heads", 3, "must divide the 4 heads"),
        ("llm_decode", "context", 1, "greater than or equal to 2"),
        ("llm_decode", "tokens", 1, "greater than or equal to 2"),
        ("llm_decode", "head_dim", 5, "multiple of 2"),
        ("llm_decode", "dtype", "fp8", "'fp32', 'tf32', 'bf16' or 'fp16'"),
        ("speculative_decode", "draft_layers", 2, "must be fewer than the 2 layers"),
        ("speculative_decode", "divergence", -1, "greater than or equal to 0"),
        ("continuous_batch", "output", 1, "greater than or equal to 3"),
        ("continuous_batch", "requests", 0, "greater than or equal to 1"),
        ("rag_pipeline", "encoder_heads", 5, "must divide the 32 elements"),
        ("rag_pipeline", "documents", 9, "greater than or equal to 10"),
    ],
)
def test_bad_value_is_refused_by_name(
    name: str, parameter: str, value: object, reason: str
) -> None:
    with pytest.raises(BadParameter) as refused:
        parameters_for(ALL[name], "tiny", {parameter: value})
    assert str(refused.value).startswith(f"{name}.{parameter}={value!r}: ")
    assert reason in str(refused.value)


@pytest.mark.parametrize("name", ALL)
def test_unknown_parameter_is_refused_by_name(name: str) -> None:
    with pytest.raises(BadParameter, match=f"{name} has no parameter 'layerz'"):
        parameters_for(ALL[name], "tiny", {"layerz": 1})
