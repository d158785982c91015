"""Where processes stand with the scheduler."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from pytest_hwqueue.noise.placement import apart, placement
from pytest_hwqueue.noise.record import Placement


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
def test_what_contends_is_not_apart(autogroup: bool | None) -> None:
    assert apart(at(), at(cores=(1, 2)), autogroup) is None


def test_sessions_matter_only_with_autogroups() -> None:
    reason = apart(at(session=1), at(session=2), True)
    assert reason is not None
    assert "session of its own" in reason
    assert apart(at(session=1), at(session=2), False) is None
    assert apart(at(session=1), at(session=2), None) is None


def test_cores_that_never_meet() -> None:
    reason = apart(at(cores=(0,)), at(cores=(1, 2)), False)
    assert reason == "it may run on cores 1, 2, what is measured on 0: they never meet"
