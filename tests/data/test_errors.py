"""What places, remedies and other libraries' errors become; faces show only the text."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest
from pydantic import BaseModel, field_validator

from pytest_hwqueue.data.errors import (
    BadInput,
    BadOption,
    BadScenario,
    DeviceError,
    HwqError,
    RecordError,
    SideFailed,
    files,
    refused_as,
    translated,
    within,
)
from pytest_hwqueue.engine.cell.attempt import RunEnded
from pytest_hwqueue.engine.scenarios.located_yaml import Problem


class Held(BaseModel):
    n: int


def test_a_place_and_a_remedy_stand_around_each_text_and_the_kind_stays() -> None:
    with pytest.raises(DeviceError) as raised, within("cuda:1", remedy="free it"), within("stream"):
        raise DeviceError("is lost")
    assert str(raised.value) == "cuda:1: stream: is lost; free it"
    with pytest.raises(ZeroDivisionError), within("cuda:1"):
        _ = 1 / 0


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ('{"n": "x"}', "here: n: Input should be a valid integer, unable to parse string as an"),
        ("[]", "here: Input should be an object"),
        ('{"n": 1', "here: Invalid JSON: EOF while parsing an object"),
    ],
)
def test_pydantic_is_quoted_by_its_first_field(given: str, said: str) -> None:
    with (
        pytest.raises(RecordError) as raised,
        translated(RecordError, "here", ValueError, remedy="mend it"),
    ):
        Held.model_validate_json(given)
    assert str(raised.value).startswith(said)
    assert str(raised.value).endswith("; mend it")
    assert raised.value.__cause__ is not None


class Own(BaseModel):
    n: int

    @field_validator("n")
    @classmethod
    def _refuse(cls, n: int) -> int:
        raise ValueError("is too much")


def test_what_is_our_own_is_said_without_pydantics_words() -> None:
    with pytest.raises(BadInput) as raised, translated(BadInput, "here", ValueError):
        Own(n=1)
    assert str(raised.value) == "here: n: is too much"


@pytest.mark.parametrize(
    "error",
    [
        SideFailed(["A", "B"], "no such commit"),
        BadOption("--runs", "x", "give a number"),
        BadScenario(Path("a.hwq.yaml"), [Problem(3, "goals", "is no goal")]),
        RunEnded("skipped", "no GPU"),
    ],
)
def test_an_error_passes_between_processes(error: HwqError) -> None:
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is type(error)
    assert (str(again), vars(again)) == (str(error), vars(error))


def test_what_others_write_cannot_steer_a_terminal_or_fill_it() -> None:
    with pytest.raises(HwqError) as raised, translated(HwqError, "", KeyError):
        raise KeyError("\x1b[2J\n" + "x" * 500)
    assert "\x1b" not in str(raised.value)
    assert len(str(raised.value)) < 200
    with pytest.raises(KeyError), translated(HwqError, "", OSError):
        raise KeyError("not its business")


def test_bad_input_is_an_options_value_and_a_refused_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(BadOption) as raised, refused_as("--x", "7"):
        raise BadInput("give 1 to 3")
    assert (str(raised.value), raised.value.exit_status) == (
        "--x: '7' is not valid; give 1 to 3",
        4,
    )
    with (
        pytest.raises(RecordError, match=rf"^cannot read {tmp_path}: Is a directory; look$"),
        files("read", tmp_path, remedy="look"),
    ):
        tmp_path.read_bytes()
