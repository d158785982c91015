"""What others may import is there, documented and light; what we show imports nothing else."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

import pytest_hwqueue

_ROOT = Path(__file__).parents[1]
_NAMES = [name for name in pytest_hwqueue.__all__ if name != "__version__"]
_HEAVY = ("torch", "numpy", "scipy", "pydantic", "rich", "yaml")
_PAGES = [_ROOT / "README.md", *sorted((_ROOT / "docs").rglob("*.md"))]
_EXAMPLES = [
    *sorted((_ROOT / "examples").rglob("*.py")),
    *sorted((_ROOT / "benchmarks").glob("*.py")),
]
# The suite's own file for workloads of other packages looks them up.
_OURS = {"benchmarks/test_added.py": {"pytest_hwqueue.parts.workloads.registry"}}


def _shown() -> list[tuple[str, str]]:
    """Every example, and every block of Python on a page, with where it stands."""
    found = [(str(path.relative_to(_ROOT)), path.read_text()) for path in _EXAMPLES]
    for page in _PAGES:
        for match in re.finditer(
            r"^```python\n(.*?)^```", page.read_text(), re.MULTILINE | re.DOTALL
        ):
            line = page.read_text()[: match.start()].count("\n") + 1
            found.append((f"{page.relative_to(_ROOT)}:{line}", match[1]))
    return found


def _imported(code: str) -> list[tuple[str, str | None]]:
    """The modules and names that code imports of this package."""
    found: list[tuple[str, str | None]] = []
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.Import):
            found += [(each.name, None) for each in node.names]
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            found += [(node.module or "", each.name) for each in node.names]
    return [(module, name) for module, name in found if module.split(".")[0] == "pytest_hwqueue"]


@pytest.mark.parametrize("name", _NAMES)
def test_a_name_is_there_and_documented(name: str) -> None:
    found = getattr(pytest_hwqueue, name)
    assert found.__doc__
    assert found.__name__ == name


def test_a_name_that_is_not_public_is_refused() -> None:
    with pytest.raises(AttributeError, match="has no attribute 'Settings'"):
        _ = pytest_hwqueue.Settings


def test_the_page_of_names_lists_all_and_no_other() -> None:
    page = (_ROOT / "docs" / "api.md").read_text()
    rows = re.findall(r"^\| (`.*?) \|", page, re.MULTILINE)
    listed = [name for row in rows for name in re.findall(r"`(\w+)`", row)]
    assert sorted(listed) == sorted(_NAMES)


@pytest.mark.parametrize(("where", "code"), _shown(), ids=[where for where, _ in _shown()])
def test_what_is_shown_imports_public_names_alone(where: str, code: str) -> None:
    allowed = _OURS.get(where, set())
    for module, name in _imported(code):
        if module in allowed:
            continue
        assert module == "pytest_hwqueue", f"{where} imports {module}"
        assert name is None or name in pytest_hwqueue.__all__, f"{where} imports {name}"


def test_prose_names_no_module_to_import() -> None:
    for page in _PAGES:
        if page.name in ("decisions.md",):
            continue
        named = set(re.findall(r"`(pytest_hwqueue\.\w+)[\w.]*`", page.read_text()))
        # What `--pyargs` and entry points take are no imports.
        groups = {f"pytest_hwqueue.{each}" for each in _GROUPS}
        assert named <= {"pytest_hwqueue.benchmarks", *groups}, page


_GROUPS = ("workloads", "schedulers", "noises", "devices", "reports")


@pytest.mark.parametrize("module", ["pytest_hwqueue", "pytest_hwqueue.plugin"])
def test_importing_and_looking_through_it_imports_nothing_heavy(module: str) -> None:
    script = (
        f"import inspect, sys, {module}\n"
        # freezegun does so at each freeze, in suites that measure nothing.
        "for each in list(sys.modules.values()):\n"
        "    if each.__name__.startswith('pytest_hwqueue'): inspect.getmembers(each)\n"
        f"print([name for name in {_HEAVY!r} if name in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"
