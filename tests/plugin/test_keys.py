"""What is asked of a config or a test, whoever asks."""

from __future__ import annotations

from typing import Any

import pytest

from pytest_hwqueue.plugin.keys import (
    WORKER_KEY,
    is_scenario,
    is_worker,
    isolates,
    item_key,
    parameters_of,
    session_secrets,
)

from .conftest import Collect, Configure


@pytest.mark.parametrize(
    ("given", "expected"),
    [("", True), ("--hwq-isolation=none", False), ("--pdb", False), ("--trace", False)],
)
def test_measuring_tests_get_a_process_unless_someone_debugs(
    configure: Configure, given: str, expected: bool
) -> None:
    assert isolates(configure(*given.split())) == expected


@pytest.mark.parametrize(("key", "expected"), [(WORKER_KEY, True), ("workerid", False)])
def test_only_a_worker_of_ours_measures_for_a_session(
    configure: Configure, key: str, expected: bool
) -> None:
    config: Any = configure()
    assert not is_worker(config)
    config.workerinput = {key: "gw0"}
    assert is_worker(config) == expected
    # In it, a test has its process already; one of xdist's starts some of its own.
    assert isolates(config) != expected


def test_parameters_and_the_mark_of_scenarios(collect: Collect) -> None:
    one, none, scenario = collect(
        "import pytest\n"
        "@pytest.mark.parametrize('n', [3])\n"
        "def test_one(n): pass\n"
        "def test_none(): pass\n"
        "@pytest.mark.scenario\n"
        "def test_scenario(): pass\n"
    )
    assert [parameters_of(each) for each in (one, none)] == [{"n": 3}, {}]
    assert [is_scenario(each) for each in (one, none, scenario)] == [False, False, True]


def test_a_test_has_one_key_from_wherever_it_is_collected(
    collect: Collect, pytester: pytest.Pytester
) -> None:
    pytester.mkdir("elsewhere")
    text, rootdir = "class TestIn:\n    def test_it(self): pass\n", "--rootdir=elsewhere"
    pytester.mkdir("own").joinpath("test_mine.py").write_text(text)
    (here,) = collect("", rootdir, "own")
    (there,) = collect("", rootdir, "own/test_mine.py")
    assert here.nodeid != there.nodeid
    assert item_key(here) == item_key(there) == f"{here.path}::TestIn::test_it"


def test_secrets_are_one_sessions() -> None:
    first, second = (type("Config", (), {"stash": pytest.Stash()})() for _ in range(2))
    session_secrets(first).add("hidden")
    assert session_secrets(first) == {"hidden"}
    assert session_secrets(second) == set()
