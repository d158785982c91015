"""The index of messages names messages that the code has."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

_ROOT = Path(__file__).parents[1]
_PAGE = (_ROOT / "docs" / "troubleshooting.md").read_text(encoding="utf-8")
# A paragraph that is one message, or several.
_SHOWN = re.findall(r"^(`[^`\n]+`(?:, .*)?)$", _PAGE, re.MULTILINE)
_MESSAGES = [message for shown in _SHOWN for message in re.findall(r"`([^`]+)`", shown)]


def _written() -> str:
    """Every text of the package, with … for what is filled in."""
    texts = []
    for path in sorted((_ROOT / "pytest_hwqueue").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.JoinedStr):
                parts = (p.value if isinstance(p, ast.Constant) else "…" for p in node.values)
                texts.append("".join(map(str, parts)))
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                texts.append(node.value)
    return "\n".join(texts)


@pytest.fixture(scope="module")
def written() -> str:
    return _written()


@pytest.mark.parametrize("message", _MESSAGES)
def test_a_message_is_one_of_the_code(message: str, written: str) -> None:
    # The longest part that is fixed.
    fixed = max(re.split(r"…|: |\d+|; |\{\w+\}", message), key=len).strip()
    assert len(fixed) >= 12
    assert fixed in written
