"""Collectives do what they say, for one rank and for two, and warn under no torch."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist

from pytest_hwqueue.parts.workloads.distributed.collectives import (
    Collective,
    all_gather,
    all_reduce,
    all_to_all,
    bus_factor,
    reduce_scatter,
)

from .two_ranks import Printed, gloo_group


def of_ranks(rank: int, size: int, store_path: str | None) -> None:
    """Run each, waiting and not, and look at the results; called in every rank."""
    with gloo_group(rank, size, store_path):
        ranks = torch.arange(size)
        for async_op in (False, True):

            def done(work: dist.Work | None, waits: bool = async_op) -> None:
                assert (work is not None) == waits
                if work is not None:
                    work.wait()

            one, all_of = torch.tensor([rank, 10 + rank]), torch.arange(2 * size) + 100 * rank
            buffer, long, short = one.clone(), torch.zeros(2 * size).long(), torch.zeros(2).long()
            done(all_reduce(buffer, async_op=async_op))
            assert buffer.tolist() == [sum(ranks), sum(ranks) + 10 * size]
            done(all_gather(long, one, async_op=async_op))
            assert long.tolist() == [value for r in range(size) for value in (r, 10 + r)]
            done(reduce_scatter(short, all_of, async_op=async_op))
            mine = torch.arange(2) + 2 * rank
            assert short.tolist() == (size * mine + 100 * sum(ranks)).tolist()
            done(all_to_all(long, all_of, async_op=async_op))
            assert long.tolist() == [100 * r + value for r in range(size) for value in mine]
    print(f"rank {rank} of {size}")


def test_collectives_of_one_rank() -> None:
    of_ranks(0, 1, None)


def test_collectives_of_two_ranks(printed_by_ranks: Printed) -> None:
    assert printed_by_ranks("collectives") == ["rank 0 of 2\n", "rank 1 of 2\n"]


@pytest.mark.parametrize(
    ("collective", "of_one", "of_two", "of_eight"),
    [
        ("all_reduce", 0, 1, 7 / 4),
        ("all_gather", 0, 1 / 2, 7 / 8),
        ("reduce_scatter", 0, 1 / 2, 7 / 8),
        ("all_to_all", 0, 1 / 2, 7 / 8),
    ],
)
def test_bus_factors_are_those_of_nccl_tests(
    collective: Collective, of_one: float, of_two: float, of_eight: float
) -> None:
    assert [bus_factor(collective, ranks) for ranks in (1, 2, 8)] == [of_one, of_two, of_eight]
