"""Help at a human's size: every option has a topic and a line, and `pytest --help` stays short."""

from __future__ import annotations

import pytest

from pytest_hwqueue.settings.options import OPTIONS, Option
from pytest_hwqueue.settings.values import TOPICS

MOST_LINES = 60
"""That the plugin may add to `pytest --help`."""
# argparse begins texts in column 24 of 80.
_ROOM = 56
LINES = {name: line for topic in TOPICS for name, line in (topic.common | topic.rare).items()}


def test_each_option_has_one_topic() -> None:
    names = [name for topic in TOPICS for name in (*topic.common, *topic.rare)]
    assert sorted(names) == sorted(option.name for option in OPTIONS)
    assert len({topic.name for topic in TOPICS}) == len(TOPICS)


@pytest.mark.parametrize("option", OPTIONS, ids=lambda option: option.name)
def test_each_option_has_one_line_with_its_default(option: Option) -> None:
    line = LINES[option.name]
    assert len(line) > 15
    assert len(f"{line} [{option.default}]") <= _ROOM


def test_testing_aids_are_apart() -> None:
    (testing,) = (topic for topic in TOPICS if topic.name == "testing")
    assert not testing.common
    assert set(testing.rare) == {"fault", "sim-noise"}


def test_help_of_pytest_grows_by_little(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    # Ini keys are known, though help does not list them.
    pytester.makeini("[pytest]\naddopts = --strict-config\nhwq_seed = 5\n")
    ours = pytester.runpytest_subprocess("--help")
    assert ours.ret == 0
    ours.stdout.fnmatch_lines(["hardware queues*`hwq help`*", "  --hwq-device=DEVICE *"])
    ours.stdout.no_fnmatch_line("*--hwq-fault*")
    ours.stdout.no_fnmatch_line("*hwq_seed*")
    pytester.makeini("")
    without = pytester.runpytest_subprocess("--help", "-p", "no:hwqueue")
    grown = len(ours.outlines) - len(without.outlines)
    assert 10 < grown <= MOST_LINES
