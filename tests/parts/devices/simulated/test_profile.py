"""Profiles are read with every figure's source, and bad ones are refused by file and field."""

from __future__ import annotations

from copy import deepcopy
from importlib import resources
from pathlib import Path
from typing import Any

import pytest
import yaml

from pytest_hwqueue.data.errors import BadInput
from pytest_hwqueue.parts.devices.simulated.profile import BUILT_IN, load_profile

_PROFILES = resources.files("pytest_hwqueue.parts.devices.simulated") / "profiles"
_H200: dict[str, Any] = yaml.safe_load((_PROFILES / "h200.yaml").read_text(encoding="utf-8"))
_RATE = "arithmetic.fp32_flop_per_s.value"
_ABSENT = object()


def changed(*edits: tuple[str, object]) -> str:
    """The H200's profile with values elsewhere or absent, by their paths."""
    values = deepcopy(_H200)
    for path, value in edits:
        *sections, name = path.split(".")
        section = values
        for each in sections:
            section = section[each]
        if value is _ABSENT:
            del section[name]
        else:
            section[name] = value
    return yaml.safe_dump(values)


def test_built_in_profiles_load_and_only_the_measured_one_is_calibrated(tmp_path: Path) -> None:
    profiles = {name: load_profile(name) for name in BUILT_IN}
    assert [name for name, profile in profiles.items() if profile.calibrated] == ["h200"]
    for profile in profiles.values():
        assert profile.slots == profile.hardware().slots > 0
    mine = tmp_path / "mine.yaml"
    mine.write_text(changed(("name", "my GPU")), encoding="utf-8")
    assert load_profile(str(mine)).name == "my GPU"


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        *[(changed((_RATE, bad)), r"arithmetic\.fp32_flop_per_s\.value: .*got")
          for bad in (-1.0, 0.0, float("inf"), float("nan"), "fast")],
        (changed(("dispatch.start_ns", _ABSENT)), r"dispatch\.start_ns: missing"),
        (changed(("memory.latency", 1)), r"memory\.latency: unknown field"),
        (changed(("host.event_record_ns.source", _ABSENT)),
         r"host\.event_record_ns\.source: missing"),
        # All problems at once.
        (changed(("name", _ABSENT), ("memory.capacity_bytes.value", -5)),
         r"name: missing; memory\.capacity_bytes"),
        ("a: [", "not YAML"), ("- 1\n- 2\n", "not a table"), ("", "not a table"),
    ],
)  # fmt: skip
def test_a_bad_profile_is_refused_by_file_and_field(tmp_path: Path, text: str, reason: str) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(BadInput, match=rf"mine\.yaml: {reason}"):
        load_profile(str(path))


def test_what_is_not_there_is_refused() -> None:
    for name, reason in (
        ("absent.yaml", r"absent\.yaml: cannot be read"),
        ("b300", "h200, mi300x"),
    ):
        with pytest.raises(BadInput, match=reason):
            load_profile(name)
