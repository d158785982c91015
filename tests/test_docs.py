"""Pages name what there is: the index of messages messages, the guides to the code its paths."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

_ROOT = Path(__file__).parents[1]
_PAGE = (_ROOT / "docs" / "troubleshooting.md").read_text(encoding="utf-8")
# A paragraph that is one message, or several.
_SHOWN = re.findall(r"^(`[^`\n]+`(?:, .*)?)$", _PAGE, re.MULTILINE)
_MESSAGES = [message for shown in _SHOWN for message in re.findall(r"`([^`]+)`", shown)]
_GUIDES = (_ROOT / "CONTRIBUTING.md", _ROOT / "docs" / "architecture.md")
_PATH = re.compile(r"[\w.-]+(?:/[\w.-]+)*/?")
# What a reader replaces, or makes.
_ANY = re.compile("FAMILY|NAME")
_MADE = ("docs/_build/",)


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


def _named(page: str) -> Iterator[str]:
    """The paths that a page names: in code, also among a command's words, and as links."""
    page = re.sub(r"^```.*?^```", "", page, flags=re.MULTILINE | re.DOTALL)
    for code in re.findall(r"`([^`]+)`", page):
        for module in re.findall(r"-m ((?:tools|tests)\.[\w.]+)", code):
            yield module.replace(".", "/") + ".py"
        for word in code.split():
            is_path = "/" in word or word.endswith((".py", ".md", ".yml", ".cff", ".toml"))
            if is_path and _PATH.fullmatch(word) and not word.startswith(_MADE):
                yield word


def _is_there(path: str) -> bool:
    """Whether it lies in the tree or in the package; a name alone, anywhere in either."""
    pattern = _ANY.sub("*", path.rstrip("/"))
    found = [*_ROOT.glob(pattern), *(_ROOT / "pytest_hwqueue").glob(pattern)]
    if "/" not in pattern:
        for top in ("pytest_hwqueue", "tests", ".github"):
            found += (_ROOT / top).rglob(pattern)
    return any(each.is_dir() or not path.endswith("/") for each in found)


@pytest.mark.parametrize(
    ("page", "path"),
    [
        pytest.param(page, path, id=f"{page.name}-{path}")
        for page in _GUIDES
        for path in sorted(set(_named(page.read_text(encoding="utf-8"))))
    ],
)
def test_a_path_of_the_guides_is_there(page: Path, path: str) -> None:
    assert _is_there(path), f"{page.name} names {path}, which is neither in the tree nor package"


@pytest.mark.parametrize("page", _GUIDES, ids=lambda page: page.name)
def test_a_link_of_the_guides_leads_to_a_file(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    links = [each for each in re.findall(r"\]\(([^)#]+)", text) if "://" not in each]
    assert links
    assert [each for each in links if not (page.parent / each).exists()] == []
