"""Where a test can have background noise, and how its block begins and ends.

What a session under noise shows, tests/acceptance/test_noise.py says.
"""

from __future__ import annotations

import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pytest_hwqueue.data.errors import BadInput, NotProven
from pytest_hwqueue.options.options import Settings
from pytest_hwqueue.plugin.keys import SETTINGS, SINK, WORKER_KEY
from pytest_hwqueue.plugin.noise import HwqNoise, noise_places, why_noise_is_impossible


@pytest.mark.parametrize(
    ("device", "launched", "reason"),
    [
        ("cpu", False, None),
        ("cuda:1", False, None),
        ("auto", False, None),
        ("sim:h200", False, "noise cpu disturbs this machine, which a simulated device does not"),
        ("cpu", True, "noise cpu of a test's block.*leave torchrun out"),
        # Of both, what no way of starting it would mend.
        ("sim:h200", True, "a simulated device does not use"),
    ],
)
def test_noise_is_for_devices_of_this_machine_and_processes_of_one_session(
    device: str, launched: bool, reason: str | None
) -> None:
    said = why_noise_is_impossible("cpu", device, launched)
    assert (said is None) == (reason is None)
    assert re.search(reason or "", said or "")


class Session:
    """Notes what is asked of it; the noise of a cell has a round of its own."""

    def __init__(self, fails: bool = False) -> None:
        self.asked: list[object] = []
        self._fails = fails

    def begin_noise(self, name: str, seconds: int) -> None:
        self.asked.append((name, seconds))
        if self._fails:
            raise NotProven("no licence")

    def end_noise(self) -> Any:
        self.asked.append("ends")
        return ROUND


ROUND: Any = "round"


def noise(session: Session, *, worker: bool = True, device: str = "cpu", **given: Any) -> HwqNoise:
    config: Any = SimpleNamespace(
        stash=pytest.Stash(), workerinput={WORKER_KEY: True} if worker else {},
        invocation_params=SimpleNamespace(dir=Path("/")),
    )  # fmt: skip
    settings = Settings(max_time=10.0, device="cpu", **given)
    config.stash[SETTINGS] = settings
    config.stash[SINK] = SimpleNamespace(session=session)
    node = SimpleNamespace(callspec=SimpleNamespace(params={"hwq_device": device}))
    request: Any = SimpleNamespace(config=config, node=node)
    return HwqNoise(request, settings)


def test_a_block_runs_its_noise_and_then_has_what_that_did(tmp_path: Path) -> None:
    description = tmp_path / "burns.yaml"
    description.write_text("command: [sleep, '{seconds}']\n")
    session = Session()
    hwq_noise = noise(session)
    assert hwq_noise.possible()
    with hwq_noise(str(description), seconds=90) as block:
        assert (hwq_noise.running, block.noise, block.round) == (str(description),) * 2 + (None,)
        with hwq_noise.around_cell(7) as rounds:
            assert rounds == []
        assert rounds == [ROUND]
        with pytest.raises(RuntimeError, match="runs already"), hwq_noise(str(description)):
            pass
    assert (hwq_noise.running, block.round) == ("none", ROUND)
    assert session.asked == [(str(description), 90), (str(description), 7), "ends", "ends"]
    with hwq_noise.around_cell(7):
        pass
    assert session.asked[-2:] == [("none", 7), "ends"]
    # By default it outlasts a cell.
    with hwq_noise(str(description)):
        pass
    assert session.asked[-2:] == [(str(description), 90), "ends"]


def test_a_block_that_fails_or_whose_noise_cannot_start_leaves_none_running(tmp_path: Path) -> None:
    description = tmp_path / "burns.yaml"
    description.write_text("command: [sleep, '{seconds}']\n")
    hwq_noise = noise(Session())
    with pytest.raises(ZeroDivisionError), hwq_noise(str(description)) as block:
        raise ZeroDivisionError
    assert (hwq_noise.running, block.round) == ("none", ROUND)
    session = Session(fails=True)
    hwq_noise = noise(session)
    with pytest.raises(NotProven, match="no licence"), hwq_noise(str(description)):
        raise AssertionError
    assert hwq_noise.running == "none"
    # What did not begin has no end.
    assert session.asked == [(str(description), 90)]


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ({"worker": False}, "needs a separate worker process: leave out --hwq-isolation=none"),
        ({"device": "sim:h200"}, "a simulated device does not use"),
        ({"worker": False, "device": "sim:h200"}, "a simulated device does not use"),
    ],
)
def test_a_block_where_there_can_be_none_skips_its_test(given: Any, reason: str) -> None:
    session = Session()
    hwq_noise = noise(session, **given)
    assert not hwq_noise.possible()
    with pytest.raises(pytest.skip.Exception, match=reason), hwq_noise("none"):
        raise AssertionError
    # A wrong name is no reason to skip.
    with pytest.raises(BadInput, match="absent"), hwq_noise("absent"):
        raise AssertionError
    assert session.asked == []


def test_a_block_of_a_launchers_rank_skips_its_test(monkeypatch: pytest.MonkeyPatch) -> None:
    launched = {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"}
    for name, value in launched.items():
        monkeypatch.setenv(name, value)
    hwq_noise = noise(Session())
    assert not hwq_noise.possible()
    with pytest.raises(pytest.skip.Exception, match="leave torchrun out"), hwq_noise("none"):
        raise AssertionError


def test_a_program_that_is_not_there_skips_the_test(tmp_path: Path) -> None:
    description = tmp_path / "absent.yaml"
    description.write_text("command: [no-such-program]\ninstall: get it\n")
    hwq_noise = noise(Session())
    assert hwq_noise.possible()
    with (
        pytest.raises(pytest.skip.Exception, match="no-such-program is not on PATH; get it"),
        hwq_noise(str(description)),
    ):
        raise AssertionError


def test_descriptions_and_data_have_their_places(tmp_path: Path) -> None:
    def places(**given: Any) -> Any:
        config: Any = SimpleNamespace(
            stash=pytest.Stash(), invocation_params=SimpleNamespace(dir=tmp_path)
        )
        config.stash[SETTINGS] = Settings(**given)
        return noise_places(config)

    # The records' folder is not there yet, and neither is what it is in.
    assert places(dir=Path("a/b")) == type(places())(tmp_path)
    (tmp_path / "a").mkdir()
    assert places(dir=Path("a/b")) == type(places())(tmp_path / "a")
    # A folder that was asked for is as given.
    assert places(noise_dir=Path("c")) == type(places())(tmp_path / "c")
