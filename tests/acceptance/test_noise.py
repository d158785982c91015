"""Tests measured under background load on the CPU, in turn with the quiet: as users see it."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any

import psutil
import pytest

from tests.acceptance.inner import plain_environment, records_in
from tests.conftest import PYTEST, slow

if TYPE_CHECKING:
    from tests.conftest import RunInProcess, Sessions

ARGUMENTS = (
    "-p", "no:cacheprovider", "--hwq-device=cpu", "--hwq-iterations=60", "--hwq-max-time=2",
    "--hwq-json=session.json",
)  # fmt: skip

TEST = """
def test_mine(hwq):
    hwq.measure(lambda: sum(range(5000)), streams=1)
"""
BURNS = "import sys, time\nprint('burning', flush=True)\nwhile True: pass\n"


@pytest.fixture
def session(pytester: pytest.Pytester) -> pytest.Pytester:
    """A test, and descriptions of a neighbour that burns, of one that sleeps, of one that fails."""
    pytester.makepyfile(test_mine=TEST)
    (pytester.path / "burns.py").write_text(BURNS)
    burns = json.dumps([sys.executable, str(pytester.path / "burns.py")])
    pytester.makefile(
        ".yaml",
        burns=f"command: {burns}\nready: ^burning",
        sleeps='command: [sleep, "{seconds}"]',
        fails="command: [sh, -c, 'echo no licence; exit 3']",
    )
    return pytester


def of(session: pytest.Pytester, part: str) -> list[str]:
    """Return of each record this part, its noise, and how that went."""
    return [
        "{} {noise} {status}".format(each[part], **each["noise"])
        for each in records_in(session.path / "session.json")
        if each["noise"]
    ]


def unwrapped(result: pytest.RunResult) -> str:
    return " ".join(result.stdout.str().split())


def burning(session: pytest.Pytester) -> list[psutil.Process]:
    path = str(session.path / "burns.py")
    return [p for p in psutil.process_iter(["cmdline"]) if path in (p.info["cmdline"] or [])]


def test_each_run_measures_the_quiet_and_the_noisy_in_turn(
    session: pytest.Pytester, sessions: Sessions
) -> None:
    result = sessions.result(session.path, *ARGUMENTS, "--hwq-noise=./burns.yaml", "--hwq-runs=2")
    result.assert_outcomes(passed=2)
    assert of(session, "run") == [
        "1 none quiet", "1 ./burns.yaml applied", "2 none quiet", "2 ./burns.yaml applied",
    ]  # fmt: skip
    records = records_in(session.path / "session.json")
    assert {each["cell"] for each in records} == {
        f"test_mine.py::test_mine[cpu-s1-native-eager{more}]" for more in ("", "-beside-burns")
    }
    assert fnmatchcase(
        unwrapped(result),
        "*test_mine.py::test_mine?cpu-s1-native-eager? under ./burns.yaml: lost * of iterations/s;"
        " P50 longer by *; * of its time waiting for a core; its core did * less in the same CPU"
        " time*",
    )
    assert all(each["noise"]["core_speed_per_s"] > 0 for each in records)
    assert burning(session) == []


@pytest.mark.slow
def test_a_noise_that_was_not_felt_or_could_not_run_gives_no_loss(
    session: pytest.Pytester, sessions: Sessions
) -> None:
    result = sessions.result(session.path, *ARGUMENTS, "--hwq-noise=./sleeps.yaml,./fails.yaml")
    result.assert_outcomes(passed=2, failed=1)
    assert of(session, "run") == ["1 none quiet", "1 ./sleeps.yaml not applied"]
    assert fnmatchcase(
        unwrapped(result),
        "*no licence*noise ./sleeps.yaml not applied: *"
        " under ./sleeps.yaml: no pair of runs in which*",
    )


RANKS = """
import os, pathlib, pytest

@pytest.mark.hwq_workload("grad_accum")
def test_ranks(hwq):
    pathlib.Path("rank-" + os.environ["RANK"]).write_text(str(os.getpid()))
    record = hwq.run(blocks=2)
    if os.environ["RANK"] == "0":
        assert record.ranks.world_size == 2
        assert record.noise.status in ("quiet", "applied"), record.noise.reason
"""
PINS = """
from pytest_hwqueue.plugin.worker import test_run

def pytest_configure(config):
    plain = test_run.running

    def running(noise, measured, *others):
        with open("measured", "a") as file:
            print(noise.name, *measured, file=file)
        return plain(noise, measured, *others)

    test_run.running = running
"""


# Torchrun and its ranks import torch five times; what its sessions tell each other of noise,
# tests/parts/processes/test_launched.py says, too.
@pytest.mark.parametrize("launcher", [None, slow("torchrun")])
def test_ranks_run_beside_one_noise(
    session: pytest.Pytester, sessions: Sessions, launcher: str | None
) -> None:
    session.makepyfile(test_ranks=RANKS)
    session.makeconftest(PINS)
    given = [*ARGUMENTS, "--hwq-noise=./burns.yaml", "test_ranks.py"]
    if launcher:
        command = [
            sys.executable, "-m", "torch.distributed.run", "--standalone", "--local-addr=127.0.0.1",
            "--nproc-per-node=2", "-m", "pytest", *given,
        ]  # fmt: skip
        ended = subprocess.run(
            command, cwd=session.path, check=False, capture_output=True, text=True,
            env=plain_environment(OMP_NUM_THREADS="1", TMPDIR=str(session.path)),
        )  # fmt: skip
    else:
        ended = sessions.run(session.path, *given, "--hwq-ranks=2")
    assert ended.returncode == 0, ended.stdout + ended.stderr
    cell = "grad_accum[cpu-s6-native-eager-2ranks-blocks=2"
    assert sorted(of(session, "cell")) == [
        f"{cell}-beside-burns] ./burns.yaml applied", f"{cell}] none quiet",
    ]  # fmt: skip
    ranks = [(session.path / f"rank-{rank}").read_text() for rank in (0, 1)]
    # Of each cell one round, of both ranks; not one for each of them.
    told = (session.path / "measured").read_text().splitlines()
    assert [line.split() for line in told] == [["none", *ranks], ["./burns.yaml", *ranks]]
    assert "all ranks together waited for a core for" in " ".join(ended.stdout.split())
    assert burning(session) == []


OWN_BLOCK = """
import pytest

def work():
    return sum(range(5000))

def test_block(hwq, hwq_noise):
    assert hwq_noise.possible()
    hwq.measure(work, streams=1, name="a")
    with hwq_noise("./burns.yaml", seconds=90) as beside:
        assert beside.round is None
        noisy = hwq.measure(work, streams=1, name="a")
        with pytest.raises(RuntimeError, match="runs already"), hwq_noise("cpu"):
            pass
    assert beside.round.status == "applied", beside.round.reason
    assert noisy.noise.duration_s < beside.round.duration_s

def test_ends_on_every_path(hwq_noise):
    with pytest.raises(ZeroDivisionError), hwq_noise("./burns.yaml") as beside:
        1 / 0
    assert beside.round.noise == "./burns.yaml"

def test_tool_that_is_not_there(hwq_noise):
    with hwq_noise("./absent.yaml"):
        raise AssertionError
"""


def test_a_block_of_a_test_runs_beside_a_noise(
    session: pytest.Pytester, sessions: Sessions
) -> None:
    session.makepyfile(test_block=OWN_BLOCK)
    session.makefile(".yaml", absent="command: [no-such-program]\ninstall: get it")
    result = sessions.result(session.path, *ARGUMENTS, "-rs", "test_block.py")
    result.assert_outcomes(passed=2, skipped=1)
    cell = "test_block.py::test_block::a"
    assert of(session, "cell") == [
        f"{cell}[cpu-s1-native-eager] none quiet",
        f"{cell}[cpu-s1-native-eager-beside-burns] ./burns.yaml applied",
    ]
    said = "*a?cpu-s1-native-eager? under ./burns.yaml: lost * of iterations/s*"
    assert fnmatchcase(unwrapped(result), said)
    result.stdout.fnmatch_lines(["SKIPPED*no-such-program is not on PATH; get it"])
    assert burning(session) == []


@pytest.mark.parametrize(
    ("device", "reason"),
    [
        ("sim:h200", "a simulated device does not use"),
        ("cpu", "leave out --hwq-isolation=none"),
    ],
)
def test_a_block_where_there_can_be_no_noise_is_skipped(
    session: pytest.Pytester, run_in_process: RunInProcess, device: str, reason: str
) -> None:
    session.makepyfile(
        test_block="def test_block(hwq_noise):\n"
        "    assert not hwq_noise.possible()\n"
        "    with hwq_noise('none'):\n"
        "        raise AssertionError\n"
    )
    result = run_in_process(f"--hwq-device={device}", "-rs", "test_block.py")
    result.assert_outcomes(skipped=1)
    result.stdout.fnmatch_lines([f"SKIPPED*{reason}*"])


# As in tests/engine/noise; a session is killed in test_hostile.py, too.
@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_nothing_burns_on_when_pytest_has_gone(session: pytest.Pytester, number: int) -> None:
    command = [*PYTEST, *ARGUMENTS, "-k", "beside"]
    command += ["--hwq-noise=./burns.yaml", "--hwq-max-time=60", "--hwq-iterations=10000000"]
    process = subprocess.Popen(
        command, cwd=session.path, env=plain_environment(TMPDIR=str(session.path)),
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    _until(lambda: bool(burning(session)))
    process.send_signal(number)
    process.wait(30)
    _until(lambda: not burning(session))


def _until(condition: Any) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.1)


@pytest.mark.parametrize(
    ("option", "reason"),
    [
        ("--hwq-device=sim:h200", "a simulated device does not use"),
        ("--hwq-isolation=none", "noise runs with one worker process only"),
        ("-n2", "noise runs with one worker process only: leave out xdist's -n"),
        ("--hwq-noise=absent", "absent"),
    ],
)
def test_where_there_can_be_no_noise_it_is_refused(
    session: pytest.Pytester, run_in_process: RunInProcess, option: str, reason: str
) -> None:
    result = run_in_process(
        *ARGUMENTS, "--hwq-isolation=process", "--hwq-noise=./burns.yaml", "-k", "beside", option
    )
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines([f"*{reason}*"])
