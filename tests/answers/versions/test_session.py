"""Process runs of a side: their seeds, their records, and how they ended."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from pytest_hwqueue.answers.versions.session import ProcessRuns, session_folder
from pytest_hwqueue.answers.versions.sides import Side, SideRequest
from pytest_hwqueue.answers.versions.variants import SideVariant
from pytest_hwqueue.data.records.cell import write_record
from tests.answers.versions.repositories import make_side
from tests.conftest import make_record

ROOT = Path(__file__).parents[3]


def side(folder: Path, script: str, **options: tuple[str, ...]) -> Side:
    """A side whose pytest is a script that gets the arguments."""
    return make_side(
        folder=folder, root=folder, environment=dict(os.environ), tests=("tests",),
        command=(sys.executable, "-S", "-c", script),
        variant=SideVariant({name.replace("_", "-"): value for name, value in options.items()}),
    )  # fmt: skip


def test_a_run_keeps_its_records_and_says_what_it_was(tmp_path: Path) -> None:
    folder = session_folder(tmp_path)
    for seed, name in enumerate("ba"):
        write_record(folder / "01-a" / "session", make_record(name, seed))
    (folder / "01-a" / "session" / "damaged.json").write_text("{")
    measure, mine = ProcessRuns(folder), side(tmp_path, "import sys; print(sys.argv)")
    measured = measure(mine, 1, None)
    assert [record.cell.name for record in measured.records] == ["b", "a"]
    # A damaged record costs only itself.
    assert "damaged.json is not a record" in measured.problem
    printed = (folder / "01-a.log").read_text()
    assert "'--hwq-runs=1'" in printed
    assert f"--hwq-dir={folder / '01-a'}" in printed
    assert printed.endswith("'tests']\n")
    assert measure(mine, 2, ["test_x.py::test[a b]"]).problem == ""
    assert f"{tmp_path}/test_x.py::test[a b]" in (folder / "02-a.log").read_text()
    with measure.described([mine]):
        pass
    described = json.loads((folder / "ab.json").read_text())
    assert not described["interrupted"]
    assert [run["number"] for run in described["runs"]] == [1, 2]
    assert described["sides"][0]["label"] == "label A"


def test_what_is_listed_of_the_sides_has_no_secrets(tmp_path: Path) -> None:
    folder = session_folder(tmp_path)
    mine = make_side(
        folder=tmp_path, root=tmp_path, environment=dict(os.environ), tests=("tests",),
        command=(sys.executable, "-S", "-c", "", "--token", "hidden", "HF_TOKEN=hidden"),
        variant=SideVariant(
            {"setup": ("pip install --token=hidden .",)}, {"HF_TOKEN": "hid hidden", "A": "1"}
        ),
    )  # fmt: skip
    measure = ProcessRuns(folder)
    measure(mine, 1, None)
    with measure.described([mine]):
        pass
    text = (folder / "ab.json").read_text()
    assert "hidden" not in text
    (described,) = json.loads(text)["sides"]
    assert described["environment"] == {"HF_TOKEN": "<redacted>", "A": "1"}
    label = SideRequest("A", "main", SideVariant(), own="HF_TOKEN=hidden --streams 8").label
    assert label == "main HF_TOKEN=<redacted> --streams 8"


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


def noise_of(folder: Path, number: int = 7, earlier: int = 0, **options: tuple[str, ...]) -> str:
    """The noise with which a run is started."""
    script = "import sys; print(*[a for a in sys.argv if a.startswith('--hwq-sim-noise')][-1:])"
    ProcessRuns(folder, earlier)(side(folder, script, **options), number, None)
    return (folder / f"{number:02}-a.log").read_text().strip()


@pytest.mark.parametrize(
    ("noise", "seed", "environment", "kept", "base"),
    [
        ("run=0.03", None, {}, "run=0.03", 0),
        ("run=0.03", "2", {}, "run=0.03", 2),
        ("seed=4,run=0.03", None, {}, "run=0.03", 4),
        (None, None, {"HWQ_SIM_NOISE": "jitter=0.1", "HWQ_SEED": "1"}, "jitter=0.1", 1),
    ],
)
def test_simulated_noise_is_another_one_in_each_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, noise: str | None, seed: str | None,
    environment: dict[str, str], kept: str, base: int,
) -> None:  # fmt: skip
    for name in ("HWQ_SIM_NOISE", "HWQ_SEED"):
        monkeypatch.delenv(name, raising=False)
    assert noise_of(tmp_path) == ""
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    given = {"sim_noise": noise, "seed": seed}
    options = {name: (value,) for name, value in given.items() if value is not None}
    passed = noise_of(tmp_path, 7, 0, **options)
    assert passed.startswith(f"--hwq-sim-noise={kept},seed=")
    assert passed == noise_of(tmp_path, sim_noise=(f"{kept},seed={base}",))
    # Nor has another session it: those of a bisection make a thousand runs and more, beyond any
    # next seed's first.
    others = [
        noise_of(tmp_path, number, earlier, sim_noise=(f"{kept},seed={of}",))
        for of, earlier, number in ((base, 0, 8), (base, 1000, 7), (base + 1, 0, 7),
                                    (base + 1, 1000, 7), (base + 1, 2000, 8))
    ]  # fmt: skip
    assert len({passed, *others}) == 6


@pytest.mark.parametrize(
    ("number", "stubborn"),
    [(signal.SIGINT, "none"), (signal.SIGTERM, "child"), (signal.SIGHUP, "command")],
)
def test_what_interrupts_ends_the_command_and_its_children(
    tmp_path: Path, number: signal.Signals, stubborn: str
) -> None:
    command = (
        "import pathlib, signal, subprocess, time\n"
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
        "from pytest_hwqueue.parts.processes import reaper as processes\n"
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
    child, deadline = tmp_path / "child", time.monotonic() + 60
    try:
        while not (child.exists() and child.read_text()) and time.monotonic() < deadline:
            time.sleep(0.02)
        process.send_signal(number)
        assert process.wait(60) == 100 + number
    finally:
        process.kill()
        process.wait()
    pid = int(child.read_text())
    # It has ended, be it that nobody has waited for it.
    if psutil.pid_exists(pid):
        assert psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
