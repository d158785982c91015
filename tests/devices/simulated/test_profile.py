"""Profiles are read with every figure's source, and bad ones are refused by file and field."""

from __future__ import annotations

from importlib import resources
from pathlib import Path
from typing import Any

import pytest
import yaml

from pytest_hwqueue.devices.simulated.profile import BUILT_IN, BadProfile, load_profile

PACKAGE = "pytest_hwqueue.devices.simulated"


@pytest.fixture
def values() -> dict[str, Any]:
    text = (resources.files(PACKAGE) / "profiles" / "h200.yaml").read_text(encoding="utf-8")
    loaded: dict[str, Any] = yaml.safe_load(text)
    return loaded


def written(folder: Path, values: object) -> str:
    path = folder / "mine.yaml"
    path.write_text(yaml.safe_dump(values), encoding="utf-8")
    return str(path)


@pytest.mark.parametrize("name", BUILT_IN)
def test_built_in_profiles_load(name: str) -> None:
    profile = load_profile(name)
    assert profile.slots == profile.hardware().slots > 0


def test_only_the_measured_one_is_calibrated() -> None:
    assert load_profile("h200").calibrated
    assert not load_profile("mi300x").calibrated


def test_a_file_is_a_profile_of_its_own(tmp_path: Path, values: dict[str, Any]) -> None:
    values["name"] = "my GPU"
    assert load_profile(written(tmp_path, values)).name == "my GPU"


def test_a_missing_field_is_named_with_its_file(tmp_path: Path, values: dict[str, Any]) -> None:
    del values["dispatch"]["start_ns"]
    with pytest.raises(BadProfile, match=r"mine\.yaml: dispatch\.start_ns: missing"):
        load_profile(written(tmp_path, values))


@pytest.mark.parametrize("bad", [-1.0, 0.0, float("inf"), float("nan"), "fast"])
def test_a_rate_that_is_none_is_refused(tmp_path: Path, values: dict[str, Any], bad: Any) -> None:
    values["arithmetic"]["fp32_flop_per_s"]["value"] = bad
    with pytest.raises(BadProfile, match=r"mine\.yaml: arithmetic\.fp32_flop_per_s\.value: .*got"):
        load_profile(written(tmp_path, values))


def test_an_unknown_field_is_refused(tmp_path: Path, values: dict[str, Any]) -> None:
    values["memory"]["latency"] = 1
    with pytest.raises(BadProfile, match=r"mine\.yaml: memory\.latency: unknown field"):
        load_profile(written(tmp_path, values))


def test_a_figure_without_a_source_is_refused(tmp_path: Path, values: dict[str, Any]) -> None:
    del values["host"]["event_record_ns"]["source"]
    with pytest.raises(BadProfile, match=r"host\.event_record_ns\.source: missing"):
        load_profile(written(tmp_path, values))


def test_all_problems_are_named_at_once(tmp_path: Path, values: dict[str, Any]) -> None:
    del values["name"]
    values["memory"]["capacity_bytes"]["value"] = -5
    with pytest.raises(BadProfile, match=r"name: missing; memory\.capacity_bytes"):
        load_profile(written(tmp_path, values))


@pytest.mark.parametrize(
    ("text", "reason"),
    [("a: [", "not YAML"), ("- 1\n- 2\n", "not a table"), ("", "not a table")],
)
def test_what_is_no_profile_at_all_is_refused(tmp_path: Path, text: str, reason: str) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(BadProfile, match=rf"mine\.yaml: {reason}"):
        load_profile(str(path))


def test_a_file_that_is_not_there_is_refused() -> None:
    with pytest.raises(BadProfile, match=r"absent\.yaml: cannot be read"):
        load_profile("absent.yaml")


def test_an_unknown_name_lists_those_there_are() -> None:
    with pytest.raises(BadProfile, match="h200, mi300x"):
        load_profile("b300")
