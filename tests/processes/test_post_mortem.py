"""What processes that measure are started with, and what is kept of their threads' stacks."""

from __future__ import annotations

import faulthandler
import threading
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from pytest_hwqueue.processes.channel import innermost_frames
from pytest_hwqueue.processes.starting import worker_environment

KEPT = 6
STRIPPED = ("PYTEST_CURRENT_TEST", "PYTEST_ADDOPTS", "LD_PRELOAD")


@given(
    st.dictionaries(
        st.sampled_from(
            [*STRIPPED, "PYTEST_XDIST_WORKER", "PYTEST_XDIST_X", "LD_LIBRARY_PATH", "PYTEST_PLUGINS"]
        )
        | st.text(st.characters(categories=["Lu"], include_characters="_")),
        st.text(),
    )
)
def test_workers_inherit_all_but_what_is_the_sessions(environment: dict[str, str]) -> None:
    before = dict(environment)
    assert worker_environment(environment) == {
        name: value
        for name, value in before.items()
        if name not in STRIPPED and not name.startswith("PYTEST_XDIST_")
    }
    assert environment == before


@given(st.lists(st.integers(0, 20), min_size=1, max_size=5))
def test_each_stack_is_shortened_by_itself(depths: list[int]) -> None:
    dump, expected = [], []
    for thread, depth in enumerate(depths):
        heading = f"Thread 0x{thread:x} (most recent call first):"
        frames = [f'  File "f.py", line {n} in f{thread}_{n}' for n in range(depth)]
        dump += [heading, *frames]
        expected += [heading, *frames[:KEPT], *(["  …"] if depth > KEPT else [])]
    assert innermost_frames("\n".join(dump)).splitlines() == expected


def test_dump_of_a_real_stack_keeps_its_innermost_function(tmp_path: Path) -> None:
    def sink(depth: int) -> None:
        if depth:
            return sink(depth - 1)
        with open(tmp_path / "dump", "w", encoding="utf-8") as file:
            faulthandler.dump_traceback(file, all_threads=True)

    done = threading.Event()
    other = threading.Thread(target=done.wait, args=(30,))
    other.start()
    sink(20)
    done.set()
    other.join()
    dump = (tmp_path / "dump").read_text(encoding="utf-8")
    short = innermost_frames(dump)
    assert (dump.count("in sink"), short.count("in sink")) == (21, KEPT)
    assert short.count("most recent call first") == dump.count("most recent call first") >= 2
