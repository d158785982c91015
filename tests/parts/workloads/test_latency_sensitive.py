"""The latency-sensitive workloads: who is urgent, and what is counted and compared with what."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from pytest_hwqueue.data.errors import CheckFailed, NotApplicable
from pytest_hwqueue.parts.devices.host import HostDevice
from pytest_hwqueue.parts.workloads.workload import Setup, Where

from .cells import Counts, Run, make, simulated_timeline
from .everyone import EVERYONE, small


def iterated(
    name: str, streams: int, seed: int = 3, **given: Any
) -> tuple[Any, list[tuple[int, str]]]:
    """A workload whose check has passed, and the launches of one iteration, in order."""
    counts = Counts()
    with Run(small(name, **given), streams, counts.around, seed) as run:
        run.workload.check(run.once)
        counts.log.clear()
        run.once()
    return run.workload, counts.log


@pytest.mark.parametrize("streams", [2, 3, 8, 9, 128])
def test_small_chains_are_the_urgent_ones_in_every_order(streams: int) -> None:
    urgency = EVERYONE["hetero_kernels"].urgency(streams)
    large, chains = streams // 2, streams - streams // 2
    orders = {
        pattern: iterated("hetero_kernels", streams, pattern=pattern)[1]
        for pattern in ("alternating", "batched", "random")
    }
    for order in orders.values():
        assert {(tag, urgency[index]) for index, tag in order} == {("small", 1), ("large", 0)}
        assert sorted(order) == sorted(orders["batched"]), "the same launches"
    assert [tag for _, tag in orders["batched"]] == ["large"] * large + ["small"] * chains
    assert [tag for _, tag in orders["alternating"]] == (
        ["large", "small"] * large + ["small"] * (chains - large)
    )
    for name in ("tiny_kernel_stress", "large_gemm_only"):
        assert set(EVERYONE[name].urgency(streams)) == {0}


def test_random_pattern_is_the_seeds() -> None:
    first, again, other = (
        iterated("hetero_kernels", 16, seed, pattern="random")[1] for seed in (1, 1, 2)
    )
    assert first == again != other


@pytest.mark.parametrize("streams", [2, 5])
def test_reference_is_one_launch_of_the_iteration_with_nothing_beside_it(streams: int) -> None:
    workload, launches = iterated("hetero_kernels", streams)
    references = workload.references()
    assert {ratio.reference for ratio in workload.ratios} == references.keys()
    for ratio in workload.ratios:
        counts = Counts()
        with HostDevice().open_streams(streams) as pool:
            references[ratio.reference]([counts.around(stream) for stream in pool.streams])
            pool.synchronize()
        (alone,) = counts.log
        assert alone in launches
        assert alone[1] == ratio.tag
    for name in ("tiny_kernel_stress", "large_gemm_only"):
        assert make(EVERYONE[name]).references() == {}
        assert make(EVERYONE[name]).ratios == ()


@pytest.mark.parametrize(
    ("launchers", "where", "words"),
    [
        ("threads", Where("cuda", 2, ranks=2), "not 2 ranks"),
        ("processes", Where("sim", 2), "launchers=processes needs a real device"),
    ],
)
def test_who_launches_must_share_a_device(launchers: str, where: Where, words: str) -> None:
    workload = make(EVERYONE["launch_contention"], {"launchers": launchers})
    with pytest.raises(NotApplicable, match=words):
        workload.require_applicable(where)
    make(EVERYONE["launch_contention"], {"launchers": launchers}).require_applicable(
        Where("cuda", 64, dispatch="graph")
    )


def test_a_wrong_operation_in_every_burst_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    with Run(small("tiny_kernel_stress"), 2) as run:

        def subtracting() -> None:
            with monkeypatch.context() as patched:
                patched.setattr(torch.Tensor, "add_", torch.Tensor.sub_)
                run.once()

        with pytest.raises(CheckFailed, match="stream 0: relative error"):
            run.workload.check(subtracting)


class AtOnce:
    """A stream that runs what is launched in the calling thread, where its operations are seen."""

    def __init__(self, index: int) -> None:
        self.index = index

    def launch(
        self, function: Callable[..., object], *arguments: object, tag: str | None = None
    ) -> None:
        function(*arguments)


class Operations(TorchDispatchMode):
    """Counts the operations that torch really runs."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.names: list[str] = []

    def __torch_dispatch__(
        self, func: Any, types: object, args: Any = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        name = func.overloadpacket.__name__
        if name not in ("select", "detach", "view"):
            self.names.append(name)
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("streams", [2, 5])
@pytest.mark.parametrize("name", ["tiny_kernel_stress", "hetero_kernels", "large_gemm_only"])
def test_kernels_counted_are_those_run(name: str, streams: int) -> None:
    workload: Any = small(name)
    workload.setup(Setup(HostDevice(), streams, 3))
    with Operations() as operations:
        workload.iterate([AtOnce(index) for index in range(streams)])
    products = operations.names.count("mm")
    others = len(operations.names) - products
    assert products == {"hetero_kernels": streams // 2, "large_gemm_only": streams}.get(name, 0)
    assert others == {"tiny_kernel_stress": streams * 3 * 4}.get(name, others)
    work = workload.work_per_iteration()
    assert work.pop("TFLOP", 0) == products * 2 * 24**3 / 1e12
    assert list(work.values()) == ([others] if others else [])


@pytest.mark.parametrize("streams", [1, 2, 5, 16, 128])
@pytest.mark.parametrize("rounds", [1, 3, 100, 100_000])
def test_timeline_holds_no_more_kernels_than_the_launch_queue_takes(
    streams: int, rounds: int
) -> None:
    changed = small("tiny_kernel_stress", rounds=rounds).timeline_parameters(streams)
    held = changed["rounds"] * 4 * streams
    assert 1 <= changed["rounds"] <= rounds
    assert held <= 800
    assert changed["rounds"] == rounds or held + 4 * streams > 800


def test_subgraphs_end_before_the_merge_on_the_last_stream() -> None:
    _, launches = iterated("graph_subgraphs", 4)
    assert [each for each in launches if each[1] in ("subgraph", "merge")] == [
        (0, "subgraph"), (1, "subgraph"), (2, "subgraph"), (3, "merge"),
    ]  # fmt: skip
    kernels = simulated_timeline(make(EVERYONE["graph_subgraphs"]), 8).kernels
    # Three products and two ReLUs per subgraph; a concatenation and a product.
    assert len(kernels) == 7 * 5 + 2
    merge_begins = min(kernel.start_ns for kernel in kernels if kernel.tag == "merge")
    assert all(k.end_ns <= merge_begins for k in kernels if k.tag == "subgraph")
