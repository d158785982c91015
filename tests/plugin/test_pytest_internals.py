"""What pytest does not promise is there, alone in its module, and its absence is said by name.

`tox run -e pytest-main` runs these tests with pytest's main branch.
"""

from __future__ import annotations

import ast
import io
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pytest_hwqueue.data.errors import HwqError
from pytest_hwqueue.plugin import pytest_internals as internals

PACKAGE = Path(internals.__file__).parents[1]


class Runs:
    """Runs two tests of a module, the first as if the second followed, and looks between them."""

    def __init__(self) -> None:
        self.seen: list[list[str]] = []

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        first, second = session.items
        first.config.hook.pytest_runtest_protocol(item=first, nextitem=second)
        self._look(session)
        internals.tear_down_to(session, None)
        self._look(session)
        return True

    def _look(self, session: pytest.Session) -> None:
        self.seen.append(session.items[0].module.ended)  # type: ignore[attr-defined]


def test_a_fixture_that_no_test_shares_is_torn_down(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        import pytest
        ended = []

        @pytest.fixture(scope="module")
        def shared():
            yield
            globals()["ended"] = ["shared"]

        def test_first(shared): pass
        def test_second(shared): pass
        """
    )
    runs = Runs()
    pytester.inline_run("-p", "no:hwqueue", plugins=[runs])
    assert runs.seen == [[], ["shared"]]


def test_the_tests_among_a_command_lines_words_are_told_from_options_values(
    pytester: pytest.Pytester,
) -> None:
    config = pytester.parseconfig()
    found = internals.tests_among(config, ["-k", "tests", "tests", "--lf", "more::test"])
    assert found == ["tests", "more::test"]


def test_what_is_written_to_the_terminal_goes_to_another_file(pytester: pytest.Pytester) -> None:
    config = pytester.parseconfigure("-p", "no:hwqueue")
    written = io.StringIO()
    internals.redirect_terminal(config, written)
    config.get_terminal_writer().write("a line")
    assert internals.terminal_file(config) is written
    assert written.getvalue() == "a line"


def test_what_a_session_begins_with_is_imported_ahead() -> None:
    script = (
        "from pytest_hwqueue.plugin import pytest_internals as internals\n"
        "internals.import_builtin_plugins()\n"
        "import sys\n"
        "ahead = {*sys.modules}\n"
        "import pytest\n"
        "pytest.main(['--version', '-p', 'no:terminal'])\n"
        "print([each for each in sys.modules if each.startswith('_pytest.')"
        " and each not in ahead])\n"
    )
    command = [sys.executable, "-c", script]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"


@pytest.mark.parametrize(
    ("name", "need"),
    [
        ("_setupstate", lambda bare: internals.tear_down_to(bare, None)),
        ("_parser", lambda bare: internals.tests_among(bare, [])),
        ("_file", lambda bare: internals.redirect_terminal(bare, None)),
        ("default_plugins", lambda bare: internals.import_builtin_plugins()),
    ],
)
def test_what_a_pytest_lacks_is_named_with_what_to_do(
    monkeypatch: pytest.MonkeyPatch, name: str, need: Callable[[Any], None]
) -> None:
    bare = SimpleNamespace(get_terminal_writer=object)
    monkeypatch.delattr("_pytest.config.default_plugins")
    said = (
        rf"^pytest {pytest.__version__} has no \S*\.{name}, which pytest-hwqueue needs; .*install"
    )
    with pytest.raises(HwqError, match=said):
        need(bare)


def _private_names(path: Path) -> Iterator[str]:
    """Yield imports from pytest's modules, and attributes with an underscore of other objects."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("_pytest"):
            yield f"{path.name}: {node.module}"
        elif isinstance(node, ast.Import):
            yield from (
                f"{path.name}: {each.name}"
                for each in node.names
                if each.name.startswith("_pytest")
            )
        elif isinstance(node, ast.Attribute) and node.attr.startswith("_"):
            own = isinstance(node.value, ast.Name) and node.value.id in ("self", "cls", "os")
            if not own and not node.attr.startswith("__"):
                yield f"{path.name}: {ast.unparse(node)}"


def test_no_other_module_uses_what_pytest_does_not_promise() -> None:
    plugin = (PACKAGE / "plugin").rglob("*.py")
    found = {each for path in plugin for each in _private_names(path)}
    assert found == {"pytest_internals.py: writer._file"}
