"""The record of a cell from its ranks': the slowest counts, the straggler is named, or nobody."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_hwqueue.data.errors import HwqError
from pytest_hwqueue.data.records.cell import BackToBack, Cell, Metrics, RunRecord, Samples, now
from pytest_hwqueue.data.records.declared import PACE, Primary
from pytest_hwqueue.data.records.fingerprint import Fingerprint
from pytest_hwqueue.engine.cell.ranks import merge
from tests.judge.baselines.run_with import contention

CELL = Cell(
    name="grad_accum", device="cpu", streams=2, scheduler="native", dispatch="eager",
    sync_mode="per_iteration", size="tiny",
)  # fmt: skip


def record(samples: Samples | None, metrics: Metrics | None = None) -> RunRecord:
    return RunRecord(
        cell=CELL, cell_id=CELL.id, nodeid="x.py::test", status="ok", started=now(), duration_s=1,
        samples=samples, metrics=metrics or Metrics(), seed=0, command="pytest",
        work_per_iteration={"samples": 8.0},
    )  # fmt: skip


def of_rank(host_ns: list[int], **parts: object) -> RunRecord:
    samples = Samples(host_ns=host_ns, device_ns=host_ns, enqueue_ns=host_ns, pace_ns=[])
    return record(samples.model_copy(update=parts))


@given(st.integers(2, 5).flatmap(lambda n: st.lists(
    st.lists(st.integers(1, 10**9), min_size=7, max_size=7), min_size=n, max_size=n)))  # fmt: skip
def test_iteration_lasts_as_long_as_its_slowest_rank(times: list[list[int]]) -> None:
    merged = merge([of_rank(each) for each in times], "gloo")
    assert merged.samples is not None
    slowest = [max(column) for column in zip(*times, strict=True)]
    assert merged.samples.host_ns == merged.samples.device_ns == slowest
    assert merged.metrics.latency is not None
    assert merged.metrics.latency.max == max(slowest) / 1e6
    ranks = merged.ranks
    assert ranks is not None
    assert ranks.skew is not None
    assert ranks.skew.max == max(max(c) - min(c) for c in zip(*times, strict=True)) / 1e6
    assert sum(part.slowest_share for part in ranks.parts) == pytest.approx(1)
    assert [part.rank for part in ranks.parts] == list(range(len(times)))


def test_a_block_lasts_as_long_as_on_its_slowest_rank_and_a_refused_rate_stays_so() -> None:
    blocks = [
        BackToBack(blocks_ns=blocks_ns, iterations=4, launching_ns=launching_ns)
        for blocks_ns, launching_ns in (([10, 40], 7), ([30, 20], 9))
    ]
    # The last ends are at 30 and 50; the longest of each would be 20 more than either took.
    slowest = BackToBack(blocks_ns=[30, 20], iterations=4, launching_ns=9)
    ranks = [of_rank([5, 5], back_to_back=each) for each in blocks]
    apart = [of_rank([5, 5]) for _ in blocks]
    for records, expected in ((ranks, slowest), (apart, None)):
        merged = merge(records, "nccl")
        assert merged.samples is not None
        assert merged.samples.back_to_back == expected
        assert merged.metrics.throughput
    refusing = Metrics(refused={"throughput": "not needed"})
    refused = [each.model_copy(update={"metrics": refusing}) for each in apart]
    assert merge(refused, "nccl").metrics.throughput == []


def test_pace_of_ranks_is_between_their_last_ends_and_has_no_skew() -> None:
    paces = [5, 1, 9, 1], [4, 6, 1, 1]
    ranks = [
        of_rank([], enqueue_ns=each, pace_ns=each).model_copy(update={"primary": PACE})
        for each in paces
    ]
    merged = merge(ranks, "nccl")
    assert merged.samples is not None
    assert (merged.samples.pace_ns, merged.samples.host_ns) == ([5, 5, 5, 1], [])
    assert (merged.metrics.latency, merged.ranks and merged.ranks.skew) == (None, None)
    assert merged.metrics.pace is not None
    assert merged.metrics.throughput[0].value == pytest.approx(8 * 4 / 16e-9)
    assert merged.ranks is not None
    # Last at the first, third and fourth end, and not at the second.
    assert [part.slowest_share for part in merged.ranks.parts] == [0.75, 0.25]


def test_how_far_apart_ranks_began_is_told_and_where_it_is_not_known() -> None:
    began = [3, 1, 9], [2, 5, 9], [4, 1, 0]
    merged = merge([of_rank([5, 6, 7], begun_ns=each) for each in began], "nccl")
    assert merged.ranks is not None
    assert merged.ranks.apart is not None
    assert (merged.ranks.apart.n, merged.ranks.apart.max) == (3, 9e-6)
    assert merged.ranks.apart.mean == pytest.approx((2 + 4 + 9) / 3e6)
    assert not any("clock in common" in note for note in merged.notes)
    unknown = merge([of_rank([5, 6, 7]) for _ in began], "nccl")
    assert unknown.ranks is not None
    assert unknown.ranks.apart is None
    assert any("no clock in common: iterations begin after a barrier" in n for n in unknown.notes)


def test_waiting_for_the_last_rank_to_begin_is_no_part_of_an_iteration() -> None:
    """Both leave a collective at 20; the first to begin has waited in it for the other."""
    merged = merge([of_rank([20, 20], begun_ns=[0, 0]), of_rank([12, 20], begun_ns=[8, 0])], "nccl")
    assert merged.samples is not None
    assert merged.samples.host_ns == merged.samples.device_ns == [12, 20]
    assert merged.ranks is not None
    assert merged.ranks.skew is not None
    assert merged.ranks.skew.max == 0


def test_ranks_that_run_with_other_things_are_named() -> None:
    preloads = "none", "libjemalloc.so.2"
    ranks = [
        of_rank([5, 5]).model_copy(update={"fingerprint": Fingerprint({"preload": each}, {})})
        for each in preloads
    ]
    merged = merge(ranks, "nccl").fingerprint
    assert merged is not None
    assert merged.hard == {"preload": "rank 0: none; rank 1: libjemalloc.so.2"}


def test_judged_launches_are_those_of_the_rank_with_the_longest_tail() -> None:
    """Ranks time launches in windows of their own: one rank's are taken whole."""
    steady, tail = [100] * 100, [99] * 90 + [1000] * 8
    ranks = [
        of_rank([5, 5], tags_ns={"burst": each}, contended=contention()).model_copy(
            update={"primary": Primary(name="burst", per="launch")}
        )
        for each in (steady, tail)
    ]
    merged = merge(ranks, "nccl")
    assert merged.samples is not None
    assert merged.samples.tags_ns == {"burst": tail}
    assert merged.samples.contended == contention()
    assert "burst" not in merged.metrics.refused


def test_straggler_is_named_and_equals_are_not() -> None:
    generator = np.random.default_rng(5)
    quick, other = generator.normal(1e6, 1e4, (2, 200)).astype(int).tolist()
    late = generator.normal(1.01e6, 1e4, 200).astype(int).tolist()
    found = merge([of_rank(quick), of_rank(late), of_rank(other)], "nccl").ranks
    assert found is not None
    assert found.straggler == 1
    assert (found.world_size, found.backend) == (3, "nccl")
    equals = merge([of_rank(quick), of_rank(other)], "nccl").ranks
    assert equals is not None
    assert equals.straggler is None


def test_no_straggler_among_equal_ranks_in_nearly_all_sessions() -> None:
    generator = np.random.default_rng(6)
    named = 0
    for _ in range(200):
        ranks = [of_rank(generator.integers(1, 10**6, 100).tolist()) for _ in range(4)]
        found = merge(ranks, "gloo").ranks
        assert found is not None
        named += found.straggler is not None
    assert named <= 10  # 5 % are allowed


def test_tags_and_references_are_the_slowest_ranks_too() -> None:
    one = of_rank([5, 6], tags_ns={"a": [1, 9], "b": [4]}, references_ns={"r": [3]})
    two = of_rank([7, 1], tags_ns={"a": [2, 8], "b": [4, 5]}, references_ns={"r": [2]})
    merged = merge([one, two], "gloo")
    assert merged.samples is not None
    assert merged.samples.tags_ns == {"a": [2, 9]}
    assert merged.samples.references_ns == {"r": [3]}
    assert merged.metrics.refused["b"] == "the ranks timed 1, 2 launches of it"


def test_ranks_that_did_not_do_the_same_are_refused() -> None:
    with pytest.raises(HwqError, match="the ranks took 2, 1 samples of host_ns"):
        merge([of_rank([5, 6]), of_rank([5])], "gloo")
    with pytest.raises(HwqError, match="a rank measured nothing"):
        merge([of_rank([5]), record(None)], "gloo")


def test_memory_is_that_of_the_rank_with_most() -> None:
    def with_memory(**memory: int) -> RunRecord:
        return record(of_rank([5]).samples, Metrics(memory_bytes=memory))

    merged = merge([with_memory(a=1, b=7), with_memory(a=3)], "gloo")
    assert merged.metrics.memory_bytes == {"a": 3, "b": 7}
