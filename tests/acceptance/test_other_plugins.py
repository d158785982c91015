"""Other plugins take a worker for one of xdist's, and find in it what they give those."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.conftest import RunInProcess, Sessions

# As pytest-rerunfailures does with a port, and pytest-randomly with a seed that is an option too.
STAND_INS = """
import os
from pathlib import Path
import pytest

PUT = {"lines": {"a.py": {1: 2, None: {3, 4}}}, ("x", 1): [b"\\xff", (5, frozenset({"y"}))], "": {}}

# As pytest-testmon does with the lines that a test has covered.
@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport():
    report = yield
    report.put, report.odd = PUT, {object: {len}}
    return report

class Session:
    def pytest_runtest_logreport(self, report):
        assert report.put == PUT and list(map(type, report.put[("x", 1)])) == [bytes, tuple]
        # The session's process has the text of what only the worker's has.
        assert report.odd == {str(object): {str(len)}}
        print("ARRIVED", report.when)

class Nodes:
    def pytest_configure_node(self, node):
        node.workerinput["port"] = node.config.port
        node.workerinput["seed"] = node.config.option.seed
        node.workerinput["object"] = self

class NeedsMore:
    def pytest_configure_node(self, node):
        node.gateway.spec

class Forked:
    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_protocol(self, item):
        if hasattr(item.config, "workerinput"):
            os._exit(3)

def pytest_addoption(parser, pluginmanager):
    parser.addoption("--seed", default="default")
    pluginmanager.register(Forked(), "pytest_forked")

def pytest_configure(config):
    xdist = config.pluginmanager.hasplugin("xdist")
    if xdist:
        config.pluginmanager.register(Nodes())
        config.pluginmanager.register(NeedsMore(), "needs-more")
    if hasattr(config, "workerinput"):
        config.option.seed = config.workerinput["seed"]
        config.port = config.workerinput["port"] if xdist else None
    else:
        config.pluginmanager.register(Session())
        config.option.seed = os.getpid()
        config.port = 4711 if xdist else None
        if not os.environ.get("PYTEST_XDIST_WORKER"):
            Path("seed").write_text(str(os.getpid()))

def pytest_terminal_summary():
    with open("summaries", "a") as file:
        print(os.getpid(), file=file)
"""
ASKS = """
from pathlib import Path

def test_mine(hwq_device, request):
    config = request.config
    assert config.workerinput["hwqueue"] and config.workerinput["workerid"]
    assert config.option.seed == int(Path("seed").read_text())
    assert config.port == (4711 if config.pluginmanager.hasplugin("xdist") else None)

def test_xdists(hwq_device, worker_id, testrun_uid):
    assert worker_id == "hwq" and testrun_uid
"""


@pytest.mark.parametrize("xdist", [True, False])
def test_plugins_hand_to_workers_and_what_they_put_onto_reports_arrives(
    pytester: pytest.Pytester, sessions: Sessions, xdist: bool
) -> None:
    pytester.makeconftest(STAND_INS)
    pytester.makepyfile(test_mine=ASKS)
    without = [] if xdist else ["-p", "no:xdist", "-k", "not xdists"]
    result = sessions.result(pytester.path, "--hwq-device=cpu", "-s", *without)
    result.assert_outcomes(passed=2 if xdist else 1, deselected=0 if xdist else 1)
    assert result.stdout.str().count("ARRIVED teardown") == (2 if xdist else 1)
    # Only the session has a summary, and so only there a plugin does what it needs for one.
    assert len((pytester.path / "summaries").read_text().split()) == 1
    if xdist:
        result.stdout.fnmatch_lines(["*plugin needs-more has nothing for the worker process*"])


def test_a_selection_that_would_miss_changes_is_refused(
    pytester: pytest.Pytester, run_in_process: RunInProcess
) -> None:
    pytester.makeconftest(
        "from types import SimpleNamespace\n"
        "def pytest_configure(config):\n"
        "    config.testmon_config = SimpleNamespace(collect=True, select=True)\n"
    )
    pytester.makepyfile("def test_it(hwq):\n    hwq.measure(lambda: None)")
    result = run_in_process("--hwq-device=cpu", "--hwq-isolation=process")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["*--testmon: *add --no-testmon*"])
