"""Process runs of a side: their seeds, their records, and how they ended."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from pytest_hwqueue.interleaved.session import ProcessRuns, session_folder
from pytest_hwqueue.interleaved.sides import Side
from pytest_hwqueue.interleaved.variants import SideVariant
from pytest_hwqueue.records.cell import RunRecord, write_record

MakeRecord = Callable[..., RunRecord]
ROOT = Path(__file__).parents[2]


def side(folder: Path, script: str, variant: SideVariant | None = None) -> Side:
    """A side whose pytest is a script that gets the arguments."""
    return Side(
        name="A", label="main", folder=folder, commit=None, changed=False,
        variant=variant or SideVariant(), environment=dict(os.environ),
        command=(sys.executable, "-c", script), root=folder, tests=("tests",),
    )  # fmt: skip


def test_a_run_keeps_its_records_and_says_what_it_was(
    tmp_path: Path, make_record: MakeRecord
) -> None:
    folder = session_folder(tmp_path)
    for seed, name in enumerate("ba"):
        write_record(folder / "01-a" / "session", make_record(name, seed))
    measure = ProcessRuns(folder)
    mine = side(tmp_path, "import sys; print(sys.argv)")
    measured = measure(mine, 1, None)
    assert [record.cell.name for record in measured.records] == ["b", "a"]
    assert (measured.problem, measured.status) == ("", 0)
    printed = (folder / "01-a.log").read_text()
    assert "'--hwq-runs=1'" in printed
    assert f"--hwq-dir={folder / '01-a'}" in printed
    assert printed.endswith("'tests']\n")
    measure(mine, 2, ["test_x.py::test[a b]"])
    assert f"{tmp_path}/test_x.py::test[a b]" in (folder / "02-a.log").read_text()
    measure.describe([mine], interrupted=False)
    described = json.loads((folder / "ab.json").read_text())
    assert [run["number"] for run in described["runs"]] == [1, 2]
    assert described["sides"][0]["label"] == "main"


@pytest.mark.parametrize(
    ("script", "problem"),
    [
        ("raise SystemExit(1)", "run 3: tests failed, see "),
        ("print('it broke'); raise SystemExit(3)", "run 3: pytest ended with status 3: it broke"),
        ("import os; os.kill(os.getpid(), 9)", "run 3: pytest was ended by SIGKILL"),
    ],
)
def test_how_a_run_ended(tmp_path: Path, script: str, problem: str) -> None:
    measured = ProcessRuns(tmp_path)(side(tmp_path, script), 3, None)
    assert measured.problem.startswith(problem)
    assert str(tmp_path / "03-a.log") in measured.problem


def test_a_damaged_record_costs_only_itself(tmp_path: Path, make_record: MakeRecord) -> None:
    write_record(tmp_path / "01-a" / "session", make_record("a"))
    (tmp_path / "01-a" / "session" / "damaged.json").write_text("{")
    measured = ProcessRuns(tmp_path)(side(tmp_path, ""), 1, None)
    assert len(measured.records) == 1
    assert "damaged.json is not a record" in measured.problem


NOISY = "import sys; print(*[a for a in sys.argv if a.startswith('--hwq-sim-noise')][-1:])"


def noise_of(
    folder: Path, options: Mapping[str, tuple[str, ...]], number: int = 7, earlier: int = 0
) -> str:
    """The noise with which a run is started."""
    ProcessRuns(folder, earlier)(side(folder, NOISY, SideVariant(options)), number, None)
    return (folder / f"{number:02}-a.log").read_text().strip()


@pytest.mark.parametrize(
    ("options", "environment", "kept", "base"),
    [
        ({"sim-noise": ("run=0.03",)}, {}, "run=0.03", 0),
        ({"sim-noise": ("run=0.03",), "seed": ("2",)}, {}, "run=0.03", 2),
        ({"sim-noise": ("seed=4,run=0.03",)}, {}, "run=0.03", 4),
        ({}, {"HWQ_SIM_NOISE": "jitter=0.1", "HWQ_SEED": "1"}, "jitter=0.1", 1),
    ],
)
def test_simulated_noise_is_another_one_in_each_run(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    options: dict[str, tuple[str, ...]],
    environment: dict[str, str],
    kept: str,
    base: int,
) -> None:
    for name in ("HWQ_SIM_NOISE", "HWQ_SEED"):
        monkeypatch.delenv(name, raising=False)
    assert noise_of(tmp_path, {}) == ""
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    passed = noise_of(tmp_path, options)
    assert passed.startswith(f"--hwq-sim-noise={kept},seed=")
    assert passed == noise_of(tmp_path, {"sim-noise": (f"{kept},seed={base}",)})
    assert passed != noise_of(tmp_path, options, number=8)


def test_no_session_has_the_simulated_noise_of_another(tmp_path: Path) -> None:
    """Those of a bisection make a thousand runs and more, beyond any next seed's first."""
    seen = [
        noise_of(tmp_path, {"sim-noise": (f"run=0.03,seed={seed}",)}, number, earlier)
        for seed in (0, 1, 2) for earlier in (0, 1000, 2000) for number in (1, 2)
    ]  # fmt: skip
    assert len(set(seen)) == len(seen)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
@pytest.mark.parametrize("stubborn", ["none", "command", "child"])
def test_what_interrupts_ends_the_command_and_its_children(
    tmp_path: Path, number: signal.Signals, stubborn: str
) -> None:
    command = (
        "import pathlib, signal, subprocess, sys, time\n"
        "before = signal.getsignal(signal.SIGINT)\n"
        f"if {stubborn == 'child'}: signal.signal(signal.SIGINT, signal.SIG_IGN)\n"
        "child = subprocess.Popen(['sleep', '60'])\n"
        "signal.signal(signal.SIGINT, before)\n"
        f"if {stubborn == 'command'}: signal.signal(signal.SIGINT, signal.SIG_IGN)\n"
        "pathlib.Path('child').write_text(str(child.pid))\n"
        "time.sleep(60)\n"
    )
    script = (
        "import os, pathlib, sys\n"
        "from pytest_hwqueue.processes import reaper as processes\n"
        "processes._GRACE_S = 0.5\n"
        "here = pathlib.Path()\n"
        "try:\n"
        "    with processes.signals_interrupt():\n"
        f"        command = [sys.executable, '-c', {command!r}]\n"
        "        processes.run(command, here, os.environ, here / 'log')\n"
        "except KeyboardInterrupt as interrupt:\n"
        "    sys.exit(100 + interrupt.args[0])\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", script], cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(ROOT)}
    )
    try:
        child = tmp_path / "child"
        deadline = time.monotonic() + 60
        while not (child.exists() and child.read_text()) and time.monotonic() < deadline:
            time.sleep(0.02)
        process.send_signal(number)
        assert process.wait(60) == 100 + number
    finally:
        process.kill()
        process.wait()
    with pytest.raises(ProcessLookupError):
        _wait_until_gone(int(child.read_text()))


def _wait_until_gone(pid: int) -> None:
    """Raise ProcessLookupError once the process has ended, be it that nobody has waited for it."""
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        os.kill(pid, 0)
        stat = Path(f"/proc/{pid}/stat")
        if stat.exists() and stat.read_text().rpartition(")")[2].split()[0] == "Z":
            raise ProcessLookupError
        time.sleep(0.02)
