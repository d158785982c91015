"""The noises with stress-ng, iperf3 and fio themselves, where they are installed."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from pytest_hwqueue.engine.noise.neighbours import NoisePlaces, open_noise
from pytest_hwqueue.engine.noise.running import running
from tests.parts.schedulers.processes import has_ended, wait_for

from .owner import end_owner, owning
from .programs import TOOLS

pytestmark = pytest.mark.skipif(
    not all(map(shutil.which, TOOLS)),
    reason="stress-ng, iperf3 and fio are not all installed (apt-get install stress-ng iperf3 fio)",
)


Started = Callable[[], list[psutil.Process]]


@pytest.fixture
def noise_processes() -> Started:
    """Return what has been started; earlier tests of this process may have left their server."""
    others = psutil.Process().children(recursive=True)

    def started() -> list[psutil.Process]:
        return [each for each in psutil.Process().children(recursive=True) if each not in others]

    return started


@pytest.mark.parametrize("name", ["cpu", "network", "disk", "heavy", "optimised", "isolated"])
def test_it_is_applied_and_gone_afterwards(
    tmp_path: Path, places: NoisePlaces, noise_processes: Started, name: str
) -> None:
    chosen, before = open_noise(name, places), os.sched_getaffinity(0)
    reason = chosen.unavailable()
    if reason is not None and chosen.remedy is not None:
        # That it cannot be had here is said of the remedy, never of a tool.
        assert "on PATH" not in reason
        pytest.skip(reason)
    with running(chosen, os.getpid(), tmp_path / "logs", 30) as noise:
        sum(range(3 * 10**7))
        for process in noise_processes():
            assert os.getsid(process.pid) == os.getsid(0)
            assert os.getpgid(process.pid) != os.getpgid(0)
        round_ = noise.end_round()
    assert (reason, round_.status, round_.reason) == (None, "applied", "")
    assert round_.measured_run_delay_s is not None
    assert all(each.version for each in round_.neighbours)
    assert (noise_processes(), list(places.folder.iterdir())) == ([], [])
    assert os.sched_getaffinity(0) == before


def test_nothing_is_left_when_its_owner_dies(tmp_path: Path, places: NoisePlaces) -> None:
    with owning("heavy", places, tmp_path) as owner:
        assert list(places.folder.iterdir()) != []
        assert end_owner(owner, "SIGKILL") >= 8
    assert list(places.folder.iterdir()) == []


@pytest.mark.slow
@pytest.mark.parametrize("name", ["cpu", "network", "disk"])
def test_the_tools_keep_to_their_own_limit(
    tmp_path: Path, places: NoisePlaces, noise_processes: Started, name: str
) -> None:
    with running(open_noise(name, places), os.getpid(), tmp_path / "logs", 3) as noise:
        started = {each.pid for each in noise_processes()}
        wait_for(lambda: all(map(has_ended, started)), f"{name} to end by itself")
        round_ = noise.end_round()
    assert round_.status == "not applied"
    assert "which had 3 s" in round_.reason
    assert "exited with status 0" in round_.reason
