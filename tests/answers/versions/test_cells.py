"""Which cell of one side is which of the other."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_hwqueue.answers.versions.sides import match
from pytest_hwqueue.data.records.cell import Cell


def cells(*schedulers: str, name: str = "gemm", streams: tuple[int, ...] = (8,)) -> dict[str, Cell]:
    made = [
        Cell(name=name, device="cuda", streams=count, scheduler=scheduler, dispatch="eager",
             sync_mode="per_iteration", size="full")
        for scheduler in schedulers for count in streams
    ]  # fmt: skip
    return {cell.id: cell for cell in made}


OLD = cells("native", streams=(1, 2)) | cells("native", name="tiny")
NEW = cells("mps", streams=(2, 4)) | cells("mps", name="tiny")


@pytest.mark.parametrize(
    ("old", "new", "varied", "labels", "reasons"),
    [
        # Equal ids match, and others are left.
        (cells("native", "mps"), cells("native", "xsched"), (), ["gemm[cuda-s8-native-eager]"],
         {"measured by A only", "measured by B only"}),
        # What is varied is not looked at, and the rest is.
        (OLD, NEW, (), [], {"measured by A only", "measured by B only"}),
        (OLD, NEW, ("cell.scheduler",),
         ["gemm[cuda-s2-native→mps-eager]", "tiny[cuda-s8-native→mps-eager]"],
         {"measured by A only", "measured by B only"}),
        # A varied part that both sides have still tells cells apart.
        (cells("native", "mps"), cells("mps", "xsched"), ("cell.scheduler",),
         ["gemm[cuda-s8-mps-eager]"], {"measured by A only", "measured by B only"}),
        # Several that fit are never matched by position.
        (cells("native", streams=(1, 2)), cells("native", streams=(4, 8)), ("cell.streams",), [],
         {"2 cells of A and 2 of B differ only in what is varied"}),
    ],
)  # fmt: skip
def test_cells_that_differ_only_in_what_is_varied_are_one(
    old: dict[str, Cell], new: dict[str, Cell], varied: tuple[str, ...], labels: list[str],
    reasons: set[str],
) -> None:  # fmt: skip
    pairs, left = match(old, new, varied)
    assert [pair.label for pair in pairs] == labels
    assert {each.reason for each in left} == reasons
    assert len(left) == len(old) + len(new) - 2 * len(pairs)


@given(st.permutations(range(6)))
def test_the_order_of_cells_does_not_matter(order: list[int]) -> None:
    old = cells("native", streams=(1, 2, 4, 8, 16, 32))
    new = list(cells("mps", streams=(1, 2, 4, 8, 16, 32)).items())
    shuffled = dict(new[index] for index in order)
    expected = match(old, dict(new), ("cell.scheduler",))
    assert match(old, shuffled, ("cell.scheduler",)) == expected
    assert len(expected[0]) == 6
