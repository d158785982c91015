"""The tests that docs/hard-to-break.md names are there."""

from __future__ import annotations

import ast
import re
from pathlib import Path

TESTS = Path(__file__).parents[1]
PAGE = TESTS.parent / "docs" / "hard-to-break.md"


def named(text: str) -> list[tuple[str, str]]:
    """File and name of each test in a page; ``::name`` alone is of the file before.

    A file without its folder is none of these: the page names modules of planted faults, too.
    """
    found, file = [], ""
    for given, name in re.findall(r"`(\w+/[\w/]+\.py)?(?:::(\w+))?`", text):
        file = given or file
        if given or name:
            found.append((file, name))
    return found


def test_tests_of_the_page_exist() -> None:
    listed = named(PAGE.read_text(encoding="utf-8"))
    assert len(listed) > 16
    for file, name in listed:
        tree = ast.parse((TESTS / file).read_text(encoding="utf-8"))
        functions = {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}
        assert not name or name in functions, f"{file}::{name}"


def test_a_name_that_is_gone_would_be_noticed() -> None:
    text = "`acceptance/test_hostile.py::test_one`, `::test_two`, `cli/test_main.py`, `hwq`"
    assert named(text) == [
        ("acceptance/test_hostile.py", "test_one"),
        ("acceptance/test_hostile.py", "test_two"),
        ("cli/test_main.py", ""),
    ]
