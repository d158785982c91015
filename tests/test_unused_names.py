"""What only tests use is not part of the product."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

_TREE = Path(__file__).parents[1]
# Called by name: by pytest, pydantic, torch, urllib, click, a process that is started, a user.
_CALLED = re.compile(
    r"pytest_\w+|__\w+__|main|teardown|reportinfo|redirect_request|get_seq_length"
    r"|assert_p95|convert|format_commands|model_post_init"
)
_BY_OTHERS = {"_OneHost"}


def _module(path: Path) -> str:
    return ".".join(path.relative_to(_TREE).with_suffix("").parts).removesuffix(".__init__")


def unused() -> Iterator[str]:
    """Functions, classes and methods of the package that nothing but a test can reach.

    A function counts as used if its own module names it, if another imports it, or a string has it
    as registries do (``module:name``, a class's name); a method if any attribute is called so.
    """
    tops = ("pytest_hwqueue", "benchmarks", "tools", "examples")
    files = [path for top in tops for path in (_TREE / top).rglob("*.py")]
    trees = {path: ast.parse(path.read_text(encoding="utf-8")) for path in files}
    imported, attributes, strings = set(), set(), set()
    for node in (node for tree in trees.values() for node in ast.walk(tree)):
        if isinstance(node, ast.ImportFrom):
            imported |= {(node.module, alias.name) for alias in node.names}
        elif isinstance(node, ast.Attribute):
            attributes.add(node.attr)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            strings |= set(re.findall(r"(?<=:)\w+$|^[A-Z]\w+$", node.value))
    templates = [path.read_text() for path in (_TREE / "pytest_hwqueue").rglob("*.j2")]
    attributes |= {name for text in templates for name in re.findall(r"\.(\w+)", text)}
    for path, tree in trees.items():
        own = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
        modules = {name for name, _ in imported} | {f"{name}.{part}" for name, part in imported}
        for node in tree.body if path.is_relative_to(_TREE / "pytest_hwqueue") else ():
            if not isinstance(node, ast.FunctionDef | ast.ClassDef):
                continue
            by_attribute = node.name in attributes and _module(path) in modules
            if not (
                node.name in own | strings or (_module(path), node.name) in imported
                or by_attribute or _CALLED.fullmatch(node.name)
            ) and not node.decorator_list:  # fmt: skip
                yield f"{_module(path)}.{node.name}"
            for part in node.body if isinstance(node, ast.ClassDef) else ():
                if (
                    isinstance(part, ast.FunctionDef)
                    and part.name not in attributes | strings
                    and not _CALLED.fullmatch(part.name)
                    and not any("validator" in ast.unparse(each) for each in part.decorator_list)
                    and node.name not in _BY_OTHERS
                ):
                    yield f"{_module(path)}.{node.name}.{part.name}"


def test_nothing_is_there_for_tests_alone() -> None:
    assert list(unused()) == []
