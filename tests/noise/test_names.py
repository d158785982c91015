"""Names of noises, and what they open."""

from __future__ import annotations

from pathlib import Path

import pytest

from pytest_hwqueue.errors import BadNoise
from pytest_hwqueue.noise.names import NOISES, describe_noises, parse_noises
from pytest_hwqueue.noise.neighbours import NoisePlaces, open_noise


def test_names_are_read_each_once_and_the_quiet_one_comes_first() -> None:
    assert parse_noises("cpu, heavy,cpu,my.yaml") == ("none", "cpu", "heavy", "my.yaml")
    assert parse_noises("cpu,none") == ("none", "cpu")


@pytest.mark.parametrize("text", ["", " , "])
def test_no_name_is_refused(text: str) -> None:
    with pytest.raises(BadNoise, match="none, cpu, network, disk, heavy, optimised, isolated"):
        parse_noises(text)


def test_what_is_built_in_opens(places: NoisePlaces) -> None:
    parts = {name: [each.name for each in open_noise(name, places).neighbours] for name in NOISES}
    assert parts == {
        "none": [],
        "cpu": ["cpu"],
        "network": ["network"],
        "disk": ["disk"],
        "heavy": ["cpu", "network", "disk"],
        "optimised": ["cpu"],
        "isolated": ["cpu"],
    }
    remedies = {name: open_noise(name, places).remedy for name in NOISES}
    assert {name: remedy for name, remedy in remedies.items() if remedy} == {
        "optimised": "pinned",
        "isolated": "isolated",
    }


def test_help_names_all() -> None:
    assert all(name in describe_noises() for name in NOISES.built_in)


def test_a_name_that_nobody_knows_is_refused_with_those_there_are(tmp_path: Path) -> None:
    (tmp_path / "database.yaml").write_text("command: [sleep, '1']")
    with pytest.raises(BadNoise, match=r"no noise 'cpuu'; there are none, cpu.*, database"):
        open_noise("cpuu", NoisePlaces(tmp_path, descriptions=(tmp_path,)))


def test_a_file_size_that_is_too_small(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="1048576 bytes or more, is 4096"):
        open_noise("disk", NoisePlaces(tmp_path, size_bytes=4096))
