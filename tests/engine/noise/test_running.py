"""Noise during a round, with stand-ins: started, judged, and ended in every case."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from textwrap import dedent

import psutil
import pytest

from pytest_hwqueue.data.errors import NotProven
from pytest_hwqueue.data.records.noise import NoiseRound
from pytest_hwqueue.engine.noise import neighbours, pinning
from pytest_hwqueue.engine.noise.neighbours import (
    Neighbour,
    NeighbourOrder,
    NeighbourProgram,
    NoisePlaces,
    open_noise,
    started,
)
from pytest_hwqueue.engine.noise.running import RunningNoise, running
from pytest_hwqueue.parts.processes.guardian import Contending, Order, Stop
from pytest_hwqueue.parts.processes.services import ServiceFailed, run_service
from tests.conftest import slow
from tests.parts.schedulers.processes import has_ended, program, wait_for

from .owner import end_owner, owning
from .programs import IPERF3, TOOLS, alive, arguments, write_stand_in

needs_isolation = pytest.mark.skipif(
    pinning.unavailable(isolated=True) is not None,
    reason=f"needs isolation: {pinning.unavailable(isolated=True)}",
)


def work_until_applied(noise: RunningNoise) -> NoiseRound:
    """Let a round last until the noise shows: an interpreter starts slowly on a busy machine."""
    wait_for(lambda: noise.end_round().status == "applied", noise.end_round().reason)
    return noise.end_round()


def test_the_quiet_one_starts_nothing_and_several_are_felt_together_in_rounds_that_overlap(
    tmp_path: Path, places: NoisePlaces
) -> None:
    quiet, logs = open_noise("none", places), tmp_path / "logs"
    assert quiet.unavailable() is None
    others = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(2)]
    try:
        with running(quiet, [each.pid for each in others], logs, 10) as noise:
            wait_for(lambda: (noise.end_round().measured_on_cpu_s or 0) > 0.3, "nothing ran")
            inner = noise.another_round()
            wait_for(lambda: (inner.end_round().measured_on_cpu_s or 0) > 0, "nothing ran")
            whole, part = noise.end_round(), inner.end_round()
    finally:
        for each in others:
            each.kill()
            each.wait()
    assert part.duration_s < whole.duration_s
    assert (part.measured_on_cpu_s or 0) < (whole.measured_on_cpu_s or 0)
    assert (whole.status, whole.reason, whole.neighbours) == ("quiet", "", [])
    assert whole.measured is not None
    assert whole.measured.cores == sorted(os.sched_getaffinity(0))
    assert not logs.exists()


@pytest.mark.parametrize("name", ["cpu", "network", "disk", "heavy"])
def test_a_noise_is_applied_and_gone_afterwards(
    tmp_path: Path, places: NoisePlaces, stand_ins: Path, name: str
) -> None:
    chosen = open_noise(name, places)
    assert chosen.unavailable() is None
    with running(chosen, os.getpid(), tmp_path / "logs", 30, 0.1) as noise:
        assert bool(list(places.folder.iterdir())) == (name in ("disk", "heavy"))
        for pid in alive(str(stand_ins)):
            # In this session, or autogroups would set it apart; in a group of its own for Ctrl-C.
            assert os.getsid(pid) == os.getsid(0)
            assert os.getpgid(pid) != os.getpgid(0)
        round_ = work_until_applied(noise)
    assert (round_.status, round_.reason) == ("applied", "")
    assert (alive(str(stand_ins)), list(places.folder.iterdir())) == ([], [])
    assert NoiseRound.model_validate_json(round_.model_dump_json()) == round_


def test_the_command_lines_are_recorded_and_one_that_dies_midway_was_not_applied(
    tmp_path: Path, places: NoisePlaces, stand_ins: Path
) -> None:
    chosen, logs = open_noise("heavy", places), tmp_path / "logs"
    with running(chosen, os.getpid(), logs, 30, 0.1) as noise:
        for log in logs.glob("*.log"):
            with log.open("a") as file:
                file.write("out of luck\n")
        for pid in alive(str(stand_ins)):
            # Whoever talks to one that is killed may have ended before its own turn.
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        wait_for(lambda: alive(str(stand_ins)) == [], "them to die")
        round_ = noise.end_round()
    cores = len(os.sched_getaffinity(0))
    server, client = arguments(stand_ins, "iperf3")
    port = server.split()[5]
    (written,) = arguments(stand_ins, "fio")
    expected = [
        f"--cpu {cores} --cpu-method fft -t 30", f"-s -1 -B 127.0.0.1 -p {port} --forceflush",
        f"-c 127.0.0.1 -p {port} -P 10 -t 30", written,
    ]  # fmt: skip
    assert [*arguments(stand_ins, "stress-ng"), server, client, written] == expected
    recorded = [" ".join(command[1:]) for each in round_.neighbours for command in each.commands]
    assert recorded == expected
    # The size is that of all four together.
    assert re.fullmatch(
        rf"--name=hwq --directory={places.folder}/hwq-noise-\w+ --rw=randwrite --bs=4k "
        "--ioengine=libaio --iodepth=32 --numjobs=4 --thread --direct=1 --size=262144 "
        "--time_based --runtime=30 --unlink=1",
        written,
    )
    versions = [each.version for each in round_.neighbours]
    assert versions == [f"{tool} stand-in 1" for tool in TOOLS]
    assert round_.neighbours[2].notes[0].startswith("1048576 bytes on ")
    assert round_.status == "not applied"
    died = r"(?s)%s[\w-]* .{,40}died by SIGKILL while it was needed; its last lines in.*out of luck"
    for tool in TOOLS:
        assert re.search(died % tool, round_.reason)


@pytest.mark.skipif(pinning.unavailable() is not None, reason=f"needs {pinning.unavailable()}")
def test_what_is_measured_is_pinned_and_raised_and_neighbours_are_not(
    tmp_path: Path, places: NoisePlaces, stand_ins: Path
) -> None:
    before = sorted(os.sched_getaffinity(0)), os.getpriority(os.PRIO_PROCESS, 0)
    chosen = open_noise("optimised", places)
    with running(chosen, os.getpid(), tmp_path / "logs", 30, 0.1) as noise:
        round_ = work_until_applied(noise)
    remedy, measured, place = round_.remedy, round_.measured, round_.neighbours[0].placement
    assert remedy is not None
    assert measured is not None
    assert place is not None
    assert (measured.cores, measured.nice) == (remedy.cores, remedy.nice)
    assert (remedy.cores_before, remedy.nice_before) == before
    assert (place.cores, place.nice) == before
    assert before == (sorted(os.sched_getaffinity(0)), os.getpriority(os.PRIO_PROCESS, 0))


@needs_isolation
def test_neighbours_are_kept_off_and_one_that_comes_back_was_not_applied(
    tmp_path: Path, places: NoisePlaces, stand_ins: Path
) -> None:
    before = os.sched_getaffinity(0)
    # Earlier tests of this process may have left their fork server.
    others = set(psutil.Process().children(recursive=True))
    chosen = open_noise("isolated", places)
    with running(chosen, os.getpid(), tmp_path / "logs", 30, 0.1) as noise:
        round_ = work_until_applied(noise)
        begun = set(psutil.Process().children(recursive=True)) - others
        assert len(begun) >= 2
        assert round_.remedy is not None
        left = before - set(round_.remedy.kept_free)
        # Their guardians too.
        assert all(set(each.cpu_affinity()) == left for each in begun)
        assert os.sched_getaffinity(0) == set(round_.remedy.cores)
        assert NoiseRound.model_validate_json(round_.model_dump_json()) == round_
        for pid in alive(str(stand_ins)):
            os.sched_setaffinity(pid, before)
        back = noise.another_round().end_round()
    assert os.sched_getaffinity(0) == before
    assert arguments(stand_ins, "stress-ng") == [f"--cpu {len(left)} --cpu-method fft -t 30"]
    on = ", ".join(map(str, sorted(set(round_.remedy.kept_free) & before)))
    assert back.status == "not applied"
    assert f"cpu: it may run on cores {on}, which were to be kept free of it" in back.reason


def test_one_that_cannot_start_leaves_nothing(
    tmp_path: Path, places: NoisePlaces, stand_ins: Path
) -> None:
    before = os.sched_getaffinity(0)
    absent = NeighbourProgram("absent", ["/no/such/program"])
    with (
        pytest.raises(ServiceFailed, match=r"absent could not be started: .*No such file"),
        started(
            Neighbour("absent", "absent", lambda order: [absent], []),
            NeighbourOrder(tmp_path, 30, (min(before),)),
        ),
    ):
        pytest.fail("nothing runs")
    write_stand_in(stand_ins / "fio", "sys.exit('fio: engine libaio not loadable')")
    with (
        pytest.raises(ServiceFailed, match=r"(?s)fio .* status 1 .*engine libaio not loadable"),
        running(open_noise("heavy", places), os.getpid(), tmp_path / "logs", 30, 2.0),
    ):
        pytest.fail("nothing runs")
    assert (alive(str(stand_ins)), list(places.folder.iterdir())) == ([], [])
    assert os.sched_getaffinity(0) == before


def test_what_a_noise_lacks_is_told_with_what_to_do(
    places: NoisePlaces, stand_ins: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def said(name: str, folder: Path = places.folder) -> str:
        return open_noise(name, NoisePlaces(folder)).unavailable() or ""

    assert "give fio another" in said("disk", Path("no/such/folder"))
    if Path("/dev/shm").is_dir():
        assert "is in memory (tmpfs), not on a disk; give fio" in said("disk", Path("/dev/shm"))
    monkeypatch.setattr(neighbours, "DISK_BYTES", 1 << 60)
    assert "bytes free, fio's files would have 1152921504606846976" in said("disk")
    monkeypatch.setenv("PATH", str(tmp_path / "empty"))
    reason = said("heavy")
    assert reason.startswith("noise heavy: stress-ng is not on PATH; install it: apt-get install ")
    assert "apt-get install iperf3 (Debian, Ubuntu) or dnf install iperf3" in reason
    assert "fio is not on PATH" in reason


def test_a_round_that_outlasts_the_noise_is_not_covered(
    tmp_path: Path, places: NoisePlaces, stand_ins: Path
) -> None:
    with running(open_noise("cpu", places), os.getpid(), tmp_path / "logs", 1, 0.0) as noise:
        time.sleep(1.1)
        round_ = noise.end_round()
    assert round_.status == "not applied"
    assert round_.reason.startswith("the round outlasted the neighbours, which had 1 s")


def test_a_noise_that_does_nothing_was_not_applied(
    tmp_path: Path, places: NoisePlaces, stand_ins: Path
) -> None:
    for tool in TOOLS:
        listens = (
            "at = '-s' in sys.argv and socket.create_server((after('-B'), int(after('-p'))));"
            "print('Server listening' * bool(at), flush=True)"
        )
        write_stand_in(stand_ins / tool, f"{listens}; time.sleep(60)")
    for tool, expected in (
        ("cpu", r"cpu: stress-ng ran or was ready to run 0\.\d\d of the time per core, below 0.5"),
        ("network", r"network: iperf3 sent 0\.\d MB/s, below 10 MB/s"),
        ("disk", r"disk: fio wrote 0\.000 MB/s to the disk"),
    ):
        with running(open_noise(tool, places), os.getpid(), tmp_path / "logs", 60, 0.0) as noise:
            # Its interpreter's start is work too, of which less is left the longer the round.
            wait_for(lambda: re.match(expected, noise.end_round().reason), expected)  # noqa: B023


def test_another_port_is_tried_where_one_was_taken(
    tmp_path: Path, places: NoisePlaces, stand_ins: Path
) -> None:
    taken = """
    if "-s" in sys.argv and not os.path.exists(sys.argv[0] + ".taken"):
        open(sys.argv[0] + ".taken", "w").close()
        taken = socket.create_server((after("-B"), int(after("-p"))))
    """
    write_stand_in(stand_ins / "iperf3", dedent(taken) + dedent(IPERF3))
    chosen = open_noise("network", places)
    with running(chosen, os.getpid(), tmp_path / "logs", 30, 0.1) as noise:
        work_until_applied(noise)
    assert len(arguments(stand_ins, "iperf3")) == 3


def test_a_stranger_on_its_port_is_not_loaded(
    tmp_path: Path, places: NoisePlaces, stand_ins: Path
) -> None:
    # It says that it listens where another does.
    late = """
    while socket.socket().connect_ex((after("-B"), int(after("-p")))):
        time.sleep(0.01)
    print("Server listening", flush=True)
    time.sleep(60)
    """
    write_stand_in(stand_ins / "iperf3", late)

    def take_its_port() -> socket.socket:
        started = stand_ins / "iperf3.arguments"
        wait_for(lambda: started.exists() and started.read_text().endswith("\n"), "its start")
        return socket.create_server(("127.0.0.1", int(started.read_text().split()[5])))

    said = rf"iperf3-server: on port \d+ .* \(process {os.getpid()}\), which it has not start"
    chosen = open_noise("network", places)
    with ThreadPoolExecutor() as pool:
        taking = pool.submit(take_its_port)
        with (
            pytest.raises(NotProven, match=said),
            running(chosen, os.getpid(), tmp_path / "logs", 30, 0.1),
        ):
            pytest.fail("nothing runs")
        taking.result().close()
    assert alive(str(stand_ins)) == []


@pytest.mark.parametrize("how", ["SIGKILL", slow("SIGTERM to all"), slow("Ctrl-C")])
def test_nothing_is_left_when_its_owner_dies(
    tmp_path: Path, places: NoisePlaces, stand_ins: Path, how: str
) -> None:
    with owning("heavy", places, tmp_path) as owner:
        assert list(places.folder.iterdir()) != []
        # A guardian for each program; iperf3 and its own server are two.
        assert end_owner(owner, how) >= 8
    assert alive(str(stand_ins)) == []
    assert list(places.folder.iterdir()) == []


def test_its_time_is_bounded_even_if_its_owner_hangs(tmp_path: Path) -> None:
    endless = program(tmp_path / "endless", "import time; time.sleep(600)")
    log, scratch, stop = tmp_path / "log", tmp_path / "scratch", Stop(signal.SIGTERM)
    with run_service(
        "s", log, Order([str(endless)], {}, stop, Contending(0.2), folder=scratch)
    ) as service:
        wait_for(lambda: has_ended(service.pid), "its time to be over")
        with pytest.raises(ServiceFailed, match=r"(?s)died by SIGTERM.*its time of 0.2 s is over"):
            service.check(60)
        assert not scratch.exists()
    # A folder that is there already is not its own, and stays.
    scratch.mkdir()
    with pytest.raises(ServiceFailed, match="File exists"):
        run_service("s", log, Order(["true"], {}, stop, Contending(60), folder=scratch)).__enter__()
    assert scratch.exists()
