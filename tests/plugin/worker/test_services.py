"""Which workers are fit for another test, and which tests may share one."""

from __future__ import annotations

import gc
import os
import resource
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any, cast

import pytest
import torch

from pytest_hwqueue.data.errors import BadInput
from pytest_hwqueue.parts.schedulers.syntax import SchedulerPaths
from pytest_hwqueue.plugin.worker.services import (
    Fitness,
    SchedulerServices,
    by_worker,
    mode_of_worker,
    worker_of,
)
from tests.plugin.conftest import Collect


def ended(when: str, *error: BaseException) -> Any:
    def broken() -> None:
        for each in error:
            raise each

    return pytest.CallInfo.from_call(broken, when)  # type: ignore[arg-type]


@contextmanager
def recursion_limit() -> Iterator[None]:
    before = sys.getrecursionlimit()
    sys.setrecursionlimit(before + 1)
    yield
    sys.setrecursionlimit(before)


@contextmanager
def mask() -> Iterator[None]:
    before = os.umask(0o027)
    yield
    os.umask(before)


@contextmanager
def limit() -> Iterator[None]:
    before = resource.getrlimit(resource.RLIMIT_CORE)
    resource.setrlimit(resource.RLIMIT_CORE, (min(before[0], 1) ^ 1, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_CORE, before)


@contextmanager
def handler() -> Iterator[None]:
    before = signal.signal(signal.SIGUSR2, lambda *_: None)
    yield
    signal.signal(signal.SIGUSR2, before)


@contextmanager
def collector() -> Iterator[None]:
    gc.disable()
    yield
    gc.enable()


@contextmanager
def profiler() -> Iterator[None]:
    before = sys.getprofile()
    sys.setprofile(lambda *_: None)
    yield
    sys.setprofile(before)


@contextmanager
def folder() -> Iterator[None]:
    before = os.getcwd()
    os.chdir("/")
    yield
    os.chdir(before)


@contextmanager
def clock() -> Iterator[None]:
    before = time.perf_counter
    time.perf_counter = lambda: 0.0
    yield
    time.perf_counter = before


@contextmanager
def cores() -> Iterator[None]:
    before = os.sched_getaffinity(0)
    if len(before) == 1:
        pytest.skip("there is one core")
    os.sched_setaffinity(0, {min(before)})
    yield
    os.sched_setaffinity(0, before)


@contextmanager
def deterministic() -> Iterator[None]:
    before = torch.backends.cudnn.benchmark
    torch.backends.cudnn.benchmark = not before
    yield
    torch.backends.cudnn.benchmark = before


CHANGES = [
    recursion_limit, mask, limit, handler, collector, profiler, folder, clock, cores, deterministic
]  # fmt: skip


@pytest.mark.parametrize("change", CHANGES)
def test_a_process_that_a_test_has_changed_is_fit_again_only_once_it_is_as_before(
    change: Callable[[], Any],
) -> None:
    fitness = Fitness()
    assert fitness.is_left()
    with change():
        assert not fitness.is_left()
    assert fitness.is_left()


@pytest.mark.parametrize("change", [recursion_limit, mask, folder, clock])
def test_what_is_so_after_set_up_is_meant_for_all_tests(change: Callable[[], Any]) -> None:
    fitness = Fitness()
    with change():
        fitness.ran(ended("call"))
        assert not fitness.is_left()
        fitness.ran(ended("setup"))
        assert fitness.is_left()
    assert fitness.is_left()


class Fixture:
    """A fixture of a scope."""

    def __init__(self, scope: str) -> None:
        self.scope = scope


def test_of_torchs_settings_only_those_of_a_fixture_that_tests_share_are_expected() -> None:
    fitness, own, shared = (
        Fitness(),
        cast("Any", Fixture("function")),
        cast("Any", Fixture("module")),
    )
    with deterministic():
        fitness.ran(ended("setup"))
        fitness.fixture_is_set_up(own)
        assert not fitness.is_left()
        fitness.fixture_is_set_up(shared)
        assert fitness.is_left()
        # It is expected no longer than the fixture is there.
        fitness.fixture_is_torn_down(shared)
        assert not fitness.is_left()
    assert fitness.is_left()


@pytest.mark.parametrize(
    ("when", "error", "fit"),
    [
        ("teardown", ValueError(), True), ("teardown", pytest.fail.Exception("no"), True),
        ("teardown", SystemExit(), False), ("call", SystemExit(), True), ("teardown", None, True),
    ],
)  # fmt: skip
def test_a_teardown_that_was_cut_off_in_the_middle_leaves_nothing_fit(
    when: str, error: BaseException | None, fit: bool
) -> None:
    fitness = Fitness()
    fitness.ran(ended(when, *([] if error is None else [error])))
    assert fitness.is_left() == fit


@pytest.mark.parametrize("redirected", [redirect_stdout, redirect_stderr])
def test_closed_output_leaves_nothing_fit(redirected: Any, tmp_path: Path) -> None:
    fitness = Fitness()
    with (tmp_path / "output").open("w") as file, redirected(file):
        fitness.look_at_output()
        assert fitness.is_left()
        file.close()
        fitness.look_at_output()
    # The next test would have it.
    assert not fitness.is_left()


TESTS = """
import pytest
def test_own(hwq): pass
@pytest.mark.hwq_workload("moe")
def test_moe(hwq): pass
def test_plain(): pass
"""


def test_tests_of_one_mode_and_number_of_ranks_share_a_worker(collect: Collect) -> None:
    items = collect(
        TESTS, "--hwq-device=cpu", "--hwq-scheduler=native,mps,stream-priority", "--hwq-ranks=2"
    )
    own = {item.name: item for item in items if "-" in item.name}
    assert mode_of_worker(items[-1]) is None
    assert {name: worker_of(item) for name, item in own.items()} == {
        name: ("mps" if "-mps-" in name else None, 2 if "moe" in name else 1) for name in own
    }
    ordered = [item.name.partition("[")[0] for item in by_worker([*own.values()])]
    workers = [worker_of(item) for item in by_worker([*own.values()])]
    assert workers == [(None, 1)] * 2 + [("mps", 1)] + [(None, 2)] * 2 + [("mps", 2)]
    assert ordered == ["test_own"] * 3 + ["test_moe"] * 3


def test_a_mode_that_needs_nothing_has_no_services(tmp_path: Path) -> None:
    running = SchedulerServices(None, SchedulerPaths(), tmp_path / "scheduler-1")
    assert (running.environment, running.notes, running.problem(7)) == ({}, [], "")
    running.check()
    running.close()
    assert not (tmp_path / "scheduler-1").exists()
    with pytest.raises(BadInput):
        SchedulerServices("moo", SchedulerPaths(), tmp_path / "scheduler-1")
