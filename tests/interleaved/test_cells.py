"""Which cell of one side is which of the other, and which runs of a side can be used."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_hwqueue.interleaved.sides import SideRuns, match
from pytest_hwqueue.records.cell import Cell, RunRecord

MakeRecord = Callable[..., RunRecord]


def cells(*schedulers: str, name: str = "gemm", streams: tuple[int, ...] = (8,)) -> dict[str, Cell]:
    made = [
        Cell(name=name, device="cuda", streams=count, scheduler=scheduler, dispatch="eager",
             sync_mode="per_iteration", size="full")
        for scheduler in schedulers for count in streams
    ]  # fmt: skip
    return {cell.id: cell for cell in made}


def labels(old: dict[str, Cell], new: dict[str, Cell], *varied: str) -> list[str]:
    return [pair.label for pair in match(old, new, varied)[0]]


def test_equal_ids_match_and_others_are_left() -> None:
    pairs, left = match(cells("native", "mps"), cells("native", "xsched"), ())
    assert [pair.label for pair in pairs] == ["gemm[cuda-s8-native-eager]"]
    assert {each.cell_id: each.reason for each in left} == {
        "gemm[cuda-s8-mps-eager]": "measured by A only",
        "gemm[cuda-s8-xsched-eager]": "measured by B only",
    }


def test_what_is_varied_is_not_looked_at_and_the_rest_is() -> None:
    old = cells("native", streams=(1, 2)) | cells("native", name="tiny")
    new = cells("mps", streams=(2, 4)) | cells("mps", name="tiny")
    assert labels(old, new) == []
    assert labels(old, new, "cell.scheduler") == [
        "gemm[cuda-s2-native→mps-eager]", "tiny[cuda-s8-native→mps-eager]",
    ]  # fmt: skip


def test_a_varied_part_that_both_sides_have_still_tells_cells_apart() -> None:
    old, new = cells("native", "mps"), cells("mps", "xsched")
    assert labels(old, new, "cell.scheduler") == ["gemm[cuda-s8-mps-eager]"]


def test_several_that_fit_are_never_matched_by_position() -> None:
    pairs, left = match(
        cells("native", streams=(1, 2)), cells("native", streams=(4, 8)), ("cell.streams",)
    )
    assert pairs == []
    assert {each.reason for each in left} == {
        "2 cells of A and 2 of B differ only in what is varied"
    }
    assert len(left) == 4


@given(st.permutations(range(6)))
def test_the_order_of_cells_does_not_matter(order: list[int]) -> None:
    old = cells("native", streams=(1, 2, 4, 8, 16, 32))
    new = list(cells("mps", streams=(1, 2, 4, 8, 16, 32)).items())
    shuffled = dict(new[index] for index in order)
    expected = match(old, dict(new), ("cell.scheduler",))
    assert match(old, shuffled, ("cell.scheduler",)) == expected
    assert len(expected[0]) == 6


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"status": "failed", "reason": "it crashed"}, "failed: it crashed"),
        ({"fingerprint": None}, "the record has no fingerprint"),
        ({"hard": {"driver_major": 590}}, "driver_major is 580 in one and 590"),
    ],
)
def test_a_cell_that_went_wrong_once_has_no_comparison(
    make_record: MakeRecord, changed: dict[str, object], reason: str
) -> None:
    side = SideRuns("session")
    side.add([make_record("a", 1), make_record("b", 1)])
    side.add([make_record("a", 2, **changed), make_record("b", 2)])
    side.add([make_record("a", 3), make_record("b", 3)])
    (failure,) = side.failures.items()
    assert failure[0].startswith("a[")
    assert reason in failure[1]
    assert {run.session for cell in side.runs.values() for run in cell.runs} == {"session"}


def test_a_cell_measured_twice_in_a_run_is_two_of_one_name(make_record: MakeRecord) -> None:
    side = SideRuns("session")
    side.add([make_record("a", 1), make_record("a", 2)])
    assert not side.runs
    assert "2 times in one run" in next(iter(side.failures.values()))
