"""Tests of shapes that are met less often: subtests, and fixtures asked for at run time."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.acceptance.inner import records_in

if TYPE_CHECKING:
    from tests.conftest import RunInProcess, Sessions

QUICK = ("--hwq-device=sim:h200", "--hwq-iterations=20", "--hwq-warmup=2")
SUBTESTS = """
import unittest

class TestPlain(unittest.TestCase):
    def test_table(self):
        for n in (1, 2):
            with self.subTest(n=n):
                self.assertEqual(n, 1)

def test_each(hwq, subtests):
    for n in (1, 2):
        with subtests.test(n=n):
            hwq.measure(lambda: None, streams=1, name=f"n{n}")
            assert n == 1

def test_after(hwq):
    hwq.measure(lambda: None, streams=1)
"""
AT_RUN_TIME = """
import unittest
import pytest

class TestCase(unittest.TestCase):
    @pytest.fixture(autouse=True)
    def take(self, hwq):
        self.hwq = hwq
    def test_case(self):
        self.hwq.measure(lambda: None, streams=1)

@pytest.mark.parametrize("name", ["hwq", "hwq_streams", "hwq_scheduler", "hwq_dispatch"])
def test_lazy(request, name):
    request.getfixturevalue(name)

@pytest.mark.usefixtures("hwq")
def test_marked(request):
    request.getfixturevalue("hwq").measure(lambda: None, streams=1)
"""


def test_subtests_pass_and_fail_as_without_the_plugin(
    pytester: pytest.Pytester, sessions: Sessions
) -> None:
    pytest.importorskip("_pytest.subtests", reason="pytest before 9 has no subtests")
    pytester.makepyfile(test_mine=SUBTESTS)
    result = sessions.result(
        pytester.path, *QUICK, "--hwq-save=main", "--hwq-runs=2", "--hwq-json=s.json"
    )
    outcomes = result.parseoutcomes()
    assert outcomes["failed"] == 3, outcomes
    assert outcomes["passed"] == 2, outcomes
    result.stdout.fnmatch_lines(["SUBFAILED(n=2) test_mine.py::TestPlain::test_table*"])
    result.stdout.fnmatch_lines(["SUBFAILED(n='2') test_mine.py::test_each*"])
    cells = [record["cell"].partition("[")[0] for record in records_in(pytester.path / "s.json")]
    assert sorted(cell.rpartition("::")[2] for cell in cells) == [
        "n1",
        "n2",
        "test_after",
        "test_after",
    ]
    result.stdout.fnmatch_lines(["*test_each* failed after it had measured*"])


def test_a_fixture_asked_for_at_run_time_says_how_to_name_it(
    pytester: pytest.Pytester, run_in_process: RunInProcess
) -> None:
    pytester.makepyfile(test_mine=AT_RUN_TIME)
    result = run_in_process(*QUICK)
    result.assert_outcomes(passed=1, failed=4, errors=1)
    text = result.stdout.str()
    assert text.count('mark it with @pytest.mark.usefixtures("hwq")') == 5
    assert "has no attribute" not in text
