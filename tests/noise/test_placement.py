"""Where processes stand with the scheduler."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from pytest_hwqueue.noise.placement import misplaced, placement
from pytest_hwqueue.records.noise import Placement


def at(session: int = 1, cores: tuple[int, ...] = (0, 1)) -> Placement:
    return Placement(
        session=session, autogroup=None, cgroup=None, cpu_weight=None, nice=0, cores=list(cores)
    )


def test_this_process() -> None:
    place = placement(os.getpid())
    assert place is not None
    assert place.session == os.getsid(0)
    assert place.cores == sorted(os.sched_getaffinity(0))
    assert place.nice == os.getpriority(os.PRIO_PROCESS, 0)


def test_a_process_that_has_ended() -> None:
    process = subprocess.Popen([sys.executable, "-S", "-c", ""])
    process.wait()
    assert placement(process.pid) is None


@pytest.mark.parametrize("autogroup", [True, False, None])
def test_what_contends_is_not_misplaced(autogroup: bool | None) -> None:
    assert misplaced(at(), at(cores=(1, 2)), autogroup) is None


def test_sessions_matter_only_with_autogroups() -> None:
    reason = misplaced(at(session=1), at(session=2), True)
    assert reason is not None
    assert "its own session" in reason
    assert misplaced(at(session=1), at(session=2), False) is None
    assert misplaced(at(session=1), at(session=2), None) is None


def test_cores_that_never_meet() -> None:
    reason = misplaced(at(cores=(0,)), at(cores=(1, 2)), False)
    assert reason == "it may run on cores 1, 2, what is measured on 0: they never meet"


def test_cores_that_were_to_be_kept_free() -> None:
    measured = at(cores=(3,))
    assert misplaced(measured, at(cores=(0, 2)), False, kept_free=[1, 3]) is None
    for cores, on in (((0, 1), "1"), ((0, 1, 2, 3), "1, 3")):
        reason = misplaced(measured, at(cores=cores), False, kept_free=[1, 3])
        assert reason == f"it may run on cores {on}, which were to be kept free of it"
    assert "session" in str(misplaced(measured, at(2, cores=(0,)), True, kept_free=[1, 3]))
