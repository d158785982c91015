"""The noises with stress-ng, iperf3 and fio themselves, where they are installed."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import psutil
import pytest

from pytest_hwqueue.noise import pinning
from pytest_hwqueue.noise.neighbours import NoisePlaces, open_noise
from pytest_hwqueue.noise.running import running
from pytest_hwqueue.records.noise import NoiseRound

from ..schedulers.processes import has_ended, wait_for
from .owner import end_owner, owning
from .programs import TOOLS

pytestmark = pytest.mark.skipif(
    not all(map(shutil.which, TOOLS)),
    reason="stress-ng, iperf3 and fio are not all installed (apt-get install stress-ng iperf3 fio)",
)


def busy_round(name: str, places: NoisePlaces, logs: Path) -> NoiseRound:
    """A round in which this process computes."""
    chosen = open_noise(name, places)
    assert chosen.unavailable() is None
    with running(chosen, os.getpid(), logs, 30) as noise:
        sum(range(3 * 10**7))
        for process in noise_processes():
            assert os.getsid(process.pid) == os.getsid(0)
            assert os.getpgid(process.pid) != os.getpgid(0)
        return noise.end_round()


def noise_processes() -> list[psutil.Process]:
    return psutil.Process().children(recursive=True)


@pytest.mark.parametrize("name", ["cpu", "network", "disk", "heavy"])
def test_it_is_applied_and_gone_afterwards(tmp_path: Path, places: NoisePlaces, name: str) -> None:
    round_ = busy_round(name, places, tmp_path / "logs")
    assert (round_.status, round_.reason) == ("applied", "")
    assert round_.measured_run_delay_s is not None
    assert all(each.version for each in round_.neighbours)
    assert noise_processes() == []
    assert list(places.folder.iterdir()) == []


@pytest.mark.skipif(
    pinning.unavailable() is not None, reason=f"needs the remedy: {pinning.unavailable()}"
)
def test_the_remedy_lowers_the_delay(tmp_path: Path, places: NoisePlaces) -> None:
    noisy = busy_round("cpu", places, tmp_path / "noisy")
    better = busy_round("optimised", places, tmp_path / "better")
    assert (better.status, better.reason) == ("applied", "")
    assert better.remedy is not None
    assert better.measured is not None
    assert better.measured.cores == better.remedy.cores
    assert better.measured.nice == better.remedy.nice == better.remedy.nice_before - 10
    # What was started before it was pinned is not pinned.
    place = better.neighbours[0].placement
    assert place is not None
    assert (place.cores, place.nice) == (better.remedy.cores_before, better.remedy.nice_before)
    assert noisy.measured is not None
    assert noisy.measured.cores == better.remedy.cores_before


def test_neighbours_are_kept_off_the_measured_cores(tmp_path: Path, places: NoisePlaces) -> None:
    allowed = os.sched_getaffinity(0)
    reason = open_noise("isolated", places).unavailable()
    if allowed <= pinning.read_hyperthreads(allowed).get(max(allowed), {max(allowed)}):
        assert reason is not None
        assert reason.startswith("noise isolated: ")
        assert "more of them" in reason or "only one core" in reason
        return
    if pinning.unavailable() is not None:
        assert reason == f"noise isolated: {pinning.unavailable()}"
        return
    round_ = busy_round("isolated", places, tmp_path / "logs")
    assert (round_.status, round_.reason) == ("applied", "")
    assert round_.remedy is not None
    assert round_.measured is not None
    assert round_.measured.cores == round_.remedy.cores
    place = round_.neighbours[0].placement
    assert place is not None
    assert set(place.cores) == allowed - set(round_.remedy.kept_free)
    assert place.nice == round_.remedy.nice_before
    assert f"--cpu {len(place.cores)} " in " ".join(round_.neighbours[0].commands[0])
    assert os.sched_getaffinity(0) == allowed


def test_nothing_is_left_when_its_owner_dies(tmp_path: Path, places: NoisePlaces) -> None:
    with owning("heavy", places, tmp_path) as owner:
        assert list(places.folder.iterdir()) != []
        assert end_owner(owner, "SIGKILL") >= 8
    assert list(places.folder.iterdir()) == []


@pytest.mark.slow
@pytest.mark.parametrize("name", ["cpu", "network", "disk"])
def test_the_tools_keep_to_their_own_limit(tmp_path: Path, places: NoisePlaces, name: str) -> None:
    with running(open_noise(name, places), os.getpid(), tmp_path / "logs", 3) as noise:
        started = {each.pid for each in noise_processes()}
        wait_for(lambda: all(map(has_ended, started)), f"{name} to end by itself")
        round_ = noise.end_round()
    assert round_.status == "not applied"
    assert "which had 3 s" in round_.reason
    assert "ended with status 0" in round_.reason
