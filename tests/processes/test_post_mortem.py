"""What processes that measure are started with, and what is kept of their threads' stacks."""

from __future__ import annotations

import faulthandler
import re
import threading
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_hwqueue.processes.channel import innermost_frames
from pytest_hwqueue.processes.starting import worker_environment

KEPT = 6
STRIPPED = ("PYTEST_CURRENT_TEST", "PYTEST_ADDOPTS", "LD_PRELOAD")


def is_stripped(name: str) -> bool:
    return name in STRIPPED or name.startswith("PYTEST_XDIST_")


@pytest.mark.parametrize(
    "name",
    [*STRIPPED, "PYTEST_XDIST_WORKER", "PYTEST_XDIST_WORKER_COUNT", "PYTEST_XDIST_TESTRUNUID"],
)
def test_worker_does_not_inherit_what_is_the_sessions(name: str) -> None:
    assert worker_environment({name: "1", "PATH": "/bin"}) == {"PATH": "/bin"}


@settings(deadline=None)
@given(
    st.dictionaries(
        st.text(st.characters(categories=["Lu"], include_characters="_"))
        | st.sampled_from([*STRIPPED, "PYTEST_XDIST_WORKER", "LD_LIBRARY_PATH", "PYTEST_PLUGINS"]),
        st.text(),
    )
)
def test_all_else_is_inherited_unchanged(environment: dict[str, str]) -> None:
    before = dict(environment)
    inherited = worker_environment(environment)
    assert inherited == {k: v for k, v in environment.items() if not is_stripped(k)}
    assert environment == before


STACKS = st.lists(st.integers(0, 20), min_size=1, max_size=5)


@settings(deadline=None)
@given(STACKS)
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
            sink(depth - 1)
        else:
            innermost()

    def innermost() -> None:
        with open(tmp_path / "dump", "w", encoding="utf-8") as file:
            faulthandler.dump_traceback(file, all_threads=True)

    ready, done = threading.Event(), threading.Event()

    def stand_by() -> None:
        ready.set()
        done.wait(30)

    other = threading.Thread(target=stand_by)
    other.start()
    assert ready.wait(30)
    sink(20)
    done.set()
    other.join()
    dump = (tmp_path / "dump").read_text(encoding="utf-8")
    short = innermost_frames(dump)
    assert "in innermost" in short
    assert dump.count("in sink") == 21
    assert short.count("in sink") == KEPT - 1
    threads = re.findall(r"^.*most recent call first.*$", dump, re.MULTILINE)
    assert len(threads) >= 2
    assert all(heading in short for heading in threads)
