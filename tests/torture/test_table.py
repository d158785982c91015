"""The tests that docs/evidence/hard-to-break.md names are there."""

from __future__ import annotations

import re
from pathlib import Path

TESTS = Path(__file__).parents[1]
PAGE = TESTS.parent / "docs" / "evidence" / "hard-to-break.md"


def test_tests_of_the_page_exist() -> None:
    named = re.findall(r"[` ](?:tests/)?(\w+/[\w/]+\.py)\b", PAGE.read_text(encoding="utf-8"))
    assert {each.partition("/")[0] for each in named} >= {"acceptance", "parts", "torture"}
    assert [each for each in named if not (TESTS / each).is_file()] == []
