"""Names of noises, and what they open."""

from __future__ import annotations

from pathlib import Path

import pytest

from pytest_hwqueue.data.errors import BadInput
from pytest_hwqueue.data.noise_names import NOISES, describe_noises, parse_noises
from pytest_hwqueue.engine.noise.neighbours import NoisePlaces, open_noise


def test_names_are_read_each_once_and_the_quiet_one_comes_first() -> None:
    assert parse_noises("cpu, heavy,cpu,my.yaml") == ("none", "cpu", "heavy", "my.yaml")
    assert parse_noises("cpu,none") == ("none", "cpu")
    for text in ("", " , "):
        with pytest.raises(BadInput, match="none, cpu, network, disk, heavy, optimised, isolated"):
            parse_noises(text)
    assert all(name in describe_noises() for name in NOISES.built_in)


def test_what_is_built_in_opens_and_no_other(places: NoisePlaces, tmp_path: Path) -> None:
    opened = [open_noise(name, places) for name in NOISES]
    assert {one.name: [each.name for each in one.neighbours] for one in opened} == {
        "none": [], "cpu": ["cpu"], "network": ["network"], "disk": ["disk"],
        "heavy": ["cpu", "network", "disk"], "optimised": ["cpu"], "isolated": ["cpu"],
    }  # fmt: skip
    remedies = {one.name: one.remedy for one in opened if one.remedy}
    assert remedies == {"optimised": "pinned", "isolated": "isolated"}
    (tmp_path / "database.yaml").write_text("command: [sleep, '1']")
    with pytest.raises(BadInput, match=r"no noise 'cpuu'; there are none, cpu.*, database"):
        open_noise("cpuu", NoisePlaces(tmp_path, descriptions=(tmp_path,)))
