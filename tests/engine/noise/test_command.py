"""Noises that a file describes."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest
import yaml

from pytest_hwqueue.data.errors import BadInput
from pytest_hwqueue.engine.noise.evidence import autogroup_enabled
from pytest_hwqueue.engine.noise.neighbours import NoisePlaces, open_noise
from pytest_hwqueue.engine.noise.neighbours import described as load
from pytest_hwqueue.engine.noise.running import running
from tests.parts.schedulers.processes import program, wait_for

from .programs import alive

_BURNS = """
import os, sys
seconds, cores, scratch, folder = sys.argv[1:]
open(os.path.join(scratch, "file"), "w").write(os.environ["WHERE"])
print("burning", seconds, cores, os.path.isdir(folder), flush=True)
while True:
    sum(range(1000))
"""


def described(folder: Path, **fields: object) -> None:
    folder.mkdir(exist_ok=True)
    (folder / "own.yaml").write_text(yaml.safe_dump(fields))


def test_a_command_is_filled_in_run_and_removed(tmp_path: Path, places: NoisePlaces) -> None:
    (folder,) = places.descriptions
    program(folder / "burns", _BURNS)
    described(
        folder,
        command=["./burns", "{seconds}", "{cores}", "{scratch}", "{folder}"],
        environment={"WHERE": "in {scratch}"},
        ready="^burning",
    )
    logs = tmp_path / "logs"
    chosen = open_noise("own", places)
    with running(chosen, os.getpid(), logs, 30, settle_s=0.0) as noise:
        (scratch,) = logs.glob("scratch-*")
        assert (scratch / "file").read_text() == f"in {scratch}"
        wait_for(lambda: noise.end_round().status == "applied", "it to show")
    cores = len(os.sched_getaffinity(0))
    assert f"burning 30 {cores} True" in (logs / "burns.log").read_text()
    assert not scratch.exists()
    assert alive(str(folder)) == []


def test_one_that_sleeps_was_not_applied(tmp_path: Path, places: NoisePlaces) -> None:
    described(places.descriptions[0], command=["sleep", "{seconds}"])
    expected = r"own: its processes used 0\.\d\d% of a core, as if they slept"
    with running(open_noise("own", places), os.getpid(), tmp_path / "logs", 60, 0.0) as noise:
        wait_for(lambda: re.match(expected, noise.end_round().reason), expected)


def test_one_in_a_session_of_its_own_was_not_applied_and_is_ended(
    tmp_path: Path, places: NoisePlaces
) -> None:
    (folder,) = places.descriptions
    burns = program(
        folder / "daemon",
        """
        import os, time
        if os.fork():
            while True:
                time.sleep(1)
        os.setsid()
        print("apart", flush=True)
        while True:
            sum(range(1000))
        """,
    )
    described(folder, command=["./daemon"], ready="apart")
    with running(open_noise("own", places), os.getpid(), tmp_path / "logs", 30, 0.0) as noise:
        round_ = noise.end_round()
    assert alive(str(burns)) == []
    # To a kernel without autogroups, sessions are nothing.
    assert (round_.status == "not applied") == bool(autogroup_enabled())
    assert ("its own session" in round_.reason) == bool(autogroup_enabled())


def test_an_absent_program_comes_with_the_hint(places: NoisePlaces) -> None:
    described(places.descriptions[0], command=["hwq-no-such"], install="ask the data base team")
    assert open_noise("own", places).unavailable() == (
        "noise own: hwq-no-such is not on PATH; ask the data base team"
    )


@pytest.mark.parametrize(("text", "message"), [
    ("command: []", r"own.yaml: command: List should have at least 1 item"),
    ("command: [x]\nloads: cpu", r"own.yaml: loads: Extra inputs"),
    ("command: [x]\nready: (", r"own.yaml: ready: .*no regular expression"),
    ("command: [", r"own\.yaml: while parsing"),
])  # fmt: skip
def test_a_wrong_description_names_the_file_and_the_field(
    tmp_path: Path, text: str, message: str
) -> None:
    (tmp_path / "own.yaml").write_text(text)
    with pytest.raises(BadInput, match=message):
        load("own", [tmp_path])
    with pytest.raises(BadInput, match=r"gone\.yaml: .*No such file"):
        load(str(tmp_path / "gone.yaml"), [])
