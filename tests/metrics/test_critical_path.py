"""What a request waited for, from its end backwards."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from pytest_hwqueue.metrics.attribution import DeviceWork, Request
from pytest_hwqueue.metrics.critical_path import PathSegment, critical_paths
from pytest_hwqueue.metrics.timeline import length, union

REQUEST = Request(3, 100, 100, 100, 200)


def kernel(stream: int, ready: int, start: int, end: int, request: int | None = 3) -> DeviceWork:
    return DeviceWork("the cell", stream, f"k{stream}", ready, start, end, request)


def test_the_path_is_the_chain_that_ended_last() -> None:
    first, waits = kernel(0, 110, 112, 140), kernel(1, 140, 150, 190)
    beside = kernel(2, 105, 106, 180)
    paths = critical_paths([REQUEST], [first, waits, beside, kernel(3, 0, 0, 500, None)])
    assert set(paths.kernels) == {first, waits}
    assert set(paths.segments) == {
        # The launching thread until the first kernel was ready; at the end it wakes up.
        PathSegment(None, 100, 110), PathSegment(0, 110, 140), PathSegment(1, 140, 190),
        PathSegment(1, 190, 200), PathSegment(None, 190, 200),
    }  # fmt: skip


def test_a_request_without_kernels_waits_for_who_launches() -> None:
    paths = critical_paths([REQUEST], [kernel(0, 0, 1, 2, request=4)])
    assert paths.segments == (PathSegment(None, 100, 200),)
    assert not paths.kernels


def test_kernels_of_a_stream_that_overlap_a_little_are_a_chain() -> None:
    first, early = kernel(0, 100, 101, 150), kernel(0, 148, 148, 200)
    assert set(critical_paths([REQUEST], [first, early]).kernels) == {first, early}


KERNELS = st.lists(
    st.tuples(st.integers(0, 3), st.integers(0, 40), st.integers(0, 30), st.integers(0, 29)),
    max_size=12,
)


@given(KERNELS)
def test_every_moment_has_somebody_who_is_waited_for(
    drawn: list[tuple[int, int, int, int]],
) -> None:
    work = [
        kernel(stream, 100 + ready, 100 + ready + wait, 100 + ready + wait + run)
        for stream, ready, wait, run in drawn
    ]
    paths = critical_paths([REQUEST], work)
    spans = union((one.start_ns, one.end_ns) for one in paths.segments)
    assert spans == [(100, 200)]
    assert length(spans) == 100
    assert len(set(paths.kernels)) == len(paths.kernels) or len(set(work)) < len(work)
